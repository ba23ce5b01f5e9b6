"""Workers: payload in, progress out, result back, and every way in which they can fail."""

import json
import shutil
import textwrap
import time
from typing import NamedTuple

import psutil
import pytest

from model_optimizer.errors import DiskFull, JobFailed, TimedOut, ToolBroken
from model_optimizer.host.jobs import JobResult, run_job, worker_path
from model_optimizer.records.tooling import Job

WRITE = "import json, os, sys; p = json.load(open(sys.argv[1])); r = p['result']\n"


@pytest.fixture
def work(tmp_path, python_env, events):
    def go(code: str, **fields) -> JobResult:
        script = tmp_path / "my_worker.py"
        script.write_text(WRITE + textwrap.dedent(code))
        target = fields.pop("target", tmp_path / "target")
        job = Job(tool="python", worker=str(script), **fields)
        return run_job(job, python_env, target=target, scratch=tmp_path / "scratch", log=tmp_path / "log", emit=events)

    return go


def test_payload_in_result_and_files_out(work, tmp_path):
    done = work(
        """
        open(os.path.join(p["target"], "model.bin"), "wb").write(b"x" * p["size"])
        json.dump({"bytes": p["size"], "env": os.environ["MODE"]}, open(r + ".new", "w"))
        os.rename(r + ".new", r)
        """,
        payload={"size": 3},
        env={"MODE": "fast"},
    )
    assert done.result == {"bytes": 3, "env": "fast"}
    assert (tmp_path / "target" / "model.bin").read_bytes() == b"xxx"
    assert done.seconds > 0
    assert done.peak_memory_bytes > 1 << 20
    assert list((tmp_path / "scratch").iterdir()) == []


def test_without_a_target(work):
    assert work("json.dump({'target': p['target']}, open(r, 'w'))", target=None).result == {"target": None}


def test_progress_is_passed_on_and_nothing_else_disturbs_it(work, events, tmp_path):
    work(
        """
        print('@progress {"done": 3, "total": 10, "what": "quantize", "unit": "tensors"}')
        print('@progress not json'); print('@progress [1]'); print('loading', flush=True)
        print('@progress {"done": 4}')
        json.dump({}, open(r, "w"))
        """
    )
    assert events.of("progress") == [
        {"what": "quantize", "done": 3, "total": 10, "unit": "tensors"},
        {"what": "my_worker", "done": 4, "total": None, "unit": ""},
    ]
    assert "loading" in (tmp_path / "log").read_text()


def test_the_first_cause_is_told_with_evidence_and_log(work, tmp_path):
    with pytest.raises(JobFailed) as caught:
        work(
            """
            print('@progress {"done": 1}')
            try:
                {}["rope_theta"]
            except KeyError as error:
                raise ValueError("the config cannot be used") from error
            """
        )
    assert caught.value.what.startswith("my_worker failed after")
    assert "exit status 1" in caught.value.what
    assert caught.value.cause == "KeyError: 'rope_theta'"
    assert caught.value.evidence[-1] == "ValueError: the config cannot be used"
    assert not any("@progress" in line for line in caught.value.evidence)
    assert caught.value.log == str(tmp_path / "log")


@pytest.mark.parametrize("code", ["os.kill(os.getpid(), 9)", "raise MemoryError", "sys.exit(137)"])
def test_memory_as_the_reason(work, code):
    with pytest.raises(JobFailed) as caught:
        work(code)
    assert caught.value.what == "my_worker ran out of memory"
    assert "at their peak" in caught.value.cause


def test_a_crash(work):
    with pytest.raises(JobFailed) as caught:
        work("print('about to fall', flush=True); os.kill(os.getpid(), 11)")
    assert "SIGSEGV" in caught.value.what
    assert caught.value.cause == "about to fall"


def test_too_long(work, tmp_path):
    started = time.monotonic()
    with pytest.raises(TimedOut):
        work("import time; time.sleep(600)", timeout_s=0.5)
    assert time.monotonic() - started < 10
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("pass", "without a result"),
        ("open(r, 'w').write('{')", "without a result"),
        ("open(r, 'w').write('1')", "not an object"),
    ],
)
def test_no_usable_result(work, code, words):
    with pytest.raises(JobFailed) as caught:
        work(code)
    assert words in caught.value.what


def test_a_full_disk_is_told_as_such(work):
    with pytest.raises(DiskFull) as caught:
        work("raise OSError(28, 'No space left on device')")
    assert "while my_worker was writing" in caught.value.what


def test_output_that_cannot_fit_is_refused_before_the_work(work, monkeypatch, tmp_path):
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30))
    with pytest.raises(DiskFull) as caught:
        work("open(r, 'w').write('{}')", expected_output_bytes=2 << 30)
    assert "2 GiB" in caught.value.cause
    assert "1 GiB" in caught.value.cause
    assert not (tmp_path / "log").exists()


def test_workers_are_found_by_name():
    assert worker_path("gguf_convert").name == "gguf_convert.py"
    assert worker_path("gguf_convert.py") == worker_path("gguf_convert")
    with pytest.raises(ToolBroken):
        worker_path("nonsuch")


def test_a_worker_sees_its_own_environment_only(work, monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('a file beside the worker shadows a module')")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    done = work("json.dump({'path': sys.path}, open(r, 'w'))")
    assert "/ours" not in json.dumps(done.result)
