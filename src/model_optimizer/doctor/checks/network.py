"""Proxies, hubs, package indexes and ports: what decides whether anything can be fetched or served."""

from __future__ import annotations

from collections.abc import Iterator

from model_optimizer.doctor.read.places import env
from model_optimizer.doctor.read.system import listeners, pairs
from model_optimizer.records.doctor import Hit, Seen, Survey

_SOURCE = "environment"
_LOOPBACK = {"localhost", "127.0.0.1"}
_HUB = "https://huggingface.co"
_PORTS = {8000: "vLLM and Triton", 8080: "llama.cpp", 30000: "SGLang"}
"""Default ports of the engines (kb: engines)."""
_TRUE = frozenset(("1", "true", "yes", "on"))


def proxies(survey: Survey) -> Iterator[Hit]:
    """Proxies that would also take requests to this machine, or that serve only one of http and https."""
    known = env(survey)
    named = {name: _proxy(known, name) for name in ("http_proxy", "https_proxy", "all_proxy")}
    used = {name: found for name, found in named.items() if found is not None}
    if not used:
        return
    shown = tuple(Seen(source=_SOURCE, text=f"{name}={value}") for name, value in used.values())
    excepted = _proxy(known, "no_proxy")
    hosts = {host.strip().lstrip(".").lower() for host in excepted[1].split(",")} if excepted else set()
    reached = ("http_proxy", "all_proxy")  # our servers speak http
    if any(name in used for name in reached) and "*" not in hosts and not hosts >= _LOOPBACK:
        line = f"{excepted[0]}={excepted[1]}" if excepted else "no_proxy is not set"
        missing = sorted(_LOOPBACK - hosts)
        wanted = [*(excepted[1].split(",") if excepted else ()), *missing]
        yield Hit(
            id="proxy-takes-loopback",
            evidence=(*shown, Seen(source=_SOURCE, text=line)),
            values={"missing": " and ".join(missing), "wanted": ",".join(host.strip() for host in wanted)},
        )
    if "http_proxy" in used and "https_proxy" not in used and "all_proxy" not in used:
        yield Hit(id="proxy-http-only", evidence=shown, values={"name": used["http_proxy"][0]})
    for name in named:
        lower, upper = known.get(name, ""), known.get(name.upper(), "")
        if lower and upper and lower != upper:
            yield Hit(
                id="proxy-contradiction",
                evidence=tuple(Seen(source=_SOURCE, text=f"{n}={known[n]}") for n in (name, name.upper())),
                values={"name": name, "upper": name.upper()},
            )


def _proxy(known: dict[str, str], name: str) -> tuple[str, str] | None:
    """The variable that counts (programs look for the small one first) and its value; empty means unset."""
    return next(((n, known[n]) for n in (name, name.upper()) if known.get(n, "").strip()), None)


def hub(survey: Survey) -> Iterator[Hit]:
    """Downloads switched off, another hub than the public one, no token."""
    known = env(survey)
    offline = [n for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if known.get(n, "").lower() in _TRUE]
    if offline:
        shown = tuple(Seen(source=_SOURCE, text=f"{n}={known[n]}") for n in offline)
        yield Hit(id="hub-offline", evidence=shown, values={"names": " ".join(offline)})
    endpoint = known.get("HF_ENDPOINT", "").rstrip("/")
    if endpoint and endpoint != _HUB:
        seen = Seen(source=_SOURCE, text=f"HF_ENDPOINT={endpoint}")
        yield Hit(id="hub-endpoint", evidence=(seen,), values={"endpoint": endpoint})
    token = pairs(survey.text("hub"), ": ").get("token")
    if token == "none" and not offline:  # noqa: S105
        yield Hit(id="hub-token-absent", evidence=(Seen(source="HF_TOKEN and token file", text="neither is set"),))


def indexes(survey: Survey) -> Iterator[Hit]:
    """Package indexes switched off, so that no environment can be built; or other ones than the public one."""
    pip = pairs(survey.text("package-index"), ": ")
    known = env(survey)
    closed = pip.get("no-index", "").lower() in _TRUE or known.get("UV_OFFLINE", "").lower() in _TRUE
    named = [(n, pip[n]) for n in ("index-url", "extra-index-url", "find-links", "no-index") if n in pip]
    shown = [Seen(source="pip settings", text=f"{name} = {value}") for name, value in named]
    uv = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_OFFLINE")
    shown += [Seen(source=_SOURCE, text=f"{n}={known[n]}") for n in uv if known.get(n)]
    if closed:
        yield Hit(id="package-index-off", evidence=tuple(shown))
    elif shown:
        yield Hit(id="package-index-own", evidence=tuple(shown))


def ports(survey: Survey) -> Iterator[Hit]:
    """Default ports of the engines that somebody else holds."""
    taken = [
        entry
        for entry in listeners(survey.text("ss"), survey.text("tcp4") + "\n" + survey.text("tcp6"))
        if entry.port in _PORTS
    ]
    if not taken:
        return
    lines = []
    for entry in taken:
        holder = f"{entry.program} (pid {entry.pid})" if entry.program else "a process that this user may not see"
        lines.append(Seen(source="listening TCP sockets", text=f"{entry.address}:{entry.port} held by {holder}"))
    names = ", ".join(str(entry.port) for entry in taken)
    whose = "; ".join(f"{entry.port}: {_PORTS[entry.port]}" for entry in taken)
    yield Hit(id="port-taken", evidence=tuple(lines), values={"ports": names, "whose": whose, "port": taken[0].port})


CHECKS = (proxies, hub, indexes, ports)
