from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from model_optimizer.errors import DiskFull, LockHeld, NotWritable
from model_optimizer.store.objects import Entry, Store, storage_error, write_atomically

KEY = "ab" + "0" * 62


def quiet(kind: str, **fields: object) -> None:
    """An ``Emit`` that tells nobody."""


def publish(store: Store, key: str = KEY, content: bytes = b"weights") -> Entry:
    staged = store.stage(key)
    (staged / "files" / "model.bin").write_bytes(content)
    return store.publish(
        staged, Entry(key=key, stage="build", subject="s", made_at="now", seconds=1.0, result={"a": 1})
    )


def test_what_is_published_is_found(tmp_path: Path):
    store = Store(tmp_path, quiet)
    assert store.get(KEY) is None
    entry = publish(store)
    assert entry.files == {"model.bin": 7}
    assert store.get(KEY) == entry
    assert (store.files(KEY) / "model.bin").read_bytes() == b"weights"
    assert list((tmp_path / "staging").iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "remove", "garble", "no entry"])
def test_a_damaged_entry_is_set_aside_and_made_again(tmp_path: Path, damage: str):
    notes: list[object] = []
    store = Store(tmp_path, lambda kind, **fields: notes.append(fields["text"]))
    publish(store)
    if damage == "truncate":
        (store.files(KEY) / "model.bin").write_bytes(b"wei")
    elif damage == "remove":
        (store.files(KEY) / "model.bin").unlink()
    elif damage == "garble":
        (store.folder(KEY) / "entry.json").write_bytes(b"{")
    else:
        (store.folder(KEY) / "entry.json").unlink()
    assert store.get(KEY) is None
    assert len(notes) == 1
    assert "damaged" in str(notes[0])
    publish(store)
    assert store.get(KEY) is not None


def test_staging_of_the_dead_is_swept_and_of_the_living_kept(tmp_path: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    store = Store(tmp_path, quiet)
    mine = store.stage(KEY)
    left = tmp_path / "staging" / f"{KEY}.{dead.pid}.abcd"
    left.mkdir()
    Store(tmp_path, quiet)
    assert mine.exists()
    assert not left.exists()


def test_the_lock_keeps_a_second_process_waiting(tmp_path: Path):
    notes: list[str] = []
    store = Store(tmp_path, lambda kind, **fields: notes.append(str(fields["text"])))
    entered = threading.Event()
    order: list[str] = []

    def second() -> None:
        with store.lock(KEY):
            order.append("second")
        entered.set()

    with store.lock(KEY):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]
    assert notes == ["another run is doing this step; waiting for its result"]
    with store.lock(KEY), pytest.raises(LockHeld), store.lock(KEY, wait_s=0.05):
        pass


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path):
    target = tmp_path / "manifest.json"
    write_atomically(target, b"old")
    script = (
        "import sys; from pathlib import Path\n"
        "from model_optimizer.store.objects import write_atomically\n"
        "while True: write_atomically(Path(sys.argv[1]), b'new' * 100000)\n"
    )
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", script, str(target)])
        time.sleep(0.4)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert target.read_bytes() in (b"old", b"new" * 100000)


def test_the_systems_refusals_are_clear(tmp_path: Path):
    assert isinstance(storage_error(OSError(28, "No space left on device"), tmp_path), DiskFull)
    error = storage_error(PermissionError(13, "Permission denied"), tmp_path)
    assert isinstance(error, NotWritable)
    assert "MODEL_OPTIMIZER_HOME" in error.fix
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    with pytest.raises(NotWritable):
        Store(occupied, quiet)
