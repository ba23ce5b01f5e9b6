from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_optimizer.records.simulation import SchedulerConfig, StepModel, StepSample
from model_optimizer.simulation.steps import fit, nnls, sample_s, step_s

GPU = SchedulerConfig(
    max_num_seqs=1024, max_num_batched_tokens=8192, num_kv_tokens=800_000, max_model_len=4096, graph_tokens=512
)
CPU = SchedulerConfig(
    policy="slots",
    max_num_seqs=4,
    max_num_batched_tokens=2048,
    num_kv_tokens=4096,
    max_model_len=1024,
    micro_batch_tokens=64,
)
H200_LIKE = StepModel(
    fixed_s=0.005,
    per_prefill_token_s=21e-6,
    per_decode_seq_s=20e-6,
    per_context_token_s=2e-8,
    prompt_floor_s=0.007,
    large_floor_s=0.028,
    overhead_s=0.014,
    token_s=65e-6,
)


def test_a_short_prompt_takes_the_floor_and_a_long_one_its_arithmetic():
    assert step_s(H200_LIKE, GPU, 128, 0, 0, 0) == 0.007
    assert step_s(H200_LIKE, GPU, 600, 0, 0, 0) == 0.028  # beyond the largest captured graph
    assert step_s(H200_LIKE, GPU, 4000, 0, 0, 0) == pytest.approx(0.084)


def test_decoding_adds_sequences_and_context():
    assert step_s(H200_LIKE, GPU, 0, 0, 100, 50_000) == pytest.approx(0.005 + 0.002 + 0.001)


def test_micro_batches_read_the_weights_again():
    slow = StepModel(fixed_s=0.02, per_prefill_token_s=1e-5, per_decode_seq_s=0.0)
    assert step_s(slow, CPU, 64, 0, 0, 0) == pytest.approx(0.02)
    assert step_s(slow, CPU, 65, 0, 0, 0) == pytest.approx(0.04)


def designed(model: StepModel, config: SchedulerConfig) -> list[StepSample]:
    """What the calibration's loads would show of an engine with these step times, without noise."""
    shapes = [(p, 0, 0, True) for p in (48, 256, 512, 1024, 2048, 4000)]
    shapes += [(p, 3, 900, False) for p in (128, 400, 640, 1536)]
    shapes += [(0, d, d * 48, False) for d in (1, 4, 16, 64, 256)] + [(0, 8, 8 * 1048, False)]
    bare = [
        StepSample(prefill_tokens=p, decode_seqs=d, context_tokens=c, seconds=1.0, n=20, is_ttft=t)
        for p, d, c, t in shapes
    ]
    return [s.model_copy(update={"seconds": sample_s(model, config, s)}) for s in bare]


def test_the_fit_finds_the_numbers_behind_exact_samples():
    found = fit(designed(H200_LIKE, GPU), GPU)
    for name in ("fixed_s", "per_prefill_token_s", "prompt_floor_s", "large_floor_s", "overhead_s", "token_s"):
        assert getattr(found, name) == pytest.approx(getattr(H200_LIKE, name), rel=0.05), name
    assert found.residual == pytest.approx(0.0, abs=0.01)


def test_the_fit_of_a_cpu_has_no_floors():
    cpu = StepModel(
        fixed_s=0.02, per_prefill_token_s=0.003, per_prefill_pair_s=2e-6, per_decode_seq_s=0.009, overhead_s=0.004
    )
    one_pass = CPU.model_copy(update={"micro_batch_tokens": None})
    samples = [s for s in designed(cpu, one_pass) if s.prefill_tokens <= 2048]
    found = fit(samples, one_pass)
    assert found.prompt_floor_s == found.large_floor_s == found.token_s == 0.0
    assert found.per_prefill_token_s == pytest.approx(0.003, rel=0.05)
    assert found.per_prefill_pair_s == pytest.approx(2e-6, rel=0.1)


def test_samples_of_both_kinds_are_needed():
    with pytest.raises(ValueError, match="decoding and of prompts"):
        fit([StepSample(prefill_tokens=0, decode_seqs=1, context_tokens=9, seconds=0.01)], GPU)


@given(st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=4, max_size=8), st.data())
def test_no_coefficient_is_negative_and_none_fits_better(rows: list[list[float]], data: st.DataObject):
    matrix = np.array(rows)
    target = np.array(data.draw(st.lists(st.floats(-10, 10), min_size=len(rows), max_size=len(rows))))
    found = np.array(nnls(matrix, target))
    assert (found >= 0).all()
    error = np.sum((matrix @ found - target) ** 2)
    for at in range(3):
        for change in (0.9, 1.1):
            other = found.copy()
            other[at] *= change
            assert np.sum((matrix @ other - target) ** 2) >= error - 1e-6 * (1 + error)
