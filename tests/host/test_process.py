"""Programs are started here and nowhere else; none outlives us."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from model_optimizer.errors import NotWritable, TimedOut, ToolBroken
from model_optimizer.host import process
from model_optimizer.host.process import Redactor, child_env, run, spawn

# Starts a helper in its own group, one in a session of its own (as a daemon would), tells their pids, and waits.
FAMILY = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
kin = [subprocess.Popen(sleep, start_new_session=away) for away in (False, True)]
print(*(k.pid for k in kin), flush=True)
time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def wait_until(condition, seconds: float = 5.0) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family_of(child: process.Child) -> list[int]:
    wait_until(child.tail)
    return [child.pid, *(int(word) for word in child.tail()[-1].split())]


def test_run_gives_status_lines_time_and_memory():
    lines: list[str] = []
    done = run(
        python("""
            import sys, time
            held = bytearray(64 << 20)
            print("one"); print("two", file=sys.stderr)
            time.sleep(0.4)
            sys.exit(3)
        """),
        timeout_s=30,
        on_line=lines.append,
    )
    assert done.returncode == 3
    assert sorted(done.tail) == sorted(lines) == ["one", "two"]
    assert 0.4 <= done.seconds < 20
    assert 64 << 20 <= done.peak_memory_bytes < 128 << 20
    assert 0 < done.cpu_seconds < 20


def test_memory_counts_the_whole_tree_and_shared_pages_once():
    done = run(
        python("""
            import os, time
            held = bytearray(os.urandom(1 << 20) * 100)
            children = [os.fork() for _ in range(2)]
            if 0 in children: time.sleep(0.8); os._exit(0)
            mine = bytearray(os.urandom(1 << 20) * 40)
            time.sleep(0.8)
            for child in children: os.waitpid(child, 0)
        """),
        timeout_s=30,
    )
    assert (
        140 << 20 <= done.peak_memory_bytes < 220 << 20
    )  # three processes with 100 MiB each in their maps, 140 MiB in all


def test_a_short_program_has_a_peak_too():
    assert run(["true"], timeout_s=10).peak_memory_bytes > 100_000


def test_output_after_the_program_ended_by_a_helper_is_not_waited_for():
    started = time.monotonic()
    done = run(["sh", "-c", "echo here; sleep 600 & exit 0"], timeout_s=60)
    assert done.returncode == 0
    assert done.tail == ("here",)
    assert time.monotonic() - started < 10


def test_progress_bars_that_overwrite_themselves_leave_their_last_state():
    done = run(["printf", "10 %%\\r50 %%\\r100 %%\\nend\\n"], timeout_s=10)
    assert done.tail == ("100 %", "end")


def test_a_signal_that_ended_it_is_seen():
    assert run(["sh", "-c", "kill -SEGV $$"], timeout_s=10).returncode == -signal.SIGSEGV
    assert run(["sh", "-c", "kill -KILL $$"], timeout_s=10).returncode == -signal.SIGKILL


def test_timeout_ends_the_program_and_says_so(tmp_path):
    log = tmp_path / "a" / "log"
    with pytest.raises(TimedOut) as caught:
        run(["sh", "-c", "echo working; sleep 600"], timeout_s=3, log=log)
    assert "after 3 s" in caught.value.what
    assert caught.value.evidence == ("working",)
    assert caught.value.log == str(log)
    assert "working\n" in log.read_text()


def test_a_program_that_ignores_sigterm_is_killed():
    started = time.monotonic()
    with spawn(["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done"]) as child:
        wait_until(child.tail)
        assert child.terminate(grace_s=0.3) == -signal.SIGKILL
    assert time.monotonic() - started < 5
    assert not alive(child.pid)


def test_terminate_lets_the_program_end_well():
    with spawn(["sh", "-c", "trap 'echo goodbye; exit 7' TERM; echo ready; while true; do sleep 0.05; done"]) as child:
        wait_until(child.tail)
        assert child.terminate() == 7
    assert child.tail()[-1] == "goodbye"
    assert child.terminate() == 7  # again: nothing happens


def test_leaving_the_block_ends_everything_it_started():
    with spawn(python(FAMILY)) as child:
        pids = family_of(child)
        assert all(alive(pid) for pid in pids)
        assert child.memory_bytes() > 10 << 20
        assert child.poll() is None
    assert not any(alive(pid) for pid in pids)
    assert child.memory_bytes() == 0
    assert child.cpu_seconds() > 0


def test_what_a_crashed_program_leaves_behind_is_ended():
    with spawn(python(FAMILY.replace("time.sleep(600)\n", "raise SystemExit(1)\n"))) as child:
        pids = family_of(child)
        assert child.wait(10) == 1
        assert not any(alive(pid) for pid in pids)


def test_no_orphan_when_the_leash_itself_is_killed():
    with spawn(python(FAMILY)) as child:
        program, near, _ = family_of(child)
        psutil.Process(psutil.Process(program).ppid()).kill()
        assert child.wait(5) == -signal.SIGKILL
        wait_until(lambda: not alive(program) and not alive(near), 1.0)
        for pid in map(int, child.tail()[-1].split()):  # the one that went away on purpose is out of reach then
            if alive(pid):
                psutil.Process(pid).kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_when_we_are_killed(how, tmp_path):
    owner = tmp_path / "owner.py"
    owner.write_text(
        "import sys, time\nfrom model_optimizer.host.process import spawn\n"
        f"child = spawn([sys.executable, '-c', {FAMILY!r}])\n"
        "while not child.tail(): time.sleep(0.01)\n"
        "print(child.pid, child.tail()[-1], flush=True)\ntime.sleep(600)\n"
    )
    us = subprocess.Popen([sys.executable, str(owner)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with us:
        assert us.stdout is not None
        pids = [int(word) for word in us.stdout.readline().split()]
        assert len(pids) == 3
        leash = psutil.Process(pids[0]).ppid()
        us.send_signal(how)
        us.wait(10)
    assert wait_until(lambda: not any(alive(pid) for pid in (*pids, leash))) < 1.0


def test_ctrl_c_ends_the_program_before_it_reaches_the_caller():
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.extend(int(word) for word in line.split())
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        run(python(FAMILY), timeout_s=60, on_line=interrupt)
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_program_that_is_not_there():
    with pytest.raises(ToolBroken) as caught:
        run(["/nowhere/python", "x"], timeout_s=5)
    assert caught.value.what == "/nowhere/python cannot be started"
    assert caught.value.cause == "No such file or directory"


def test_a_file_that_is_no_program(tmp_path):
    (tmp_path / "readme").write_text("hello")
    with pytest.raises(ToolBroken) as caught:
        run([str(tmp_path / "readme")], timeout_s=5)
    assert caught.value.cause == "Permission denied"


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable) as caught:
        run(["true"], timeout_s=5, log=tmp_path / "file" / "log")
    assert "cannot be written" in caught.value.what


def test_our_own_python_does_not_leak_into_a_tool(monkeypatch):
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME"):
        monkeypatch.setenv(name, "ours")
    env = child_env({"OMP_NUM_THREADS": "2"})
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME"} & env.keys()
    assert env["PYTHONNOUSERSITE"] == "1"
    assert env["OMP_NUM_THREADS"] == "2"
    done = run(python("import os, sys; print(os.environ.get('PYTHONPATH'), sys.flags.no_user_site)"), timeout_s=10)
    assert done.tail == ("None 1",)


def test_secrets_reach_neither_log_nor_tail_nor_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    log = tmp_path / "log"
    lines: list[str] = []
    done = run(
        [
            "sh",
            "-c",
            "echo token $HF_TOKEN key $MY_API_KEY index https://me:pw@host.example/simple $TOKENIZERS_PARALLELISM",
        ],
        env={"MY_API_KEY": "sk-0123456789", "TOKENIZERS_PARALLELISM": "false-false"},
        timeout_s=10,
        log=log,
        on_line=lines.append,
    )
    expected = "token *** key *** index https://***@host.example/simple false-false"
    assert done.tail == (expected,)
    assert lines == [expected]
    assert "hf_abc" not in log.read_text()
    assert log.read_text().endswith(expected + "\n")


def test_short_values_are_no_secrets():
    assert Redactor({"AUTH": "none", "MONKEY": "bananas-bananas"})("none bananas-bananas") == "none bananas-bananas"


def test_log_keeps_everything_the_tail_only_the_end(tmp_path):
    log = tmp_path / "log"
    done = run(["seq", "1000"], timeout_s=10, log=log)
    assert done.tail[-1] == "1000"
    assert len(done.tail) == process.TAIL_LINES
    assert log.read_text().splitlines()[1:] == [str(n) for n in range(1, 1001)]


def test_many_at_once_do_not_disturb_each_other():
    children = [spawn(["sh", "-c", f"echo {n}; exit {n}"]) for n in range(12)]
    assert [child.wait(30) for child in children] == list(range(12))
    assert [child.tail() for child in children] == [(str(n),) for n in range(12)]
