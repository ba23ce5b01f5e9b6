"""Environments: built whole or not at all, once, from the user's own package places; broken ones are named."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from model_optimizer.errors import (
    DiskFull,
    NetworkUnavailable,
    NotWritable,
    RequestError,
    ToolBroken,
    ToolMissing,
    UnknownName,
)
from model_optimizer.host.process import run
from model_optimizer.host.toolbuild import UvProgress, error_chain
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.host.toolspec import Build, ToolSpec, requirements, tool_specs
from model_optimizer.records.run import ToolConfig

CHECK = "import tiny_tool\nassert tiny_tool.double(2) == 4\n"


def make_wheel(folder: Path, name: str, version: str, code: str) -> None:
    """A real wheel of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Packages come from two folders of wheels only, named in a pip configuration as a user would."""
    make_wheel(tmp_path / "wheels", "tiny_tool", "1.0", "import tiny_part\ndef double(x): return tiny_part.TWO * x\n")
    make_wheel(tmp_path / "more", "tiny_part", "2.5", "TWO = 2\n")
    places = f"{tmp_path}/wheels\n    {tmp_path}/more\n    /nowhere/wheels"
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links =\n    {places}\n")
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def box(tmp_path, events):
    def make(
        check: str = CHECK, *, lock: str = "tiny-tool==1.0\ntiny-part==2.5\n", installed: int = 1000, **fields
    ) -> Toolbox:
        (tmp_path / "lock.txt").write_text(lock)
        build = Build(lock=str(tmp_path / "lock.txt"), download=2000, installed=installed, build_time=1.0)
        spec = ToolSpec(name="tiny", purpose="doubles", packages=("tiny-tool",), check=check, builds={"cpu": build})
        given = {"overrides": {}, "emit": events, "platform": "cpu", "specs": {"tiny": spec}}
        return Toolbox(tmp_path / "tools", **given | fields)

    return make


def left(tmp_path: Path) -> list[str]:
    return sorted(place.name for place in (tmp_path / "tools").iterdir() if not place.name.startswith(".lock-"))


def test_built_on_demand_then_found(box, tmp_path, events):
    tools = box()
    before = tools.identity("tiny")
    assert tools.installed() == {"tiny": False}
    env = tools.ensure("tiny")
    assert (env.name, env.version) == ("tiny", "1.0")
    assert env.python.parent.parent == tmp_path / "tools" / f"tiny-{env.digest[:12]}"
    assert env.size_bytes > 1000
    done = run([str(env.python), "-c", "import tiny_tool; print(tiny_tool.double(21))"], timeout_s=20)
    assert done.tail == ("42",)
    assert list(
        env.python.parent.parent.rglob("tiny_tool.cpython-*.pyc")
    )  # compiled, whatever our own environment says
    assert left(tmp_path) == [f"tiny-{env.digest[:12]}", f"tiny-{env.digest[:12]}.log"]
    phases = [fields["what"] for fields in events.of("progress")]
    assert phases[0] == "install tiny: prepare"
    assert phases[-1] == "install tiny: check"
    assert "installed tiny 1.0" in str(events.of("note")[0]["text"])

    events.clear()
    again = box()
    assert again.ensure("tiny") == env
    assert again.identity("tiny") == before
    assert again.installed() == {"tiny": True}
    assert again.verify("tiny").version == "1.0"
    assert not events


def test_what_people_see(box):
    tools = box()
    (status,) = tools.list()
    assert (status.installed, status.version, status.size_bytes, status.download_bytes) == (False, "1.0", None, 2000)
    env = tools.install("tiny")
    (status,) = tools.list()
    assert (status.installed, status.python, status.size_bytes) == (True, str(env.python), env.size_bytes)
    assert status.platform == "cpu"


def test_another_lock_is_another_environment(box, tmp_path):
    make_wheel(tmp_path / "wheels", "tiny_tool", "1.1", "def double(x): return x + x\n")
    old = box().ensure("tiny")
    new = box(lock="tiny-tool==1.1\n").ensure("tiny")
    assert (old.version, new.version) == ("1.0", "1.1")
    assert old.python != new.python
    assert old.python.exists()
    assert box().identity("tiny") != box(lock="tiny-tool==1.1\n").identity("tiny")


def test_removed_with_all_its_versions(box, tmp_path):
    make_wheel(tmp_path / "wheels", "tiny_tool", "1.1", "def double(x): return x + x\n")
    sizes = box().install("tiny").size_bytes + box(lock="tiny-tool==1.1\n").install("tiny").size_bytes
    assert box().remove("tiny") >= sizes
    assert all(name.endswith(".log") for name in left(tmp_path))
    assert box().installed() == {"tiny": False}
    assert box().remove("tiny") == 0


BUILDER = """
import sys
from pathlib import Path
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.host.toolspec import Build, ToolSpec
home, lock, check = sys.argv[1:]
build = Build(lock=lock, download=1, installed=1, build_time=1.0)
spec = ToolSpec(name="tiny", purpose="", packages=("tiny-tool",), check=check, builds={"cpu": build})
def tell(kind, **fields):
    if kind == "note":
        print(fields["text"], flush=True)
