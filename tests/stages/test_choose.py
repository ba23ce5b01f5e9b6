from __future__ import annotations

from model_optimizer.records.candidate import Candidate
from model_optimizer.records.measurement import AccuracyScore, ClientHealth, LoadResult, Measurement, ServerStats
from model_optimizer.records.verdict import Check, Outcome, Verdict
from model_optimizer.records.workload import Load
from model_optimizer.stages.choose import choose, nearest


def verdict(
    scheme: str,
    outcome: Outcome = "meets_slo",
    *,
    goodput: float = 1.0,
    memory: int = 100,
    kl: float = 0.01,
    margins: tuple[float, ...] = (),
) -> Verdict:
    load = LoadResult(
        load=Load(concurrency=1), window_s=1, num_requests=1, num_errors=0, output_tokens_per_s=1, input_tokens_per_s=1,
        request_rate_per_s=1, goodput_per_s=goodput, good_share=1, client=ClientHealth(loop_lag_p99_s=0, cpu_share=0),
    )  # fmt: skip
    accuracy = AccuracyScore(
        num_tokens=1, reference_perplexity=1, perplexity=1, perplexity_ratio=1, perplexity_ci95=(1, 1),
        top1_agreement=1, kl_mean=kl, kl_p99=kl, num_probe_positions=1,
    )  # fmt: skip
    return Verdict(
        candidate=Candidate(scheme=scheme, engine="llama.cpp", max_model_len=1024),
        outcome=outcome,
        reason="",
        checks=tuple(Check(name="x", limit="1", found="2", ok=m >= 0, margin=m) for m in margins),
        accuracy=accuracy,
        measurement=Measurement(
            engine="llama.cpp", engine_version="1", host_identity=(), measured_at="", loads=(load,),
            server=ServerStats(ready_s=1, peak_memory_bytes=memory, loaded_memory_bytes=memory),
        ),
        goodput_per_s=goodput,
    )  # fmt: skip


def test_each_objective_chooses_by_its_own_measure():
    fast = verdict("q4_k_m", goodput=3.0, memory=100, kl=0.2)
    true = verdict("q8_0", goodput=2.0, memory=200, kl=0.001)
    small = verdict("q2_k", goodput=1.0, memory=50, kl=0.9)
    found = [fast, true, small]
    assert choose(found, "goodput") is fast
    assert choose(found, "quality") is true
    assert choose(found, "memory") is small


def test_only_candidates_that_meet_the_slo_can_win():
    quick = verdict("q4_k_m", "loses_accuracy", goodput=9.0)
    slow = verdict("q8_0", goodput=1.0)
    assert choose([quick, slow], "goodput") is slow
    assert choose([quick], "goodput") is None


def test_the_nearest_has_the_smallest_worst_miss():
    close = verdict("q8_0", "misses_slo", margins=(-0.1, 0.5))
    far = verdict("f16", "misses_slo", margins=(-0.4, 0.9))
    dead = verdict("bf16", "failed").model_copy(update={"measurement": None})
    assert nearest([far, close, dead]) is close
    assert nearest([dead]) is None
