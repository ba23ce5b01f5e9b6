"""The speed estimate against public measurements: what benchmarks/records/prediction-*.json claims, computed again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks import prediction
from benchmarks.measured_rows import Row, read_file
from benchmarks.silicon_sample import read_silicon

AGAIN = "the estimate has changed: python benchmarks/prediction.py --silicon … --write, and look at the difference"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    newest = max(prediction.RECORDS.glob("prediction-*.json"))
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    return prediction.summary(prediction.compare(read_file().all_rows()))


def test_the_order_of_configurations_is_right_in_nine_pairs_of_ten(computed, record):
    for metric in ("tpot", "output_tokens_per_s"):
        assert computed[metric]["pairs"] > 50
        assert computed[metric]["pairs_in_order"] >= 0.90
    assert record["wide"]["same_traffic_pairs_in_order"] >= 0.90


def test_nothing_that_was_measured_is_called_impossible(computed, record):
    assert computed["called_impossible"] == []
    assert record["wide"]["called_impossible"] == []


def test_the_record_says_what_the_code_computes(computed, record):
    assert record["summary"]["rows"] == computed["rows"], AGAIN
    for metric in ("tpot", "ttft", "output_tokens_per_s"):
        for part in ("all", "held_out"):
            claimed, now = record["summary"][metric][part], computed[metric][part]
            assert now["median_absolute"] == pytest.approx(claimed["median_absolute"], abs=0.02), AGAIN
        assert computed[metric]["pairs_in_order"] == pytest.approx(
            record["summary"][metric]["pairs_in_order"], abs=0.02
        )


def test_the_range_of_the_time_per_token_holds_most_measurements(computed):
    assert computed["tpot_in_predicted_range"] >= 0.85


def test_every_row_names_a_source_and_something_to_compare():
    file = read_file()
    for part in file.sets:
        assert set(part.source) <= set(file.sources)
    assert all(row.measured for row in file.all_rows())


def test_requests_beyond_the_kv_cache_wait():
    """64 users of 9216 tokens do not fit beside a 70B on one H200: measured 40 s to the first token."""
    row = Row(
        engine="vllm", model="Llama-3.1-70B", scheme="fp8", gpu="h200-sxm", prompt_tokens=8192, output_tokens=1024,
        concurrency=64, ttft_ms=39807, tpot_ms=107,
    )  # fmt: skip
    said = prediction.predict(row)
    assert not said.fits
    assert said.running < 32
    assert said.ttft > 20
    assert not prediction.limited(row, said)


def test_a_server_that_holds_requests_back_is_not_judged():
    row = Row(
        engine="vllm", model="Llama-3.1-8B", scheme="fp8", gpu="h200-sxm", prompt_tokens=1000, output_tokens=100,
        concurrency=16, ttft_ms=5000, tpot_ms=5,
    )  # fmt: skip
    assert prediction.limited(row, prediction.predict(row))


def test_an_impossible_measurement_would_be_noticed():
    """10 000 tokens a second for one user of a 70B: below the floor of its weights."""
    row = Row(
        engine="vllm", model="Llama-3.1-70B", scheme="bf16", gpu="h100-sxm", prompt_tokens=100, output_tokens=100,
        concurrency=1, ttft_ms=1, tpot_ms=0.1,
    )  # fmt: skip
    reasons = prediction.predict(row).impossible
    assert any("weights do not fit" in reason for reason in reasons)
    assert any("TPOT floor" in reason for reason in reasons)


def test_order_counts_only_pairs_that_differ():
    def rows(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"measured": {"tpot": true}, "predicted": {"tpot": said}} for true, said in pairs]

    assert prediction.order(rows((1.0, 1.0), (2.0, 3.0), (4.0, 2.0)), "tpot") == (2, 3)
    assert prediction.order(rows((1.0, 1.0), (1.04, 0.5)), "tpot") == (0, 0)


def test_public_rows_are_merged_and_what_cannot_be_modelled_left_out(tmp_path):
    header = (
        "silicon_data_source,backend,model_path,system,mode,isl,osl,gemm_quant_mode,batch_size,tp_size,pp_size,"
        "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
    )
    same = "x,vllm,meta-llama/Llama-3.1-70B,h200_sxm,agg,1024,1024,fp8,4,1,1,1,1,1"
    lines = [
        header,
        f"{same},200,20",
        f"{same},300,24",
        "x,vllm,meta-llama/Llama-3.1-70B,h200_sxm,disagg,1024,1024,fp8,4,1,1,1,1,1,200,20",
        "x,vllm,Qwen/Qwen3-235B-A22B-FP8,h200_sxm,agg,1024,1024,fp8,4,1,1,,4,1,200,20",
        "x,vllm,some/other,h200_sxm,agg,1024,1024,fp8,4,1,1,1,1,1,200,20",
    ]
    (tmp_path / "silicon_sample.csv").write_text("\n".join(lines))
    origin, rows = read_silicon(tmp_path / "silicon_sample.csv")
    assert "sha256" in origin
    (row,) = [Row.model_validate(line) for line in rows]
    assert (row.tpot_ms, row.ttft_ms, row.use, row.kv) == (22, 250, "fit", "fp8")
