from __future__ import annotations

from pathlib import Path

import pytest

from model_optimizer.errors import SpecInvalid, UnknownName
from model_optimizer.request import parse_slo, resolve


def test_flag_beats_file_beats_default_and_the_origin_is_kept(tmp_path: Path):
    file = tmp_path / "optimize.yaml"
    file.write_text("model: some/folder\ntraffic: chat\nslo: {ttft_p99: 150 ms}\nobjective: memory\n")
    spec = resolve({"traffic": "rag"}, file)
    assert spec.model == "some/folder"
    assert spec.traffic.id == "rag"
    assert spec.objective == "memory"
    assert spec.origin == {"traffic": "flag", "model": "file", "slo": "file", "objective": "file"}


def test_the_demo_is_a_request_like_any_other():
    spec = resolve({}, demo=True)
    assert spec.model == "demo"
    assert [limit.name for limit in spec.slo.limits] == ["tpot_p95", "error_rate"]


def test_a_wrong_value_names_file_and_line(tmp_path: Path):
    file = tmp_path / "optimize.yaml"
    file.write_text("model: m\nslo:\n  ttft_p99: 150\n")
    with pytest.raises(SpecInvalid, match="not valid") as caught:
        resolve({}, file)
    assert f"{file}:2" in caught.value.cause
    assert "no unit" in caught.value.cause
    file.write_text("model: m\n\nbudget:\n  candidates: none\n")
    with pytest.raises(SpecInvalid) as caught:
        resolve({}, file)
    assert f"{file}:4" in caught.value.cause


def test_an_unknown_key_gets_the_nearest(tmp_path: Path):
    file = tmp_path / "optimize.yaml"
    file.write_text("model: m\ntrafic: chat\n")
    with pytest.raises(SpecInvalid) as caught:
        resolve({}, file)
    assert f"{file}:2" in caught.value.cause
    assert "traffic" in caught.value.fix


def test_bad_yaml_and_missing_files(tmp_path: Path):
    file = tmp_path / "optimize.yaml"
    with pytest.raises(SpecInvalid, match="cannot be read"):
        resolve({}, file)
    file.write_text("model: [m\n")
    with pytest.raises(SpecInvalid, match="not valid YAML"):
        resolve({}, file)
    file.write_text("- a\n")
    with pytest.raises(SpecInvalid, match="not a request"):
        resolve({}, file)


def test_unknown_traffic_and_no_model():
    with pytest.raises(UnknownName) as caught:
        resolve({"model": "m", "traffic": "foundin-mix"})
    assert "founding-mix" in caught.value.fix
    with pytest.raises(SpecInvalid, match="no model"):
        resolve({})


def test_slo_options():
    assert parse_slo(["ttft_p99=150ms,error_rate=0.1%", "tpot_p95=40 ms"]) == {
        "ttft_p99": "150ms",
        "error_rate": "0.1%",
        "tpot_p95": "40 ms",
    }
    with pytest.raises(SpecInvalid, match="not a limit"):
        parse_slo(["ttft_p99"])
    with pytest.raises(SpecInvalid, match="not valid"):
        resolve({"model": "m", "slo": parse_slo(["ttft=150ms"])})
