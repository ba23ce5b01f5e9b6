"""The stress test against the mock engine: all phases, what fails, and a server that does not survive."""

from __future__ import annotations

import pytest

from model_optimizer.errors import ServerFailed
from model_optimizer.loadgen.drive import Target
from model_optimizer.loadgen.stress import run_stress


def quiet(kind: str, **fields: object) -> None:
    """No progress."""


def test_a_server_that_keeps_answering_passes_all_phases(mock_engine) -> None:
    server = mock_engine("--ttft-ms", 5, "--itl-ms", 1, "--slots", 8)
    found = run_stress(Target(base_url=server.url), prompt_tokens=64, output_tokens=8, slots=8, emit=quiet, idle_s=0.1)
    assert found.passed and found.num_errors == 0
    assert list(found.phases) == [
        "longest prompts, all slots", "burst after idleness", "clients hang up, wave 1", "clients hang up, wave 2",
        "one request afterwards",
    ]  # fmt: skip
    assert found.num_requests == 16 + 8 + 16 + 1
    assert "all answered" in found.phases["burst after idleness"]
    assert found.phases["one request afterwards"].startswith("answered in ")


def test_requests_that_fail_are_counted_by_kind(mock_engine) -> None:
    server = mock_engine("--ttft-ms", 5, "--itl-ms", 1, "--slots", 8, "--fault", "http_503", "--every", 3)
    found = run_stress(Target(base_url=server.url), prompt_tokens=64, output_tokens=8, slots=8, emit=quiet, idle_s=0.1)
    assert not found.passed and found.num_errors > 0
    assert "http_503" in found.phases["longest prompts, all slots"]


def test_what_does_not_end_in_time_is_an_error(mock_engine) -> None:
    server = mock_engine("--ttft-ms", 5, "--itl-ms", 100, "--slots", 1)
    found = run_stress(
        Target(base_url=server.url), prompt_tokens=16, output_tokens=16, slots=4, emit=quiet, idle_s=0.0, phase_s=1.5
    )
    assert not found.passed
    assert "not finished in 2 s" in found.phases["longest prompts, all slots"]


def test_a_server_that_dies_has_not_survived(mock_engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_optimizer.loadgen.stress.AFTERWARDS_S", 0.5)
    server = mock_engine("--ttft-ms", 5, "--itl-ms", 1, "--slots", 8)

    def kill_late(kind: str, **fields: object) -> None:
        if "wave 2" in str(fields.get("what")):
            server.process.kill()
            server.process.wait()

    with pytest.raises(ServerFailed, match="did not survive"):
        run_stress(Target(base_url=server.url), prompt_tokens=64, output_tokens=8, slots=8, emit=kill_late, idle_s=0.0)
