"""Readings of the system that no single file or program gives: composed here as short texts, one value a line.

Every function only reads, raises nothing but ``OSError``, and writes no secret: values of variables that look like one
are replaced by ``(set)``, logins in URLs by ``***``.
"""

from __future__ import annotations

import json
import locale
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_optimizer.host.pipsettings import pip_options

_ROOT = Path("/")
_INITIAL_NAMESPACES = {"cgroup": 4026531835, "ipc": 4026531839, "pid": 4026531836, "uts": 4026531838}
"""Numbers of the namespaces that a machine starts with (Linux: include/linux/proc_ns.h); a container has others."""
_WANTED = re.compile(
    r"^(?:(?:https?|all|no|ftp)_proxy|HF_\w+|HUGGING\w+|TRANSFORMERS_\w+|PIP_\w+|UV_\w+|CUDA_\w+|NVIDIA_\w+|NCCL_\w+"
    r"|HIP_\w+|ROCR_\w+|OMP_\w+|MKL_\w+|KMP_\w+|VLLM_\w+|TORCH_\w+|PYTORCH_\w+|MODEL_OPTIMIZER_\w+|LD_LIBRARY_PATH"
    r"|LD_PRELOAD|PYTHON(?:PATH|HOME|NOUSERSITE|UTF8|IOENCODING)|VIRTUAL_ENV|CONDA_\w+|LANG|LC_\w+|TMPDIR|HOME|SHELL"
    r"|XDG_CACHE_HOME|KUBERNETES_SERVICE_HOST|WSL_DISTRO_NAME|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|CONTAINER_HOST|DOCKER_HOST|DOCKER_CONTEXT|SLURM_JOB_ID)$",
    re.IGNORECASE,
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSWD|CREDENTIAL|AUTH|(?:^|_)KEY(?:$|_)|APIKEY", re.IGNORECASE)
_TOOL_FOLDER = re.compile(r"[A-Za-z0-9.-]+-[0-9a-f]{12}")
_PATH_NAME = re.compile(r"(?:_PATH|_DIR|_FILE|_HOME|_BUNDLE)$", re.IGNORECASE)
_LOGIN = re.compile(r"""(?<=://)[^/\s'"]{1,512}(?=@)|(?<![/\w.])[^/\s,:@='"]{1,64}:[^/\s,@'"]{1,256}(?=@)""")
_QUERY_SECRET = re.compile(r"(?i)([?&](?:\w*token|\w*key|sig\w*|password)=)[^&\s]+")
_TOKEN_SHAPE = re.compile(r"\b(?:hf|ghp|gho|glpat|sk|nvapi)[_-][A-Za-z0-9_-]{12,}")


def masked(text: str) -> str:
    """The text without logins in URLs and without what is shaped like a token."""
    return _TOKEN_SHAPE.sub("***", _QUERY_SECRET.sub(r"\1***", _LOGIN.sub("***", text)))


def environment(environ: Mapping[str, str] | None = None) -> str:
    """The variables that engines, hubs, proxies and package tools listen to, ``NAME=value``; secrets as ``(set)``."""
    lines = []
    for name, value in sorted((os.environ if environ is None else environ).items()):
        if _WANTED.match(name):
            secret = bool(_SECRET.search(name)) and not _PATH_NAME.search(name)
            lines.append(f"{name}={'(set)' if secret and value else masked(' '.join(value.split()))}")
    return "\n".join(lines)


def hub(environ: Mapping[str, str] | None = None) -> str:
    """Where the Hugging Face cache and token lie, whether they are there, and how much the cache holds.

    The rules are huggingface_hub's (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME; HF_TOKEN_PATH). A token's file is looked
    at for its presence and size alone.
    """
    env = os.environ if environ is None else environ
    cache, home = hub_cache(env), _hub_home(env)
    token_file = Path(env.get("HF_TOKEN_PATH") or home / "token").expanduser()
    in_env = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if env.get(name, "").strip()), None)
    try:
        in_file = token_file.stat().st_size > 0
        mode = f"{token_file.stat().st_mode & 0o777:o}"
    except OSError:
        in_file, mode = False, ""
    lines = {"cache": str(cache), "cache-exists": _word(cache.is_dir())}
    if cache.is_dir():
        size, models, whole = _cache_size(cache)
        lines |= {"cache-bytes": str(size), "cache-models": str(models), "cache-measured": _word(whole)}
    lines |= {"token": f"environment {in_env}" if in_env else "file" if in_file else "none"}
    if in_file:
        lines |= {"token-file": str(token_file), "token-file-mode": mode}
    return _text(lines)


def hub_cache(env: Mapping[str, str]) -> Path:
    """The folder of downloaded models, as huggingface_hub chooses it."""
    chosen = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    return (Path(chosen) if chosen else _hub_home(env) / "hub").expanduser()


