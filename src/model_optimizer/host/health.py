"""Health checks as values: one line each for *fine*, *note*, *warning*, *error*, and what a foreign file really is."""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

from model_optimizer.records.model import HealthCheck
from model_optimizer.units import format_bytes

FETCH_AGAIN = "Download the file again and compare its size and SHA-256 with those shown at its source."

_LFS = b"version https://git-lfs"
_LFS_SIZE = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)
_LEGACY_GGML = {b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla"}
_PICKLE = re.compile(rb"^\x80[\x02-\x05]")


def fine(check: str, message: str) -> HealthCheck:
    """A check that passed, with what was seen."""
    return HealthCheck(id=check, severity="ok", message=message)


def note(check: str, message: str, fix: str | None = None) -> HealthCheck:
    """Worth knowing, nothing to repair."""
    return HealthCheck(id=check, severity="note", message=message, fix=fix)


def warning(check: str, message: str, fix: str) -> HealthCheck:
    """May go wrong in some engine; the checkpoint is still used."""
    return HealthCheck(id=check, severity="warning", message=message, fix=fix)


def error(check: str, message: str, fix: str) -> HealthCheck:
    """The checkpoint cannot be used like this."""
    return HealthCheck(id=check, severity="error", message=message, fix=fix)


def unreadable(path: Path, problem: OSError) -> HealthCheck:
    """Why the operating system would not let us read ``path``."""
    if problem.errno in (errno.EACCES, errno.EPERM):
        return error(
            "files.permission",
            f"{path.name} may not be read: permission denied",
            f"Give this user read access, for example: chmod u+r '{path}' (and u+x on its folders).",
        )
    if problem.errno == errno.ENOENT:
        return error("files.missing", f"{path.name} is missing", "Download the missing file, or the checkpoint, again.")
    reason = problem.strerror or type(problem).__name__
    return error("files.read", f"{path.name} cannot be read: {reason}", "Check the disk, then copy the file again.")


def not_regular(path: Path, mode: int) -> HealthCheck | None:
    """An error where ``path`` is a folder, a pipe or a device: opening one of those could block for ever."""
    if stat.S_ISREG(mode):
        return None
    kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    return error("files.read", f"{path.name} is {kind}, a file was expected", FETCH_AGAIN)


def foreign_file(name: str, head: bytes, size: int) -> HealthCheck | None:
    """What was saved under a weights file's name instead of weights, told from its first bytes.

    ``None``: nothing known. Covers what people really have on disk: a Git LFS pointer, an error or login page, an error
    message as JSON or XML, a PyTorch pickle, a file from before GGUF, nothing but zeros.
    """
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if head.startswith(_LFS):
        true_size = _LFS_SIZE.search(head)
        real = f"; the real file has {format_bytes(int(true_size[1]))}" if true_size else ""
        return error(
            "weights.lfs_pointer",
            f"{name} is a Git LFS pointer of {size} bytes, not the file itself{real}",
            f"Run `git lfs install && git lfs pull` in the cloned repository, or download {name} itself.",
        )
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<error")):
        return error(
            "weights.web_page",
            f"{name} is a web page, not weights: a server's answer (a login, an error, or the page around the file) "
            "was saved under this name",
            "Download the file itself: on a model hub the link with /resolve/ instead of /blob/.",
        )
    if text.startswith((b'{"error', b"invalid username", b"access to model", b"entry not found")):
        return error(
            "weights.web_page",
            f"{name} is a server's error message, not weights: {_printable(head[:80])}",
            "Solve what the message says (often: a token is needed), then download the file again.",
        )
    return _other_format(name, head, size)


def _other_format(name: str, head: bytes, size: int) -> HealthCheck | None:
    if size == 0:
        return error("weights.header", f"{name} is empty", FETCH_AGAIN)
    if head.count(0) == len(head):
        return error(
            "weights.header",
            f"{name} begins with zeros: the space was reserved and the download did not fill it",
            FETCH_AGAIN,
        )
    if head[:4] == b"PK\x03\x04" or _PICKLE.match(head):
        return error(
            "weights.pickle",
            f"{name} is a PyTorch pickle under another name; loading one can run any code it contains",
            "Get the safetensors files of this model instead.",
        )
    if head[:4] in _LEGACY_GGML:
        return error(
            "weights.legacy_ggml",
            f"{name} is a GGML file from before GGUF (2023)",
            "Get a GGUF version, or convert the original checkpoint anew.",
        )
    return None


def _printable(data: bytes) -> str:
    return "".join(c if c.isprintable() else " " for c in data.decode("utf-8", "replace")).strip()
