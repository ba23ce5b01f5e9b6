"""Watch a server from outside: its metrics page again and again, and what it says of itself. It is not loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from model_optimizer.errors import ServerUnusable
from model_optimizer.loadgen.client import Client, Reply
from model_optimizer.loadgen.http import Address, clock
from model_optimizer.loadgen.probe import FIX_URL
from model_optimizer.records.base import Emit, Record
from model_optimizer.records.live import Scrape

LOOK_EVERY_S = 1.0
_TIMEOUT_S = 10.0
_OWNERS = {"llamacpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "tensorrt-llm"}


class ServerIdentity(Record):
    """What a server says of itself. ``slots``: requests that it runs at once, where it says so."""

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    slots: int | None = None
    page_path: str | None = None


class Watched(NamedTuple):
    """The looks, oldest first, and who was looked at."""

    scrapes: tuple[Scrape, ...]
    identity: ServerIdentity


class Seen(NamedTuple):
    """What the host saw beside a page, where the server runs on it."""

    process_cpu_s: Mapping[int, float] = {}
    gpu_busy: float | None = None


def watch(
    url: str,
    paths: Sequence[str],
    *,
    seconds: float,
    emit: Emit,
    api_key: str | None = None,
    see: Callable[[], Seen] = Seen,
) -> Watched:
    """Look at the metrics page (the first of ``paths`` that is one) every second for that long, twice at least.

    A server without such a page gives one scrape with the reason. Raises ``ServerUnusable`` where nothing answers or
    a key is needed, ``SpecInvalid`` for an address that is none. ``see`` is called beside each look, in a thread.
    """
    return asyncio.run(_watch(url, tuple(dict.fromkeys(paths)), seconds, emit, api_key, see))


async def _watch(
    url: str, paths: tuple[str, ...], seconds: float, emit: Emit, api_key: str | None, see: Callable[[], Seen]
) -> Watched:
    async with Client(Address.parse(url), api_key=api_key, timeout_s=_TIMEOUT_S) as client:
        identity = await _identify(client)
        path, refusal = await _page(client, paths)
        if path is None:
            return Watched((Scrape(at_s=clock(), error=refusal),), identity)
        identity = identity.model_copy(update={"page_path": path})
        scrapes, began_s = [], clock()
        until_s = began_s + max(seconds, LOOK_EVERY_S)
        while True:
            seen = await asyncio.to_thread(see)
            scrapes.append(await _look(client, path, seen))
            now_s = clock()
            emit("progress", what="watching the server", done=round(now_s - began_s), total=round(seconds), unit="s")
            if now_s >= until_s:
                return Watched(tuple(scrapes), identity)
            due_s = began_s + LOOK_EVERY_S * (int((now_s - began_s) / LOOK_EVERY_S) + 1)
            await asyncio.sleep(max(0.0, min(due_s, until_s) - now_s))


async def _look(client: Client, path: str, seen: Seen) -> Scrape:
    reply = await client.get(path, timeout_s=_TIMEOUT_S)
    refusal = _refusal(path, reply)
    return Scrape(
        at_s=clock(),
        page="" if refusal else reply.body.decode("utf-8", "replace"),
        error=refusal,
        process_cpu_s=dict(seen.process_cpu_s),
        gpu_busy=seen.gpu_busy,
    )


async def _page(client: Client, paths: tuple[str, ...]) -> tuple[str | None, str]:
    """The path that has a metrics page, else why none has."""
    refusals, best = [], None
    for path in paths:
        reply = await client.get(path, timeout_s=_TIMEOUT_S)
        refusal = _refusal(path, reply)
        if refusal is None and _has_samples(reply):
            return path, ""
        best = path if refusal is None and best is None else best
        refusals.append(refusal or f"GET {path}: an answer without samples")
    if best is not None:  # an empty page may fill, and what it is will be told
        return best, ""
    return None, "; ".join(refusals)


def _has_samples(reply: Reply) -> bool:
    lines = (line for line in reply.body.splitlines() if line.strip())
    return any(not line.startswith((b"#", b"<")) for line in lines)


def _refusal(path: str, reply: Reply) -> str | None:
    """Why this is no metrics page; ``None``: it may be one."""
    if reply.error is not None:
        return f"GET {path}: {reply.error}"
    if reply.status in (401, 403):
        raise ServerUnusable(
            "the metrics page is not open to us",
            cause=f"GET {path} → HTTP {reply.status}",
            fix="set the API key in the environment variable that --api-key-env names",
        )
    if reply.status != 200:
        return f"GET {path}: HTTP {reply.status}"
    kind = reply.content_type.split(";")[0].strip()
    if kind in ("text/html", "application/json") or reply.body[:15].lstrip().lower().startswith(
        (b"<!doctype", b"<html")
    ):
        return f"GET {path}: {kind or 'HTML'} instead of a Prometheus page"
    return None


async def _identify(client: Client) -> ServerIdentity:
    """From the pages that engines have beside the API. Raises ``ServerUnusable`` where nothing answers at all."""
    models = await client.get("/v1/models", timeout_s=_TIMEOUT_S)
    if models.error is not None and not models.error.startswith("timeout"):  # a busy server is still one
        raise ServerUnusable("no server answers at this address", cause=models.error, fix=FIX_URL)
    listed = _first(models.json())
    owner = str(listed.get("owned_by", "")).lower()
    told = {
        path: (await client.get(path, timeout_s=_TIMEOUT_S)).json()
        for path in ("/version", "/props", "/server_info", "/info")
    }
    version, props, info, tgi = (value if isinstance(value, dict) else {} for value in told.values())
    engine = _OWNERS.get(owner)
    if "total_slots" in props:
        engine = "llama.cpp"
    elif "mem_fraction_static" in info or "max_running_requests" in info:
        engine = "sglang"
    elif "max_total_tokens" in tgi and "max_concurrent_requests" in tgi:
        engine = "tgi"
    return ServerIdentity(
        engine=engine,
        version=_text(version.get("version") or props.get("build_info") or info.get("version") or tgi.get("version")),
        model=_text(listed.get("id")),
        slots=_count(props.get("total_slots") or info.get("max_running_requests")),
    )


def _first(listed: Any) -> dict[str, Any]:
    try:
        entry = listed["data"][0]
    except (TypeError, KeyError, IndexError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _text(value: Any) -> str | None:
    return str(value)[:100] if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
