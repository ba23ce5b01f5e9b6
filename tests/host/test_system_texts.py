"""What is read of the system: no secret leaves, and a made-up root gives the lines that the checks expect."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from model_optimizer.host import system_texts as texts
from model_optimizer.host.disk_texts import mount_table, place_lines

_SECRETS = ("hf_aBcDeFgHiJkLmNoPqRsT", "s3cr3t-Passw0rd", "AKIAIOSFODNN7EXAMPLE")


def put(root: Path, path: str, text: str) -> None:
    """A file below the made-up root."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "hf_aBcDeFgHiJkLmNoPqRsT", "HF_TOKEN=(set)"),
        ("HUGGING_FACE_HUB_TOKEN", "hf_aBcDeFgHiJkLmNoPqRsT", "HUGGING_FACE_HUB_TOKEN=(set)"),
        ("https_proxy", "http://ada:s3cr3t-Passw0rd@proxy:3128", "https_proxy=http://***@proxy:3128"),
        ("all_proxy", "socks5://ada:s3cr3t-P@ssw0rd@proxy:1080", "all_proxy=socks5://***@proxy:1080"),
        ("HTTP_PROXY", "ada:s3cr3t-Passw0rd@proxy:3128", "HTTP_PROXY=***@proxy:3128"),
        ("PIP_INDEX_URL", "https://__token__:s3cr3t-Passw0rd@pypi.example/simple", "PIP_INDEX_URL=https://***@pypi.example/simple"),
        ("UV_INDEX_CORP_PASSWORD", "s3cr3t-Passw0rd", "UV_INDEX_CORP_PASSWORD=(set)"),
        ("VLLM_API_KEY", "AKIAIOSFODNN7EXAMPLE", "VLLM_API_KEY=(set)"),
        ("HF_ENDPOINT", "https://hub.example?token=s3cr3t-Passw0rd", "HF_ENDPOINT=https://hub.example?token=***"),
        ("HF_TOKEN_PATH", "/home/ada/token", "HF_TOKEN_PATH=/home/ada/token"),
        ("no_proxy", "localhost,127.0.0.1", "no_proxy=localhost,127.0.0.1"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/opt/x", "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/opt/x"),
    ],
)  # fmt: skip
def test_variables_are_shown_without_secrets(name: str, value: str, shown: str) -> None:
    assert texts.environment({name: value}) == shown
    assert not any(secret in texts.environment({name: value}) for secret in _SECRETS)


def test_variables_that_nobody_asked_for_stay_where_they_are() -> None:
    assert texts.environment({"AWS_SECRET_ACCESS_KEY": "x" * 20, "DATABASE_URL": "postgres://a:b@c", "FOO": "1"}) == ""


def test_masking_of_a_long_line_takes_no_time() -> None:
    hostile = 'a:"' * 130_000
    assert texts.masked(hostile) == hostile


def test_the_token_is_seen_and_never_read(tmp_path: Path) -> None:
    put(tmp_path, "hf/token", "hf_aBcDeFgHiJkLmNoPqRsT")
    (tmp_path / "hf/token").chmod(0o640)
    put(tmp_path, "hf/hub/models--ada--m/blobs/1", "x" * 1000)
    shown = texts.hub({"HF_HOME": str(tmp_path / "hf")})
    assert "hf_aBc" not in shown
    lines = dict(line.split(": ", 1) for line in shown.splitlines())
    assert (lines["token"], lines["token-file-mode"]) == ("file", "640")
    assert (lines["cache-bytes"], lines["cache-models"], lines["cache-measured"]) == ("1000", "1", "yes")
    assert "token: environment HF_TOKEN" in texts.hub({"HF_TOKEN": "hf_x", "HF_HOME": str(tmp_path)})


def test_the_cache_lies_where_huggingface_hub_puts_it() -> None:
    assert texts.hub_cache({"HF_HUB_CACHE": "/a"}) == Path("/a")
    assert texts.hub_cache({"HF_HOME": "/b"}) == Path("/b/hub")
    assert texts.hub_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")


def test_control_groups_of_both_versions(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "4:memory:/job\n1:cpu:/job\n0::/user\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8589934592\n")
    put(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n")
    put(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    put(tmp_path, "sys/fs/cgroup/user/memory.max", "max\n")
    lines = texts.cgroup_limits(tmp_path).splitlines()
    assert "/sys/fs/cgroup/memory/job/memory.limit_in_bytes: 8589934592" in lines
    assert "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us: 200000" in lines
    assert "/sys/fs/cgroup/user/memory.max: max" in lines


def test_a_container_is_told_from_an_image_that_became_a_machine(tmp_path: Path) -> None:
    put(tmp_path, ".dockerenv", "")
    put(tmp_path, "proc/1/comm", "systemd\n")
    folder = tmp_path / "proc/self/ns"
    folder.mkdir(parents=True)
    for name, number in (("cgroup", 4026531835), ("ipc", 4026531839), ("pid", 4026531836), ("uts", 4026531838)):
        (folder / name).symlink_to(f"{name}:[{number}]")
    assert "namespaces: the machine's own" in texts.container_marks(tmp_path, {})
    (folder / "pid").unlink()
    (folder / "pid").symlink_to("pid:[4026533333]")
    assert "namespaces: separate" in texts.container_marks(tmp_path, {})


def test_tool_environments_tell_what_is_broken(tmp_path: Path) -> None:
    put(tmp_path, "vllm-0123456789ab/tool.json", json.dumps({"version": "0.32.0"}))
    put(tmp_path, "gguf-0123456789ab/tool.json", "{")
    put(tmp_path, "facts/cache.json", "{}")
    (tmp_path / "gguf-0123456789ab/bin").mkdir()
    (tmp_path / "gguf-0123456789ab/bin/python").symlink_to("/bin/sh")
    entries = [json.loads(line) for line in texts.tool_environments(tmp_path).splitlines()]
    assert [(e["interpreter"], "damage" in e) for e in entries] == [(True, True), (False, False)]
    assert texts.tool_environments(tmp_path / "none") == ""


def test_the_newest_file_shows_a_clock_that_is_behind(tmp_path: Path) -> None:
    put(tmp_path, "old", "")
    put(tmp_path, "new", "")
    os.utime(tmp_path / "old", (1e9, 1e9))
    os.utime(tmp_path / "new", (4e9, 4e9))
    assert f"newest-file: 4000000000 {tmp_path / 'new'}" in texts.clock([tmp_path, tmp_path / "none"])


def test_places_name_their_file_system(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    real = os.path.realpath(tmp_path)
    (tmp_path / "proc/self/mounts").write_text(f"/dev/vda / ext4 rw 0 0\nnas:/m {real} nfs4 rw 0 0\n")
    place = json.loads(place_lines({"home": Path(real) / "not" / "yet"}, tmp_path))
    assert (place["kind"], place["mount"], place["device"]) == ("nfs4", real, "nas:/m")
    assert place["path"] == f"{real}/not/yet"
    assert 0 < place["available"] <= place["total"]
    assert place["writable"] is True


def test_spaces_in_mount_points() -> None:
    assert mount_table("/dev/sdb /media/My\\040Disk exfat rw 0 0\nbroken\n") == [
        ("/dev/sdb", "/media/My Disk", "exfat")
    ]
