"""``plan`` over GPUs that are not here, as somebody types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.checkpoints import llama_8b


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_8b(tmp_path_factory.mktemp("models") / "llama-8b")


def plan(home: Path, *args: object, width: int = 160) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "model_optimizer", "plan", *map(str, args)],
        env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home), "COLUMNS": str(width)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def as_data(home: Path, *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(home, *args, "--json").stdout)
    return found


def test_one_gpu(tmp_path: Path, model: Path):
    done = plan(tmp_path, model, "--gpu", "l20", "--traffic", "rag", "--slo", "ttft_p95=2s,tpot_p95=60ms")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "predicted" in text
    assert "first to try: fp8 · vllm · l20" in text
    assert "rung 1 of the ladder for Ada" in text
    assert "left for the KV cache" in text
    assert "the next is stopped by" in text
    assert "max_num_seqs=" in text
    assert "✓ ttft_p95" in text
    refused = " ".join(text.partition("left out")[2].split())
    assert "INT4 weights with FP8 activations need compute capability 9.0" in text or "w4afp8 needs" in refused
    assert "source: " in refused and "2026-12-01" in refused and "way out: " in refused


def test_a_narrow_terminal_keeps_what_matters(tmp_path: Path, model: Path):
    """A pipe has room for every column; a terminal drops the least telling ones (tested on the table itself)."""
    from rich.console import Console

    from model_optimizer.cli.show_plan import Column, fitted

    columns = (Column("option", 0), Column("TPOT", 0), Column("weights", 4), Column("state", 1))
    rows = [("fp8 · vllm", "13 ms", "8.46 GiB", "native")]
    wide, narrow = (fitted(Console(width=width), columns, rows) for width in (80, 28))
    assert [str(c.header) for c in wide.columns] == ["option", "TPOT", "weights", "state"]
    assert [str(c.header) for c in narrow.columns] == ["option", "TPOT", "state"]


def test_explain_shows_the_arithmetic_and_where_each_value_is_from(tmp_path: Path, model: Path):
    request = tmp_path / "request.yaml"
    request.write_text(f"model: {model}\ngpu: l20\nslo: {{tpot_p95: 60 ms}}\n")
    done = plan(tmp_path, request, "--objective", "latency", "--explain")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    def line(start: str) -> str:
        return next(text for text in lines if text.startswith(start))

    assert line("gpu ").endswith("file")
    assert line("objective ").endswith("flag")
    assert any(text.startswith("traffic ") and text.endswith("default") for text in lines)
    assert "864 GB/s" in line("memory bandwidth 864")
    for part in ("Facts about L20", "Memory of one GPU", "Speed for one user", "Promises", "Cost", "KV per token"):
        assert part in done.stdout
    assert "more with --explain" not in done.stdout


def test_all_gpus_for_a_buyer_with_a_page(tmp_path: Path, model: Path):
    page = tmp_path / "fleet.html"
    done = plan(
        tmp_path, model, "--gpu", "all", "--traffic", "rag", "--load", "5/s", "--slo", "ttft_p95=2s", "--objective",
        "cost", "--html", page,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    head = next(line for line in done.stdout.splitlines() if "best option" in line)
    assert head.split() == [
        "GPU",
        "best",
        "option",
        "state",
        "GPUs",
        "$/M",
        "tok",
        "$/h",
        "power/month",
        "TTFT",
        "TPOT",
        "users",
    ]
    assert "H100 SXM5 80GB" in done.stdout and "GPUs and costs for 5/s" in done.stdout
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert "Cost against latency" in html and "H100 SXM5 80GB" in html


def test_the_same_as_data(tmp_path: Path, model: Path):
    found = as_data(tmp_path, model, "--gpu", "4x l20", "--slo", "tpot_p95=30ms,at=50", "--prices", _prices(tmp_path))
    assert found["at"] == "c=50"
    best = found["options"][0]
    assert best["deployment"]["gpu"] == "l20"
    assert best["price"]["usd_per_hour"] == pytest.approx(0.5 * best["num_gpus"])
    assert best["light"]["tpot_s"]["low"] < best["light"]["tpot_s"]["value"] < best["light"]["tpot_s"]["high"]
    assert {"route", "code", "reason", "source"} <= set(found["refused"][0])
    assert found["explanation"] == []


def _prices(folder: Path) -> Path:
    file = folder / "prices.yaml"
    file.write_text("prices:\n  - {gpu: l20, usd_per_hour: 0.5, date: 2026-11-01}\n")
    return file


def test_an_slo_that_nothing_keeps_is_exit_1_with_a_way_out(tmp_path: Path, model: Path):
    done = plan(tmp_path, model, "--gpu", "l20", "--scheme", "bf16", "--slo", "tpot_p95=8.3ms")
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    assert "Nothing here is predicted to keep the SLO." in text
    assert "nearest: bf16" in text
    assert "✗ tpot_p95" in text
    assert "what binds: tpot_p95" in text
    assert "what would help, cheapest first:" in text
    assert "below the floor of 17.3 ms: 15.01 GB of weights read a token" in text
    found = as_data(tmp_path, model, "--gpu", "l20", "--scheme", "bf16", "--slo", "tpot_p95=8.3ms")
    assert found["levers"][0]["kind"] == "scheme"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--gpu", "rtx 4091"), "did you mean rtx-4090"),
        (("--gpu", "h100"), "write which one: h100-pcie or h100-sxm or h100-nvl"),
        (("--gpu", "l20", "--scheme", "fp9"), "did you mean fp8"),
        (("--gpu", "l20", "--engine", "vlm"), "vllm"),
        (("--gpu", "l20", "--slo", "tokens_per_s=120"), "for one user's speed limit the time per output token"),
        (("--gpu", "l20", "--slo", "ttft_p99=100ms,ttft_p50=200ms"), "ttft_p99 and ttft_p50 contradict each other"),
        (("--gpu", "l20", "--slo", "e2e_p99=1s,ttft_p99=2s"), "the end-to-end time includes the time to the first"),
        (("--gpu", "l20", "--load", "many"), "users at once (16) or a rate (4/s)"),
        (("--gpu", "l20", "--os", "linus"), "did you mean linux"),
        (("--gpu", "l20", "--objective", "fame"), "goodput"),
        (("--gpu", "l20", "--prices", "nowhere.yaml"), "cannot be read"),
        (("--gpu", "cpu", "--html", "x.html"), "add --gpu NAME or --gpu all"),
        (("--gpu", "rtx 4060 laptop", "--scheme", "bf16"), "WEIGHTS_DO_NOT_FIT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_mistake_gets_one_clear_message(tmp_path: Path, model: Path, args: tuple[str, ...], says: str):
    done = plan(tmp_path, model, *args)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, text
    assert says in text
    assert "Traceback" not in text


def test_prompts_longer_than_the_models_context(tmp_path: Path):
    short = llama_8b(tmp_path / "short", max_position_embeddings=4096)
    done = plan(tmp_path, short, "--gpu", "l20", "--traffic", "rag")
    assert done.returncode == 2
    assert "the traffic needs 8448 tokens of context, the model has 4096" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "changes",
    [{"num_attention_heads": 0}, {"hidden_size": -4096}, {"num_hidden_layers": "many"}, {"num_key_value_heads": 7}],
    ids=lambda changes: next(iter(changes)),
)
def test_nonsense_in_config_json(tmp_path: Path, changes: dict[str, Any]):
    done = plan(tmp_path, llama_8b(tmp_path / "nonsense", **changes), "--gpu", "l20")
    text = " ".join(done.stderr.split())
    assert done.returncode == 2, text
    assert "CheckpointInvalid" in text and "config.json" in text
    assert "Traceback" not in text


def test_an_unknown_architecture_is_planned_with_doubt(tmp_path: Path):
    odd = llama_8b(tmp_path / "odd", architectures=["OddForCausalLM"], model_type="odd")
    done = plan(tmp_path, odd, "--gpu", "l20")
    assert done.returncode == 0, done.stderr
    assert "doubt the architecture 'OddForCausalLM' is not known" in " ".join(done.stdout.split())


def test_a_name_is_looked_up_before_anything_is_fetched(tmp_path: Path):
    done = plan(tmp_path, "nobody/nothing", "--gpu", "rtx 4091")
    assert done.returncode == 2
    assert "did you mean rtx-4090" in " ".join(done.stderr.split())
