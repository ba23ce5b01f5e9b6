"""The one object that stages share: it remembers results, runs jobs and servers, and tells what happens."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

from model_optimizer.errors import ModelOptimizerError
from model_optimizer.host.jobs import JobResult, run_job
from model_optimizer.host.server import RunningServer, free_port, serve
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Emit, Record
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.run import RunManifest, StageRecord
from model_optimizer.records.tooling import Job, Launch
from model_optimizer.store.journal import Journal, now
from model_optimizer.store.keys import stage_key
from model_optimizer.store.objects import Entry, Store


class Work(NamedTuple):
    """Where a running stage may leave files (published with its result), its log, and the key they will have."""

    folder: Path
    log: Path
    key: str


In = TypeVar("In", bound=Record, contravariant=True)
Out = TypeVar("Out", bound=Record)


class Stage(Protocol[In, Out]):
    """One remembered step: a module with these names. Its result depends on its input and its tools only."""

    NAME: str
    VERSION: int
    """Raised when the same input would mean another result."""

    OBSERVES: bool
    """True for measurements: the host's identity is then part of the key, and ``--remeasure`` takes them again."""

    OUTPUT: type[Out]

    def tools(self, inputs: In, /) -> tuple[str, ...]:
        """The tool environments whose versions the result depends on."""
        ...

    def run(self, ctx: Context, inputs: In, work: Work, /) -> Out:
        """Do it."""
        ...


class Context:
    """Given to every stage. ``run`` is the whole of resuming: a step that has been done is a lookup."""

    def __init__(
        self,
        *,
        store: Store,
        toolbox: Toolbox,
        host: HostSpec,
        journal: Journal,
        manifest: RunManifest,
        show: Emit,
        remeasure: bool = False,
    ) -> None:
        self.store = store
        self.toolbox = toolbox
        self.host = host
        self.journal = journal
        self.manifest = manifest
        self._show = show
        self._remeasure = remeasure
        self._own: dict[str, Path] = {}

    def emit(self, kind: str, **fields: object) -> None:
        """Tell the terminal, and (all but progress ticks) the journal."""
        if kind != "progress":
            self.journal.event(kind, **fields)
        self._show(kind, **fields)

    def update(self, **fields: object) -> None:
        """Change the manifest and save it: what is known so far survives whatever comes next."""
        self.manifest = self.manifest.model_copy(update=fields)
        self.journal.save(self.manifest)

    def run(self, stage: Stage[In, Out], inputs: In, *, subject: str) -> Out:
        """The stage's result for this input: remembered if it was ever computed, else computed and published."""
        tools = {name: self.toolbox.identity(name) for name in stage.tools(inputs)}
        host = self.host.identity() if stage.OBSERVES else None
        key = stage_key(stage.NAME, stage.VERSION, inputs, tools=tools, host=host)
        fresh = self._remeasure and stage.OBSERVES and not self._done_in_this_run(key)
        entry = None if fresh else self.store.get(key)
        if entry is None:
            with self.store.lock(key):
                entry = None if fresh else self.store.get(key)  # another run may have made it while we waited
                if entry is None:
                    return self._compute(stage, inputs, subject, key)
        self._record(stage.NAME, subject, key, "remembered", 0.0, first_seconds=entry.seconds)
        return stage.OUTPUT.model_validate(entry.result)

    def job(self, job: Job, work: Work, *, target: Path | None = None) -> JobResult:
        """Run a worker in its tool's environment; ``target`` (default: the stage's folder) is what it fills."""
        env = self.toolbox.ensure(job.tool)
        self._used(job.tool, env.version)
        return run_job(job, env, target=target or work.folder, scratch=work.folder.parent, log=work.log, emit=self.emit)

    @contextlib.contextmanager
    def serve(self, launch_on: Callable[[int], Launch], work: Work) -> Iterator[RunningServer]:
        """A server on a free port for the time of the block; stopped with its whole process group, whatever happens."""
        port = free_port()
        launch = launch_on(port)
        env = self.toolbox.ensure(launch.tool)
        self._used(launch.tool, env.version)
        with serve(launch, env, port=port, log=work.log, emit=self.emit, relaunch=launch_on) as server:
            yield server

    def adopt(self, artifact: Artifact, path: Path) -> None:
        """Say where the user's own files lie; records hold only their fingerprint."""
        self._own[artifact.content_digest] = path

    def path(self, artifact: Artifact) -> Path:
        """Where an artifact is now: in the store, or the user's own place. With ``main``, that file."""
        folder = self._own[artifact.content_digest] if artifact.key is None else self.store.files(artifact.key)
        return folder / artifact.main if artifact.main else folder

    def _compute(self, stage: Stage[In, Out], inputs: In, subject: str, key: str) -> Out:
        staged = self.store.stage(key)
        work = Work(staged / "files", self.journal.logs / f"{stage.NAME}-{_file_name(subject)}.log", key)
        self.emit("stage_started", stage=stage.NAME, subject=subject, key=key[:12])
        started = time.monotonic()
        try:
            result = stage.run(self, inputs, work)
        except BaseException as error:
            shutil.rmtree(staged, ignore_errors=True)
            if isinstance(error, ModelOptimizerError):
                self._record(stage.NAME, subject, key, "failed", time.monotonic() - started, error=error)
            raise
        seconds = time.monotonic() - started
        entry = Entry(
            key=key,
            stage=stage.NAME,
            subject=subject,
            made_at=now(),
            seconds=seconds,
            result=result.model_dump(mode="json"),
        )
        self.store.publish(staged, entry)
        self._record(stage.NAME, subject, key, "run", seconds)
        return result

    def _record(
        self,
        stage: str,
        subject: str,
        key: str,
        status: Literal["run", "remembered", "failed"],
        seconds: float,
        *,
        first_seconds: float | None = None,
        error: ModelOptimizerError | None = None,
    ) -> None:
        record = StageRecord(
            stage=stage,
            subject=subject,
            key=key,
            status=status,
            seconds=seconds,
            when=now(),
            first_seconds=first_seconds,
        )
        self.update(stages=(*self.manifest.stages, record))
        detail = {} if error is None else {"error": error.as_dict()}
        self.emit(
            "stage_finished", stage=stage, subject=subject, status=status, seconds=seconds, key=key[:12], **detail
        )

    def _done_in_this_run(self, key: str) -> bool:
        return any(record.key == key and record.status == "run" for record in self.manifest.stages)

    def _used(self, tool: str, version: str) -> None:
        if self.manifest.tools.get(tool) != version:
            self.update(tools={**self.manifest.tools, tool: version})


def _file_name(subject: str) -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in subject)[:80]
