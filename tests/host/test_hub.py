"""Paths and hub ids. The hub is a small server on loopback; the client is the real huggingface_hub."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from model_optimizer.errors import (
    CheckpointInvalid,
    DiskFull,
    ModelOptimizerError,
    NetworkUnavailable,
    NotWritable,
    UnknownName,
)  # fmt: skip
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.host.hub import HubModel, parse_hub_id, resolve_model
from tests.host.checkpoints import gguf_file, hf_folder

COMMIT = "abcdef0123" * 4


class Emitted:
    """Records what was reported; the download's threads take turns."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, **fields: object) -> None:
        self.events.append((kind, fields))


class FakeHub(ThreadingHTTPServer):
    """One repository, ``org/name``; ``failure`` is a status, an error code and a message for every answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.failure: tuple[int, str, str] | None = None
        self.fetched: list[str] = []
        self.tokens: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of some tests."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output clean."""

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, head: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self._serve(head=True)

    def do_GET(self) -> None:
        self._serve(head=False)

    def _serve(self, *, head: bool) -> None:
        hub = self.server
        hub.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.partition("?")[0]
        if hub.failure:
            status, code, message = hub.failure
            self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message}, head=head)
        elif path.startswith("/api/models/org/name/tree/"):
            tree = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in hub.files.items()
            ]
            self._answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, head=head)
        elif path in (
            "/api/models/org/name",
            "/api/models/org/name/revision/main",
            f"/api/models/org/name/revision/{COMMIT}",
        ):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
            info = {
                "id": "org/name",
                "modelId": "org/name",
                "sha": COMMIT,
                "siblings": siblings,
                "tags": [],
                "private": False,
            }
            self._answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, head=head)
        elif path.startswith("/api/models/org/name/revision/"):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, head=head)
        elif path.startswith(f"/org/name/resolve/{COMMIT}/"):
            name = path.split("/", 5)[5]
            data = hub.files[name]
            if not head:
                hub.fetched.append(name)
            self._answer(200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}, head=head)
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"}, head=head)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    source = hf_folder(tmp_path / "source", shards=3)
    server.files = {path.name: path.read_bytes() for path in source.iterdir()}
    server.files |= {
        "pytorch_model.bin": b"\x80\x02", "modeling_name.py": b"import os", "README.md": b"#",
        "original/params.json": b"{}", "consolidated.safetensors": b"x", ".gitattributes": b"",
        "chat_template.jinja": b"{{ messages }}",
    }  # fmt: skip
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Resolved(NamedTuple):
    path: Path
    events: list[tuple[str, dict[str, Any]]]


def resolve(ref: str, cache: Path) -> Resolved:
    emitted = Emitted()
    return Resolved(resolve_model(ref, emit=emitted, cache_dir=cache), emitted.events)


def failure(ref: str, cache: Path) -> ModelOptimizerError:
    with pytest.raises(ModelOptimizerError) as caught:
        resolve(ref, cache)
    assert caught.value.cause and caught.value.fix
    return caught.value


def test_download_takes_data_and_never_pickles_or_code(hub: FakeHub, tmp_path: Path) -> None:
    path, events = resolve("org/name", tmp_path / "cache")
    assert sorted(p.name for p in path.iterdir()) == [
        "chat_template.jinja", "config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert not {"pytorch_model.bin", "modeling_name.py", "consolidated.safetensors"} & set(hub.fetched)
    spec = read_checkpoint(path)
    require_healthy(spec)
    assert spec.revision == COMMIT
    progress = [fields for kind, fields in events if kind == "progress"]
    total = sum(len(hub.files[p.name]) for p in path.iterdir())
    assert progress[-1]["total"] == total and progress[-1]["done"] == total and progress[-1]["unit"] == "B"
    assert [f["done"] for f in progress] == sorted(f["done"] for f in progress)
    assert progress[-1]["what"] == "download org/name"


def test_nothing_is_downloaded_twice_and_the_hub_may_be_away(hub: FakeHub, tmp_path: Path) -> None:
    first = resolve("org/name", tmp_path / "cache").path
    hub.fetched.clear()
    assert resolve("org/name", tmp_path / "cache").path == first and hub.fetched == []
    hub.failure = (503, "", "")
    path, events = resolve("org/name", tmp_path / "cache")
    assert path == first and "downloaded earlier" in events[-1][1]["text"]


def test_a_copy_with_files_missing_is_not_passed_on(hub: FakeHub, tmp_path: Path) -> None:
    first = resolve("org/name", tmp_path / "cache").path
    (first / "config.json").unlink()
    hub.failure = (500, "", "")
    assert "HTTP 500" in failure("org/name", tmp_path / "cache").cause


def test_revisions(hub: FakeHub, tmp_path: Path) -> None:
    assert resolve(f"org/name@{COMMIT}", tmp_path / "cache").path.name == COMMIT
    error = failure("org/name@v9", tmp_path / "cache")
    assert isinstance(error, UnknownName) and "no revision 'v9'" in error.what


def test_token_comes_from_the_environment_only(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("org/name", tmp_path / "a")
    assert hub.tokens == {""}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    _, events = resolve("org/name", tmp_path / "b")
    assert "Bearer hf_secret" in hub.tokens
    assert "hf_secret" not in str(events)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "words"),
    [
        (404, "RepoNotFound", "", UnknownName, "the hub has no model org/name"),
        (401, "RepoNotFound", "", UnknownName, "the hub has no model org/name"),
        (403, "GatedRepo", "", NetworkUnavailable, "without consent to its terms"),
        (401, "GatedRepo", "", NetworkUnavailable, "without consent to its terms"),
        (401, "", "Invalid credentials in Authorization header", NetworkUnavailable, "refused access to org/name"),
        (403, "", "", NetworkUnavailable, "refused access"),
        (429, "", "", NetworkUnavailable, "could not be downloaded"),
        (500, "", "", NetworkUnavailable, "could not be downloaded"),
    ],
)
def test_refusals(
    hub: FakeHub, tmp_path: Path, status: int, code: str, message: str, kind: type[ModelOptimizerError], words: str
) -> None:
    hub.failure = (status, code, message)
    error = failure("org/name", tmp_path / "cache")
    assert type(error) is kind and words in error.what
    if kind is UnknownName or status in (401, 403):
        assert "HF_TOKEN" in error.fix


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = failure("org/name", tmp_path / "cache")
    assert isinstance(error, NetworkUnavailable) and error.exit_code == 3
    assert "cannot be reached" in error.what and "http://127.0.0.1:9" in error.cause


