"""The definitions, on hand-computed requests."""

from __future__ import annotations

import pytest

from model_optimizer.metrics.requests import e2e_s, itl_s, output_tokens, prompt_tokens, tpot_s, ttft_s
from model_optimizer.records.measurement import RequestTrace


def trace(**changes) -> RequestTrace:
    """Due at 10.0, sent 0.5 s late, first chunk at 12.0, four chunks, seven tokens, last at 15.0."""
    values = {
        "scheduled_s": 10.0,
        "sent_s": 10.5,
        "chunk_s": (12.0, 12.5, 14.0, 15.0),
        "end_s": 15.25,
        "prompt_tokens": 130,
        "output_tokens": 7,
        "target_prompt_tokens": 128,
    }
    return RequestTrace.model_validate(values | changes)


def test_latencies_begin_when_the_request_was_due() -> None:
    assert ttft_s(trace()) == pytest.approx(2.0)
    assert e2e_s(trace()) == pytest.approx(5.0)


def test_tpot_leaves_the_first_token_out() -> None:
    assert tpot_s(trace()) == pytest.approx((5.0 - 2.0) / (7 - 1))


def test_itl_is_the_gaps_between_chunks() -> None:
    assert itl_s(trace()) == pytest.approx((0.5, 1.5, 1.0))


@pytest.mark.parametrize(
    "changes",
    [{"output_tokens": 1, "chunk_s": (12.0,)}, {"output_tokens": 7, "chunk_s": (12.0,)}, {"error": "timeout: 600 s"}],
)
def test_tpot_is_undefined_without_two_chunks(changes) -> None:
    assert tpot_s(trace(**changes)) is None


def test_a_failed_request_has_no_latency() -> None:
    failed = trace(error="truncated: closed")
    assert (ttft_s(failed), e2e_s(failed), tpot_s(failed), itl_s(failed)) == (None, None, None, ())


def test_without_usage_chunks_and_targets_stand_in() -> None:
    blind = trace(output_tokens=None, prompt_tokens=None)
    assert output_tokens(blind) == 4
    assert prompt_tokens(blind) == 128
    assert tpot_s(blind) == pytest.approx(3.0 / 3)


def test_a_chunk_of_several_tokens_moves_itl_and_not_tpot() -> None:
    plain = trace(chunk_s=(12.0, 12.5, 13.0, 13.5, 14.0), output_tokens=5)
    bundled = trace(chunk_s=(12.0, 13.0, 14.0), output_tokens=5)
    assert tpot_s(plain) == tpot_s(bundled) == pytest.approx(0.5)
    assert max(itl_s(plain)) == pytest.approx(0.5)
    assert max(itl_s(bundled)) == pytest.approx(1.0)
