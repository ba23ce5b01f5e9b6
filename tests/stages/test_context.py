from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from model_optimizer.errors import JobFailed
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.run import RunManifest
from model_optimizer.request import resolve
from model_optimizer.stages.context import Context, Work
from model_optimizer.store.journal import Journal, find_run, read_manifest, run_folder
from model_optimizer.store.objects import Store

HOST = HostSpec(
    os="Linux", kernel="6", machine="x86_64", python="3.11", cpu_name="cpu", cpu_cores=2,
    memory_bytes=8 * 2**30, available_memory_bytes=8 * 2**30, free_disk_bytes=8 * 2**30,
)  # fmt: skip


class Question(Record):
    number: int


class Answer(Record):
    double: int


class Doubling:
    """A stage that counts its runs."""

    NAME = "double"
    VERSION = 1
    OBSERVES = False
    OUTPUT = Answer

    def __init__(self, *, observes: bool = False, version: int = 1) -> None:
        self.runs = 0
        self.OBSERVES = observes
        self.VERSION = version

    def tools(self, inputs: Question) -> tuple[str, ...]:
        return ("abacus",)

    def run(self, ctx: Context, inputs: Question, work: Work) -> Answer:
        self.runs += 1
        if inputs.number < 0:
            (work.folder / "half").write_text("written")
            raise JobFailed("no", cause="negative", fix="ask for a positive number")
        (work.folder / "beads").write_text("o" * inputs.number)
        return Answer(double=2 * inputs.number)


class Versions:
    """Stands for the toolbox: knows the version of one tool."""

    def __init__(self, version: str = "1.0") -> None:
        self.version = version

    def identity(self, name: str) -> str:
        return f"{name}-{self.version}"


def context(home: Path, *, toolbox: Any = None, host: HostSpec = HOST, remeasure: bool = False) -> Context:
    spec = resolve({}, demo=True)
    folder = run_folder(home / "runs", spec)
    told: list[dict[str, object]] = []
    return Context(
        store=Store(home, lambda kind, **fields: told.append({"kind": kind, **fields})),
        toolbox=cast("Toolbox", toolbox or Versions()),
        host=host,
        journal=Journal(folder),
        manifest=RunManifest(run_id=folder.name, started_at="now", spec=spec, product_version="0"),
        show=lambda kind, **fields: told.append({"kind": kind, **fields}),
        remeasure=remeasure,
    )


def test_the_second_time_is_a_lookup(tmp_path: Path):
    stage = Doubling()
    first = context(tmp_path)
    assert first.run(stage, Question(number=4), subject="four").double == 8
    again = context(tmp_path)
    assert again.run(stage, Question(number=4), subject="four").double == 8
    assert stage.runs == 1
    assert [s.status for s in again.manifest.stages] == ["remembered"]
    key = again.manifest.stages[0].key
    assert (again.store.files(key) / "beads").read_text() == "oooo"


@pytest.mark.parametrize("change", ["input", "version", "tool"])
def test_what_the_result_depends_on_is_in_the_key(tmp_path: Path, change: str):
    stage = Doubling()
    context(tmp_path).run(stage, Question(number=4), subject="four")
    other = Doubling(version=2) if change == "version" else stage
    ctx = context(tmp_path, toolbox=Versions("2.0") if change == "tool" else None)
    ctx.run(other, Question(number=5 if change == "input" else 4), subject="four")
    assert [s.status for s in ctx.manifest.stages] == ["run"]


def test_only_observations_depend_on_the_host_and_can_be_taken_again(tmp_path: Path):
    bigger = HOST.model_copy(update={"cpu_cores": 64})
    made, seen = Doubling(), Doubling(observes=True)
    for host in (HOST, bigger):
        ctx = context(tmp_path, host=host)
        ctx.run(made, Question(number=1), subject="made")
        ctx.run(seen, Question(number=1), subject="seen")
    assert (made.runs, seen.runs) == (1, 2)
    ctx = context(tmp_path, remeasure=True)
    ctx.run(made, Question(number=1), subject="made")
    ctx.run(seen, Question(number=1), subject="seen")
    ctx.run(seen, Question(number=1), subject="seen")
    assert (made.runs, seen.runs) == (1, 3)


def test_a_failure_leaves_nothing_half_made_and_is_on_record(tmp_path: Path):
    stage = Doubling()
    ctx = context(tmp_path)
    with pytest.raises(JobFailed):
        ctx.run(stage, Question(number=-1), subject="minus")
    assert list((tmp_path / "staging").iterdir()) == []
    saved = read_manifest(ctx.journal.folder)
    assert [(s.stage, s.status) for s in saved.stages] == [("double", "failed")]
    events = [orjson.loads(line) for line in (ctx.journal.folder / "events.jsonl").read_bytes().splitlines()]
    assert events[-1]["error"]["cause"] == "negative"


def test_the_same_request_finds_its_run_folder(tmp_path: Path):
    first = context(tmp_path)
    first.update(status="finished")
    assert context(tmp_path).journal.folder == first.journal.folder
    assert find_run(tmp_path / "runs", None) == first.journal.folder
    other = run_folder(tmp_path / "runs", resolve({"traffic": "chat"}, demo=True))
    assert other != first.journal.folder


def test_artifacts_are_found_in_the_store_or_where_the_user_keeps_them(tmp_path: Path):
    ctx = context(tmp_path)
    own = Artifact(format="hf", content_digest="d" * 64, size_bytes=1)
    ctx.adopt(own, tmp_path / "my model")
    assert ctx.path(own) == tmp_path / "my model"
    built = Artifact(format="gguf", content_digest="e" * 64, size_bytes=1, key="ab" * 32, main="model.gguf")
    assert ctx.path(built) == ctx.store.files("ab" * 32) / "model.gguf"


def test_progress_ticks_are_shown_and_not_kept(tmp_path: Path):
    ctx = context(tmp_path)
    ctx.emit("progress", what="x", done=1, total=2)
    ctx.emit("note", text="kept")
    events = (ctx.journal.folder / "events.jsonl").read_text()
    assert "kept" in events
    assert "progress" not in events