def _hub_home(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(env.get("HF_HOME") or Path(base) / "huggingface").expanduser()


def _cache_size(cache: Path, limit_s: float = 2.0) -> tuple[int, int, bool]:
    """Bytes, number of models, and whether there was time to count everything."""
    started, total, models = time.monotonic(), 0, 0
    for model in cache.iterdir():
        models += model.name.startswith("models--")
        for root, _, names in os.walk(model):
            for name in names:
                try:
                    total += os.lstat(f"{root}/{name}").st_size
                except OSError:
                    continue
            if time.monotonic() - started > limit_s:
                return total, models, False
    return total, models, True


def python() -> str:
    """This interpreter, its C library and its encodings."""
    libc, version = platform.libc_ver()
    if not libc:
        libc = "musl" if any(Path("/lib").glob("ld-musl-*")) else "unknown"
    lines = {
        "system": platform.system(), "machine": platform.machine(), "implementation": platform.python_implementation(),
        "version": platform.python_version(), "executable": sys.executable, "libc": f"{libc} {version}".strip(),
        "filesystem-encoding": sys.getfilesystemencoding(), "preferred-encoding": locale.getpreferredencoding(False),
        "user": str(os.geteuid()) if hasattr(os, "geteuid") else "unknown",
    }  # fmt: skip
    if platform.system() == "Darwin":
        lines["macos"] = platform.mac_ver()[0]
    if platform.system() == "Windows":
        lines["windows"] = platform.version()
    return _text(lines)


def programs() -> str:
    """Which programs are on the path, and where they really lie."""
    names = ("docker", "podman", "nerdctl", "nvidia-ctk", "nvidia-container-cli", "nvidia-smi", "rocm-smi", "chronyc",
             "timedatectl", "gcc", "c++", "cmake", "nvcc", "ninja", "numactl", "git", "uv", "pip")  # fmt: skip
    found = ((name, shutil.which(name)) for name in names)
    return _text({name: f"{path} -> {os.path.realpath(path)}" for name, path in found if path})


def container_marks(root: Path = _ROOT, environ: Mapping[str, str] | None = None) -> str:
    """What tells a container from a machine of its own: marker files, variables, namespaces, the first process."""
    env = os.environ if environ is None else environ
    lines = {f"/{name}": "there" for name in (".dockerenv", "run/.containerenv") if (root / name).exists()}
    lines |= {name: "set" for name in ("KUBERNETES_SERVICE_HOST", "container") if env.get(name)}
    try:
        here = {name: str((root / "proc/self/ns" / name).readlink()) for name in _INITIAL_NAMESPACES}
        own = all(str(number) in here[name] for name, number in _INITIAL_NAMESPACES.items())
        lines["namespaces"] = "the machine's own" if own else "separate"
    except OSError:
        pass
    first = " ".join(_read(root / "proc/1/cgroup").split())
    return _text(lines | {"/proc/1/cgroup": first[:300], "/proc/1/comm": _read(root / "proc/1/comm")})


def cgroup_limits(root: Path = _ROOT) -> str:
    """Memory and processor limits of this process's control groups and their parents, ``path: value``."""
    mount = root / "sys/fs/cgroup"
    wanted = ("memory.max", "memory.high", "memory.current", "memory.swap.max", "cpu.max", "memory.limit_in_bytes",
              "memory.usage_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuset.cpus.effective",
              "cpuset.effective_cpus")  # fmt: skip
    found: dict[str, str] = {}
    for line in (_read(root / "proc/self/cgroup") or "0::/").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        top = mount / controllers if controllers else mount
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top) and folder.is_dir():
                values = {folder / name: _read(folder / name) for name in wanted}
                found |= {f"/{file.relative_to(root)}": value for file, value in values.items() if value}
    return _text(found)


def files(patterns: Iterable[str], root: Path = _ROOT) -> str:
    """The first lines of the files that match, ``path: value``."""
    paths = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    return _text({f"/{path.relative_to(root)}": _read(path).partition("\n")[0][:200] for path in paths[:1024]})


def package_index(environ: Mapping[str, str] | None = None) -> str:
    """pip's settings of where packages come from, logins struck out."""
    return _text(
        {name: masked(value) for name, value in pip_options(os.environ if environ is None else environ).items()}
    )


def clock(watched: Iterable[Path]) -> str:
    """What time it is, and the newest file time in the given folders: a file from the future shows a clock set back."""
    now, newest, where = time.time(), 0.0, ""
    for folder in watched:
        for entry in _entries(folder):
            try:
                changed = entry.stat(follow_symlinks=False).st_mtime
            except OSError:
                continue
            if changed > newest:
                newest, where = changed, entry.path
    return _text({"now": f"{now:.0f}", "newest-file": f"{newest:.0f} {where}" if where else ""})


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(5000), strict=False)]
    except OSError:
        return []


def tool_environments(home: Path) -> str:
    """Every environment below ``home``, one JSON object a line: its record, and whether its interpreter is there.

    Nothing is started. ``python`` is where the link finally leads.
    """
    lines = []
    for folder in sorted(home.iterdir()) if home.is_dir() else []:
        if not _TOOL_FOLDER.fullmatch(folder.name) or not folder.is_dir():
            continue
        interpreter = folder / "bin" / "python"
        entry: dict[str, Any] = {"folder": str(folder), "interpreter": os.access(interpreter, os.X_OK)}
        entry["python"] = os.path.realpath(interpreter)
        try:
            record = json.loads((folder / "tool.json").read_text())
            entry["version"] = str(record["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            entry["damage"] = f"tool.json: {type(error).__name__}"
        lines.append(json.dumps(entry))
    return "\n".join(lines)


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return ""


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _text(lines: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in lines.items() if value)
