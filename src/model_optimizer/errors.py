"""Every failure a user can meet: what happened, the cause, and what to do about it.

ModelOptimizerError                exit 70   a bug if raised bare
├─ RequestError                    exit 2    the request cannot be understood or carried out as written
│   ├─ SpecInvalid                           a file or option: where, and what is allowed
│   ├─ UnknownName                           no such GPU, engine, profile …: the nearest names
│   ├─ CheckpointInvalid                     the model's files are missing, cut short or contradict each other
│   └─ NothingFits                           every route was refused; each with its reason
├─ HostError                       exit 3    this machine is not ready
│   ├─ ToolMissing                           a tool environment is not installed
│   ├─ ToolBroken                            it is installed and does not work
│   ├─ NetworkUnavailable                    an index or a model hub cannot be reached
│   ├─ DiskFull
│   ├─ MemoryShort
│   └─ NotWritable
├─ StageFailure                    exit 4    one step did not work; caught per candidate
│   ├─ JobFailed                             a worker ended badly: exit status, last lines, log
│   ├─ ServerFailed                          an engine did not become ready, or died
│   ├─ ServerUnusable                        a server answers, but not as an OpenAI-compatible one
│   └─ TimedOut
└─ StoreError                      exit 5
    ├─ EntryDamaged
    └─ LockHeld

A bad *outcome* (too slow, too inaccurate, does not fit) is a ``Verdict``, not an exception.
"""

from __future__ import annotations

from collections.abc import Sequence


class ModelOptimizerError(Exception):
    """Base of the tree. ``cause`` and ``fix`` are required: no raise without a way out."""

    exit_code = 70

    def __init__(
        self, what: str, *, cause: str, fix: str, evidence: Sequence[str] = (), log: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.fix = fix
        self.evidence = tuple(evidence)
        self.log = log

    def as_dict(self) -> dict[str, object]:
        """The error as data, for ``--json`` and for the journal."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "cause": self.cause,
            "fix": self.fix,
            "evidence": list(self.evidence),
            "log": self.log,
            "exit_code": self.exit_code,
        }


class RequestError(ModelOptimizerError):
    """The request cannot be understood or carried out as written."""

    exit_code = 2


class SpecInvalid(RequestError):
    """A request file or an option has a wrong value; ``cause`` names file, line and what is allowed."""


class UnknownName(RequestError):
    """No such GPU, engine, scheme, profile or run; ``fix`` offers the nearest names."""


class CheckpointInvalid(RequestError):
    """The model's files are missing, cut short, contradict each other, or are of a kind we refuse to load."""


class NothingFits(RequestError):
    """Every route was refused; ``evidence`` holds one reason a line."""


class HostError(ModelOptimizerError):
    """This machine is not ready for the request."""

    exit_code = 3


class ToolMissing(HostError):
    """A tool environment is not installed and may not be installed now."""


class ToolBroken(HostError):
    """A tool environment exists and its health check fails, or building it failed."""


class NetworkUnavailable(HostError):
    """A package index or a model hub cannot be reached."""


class DiskFull(HostError):
    """Not enough free disk space for the step."""


class MemoryShort(HostError):
    """Not enough free memory for the step."""


class NotWritable(HostError):
    """A folder that must be written cannot be."""


class StageFailure(ModelOptimizerError):
    """One step did not work. The pipeline turns it into a verdict of that candidate."""

    exit_code = 4


class JobFailed(StageFailure):
    """A worker ended with an error; ``evidence`` holds its last lines, ``log`` the whole output."""


class ServerFailed(StageFailure):
    """An engine did not become ready, or died while serving."""


class ServerUnusable(StageFailure):
    """A server answers, but not as an OpenAI-compatible streaming server would."""


class TimedOut(StageFailure):
    """A step took longer than it was given."""


class StoreError(ModelOptimizerError):
    """The store of results is damaged or held by another process."""

    exit_code = 5


class EntryDamaged(StoreError):
    """A stored result cannot be read back."""


class LockHeld(StoreError):
    """Another process holds the lock for longer than we wait."""
