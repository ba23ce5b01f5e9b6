"""What went wrong between us and the hub, in words: one place where huggingface_hub's exceptions are read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import DiskFull, ModelOptimizerError, NetworkUnavailable, NotWritable, UnknownName


class Problem(NamedTuple):
    """The error to show; ``maybe_cached``: an earlier download may still do."""

    error: ModelOptimizerError
    maybe_cached: bool


def explain(caught: BaseException, repo: str, revision: str | None, cache: Path) -> Problem | None:
    """Translate an exception of huggingface_hub or its HTTP client; ``None``: not one of theirs, a bug.

    Looked up by class name along the chain of causes: the HTTP client below changed from requests to httpx between
    versions, and its classes are not ours to import.
    """
    for error in _chain(caught):
        names = {cls.__name__ for cls in type(error).__mro__}
        problem = _by_name(names, error, repo, revision) or _by_system(error, cache)
        if problem is not None:
            return problem
    return None


def _chain(caught: BaseException) -> list[BaseException]:
    """The causes first: "not in the cache" is only the consequence of "no network"."""
    chain: list[BaseException] = []
    at: BaseException | None = caught
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    return chain[::-1]


def _by_name(names: set[str], error: BaseException, repo: str, revision: str | None) -> Problem | None:
    if "OfflineModeIsEnabled" in names:
        return _offline(repo)
    if "GatedRepoError" in names:
        return Problem(_gated(repo), True)
    if "RevisionNotFoundError" in names:
        what = f"{repo} has no revision {revision!r}"
        fix = "Leave the revision out for the newest, or look at the repository's branches and tags."
        return Problem(UnknownName(what, cause="the hub knows the model, but not this revision", fix=fix), False)
    if "RepositoryNotFoundError" in names:
        return Problem(_not_found(repo), False)
    if "HFValidationError" in names:
        fix = "A hub id is org/name, for example Qwen/Qwen3-0.6B."
        return Problem(UnknownName(f"{repo!r} is not a model id", cause=str(error).split("\n")[0], fix=fix), False)
    if "HfHubHTTPError" in names:
        return Problem(_refused(repo, getattr(getattr(error, "response", None), "status_code", None)), True)
    if names & {"ConnectError", "NetworkError", "TimeoutException", "ConnectionError", "ProxyError", "TransportError"}:
        return Problem(_unreachable(repo, error), True)
    return None


def _by_system(error: BaseException, cache: Path) -> Problem | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk became full during the download"
        fix = "Free some space, or set HF_HOME to a folder on a larger disk; what was downloaded is kept and continued."
        return Problem(DiskFull(what, cause=f"no space left on the disk of {cache}", fix=fix), False)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = "the download folder cannot be written"
        cause = f"{error.filename or cache}: {error.strerror}"
        return Problem(NotWritable(what, cause=cause, fix="Set HF_HOME to a folder you may write to."), False)
    return None


def _offline(repo: str) -> Problem:
    error = NetworkUnavailable(
        f"{repo} cannot be downloaded: offline mode is on",
        cause="HF_HUB_OFFLINE=1 is set in the environment, and the model is not in the local cache",
        fix="Unset HF_HUB_OFFLINE, or give the path of a folder on this disk.",
    )
    return Problem(error, True)


def _not_found(repo: str) -> UnknownName:
    has_token = "HF_TOKEN" in os.environ
    return UnknownName(
        f"the hub has no model {repo}",
        cause="it does not exist, or it is private and "
        + ("the token in HF_TOKEN may not see it" if has_token else "no token was given"),
        fix="Check the spelling (org/name, upper and lower case)."
        + ("" if has_token else " For a private model set HF_TOKEN to a token that may read it."),
    )


def _gated(repo: str) -> NetworkUnavailable:
    token = "the token in HF_TOKEN has no access yet" if "HF_TOKEN" in os.environ else "no token was given"
    return NetworkUnavailable(
        f"the hub does not give out {repo} without consent to its terms",
        cause=f"the model is gated, and {token}",
        fix=f"Accept the terms on the page of {repo}, then set HF_TOKEN to a token of that account.",
    )


def _refused(repo: str, status: int | None) -> NetworkUnavailable:
    if status in (401, 403):
        return NetworkUnavailable(
            f"the hub refused access to {repo}",
            cause=f"HTTP {status}: the token is missing, expired, or may not read this model",
            fix="Set HF_TOKEN to a valid token of an account with access, or unset it for public models.",
        )
    if status == 429:
        cause = "HTTP 429: too many requests from this address"
    else:
        cause = f"the hub answered with HTTP {status}" if status else "the hub's answer could not be used"
    return NetworkUnavailable(
        f"{repo} could not be downloaded",
        cause=cause,
        fix="Try again later; what was downloaded is kept and continued.",
    )


def _unreachable(repo: str, error: BaseException) -> NetworkUnavailable:
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return NetworkUnavailable(
        f"{repo} could not be downloaded: the hub cannot be reached",
        cause=f"no connection to {hub} ({reason})",
        fix="Check the network and proxy (HTTPS_PROXY), set HF_ENDPOINT to a mirror, or give a local folder.",
    )
