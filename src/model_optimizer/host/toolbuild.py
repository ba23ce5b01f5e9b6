"""Builds one tool environment with uv, from a lock, in a folder that nobody else sees yet."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from model_optimizer.errors import DiskFull, HostError, NetworkUnavailable, ToolBroken
from model_optimizer.host.causes import first_cause
from model_optimizer.host.pipsettings import pip_options, uv_env
from model_optimizer.host.process import Completed, run
from model_optimizer.records.base import Emit
from model_optimizer.units import parse_bytes

_TIMEOUT_S = 6 * 3600.0
_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup|connection (?:refused|reset|closed)|tcp connect|timed out"
    r"|timeout|network is unreachable|certificate|tunnel|network connectivity is disabled",
    re.IGNORECASE,
)
_DOWNLOADING = re.compile(r"^Downloading (\S+) \(([\d.]+ ?[KMGT]?i?B)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (\S+)")
_CAUSE = re.compile(r"^\s*(?:error:|cause:|Caused by:|[×├╰]─?▶?)\s*(.+)")
_CPU_TORCH = re.compile(r"^(torch==[\d.]+\+cpu)\b")


def build(name: str, requirements: Sequence[str], folder: Path, *, log: Path, emit: Emit) -> None:
    """Make ``folder`` a virtual environment with exactly ``requirements`` in it.

    Nothing is compiled and nothing resolved beyond the lines given. Raises ``NetworkUnavailable``, ``DiskFull`` or
    ``ToolBroken``, each with uv's own words as evidence and the whole output in ``log``.
    """
    # The time-out of compiling is for each file and meant for hangs; on a busy machine 60 s, its default, is too short.
    ours = {"UV_PYTHON_DOWNLOADS": "never", "UV_COMPILE_BYTECODE_TIMEOUT": "600", "NO_COLOR": "1"}
    env = ours | uv_env(os.environ, pip_options(os.environ))
    lock = folder.with_name(folder.name + ".txt")
    lock.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    python = folder / "bin" / "python"
    try:
        # relocatable: it is built under a temporary name and renamed when it is finished
        emit("progress", what=f"install {name}: prepare", done=0, total=None, unit="")
        made = _uv(["venv", "--relocatable", "--no-project", "--python", sys.executable, str(folder)], env, folder, log)
        _require_success(name, made, log)
        progress = UvProgress(name, len(requirements), emit)
        # Without compiled bytecode every start of torch and transformers takes 20 to 60 s where it cannot be written.
        install = ["pip", "install", "--python", str(python), "--no-deps", "--no-build", "--compile-bytecode"]
        backend = _torch_backend(requirements, python, env, log)
        done = _uv([*install, *backend, "-r", str(lock)], env, folder, log, progress)
        _require_success(name, done, log)
    finally:
        lock.unlink(missing_ok=True)


class UvProgress:
    """Turns the lines of ``uv pip install`` into progress events: bytes while downloading, then the later phases."""

    def __init__(self, name: str, num_packages: int, emit: Emit) -> None:
        self._name = name
        self._num_packages = num_packages
        self._emit = emit
        self._announced: dict[str, int] = {}
        self._done: set[str] = set()

    def __call__(self, line: str) -> None:
        """One line of output. Packages under a MiB are not announced by uv and count for nothing."""
        if match := _DOWNLOADING.match(line):
            self._announced[match[1]] = parse_bytes(match[2])
            self._tell("download", self._bytes_done(), sum(self._announced.values()), "bytes")
        elif match := _DOWNLOADED.match(line):
            self._done.add(match[1])
            self._tell("download", self._bytes_done(), sum(self._announced.values()), "bytes")
        elif line.startswith("Prepared "):
            self._tell("unpack", 0, self._num_packages, "packages")
        elif line.startswith("Installed "):
            self._tell("compile", 0, None, "")  # the longest phase for torch; uv does not tell how far it is

    def _bytes_done(self) -> int:
        return sum(size for package, size in self._announced.items() if package in self._done)

    def _tell(self, phase: str, done: int, total: int | None, unit: str) -> None:
        self._emit("progress", what=f"install {self._name}: {phase}", done=done, total=total, unit=unit)


def _torch_backend(requirements: Sequence[str], python: Path, env: dict[str, str], log: Path) -> list[str]:
    """The option that lets uv find the CPU build of torch, where the user's own places do not offer it.

    A lock for the CPU names ``torch==X+cpu``, so a CUDA build can never come, whatever an index offers: for Linux PyPI
    has only that one, half a GB plus 4 GB of CUDA libraries. ``+cpu`` wheels lie in PyTorch's own index, to which uv's
    ``--torch-backend cpu`` leads, unless find-links or an extra index of the user has one: asked first, because on many
    machines PyTorch's index cannot be reached. The question costs a second: a dry run looks at names and downloads
    nothing.
    """
    wanted = next((match[1] for line in requirements if (match := _CPU_TORCH.match(line))), None)
    closed = "UV_NO_INDEX" in (env | os.environ)  # --torch-backend would ask an index all the same
    if wanted is None or closed or "UV_TORCH_BACKEND" in os.environ:
        return []
    ask = ["pip", "install", "--dry-run", "--no-deps", "--no-build", "--python", str(python), wanted]
    return [] if _uv(ask, env, python, log).returncode == 0 else ["--torch-backend", "cpu"]


def _uv(
    arguments: Sequence[str], env: Mapping[str, str], near: Path, log: Path, on_line: UvProgress | None = None
) -> Completed:
    # In a folder of ours: uv reads the project files of the folder it is started in.
    from uv import find_uv_bin  # noqa: PLC0415 (load-testing a server needs no uv)

    return run([find_uv_bin(), *arguments], env=env, cwd=log.parent, log=log, timeout_s=_TIMEOUT_S, on_line=on_line)


def _require_success(name: str, done: Completed, log: Path) -> None:
    if done.returncode != 0:
        raise _problem(name, done, log)


def _problem(name: str, done: Completed, log: Path) -> HostError:
    text = "\n".join(done.tail)
    chain = error_chain(done.tail) or [first_cause(done.tail) or f"uv ended with status {done.returncode}"]
    evidence = [line for line in done.tail if line.strip()][-8:]
    interpreter = f"use an interpreter that has {name}: tools: {{{name}: {{python: PATH}}}} in the request file"
    if "No space left on device" in text:
        return DiskFull(
            f"the disk was full while {name} was installed",
            cause="no space left on the disk of the environments or of uv's cache (uv cache dir)",
            fix="free space there, or choose another disk: MODEL_OPTIMIZER_HOME and UV_CACHE_DIR",
            evidence=evidence,
            log=str(log),
        )
    # Only the CPU build of torch is looked for outside the user's own places: see _torch_backend.
    torch_missing = "/torch/" in text or "no version of torch" in text
    torch = "give pip a place that has the CPU build of torch (pip config set global.find-links FOLDER_OR_URL), or "
    if _NETWORK.search(text):
        return NetworkUnavailable(
            f"the packages of {name} could not be fetched",
            cause=": ".join(dict.fromkeys([_fetching(chain), chain[-1]])),
            fix="check the network and proxy; a mirror set for pip (pip config set global.index-url URL) is used here "
            f"too; or {torch if torch_missing else ''}{interpreter}",
            evidence=evidence,
            log=str(log),
        )
    return ToolBroken(
        f"{name} could not be installed",
        cause=chain[-1],
        fix=(torch if torch_missing else "use a package index that has every pinned version, or ") + interpreter,
        evidence=evidence,
        log=str(log),
    )


def error_chain(lines: Sequence[str]) -> list[str]:
    """uv's error and its causes, outermost first, each on one line whatever its line breaks."""
    chain: list[str] = []
    for line in lines:
        if match := _CAUSE.match(line):
            chain.append(match[1].strip())
        elif line.strip().startswith("hint:"):
            break
        elif chain and line.strip(" │"):
            chain[-1] += " " + line.strip(" │")
    return chain


def _fetching(chain: Sequence[str]) -> str:
    """The link that says which address could not be fetched."""
    return next((link for link in chain if "fetch" in link.lower()), chain[0])
