"""The user's pip settings in uv's words: a mirror configured for pip is how many machines reach packages at all.

uv reads none of pip's configuration. Read here: pip's files (system, user, environment, ``PIP_CONFIG_FILE``) and
``PIP_*`` variables, later ones over earlier ones, as pip merges them. ``UV_*`` variables that are set already win.

pip's ``constraint`` needs no translation: what is installed comes from a lock that pins every package, so a constraint
can only agree with it (no effect) or contradict it (the lock wins).
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

# pip's own commands whose sections hold what concerns installing; a later one overrides an earlier one.
_SECTIONS = ("global", "install")
_OPTIONS = (
    "index-url", "extra-index-url", "find-links", "trusted-host", "cert", "client-cert", "proxy", "no-index",
    "default-timeout", "timeout", "retries",
)  # fmt: skip


def pip_options(
    environ: Mapping[str, str], *, home: Path | None = None, prefix: Path | None = None, etc: Path = Path("/etc")
) -> dict[str, str]:
    """pip's merged settings, of the options that concern where packages come from. Unreadable files are passed over."""
    found: dict[str, str] = {}
    for path in _config_files(environ, home or Path.home(), prefix or Path(sys.prefix), etc):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in _SECTIONS:
            if parser.has_section(section):
                found |= {key.lower().replace("_", "-"): value for key, value in parser.items(section)}
    for name in _OPTIONS:
        if value := environ.get("PIP_" + name.upper().replace("-", "_")):
            found[name] = value
    if "timeout" not in found and "default-timeout" in found:  # the older name of the same option
        found["timeout"] = found["default-timeout"]
    return {name: found[name] for name in _OPTIONS if name in found and name != "default-timeout"}


def uv_env(environ: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """The variables to add for uv. Local indexes and folders that do not exist are left out, as pip does."""
    indexes = _existing(options.get("extra-index-url", "").split())
    wanted = {
        "UV_DEFAULT_INDEX": next(iter(_existing(options.get("index-url", "").split())), ""),
        "UV_INDEX": " ".join(indexes),
        "UV_FIND_LINKS": ",".join(_existing(options.get("find-links", "").split())),
        "UV_INSECURE_HOST": " ".join(options.get("trusted-host", "").split()),
        "UV_NO_INDEX": "1" if options.get("no-index", "").lower() in ("1", "true", "yes", "on") else "",
        "UV_HTTP_TIMEOUT": options.get("timeout", "") if options.get("timeout", "").isdigit() else "",
        "UV_HTTP_RETRIES": options.get("retries", "") if options.get("retries", "").isdigit() else "",
        "SSL_CERT_FILE": next(iter(_existing([options.get("cert", "")])), ""),
        "SSL_CLIENT_CERT": options.get("client-cert", ""),
        # pip takes the best version from all its indexes; uv by default only looks into the first that knows the name.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if indexes else "",
    }
    if proxy := options.get("proxy", ""):
        wanted["ALL_PROXY"] = proxy if "://" in proxy else f"http://{proxy}"
    same = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}  # older names of the same settings
    return {
        name: value
        for name, value in wanted.items()
        if value and name not in environ and same.get(name, name) not in environ
    }


def _config_files(environ: Mapping[str, str], home: Path, prefix: Path, etc: Path) -> list[Path]:
    """Where pip looks, lowest precedence first (pip's documentation, "Configuration")."""
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:  # pip's way to switch files off
        return []
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [
        Path(folder) / "pip/pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if folder
    ]
    user = [home / ".pip/pip.conf", config / "pip/pip.conf"]
    if sys.platform == "darwin":
        system = [Path("/Library/Application Support/pip/pip.conf")]
        user.append(home / "Library/Application Support/pip/pip.conf")
    return [*system, etc / "pip.conf", *user, prefix / "pip.conf", *([Path(chosen)] if chosen else [])]


def _existing(places: Iterable[str]) -> list[str]:
    """Those that are remote, or lie on this disk."""
    kept = []
    for place in places:
        parts = urlsplit(place)
        if parts.scheme in ("", "file"):
            path = Path(unquote(parts.path)).expanduser()
            if place and path.exists():
                kept.append(place if parts.scheme else str(path))
        else:
            kept.append(place)
    return kept
