from __future__ import annotations

import pytest
from pydantic import ValidationError

from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate, TransformStep
from model_optimizer.records.workload import SLO, LengthClass, Load, TrafficProfile


class Small(Record):
    name: str
    count: int = 3


class Grown(Record):
    name: str
    count: int = 3
    added_later: str | None = None


def test_an_optional_field_added_later_keeps_digests():
    assert Small(name="a").digest() == Grown(name="a").digest()


def test_digest_changes_with_any_value_and_not_with_order():
    first = Candidate(scheme="q8_0", engine="llama.cpp", max_model_len=1024, engine_args={"a": 1, "b": 2})
    same = Candidate(scheme="q8_0", engine="llama.cpp", max_model_len=1024, engine_args={"b": 2, "a": 1})
    other = first.model_copy(update={"steps": (TransformStep(transform="gguf_convert"),)})
    assert first.id == same.id
    assert len(first.digest()) == 64
    assert other.digest() != first.digest()


def test_records_are_frozen_and_closed():
    with pytest.raises(ValidationError):
        Small(name="a").count = 4  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Small.model_validate({"name": "a", "cuont": 4})


def test_json_round_trip():
    profile = TrafficProfile.model_validate({"prompt_tokens": {128: "80 %", 512: 0.2}, "loads": [1, "4/s"]})
    assert TrafficProfile.from_json(profile.to_json()) == profile
    assert profile.loads == (Load(concurrency=1), Load(rate_per_s=4.0))
    assert profile.lengths[0] == LengthClass(prompt_tokens=128, weight=0.8)
    assert profile.mean_prompt_tokens == pytest.approx(0.8 * 128 + 0.2 * 512)
    assert profile.longest_sequence == 512 + 128


def test_slo_reads_what_people_write():
    slo = SLO.model_validate(
        {"ttft_p99": "150 ms", "tpot_mean": "40 ms", "error_rate": "0.1 %", "peak_memory": "2 GiB", "at": 8}
    )
    assert {limit.name: limit.limit for limit in slo.limits} == {
        "ttft_p99": pytest.approx(0.15),
        "tpot_mean": 0.04,
        "error_rate": pytest.approx(0.001),
        "peak_memory": 2 * 2**30,
    }
    assert slo.at == Load(concurrency=8)
    assert [limit.name for limit in slo.latency_limits] == ["ttft_p99", "tpot_mean"]


@pytest.mark.parametrize(
    ("slo", "says"),
    [
        ({"tokens_per_s": 120}, "ambiguous"),
        ({"ttft": "150 ms"}, "say which statistic"),
        ({"ttft_p99": "150"}, "no unit"),
        ({"ttft_p99": 150}, "no unit"),
        ({"speed": 3}, "unknown SLO"),
    ],
)
def test_slo_refuses_what_can_be_misread(slo: dict[str, object], says: str):
    with pytest.raises(ValidationError, match=says):
        SLO.model_validate(slo)


def test_a_load_is_one_thing():
    with pytest.raises(ValidationError, match="either a concurrency"):
        Load(concurrency=1, rate_per_s=2.0)