def test_offline_mode(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    first = resolve("org/name", tmp_path / "cache").path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve("org/name", tmp_path / "cache").path == first
    error = failure("org/name", tmp_path / "other")
    assert isinstance(error, NetworkUnavailable) and "offline mode is on" in error.what


def test_disk_too_small(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    error = failure("org/name", tmp_path / "cache")
    assert isinstance(error, DiskFull) and "HF_HOME" in error.fix and hub.fetched == []


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EACCES, NotWritable)])
def test_disk_trouble_during_the_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ModelOptimizerError]
) -> None:
    import huggingface_hub

    def broken(*args: Any, **kwargs: Any) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    assert type(failure("org/name", tmp_path / "cache")) is kind


def test_repositories_without_usable_weights(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"\x80\x02"}
    error = failure("org/name", tmp_path / "cache")
    assert isinstance(error, CheckpointInvalid) and "pytorch_model.bin" in error.cause
    hub.files = {"README.md": b""}
    assert "no weights" in failure("org/name", tmp_path / "cache").cause
    hub.files = {"m-q8_0.gguf": b"", "m-q4_0.gguf": b""}
    assert "org/name/m-q4_0.gguf" in failure("org/name", tmp_path / "cache").fix
    assert hub.fetched == []


def test_one_gguf_file_of_many(hub: FakeHub, tmp_path: Path) -> None:
    whole = gguf_file(tmp_path / "m.gguf").read_bytes()
    hub.files = {
        "m-q8_0.gguf": whole,
        "m-q4_0.gguf": b"",
        "s-00001-of-00002.gguf": whole,
        "s-00002-of-00002.gguf": whole,
    }
    path, _ = resolve("org/name/m-q8_0.gguf", tmp_path / "cache")
    assert read_checkpoint(path).quantized_as == "q8_0" and hub.fetched == ["m-q8_0.gguf"]
    path, _ = resolve("org/name/s-00001-of-00002.gguf", tmp_path / "cache")
    assert (path.parent / "s-00002-of-00002.gguf").exists()
    error = failure("org/name/m-q9_0.gguf", tmp_path / "cache")
    assert "Did you mean" in error.fix and "m-q8_0.gguf" in error.fix


# Paths


def test_existing_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hf_folder(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("org/name", tmp_path).path == Path("org/name")  # a folder wins over a hub id
    assert resolve(str(folder), tmp_path).path == folder
    assert resolve("~/org/name", tmp_path).path == folder
    assert resolve(str(folder / "config.json"), tmp_path).path == folder / "config.json"


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("./modl", "Did you mean model?"),
        ("./MODEL", "Did you mean model?"),
        ("./no/such/folder", "does not exist either"),
        ("zzz", "org/name"),
        ("", "org/name"),
        ("a\0b", "org/name"),
        ("x" * 5000, "Check the path"),
        ("weights.gguf", "Check the path"),
    ],
)
def test_missing_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ref: str, words: str) -> None:
    (tmp_path / "model" / "weights").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName) as caught:
        resolve_model(ref, emit=Emitted(), cache_dir=tmp_path / "cache")
    assert words in caught.value.fix


def test_a_hub_id_that_is_a_mistyped_folder(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model" / "weights").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    error = failure("model/weightz", tmp_path / "cache")
    assert isinstance(error, UnknownName) and "Did you mean the folder model/weights?" in error.fix


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("Qwen/Qwen3-0.6B", HubModel("Qwen/Qwen3-0.6B", None, None)),
        ("org/name@main", HubModel("org/name", "main", None)),
        ("org/name@refs/pr/3", HubModel("org/name", "refs/pr/3", None)),
        ("org/name-GGUF/name-Q4_K_M.gguf", HubModel("org/name-GGUF", None, "name-Q4_K_M.gguf")),
        ("org/name/sub/x.gguf@v1", HubModel("org/name", "v1", "sub/x.gguf")),
        ("org/model.gguf", None),
        ("models/x/y", None),
        ("./org/name", None),
        ("/org/name", None),
        ("org/../name", None),
        ("org\\name", None),
        ("gpt2", None),
        ("https://huggingface.co/org/name", None),
    ],
)
def test_hub_ids(ref: str, expected: HubModel | None) -> None:
    assert parse_hub_id(ref) == expected
