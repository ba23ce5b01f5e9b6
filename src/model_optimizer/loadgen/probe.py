"""Before any load: is this an OpenAI-compatible streaming server, which dialect does it take, how does it count
words?
"""

from __future__ import annotations

from typing import Literal

from model_optimizer.errors import ServerUnusable
from model_optimizer.loadgen.client import PATHS, Api, Client, Reply, Shot
from model_optimizer.loadgen.http import clock
from model_optimizer.loadgen.prompts import WordFit, yardstick
from model_optimizer.metrics.loads import error_kind
from model_optimizer.metrics.requests import tpot_s, ttft_s
from model_optimizer.records.base import Emit, Record
from model_optimizer.records.workload import TrafficProfile

Extra = Literal["ignore_eos", "stream_options", "temperature"]

PROBE_TOKENS = 16
SHORT_WORDS = 32
FIX_URL = (
    "check that the URL is that of an OpenAI-compatible server (vLLM, SGLang, llama.cpp, …) and that it has started"
)


class Dialect(Record):
    """How this server wants to be asked. ``extras`` are the optional fields that it accepts."""

    api: Api
    model: str
    extras: tuple[Extra, ...] = ("ignore_eos", "stream_options", "temperature")
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    @property
    def path(self) -> str:
        """Where requests are posted."""
        return PATHS[self.api]

    def body(self, text: str, max_tokens: int) -> dict[str, object]:
        """A streaming request: greedy, exactly ``max_tokens`` long where the server can ignore the end of text."""
        body: dict[str, object] = {"model": self.model, "stream": True, self.limit_field: max_tokens}
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        values = {"ignore_eos": True, "stream_options": {"include_usage": True}, "temperature": 0}
        return body | {name: values[name] for name in self.extras}

    def without(self, refusal: str) -> Dialect | None:
        """A milder dialect after the server refused this one in these words; ``None`` where nothing is left to drop."""
        if "max_completion_tokens" in refusal and self.limit_field == "max_tokens":
            return self.model_copy(update={"limit_field": "max_completion_tokens"})
        if not self.extras:
            return None
        dropped = [name for name in self.extras if name in refusal] or [self.extras[0]]
        return self.model_copy(update={"extras": tuple(name for name in self.extras if name not in dropped)})


class ServerFacts(Record):
    """What the probe found. ``expected_s`` is a first guess of how long one request of the traffic takes alone."""

    dialect: Dialect
    usage_reported: bool
    word_fit: WordFit
    expected_s: float


async def probe(
    client: Client, traffic: TrafficProfile, *, model: str | None, api: Api | None, emit: Emit
) -> ServerFacts:
    """Ask until the server answers as it should, or raise ``ServerUnusable`` with what was asked and what came back."""
    evidence: list[str] = []
    model = model or await _served_model(client, evidence, emit)
    dialect, shot = await _agree(client, model, (api,) if api else ("completions", "chat"), evidence)
    fit = await _calibrate(client, dialect, shot, traffic)
    trace = shot.trace()
    per_token_s = tpot_s(trace) or 0.0
    return ServerFacts(
        dialect=dialect,
        usage_reported=shot.output_tokens is not None,
        word_fit=fit,
        expected_s=(ttft_s(trace) or 0.0) + per_token_s * traffic.output_tokens,
    )


async def _calibrate(client: Client, dialect: Dialect, short: Shot, traffic: TrafficProfile) -> WordFit:
    """How the server counts our words. What it adds to every prompt is counted once in two texts asked together:

    overhead = tokens(a) + tokens(b) − tokens(a b). Without usage, the defaults.
    """
    other = await _ask(client, dialect, yardstick(SHORT_WORDS, 2 * SHORT_WORDS)[1], 1)
    both_text = " ".join(yardstick(at, at + SHORT_WORDS)[1] for at in (0, SHORT_WORDS))
    both = await _ask(client, dialect, both_text, 1)
    longest = max(length.prompt_tokens for length in traffic.lengths)
    num_words, words = yardstick(0, max(2 * SHORT_WORDS, WordFit().num_words(longest)))
    long = await _ask(client, dialect, words, 1)
    if short.prompt_tokens is None or other.prompt_tokens is None or both.prompt_tokens is None:
        return WordFit()
    overhead = max(0, short.prompt_tokens + other.prompt_tokens - both.prompt_tokens)
    tokens = both.prompt_tokens if long.prompt_tokens is None else long.prompt_tokens
    counted = 2 * SHORT_WORDS if long.prompt_tokens is None else num_words
    return WordFit(overhead_tokens=overhead, tokens_per_word=max(0.1, (tokens - overhead) / counted))


async def _served_model(client: Client, evidence: list[str], emit: Emit) -> str:
    reply = await client.get("/v1/models")
    evidence.append(f"GET /v1/models → {_told(reply)}")
    if reply.error is not None:
        raise ServerUnusable("no server answers at this address", cause=reply.error, fix=FIX_URL, evidence=evidence)
    _refuse_without_key(reply.status, evidence)
    listed = reply.json()
    try:
        names = [str(entry["id"]) for entry in listed["data"]]
        model = names[0]
    except (TypeError, KeyError, IndexError):
        raise ServerUnusable(
            "the server does not say which model it serves",
            cause="GET /v1/models did not answer with a list of models",
            fix=f"name the model, or {FIX_URL}",
            evidence=evidence,
        ) from None
    if len(names) > 1:
        emit("note", text=f"the server offers {len(names)} models; measuring the first, {model}")
    return model


async def _agree(client: Client, model: str, apis: tuple[Api, ...], evidence: list[str]) -> tuple[Dialect, Shot]:
    """The first dialect that the server answers properly, and that answer."""
    _, words = yardstick(0, SHORT_WORDS)
    for api in apis:
        dialect: Dialect | None = Dialect(api=api, model=model)
        while dialect is not None:
            shot = await _ask(client, dialect, words, PROBE_TOKENS)
            kind = error_kind(shot.error or "")
            if kind in ("", "empty"):
                return dialect, shot
            evidence.append(f"POST {dialect.path} ({', '.join(dialect.extras) or 'plain'}) → {shot.error}")
            if kind == "connect":
                raise ServerUnusable(
                    "no server answers at this address", cause=shot.error or kind, fix=FIX_URL, evidence=evidence
                )
            _refuse_without_key(int(kind[5:]) if kind[5:].isdigit() else 0, evidence)
            dialect = dialect.without(shot.error or "") if kind in ("http_400", "http_422") else None
    raise ServerUnusable(
        "the server does not answer as an OpenAI-compatible streaming server would",
        cause=evidence[-1],
        fix=FIX_URL,
        evidence=evidence,
    )


def _refuse_without_key(status: int, evidence: list[str]) -> None:
    if status in (401, 403):
        raise ServerUnusable(
            "the server refuses us",
            cause="it wants an API key, or does not accept the one given",
            fix="pass the right key",
            evidence=evidence,
        )


async def _ask(client: Client, dialect: Dialect, words: str, max_tokens: int) -> Shot:
    shot = Shot(scheduled_s=clock(), target_prompt_tokens=0)
    await client.stream(dialect.path, dialect.body(words, max_tokens), shot)
    return shot


def _told(reply: Reply) -> str:
    if reply.error is not None:
        return reply.error
    return f"{reply.status} {reply.content_type}: {reply.body[:200].decode('utf-8', 'replace')}"
