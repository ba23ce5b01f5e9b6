"""What the pipeline makes of failures and measurements, without engines."""

from __future__ import annotations

from pathlib import Path

from model_optimizer.errors import JobFailed, ServerFailed
from model_optimizer.pipeline import _verdict
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.verdict import Check
from model_optimizer.stages.failing import as_failure

CANDIDATE = Candidate(scheme="bf16", engine="vllm", max_model_len=4096)


def test_a_failed_candidate_carries_the_diagnosis_of_its_log(tmp_path: Path):
    log = tmp_path / "loadtest.log"
    log.write_text(
        "INFO 12-01 10:00:00 [api_server.py:100] vLLM API server version 0.24.0\n"
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use\n"
    )
    failure = ServerFailed("vllm ended before it was ready", cause="exit 1", fix="read the log", log=str(log))
    told = as_failure(failure, "vllm")
    assert told.finding is not None
    assert told.finding.cause == "port-in-use"
    assert told.finding.evidence.line == 2
    assert told.fix != "read the log"
    verdict = _verdict(CANDIDATE, "failed", (), None, None, failure=failure)
    assert verdict.outcome == "failed"
    assert verdict.reason == f"vllm ended before it was ready: {told.finding.title}"


def test_a_log_that_does_not_tell_leaves_the_error_as_it_is(tmp_path: Path):
    log = tmp_path / "build.log"
    log.write_text("Quantizing…\nKilled by its owner\n")
    failure = JobFailed("gguf_quantize failed", cause="exit -15", fix="run it again", log=str(log))
    told = as_failure(failure, "llama.cpp")
    assert told.finding is None
    assert told.fix == "run it again"


def test_a_verdict_names_the_limits_that_were_missed():
    checks = (
        Check(name="tpot_p95", limit="≤ 60 ms", found="144 ms (n=9)", ok=False),
        Check(name="error_rate", limit="≤ 1 %", found="0 %", ok=True),
    )
    assert _verdict(CANDIDATE, "misses_slo", checks, None, None).reason == "tpot_p95: 144 ms (n=9), limit ≤ 60 ms"
