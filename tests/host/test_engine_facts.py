"""Asking an installed engine: once, by a worker, remembered by what is installed."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from model_optimizer.errors import JobFailed, NotWritable
from model_optimizer.host import engine_facts
from model_optimizer.host.engine_facts import installed_engine, readable_engines
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.host.toolspec import Build, ToolSpec
from model_optimizer.kb.engines import engines
from model_optimizer.records.run import ToolConfig

ANSWER: dict[str, Any] = {
    "version": "1.2.3",
    "build": "1.2.3+cpu",
    "platform": "cpu",
    "dtypes": ["bfloat16"],
    "flags": [
        {"flag": "--size", "aliases": ["-s", "--bigness"], "field": "size", "default": 4, "choices": None},
        {"flag": "--mode", "aliases": [], "field": "mode", "default": "auto", "choices": ["auto", "fast"]},
    ],
    "methods": {
        "fp8": {"min_capability": "8.9", "activation_dtypes": ["bfloat16"]},
        "odd": {"min_capability": None, "activation_dtypes": None},
    },
    "deprecated_methods": ["odd"],
    "variants": {"w4a8_fp8": "9.0"},
    "kv_cache_dtypes": ["auto", "fp8"],
    "architectures": ["LlamaForCausalLM"],
}


class Asked:
    """A toolbox whose ``vllm`` is our own Python, and a worker that counts how often it was asked."""

    def __init__(self, folder: Path, events: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.events = folder, events
        self.worker, self.count, self.answer = folder / "ask.py", folder / "count", folder / "answer.json"
        self.write_worker("")
        self.say(ANSWER)
        readers = {
            "vllm": engine_facts._Reader("vllm", str(self.worker), ("cuda",)),
            "vllm-cpu": engine_facts._Reader("vllm", str(self.worker), ("cpu",)),
        }
        monkeypatch.setattr(engine_facts, "_READERS", readers)
        self.python: Path | None = Path(sys.executable)

    def write_worker(self, more: str) -> None:
        code = """
            import json, os, pathlib, sys
            payload = json.loads(pathlib.Path(sys.argv[1]).read_text())
            count = pathlib.Path({count!r})
            count.write_text(count.read_text() + "x" if count.exists() else "x")
            print('@progress {{"done": 1, "total": 2, "what": "reading"}}', flush=True)
            """
        lines = textwrap.dedent(code).format(count=str(self.count)) + textwrap.dedent(more)
        lines += f"\npathlib.Path(payload['result']).write_text(pathlib.Path({str(self.answer)!r}).read_text())\n"
        self.worker.write_text(lines)

    def say(self, answer: dict[str, Any]) -> None:
        self.answer.write_text(json.dumps(answer))

    @property
    def times(self) -> int:
        return len(self.count.read_text()) if self.count.exists() else 0

    def toolbox(self, packages: tuple[str, ...] = ("pytest",)) -> Toolbox:
        build = Build(lock="cpu/vllm.txt", download=1, installed=1, build_time=1)
        spec = ToolSpec(
            name="vllm", purpose="serves", packages=(*packages, "vllm-cpu"), check="", builds={"cpu": build}
        )
        overrides = {} if self.python is None else {"vllm": ToolConfig(python=str(self.python))}
        return Toolbox(
            self.folder / "tools", overrides=overrides, emit=self.events, platform="cpu", specs={"vllm": spec}
        )


@pytest.fixture
def asked(tmp_path, events, monkeypatch) -> Asked:
    return Asked(tmp_path, events, monkeypatch)


def test_the_answer_as_a_record(asked, events):
    said = installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    assert said is not None
    assert (said.engine, said.version, said.platform, said.build) == ("vllm-cpu", "1.2.3", "cpu", "1.2.3+cpu")
    assert said.methods == {"fp8": "8.9", "odd": None}
    assert said.activation_dtypes == {"fp8": ("bfloat16",)}
    assert said.flags == ("--size", "-s", "--bigness", "--mode")
    for name in ("--size", "-s", "--bigness"):
        flag = said.flag(name)
        assert flag is not None
        assert (flag.flag, flag.default) == ("--size", 4)
    mode = said.flag("--mode")
    assert mode is not None
    assert mode.values == ("auto", "fast")
    assert said.flag("--gone") is None
    assert len(said.read) == len("2026-12-01")
    assert {"what": "reading", "done": 1, "total": 2, "unit": ""} in events.of("progress")


def test_asked_once_and_remembered(asked, events):
    first = installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    asked.say(ANSWER | {"version": "9.9"})
    assert installed_engine(asked.toolbox(), "vllm-cpu", emit=events) == first
    assert asked.times == 1
    assert [path.suffix for path in (asked.folder / "tools" / "facts").iterdir()] == [".json"]


def test_asked_again_when_something_else_is_installed_or_the_worker_changed(asked, events):
    installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    installed_engine(asked.toolbox(("pydantic",)), "vllm-cpu", emit=events)
    assert asked.times == 2
    asked.write_worker("pass")
    installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    assert asked.times == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": "1"}'])
def test_a_damaged_memory_is_no_memory(asked, events, damage):
    first = installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    (kept,) = (asked.folder / "tools" / "facts").iterdir()
    kept.write_text(damage)
    assert installed_engine(asked.toolbox(), "vllm-cpu", emit=events) == first
    assert asked.times == 2


def test_the_build_for_another_platform_is_another_engine(asked, events):
    assert installed_engine(asked.toolbox(), "vllm", emit=events) is None
    assert installed_engine(asked.toolbox(), "vllm-cpu", emit=events) is not None
    asked.say(ANSWER | {"platform": "cuda"})
    asked.write_worker("pass")
    assert installed_engine(asked.toolbox(), "vllm", emit=events) is not None


def test_nothing_is_built_for_a_question(asked, events):
    asked.python = None
    assert installed_engine(asked.toolbox(), "vllm-cpu", emit=events) is None
    assert installed_engine(asked.toolbox(), "tensorrt-llm", emit=events) is None
    assert asked.times == 0
    assert not (asked.folder / "tools").exists()


def test_a_worker_that_fails_says_why(asked, events):
    asked.write_worker("raise SystemExit('none of a, b has make_arg_parser: this vLLM keeps it elsewhere')")
    with pytest.raises(JobFailed) as caught:
        installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    assert "keeps it elsewhere" in caught.value.cause


@pytest.mark.parametrize("answer", [{"flags": [{"flag": "--x"}]}, {"methods": {"fp8": "8.9"}}, {"platform": "abacus"}])
def test_an_answer_of_another_form_is_refused(asked, events, answer):
    asked.say(ANSWER | answer)
    readers = {"vllm-cpu": engine_facts._Reader("vllm", str(asked.worker))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_facts, "_READERS", readers)
        with pytest.raises(JobFailed) as caught:
            installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    assert "cannot be read" in caught.value.what
    assert "delete" in caught.value.fix


def test_a_place_that_cannot_be_written(asked, events):
    (asked.folder / "tools").mkdir()
    (asked.folder / "tools" / "facts").write_text("a file where a folder should be")
    with pytest.raises(NotWritable) as caught:
        installed_engine(asked.toolbox(), "vllm-cpu", emit=events)
    assert "MODEL_OPTIMIZER_HOME" in caught.value.fix


def test_every_engine_that_can_be_asked_is_in_the_knowledge_base():
    assert set(readable_engines()) <= {facts.id for facts in engines()}