box = Toolbox(Path(home), overrides={}, emit=tell, platform="cpu", specs={"tiny": spec})
print(box.ensure("tiny").python)
"""


def start_builder(tmp_path: Path, check: str) -> subprocess.Popen[str]:
    (tmp_path / "builder.py").write_text(BUILDER)
    command = [sys.executable, str(tmp_path / "builder.py"), str(tmp_path / "tools"), str(tmp_path / "lock.txt"), check]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_build_it_once(box, tmp_path):
    box()
    builders = [start_builder(tmp_path, CHECK + "import time; time.sleep(1)") for _ in range(2)]
    said = [builder.communicate(timeout=60)[0].splitlines() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert said[0][-1] == said[1][-1]
    notes = sorted(line for lines in said for line in lines[:-1])
    assert [note.split()[0] for note in notes] == ["another", "installed"]


def test_a_killed_builder_leaves_nothing_in_the_way(box, tmp_path, events):
    box()
    with start_builder(tmp_path, "import time; time.sleep(600)") as builder:
        deadline = time.monotonic() + 60
        while "time.sleep(600)" not in "".join(log.read_text() for log in (tmp_path / "tools").glob("*.log")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        builder.send_signal(signal.SIGKILL)
    assert any(name.startswith(".building-") for name in left(tmp_path))
    assert box().installed() == {"tiny": False}
    env = box().ensure("tiny")
    assert env.python.exists()
    assert not any(name.startswith(".building-") for name in left(tmp_path))


def test_ctrl_c_while_building_leaves_nothing(box, tmp_path):
    def interrupt(kind: str, **fields: object) -> None:
        if fields.get("what") == "install tiny: check":
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        box("import time; time.sleep(600)", emit=interrupt).install("tiny")
    assert all(name.endswith(".log") for name in left(tmp_path))


def test_an_environment_that_does_not_work_is_not_published(box, tmp_path):
    with pytest.raises(ToolBroken) as caught:
        box("import tiny_tool, tiny_missing").install("tiny")
    assert "No module named 'tiny_missing'" in caught.value.cause
    assert caught.value.log is not None
    assert "tiny_missing" in Path(caught.value.log).read_text()
    assert all(name.endswith(".log") for name in left(tmp_path))


def test_one_that_broke_later_is_found_by_verify(box):
    env = box().install("tiny")
    next(env.python.parent.parent.rglob("tiny_part.py")).unlink()
    next(env.python.parent.parent.rglob("tiny_part.cpython-*.pyc")).unlink()
    with pytest.raises(ToolBroken) as caught:
        box().verify("tiny")
    assert "No module named 'tiny_part'" in caught.value.cause
    assert caught.value.fix == "model-optimize tools remove tiny && model-optimize tools install tiny"


def test_one_that_lost_its_python(box):
    env = box().install("tiny")
    env.python.unlink()
    env.python.symlink_to("/nowhere/python3.11")
    with pytest.raises(ToolBroken) as caught:
        box().ensure("tiny")
    assert "lost its Python" in caught.value.what
    box().remove("tiny")
    assert box().ensure("tiny").python.exists()


def test_one_whose_record_is_damaged(box):
    env = box().install("tiny")
    (env.python.parent.parent / "tool.json").write_text("{")
    assert box().installed() == {"tiny": False}
    with pytest.raises(ToolBroken) as caught:
        box().ensure("tiny")
    assert "tools remove tiny" in caught.value.fix


def test_a_version_that_no_index_has(box, tmp_path):
    with pytest.raises(ToolBroken) as caught:
        box(lock="tiny-tool==9.9\n").install("tiny")
    assert "no version of tiny-tool==9.9" in caught.value.cause
    assert caught.value.evidence
    assert all(name.endswith(".log") for name in left(tmp_path))


def test_the_cpu_build_of_torch_or_none(box, tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels", "torch", "2.13.0", "cuda = True\n")
    with pytest.raises(ToolBroken) as caught:
        box(lock="torch==2.13.0+cpu\ntiny-tool==1.0\n").install("tiny")
    assert "find-links" in caught.value.fix
    (tmp_path / "wheels" / "torch-2.13.0-py3-none-any.whl").rename(tmp_path / "torch-2.13.0-py3-none-any.whl")
    make_wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", "cuda = False\n")
    (tmp_path / "torch-2.13.0-py3-none-any.whl").rename(tmp_path / "wheels" / "torch-2.13.0-py3-none-any.whl")
    lock = "torch==2.13.0+cpu\ntiny-tool==1.0\ntiny-part==2.5\n"
    env = box(CHECK + "import torch\nassert not torch.cuda\n", lock=lock).install("tiny")
    assert "--torch-backend" not in Path(f"{env.python.parent.parent}.log").read_text()


def test_an_index_that_cannot_be_reached(box, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://me:secret@127.0.0.1:9/simple\nretries = 0\n")
    with pytest.raises(NetworkUnavailable) as caught:
        box().install("tiny")
    assert "127.0.0.1:9" in caught.value.cause
    assert "Connection refused" in caught.value.cause
    assert "secret" not in str(caught.value.as_dict())
    assert "secret" not in Path(caught.value.log or "").read_text()


def test_no_space_is_said_before_building(box, tmp_path, monkeypatch):
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30))
    with pytest.raises(DiskFull) as caught:
        box(installed=2 << 30).install("tiny")
    assert "2 GiB" in caught.value.cause
    assert "1 GiB" in caught.value.cause
    assert left(tmp_path) == []


def test_a_home_that_cannot_be_written(box, tmp_path):
    (tmp_path / "tools").write_text("a file")
    with pytest.raises(NotWritable):
        box().install("tiny")


def test_unknown_names(box):
    with pytest.raises(UnknownName) as caught:
        box().ensure("tinny")
    assert "tiny" in caught.value.fix
    with pytest.raises(UnknownName):
        box(overrides={"vlmm": ToolConfig()})


def test_not_for_this_machine(box, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ToolMissing) as caught:
        box().ensure("tiny")
    assert "riscv64" in caught.value.cause


def test_asked_first(box):
    asked = []

    def no(status):
        asked.append((status.name, status.download_bytes))
        return False

    with pytest.raises(ToolMissing) as caught:
        box(ask=no).ensure("tiny")
    assert "model-optimize tools install tiny" in caught.value.fix
    assert asked == [("tiny", 2000)]
    box(ask=no).install("tiny")  # by name: not asked
    assert box(ask=no).ensure("tiny").version == "1.0"
    assert len(asked) == 1


def test_the_users_own_interpreter(box, tmp_path):
    env = box().install("tiny")
    config = {"tiny": ToolConfig(python=str(env.python))}
    mine = box(overrides=config)
    found = mine.ensure("tiny")
    assert found.python == env.python
    assert found.version == "1.0"
    assert re.fullmatch(r"1\.0 [0-9a-f]{12}", mine.identity("tiny"))
    assert mine.identity("tiny") != box().identity("tiny")  # told by what is in it, not by a lock
    assert mine.verify("tiny").configured
    with pytest.raises(RequestError):
        mine.remove("tiny")


def test_the_users_own_interpreter_without_the_tool(box):
    with pytest.raises(ToolBroken) as caught:
        box(overrides={"tiny": ToolConfig(python=sys.executable)}).ensure("tiny")
    assert "no distribution named tiny-tool" in caught.value.cause


def test_the_users_own_interpreter_that_is_not_there(box):
    tools = box(overrides={"tiny": ToolConfig(python="/nowhere/python")})
    assert tools.installed() == {"tiny": False}
    with pytest.raises(ToolMissing) as caught:
        tools.ensure("tiny")
    assert "/nowhere/python" in caught.value.cause


def test_progress_from_uvs_words(events):
    tell = UvProgress("tiny", 3, events)
    for line in textwrap.dedent("""\
        Using Python 3.11.7 environment at: x
        Resolved 3 packages in 1.71s
        Downloading torch (182.9MiB)
        Downloading numpy (16.0MiB)
         Downloaded numpy
         Downloaded torch
        Prepared 3 packages in 15.56s
        Installed 3 packages in 674ms
        Bytecode compiled 20769 files in 26.04s
    """).splitlines():
        tell(line)
    torch, numpy = round(182.9 * 2**20), 16 << 20
    assert [(f["what"], f["done"], f["total"]) for f in events.of("progress")] == [
        ("install tiny: download", 0, torch),
        ("install tiny: download", 0, torch + numpy),
        ("install tiny: download", numpy, torch + numpy),
        ("install tiny: download", torch + numpy, torch + numpy),
        ("install tiny: unpack", 0, 3),
        ("install tiny: compile", 0, None),
    ]


def test_uvs_errors_in_one_line():
    new = [
        "Using Python",
        "error: Request failed",
        "  cause: Failed to fetch: http://x/",
        "  cause: dns error",
        "hint: y",
    ]
    assert error_chain(new) == ["Request failed", "Failed to fetch: http://x/", "dns error"]
    old = ["  × No solution found:", "  ╰─▶ Because there is no version of", "      torch==9 we stop."]
    assert error_chain(old) == ["No solution found:", "Because there is no version of torch==9 we stop."]
    assert error_chain(["all well"]) == []


@pytest.mark.parametrize("name", list(tool_specs()))
def test_every_lock_pins_everything_and_names_no_index(name):
    for platform, build in tool_specs()[name].builds.items():
        lines = build.requirements()
        assert lines
        for line in lines:
            assert re.fullmatch(r"[a-z0-9.-]+==[^ ;]+( ; .+)?", line), line
        torch = [line for line in lines if line.startswith("torch==")]
        assert all(line.endswith("+cpu") for line in torch) or platform != "cpu"
        names = {line.split("==")[0] for line in lines}
        assert set(tool_specs()[name].packages) & names
        if platform == "cpu":
            assert not {n for n in names if n.startswith(("nvidia-", "cuda-"))}
            assert not {"triton", "torchvision", "torchaudio", "torchcodec"} & names


def test_the_same_versions_where_tools_hand_over_to_each_other():
    def pinned(name: str) -> dict[str, str]:
        lines = tool_specs()[name].builds["cpu"].requirements()
        return dict(line.split(" ;")[0].split("==") for line in lines)

    for package in ("torch", "transformers", "gguf", "tokenizers", "safetensors"):
        assert pinned("gguf")[package] == pinned("transformers")[package]
    assert pinned("llama.cpp")["gguf"] == pinned("gguf")["gguf"]
    assert pinned("vllm")["torch"] == pinned("transformers")["torch"]


def test_comments_do_not_count():
    assert requirements("# made by\n\ntorch==1  # why\nnumpy==2 ; python_version < '3.12'\n") == (
        "torch==1",
        "numpy==2 ; python_version < '3.12'",
    )
