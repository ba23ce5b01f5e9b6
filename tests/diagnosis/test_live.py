"""Regimes of live servers, from pages in the engines' formats and from recordings of real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_optimizer.diagnosis.live import classify
from model_optimizer.kb.live import engine_metrics, regimes
from model_optimizer.records.live import LiveDiagnosis, LiveFinding, Scrape
from model_optimizer.records.workload import SLO
from tests.diagnosis.engine_pages import State, between, looks, recorded

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.txt"))
VLLM = {"engine": "0", "model_name": "meta-llama/Llama-3.1-8B-Instruct"}
SGLANG = {"engine_type": "unified", "model_name": "Qwen/Qwen3-8B", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


def told(scrapes: list[Scrape], **how: Any) -> LiveDiagnosis:
    return classify(scrapes, engine_metrics(), regimes(), **how)


def finding(found: LiveDiagnosis, regime: str) -> LiveFinding:
    return next(f for f in found.findings if f.regime == regime)


def vllm(
    *, running: list[float], waiting: float = 0.0, kv: float = 0.4, ended: int = 40, prefill: float = 0.1,
    decode: float = 2.0, queue: float = 0.01, itl: tuple[tuple[int, float], ...] = ((4000, 0.02),), prompts: float = 20_000,
    answers: float = 4_000, preempted: float = 0, reasons: dict[str, float] | None = None, hits: float = 0.5, **how: Any,
) -> list[Scrape]:  # fmt: skip
    """Looks at a vLLM 0.33 in which ``ended`` requests ended, each with these seconds of queue, prefill and decode."""
    before = {"length": 900.0, "stop": 50.0, "abort": 3.0, "error": 0.0}
    grown = reasons if reasons is not None else {"length": float(ended)}

    def state(share: float) -> State:
        n, old = round(ended * share), 500
        seconds = {"ttft": queue + prefill, "e2e": queue + prefill + decode}
        counters = {
            "vllm:prompt_tokens_total": 1e6 + prompts * share,
            "vllm:generation_tokens_total": 3e5 + answers * share,
            "vllm:num_preemptions_total": 12.0 + preempted * share,
            "vllm:prefix_cache_queries_total": 1e6 + prompts * share,
            "vllm:prefix_cache_hits_total": 2e5 + prompts * hits * share,
        } | {
            f'vllm:request_success_total{{finished_reason="{r}"}}': v + grown.get(r, 0) * share
            for r, v in before.items()
        }
        observed: dict[str, list[tuple[int, float]]] = {
            "vllm:time_to_first_token_seconds": [(old, 0.3), (n, seconds["ttft"])],
            "vllm:e2e_request_latency_seconds": [(old, 9.0), (n, seconds["e2e"])],
            "vllm:request_queue_time_seconds": [(old, 0.2), (n, queue)],
            "vllm:request_prefill_time_seconds": [(old, 0.1), (n, prefill)],
            "vllm:request_decode_time_seconds": [(old, 8.0), (n, decode)],
            "vllm:inter_token_latency_seconds": [(9000, 0.08), *((round(m * share), v) for m, v in itl)],
            "vllm:request_time_per_output_token_seconds": [(old, 0.03), (n, 0.02)],
            "vllm:iteration_tokens_total": [(40_000, 300.0), (round(500 * share), 90.0)],
        }
        info = {"vllm:cache_config_info": {"cache_dtype": "auto", "gpu_memory_utilization": "0.92", "engine": "0"}}
        return State(counters=counters, observed=observed, info=info, labels=VLLM)

    gauges = [
        {"vllm:num_requests_running": r, "vllm:num_requests_waiting": waiting, "vllm:kv_cache_usage_perc": kv}
        for r in running
    ]
    return looks(*between(state(0.0), state(1.0), gauges), **how)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm idle": ("idle", {"running": [0.0] * 5, "ended": 0, "itl": (), "prompts": 0, "answers": 0}),
    "vllm batch full": ("queueing", {"running": [256.0] * 11, "waiting": 80.0, "queue": 3.0, "prefill": 0.4}),
    "vllm queue seen in TTFT alone": ("queueing", {"running": [60.0, 64, 61, 63], "queue": 0.8, "prefill": 0.2}),
    "vllm KV full": ("kv-bound", {"running": [40.0, 41, 39, 40], "waiting": 30.0, "kv": 0.97, "queue": 2.0}),
    "vllm preempts": ("preempting", {"running": [90.0, 70, 88], "waiting": 9.0, "kv": 0.99, "preempted": 40}),
    "vllm long prompts": ("prefill-bound", {"running": [8.0, 9, 8], "prefill": 4.0, "decode": 1.5, "prompts": 3e5}),
    "vllm decodes": ("decode-bound", {"running": [30.0, 31, 30]}),
    "vllm one user now and then": ("client-bound", {"running": [0.0, 1, 0, 0, 1, 0], "ended": 2, "prefill": 0.05, "decode": 0.3}),
    "vllm errors": ("erroring", {"running": [20.0, 22, 21], "reasons": {"length": 30.0, "error": 8.0}}),
    "vllm waits for its CPU": ("cpu-bound", {"running": [64.0] * 5, "cores": 1.02, "gpu": 0.35}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_regimes_of_vllm(name):
    regime, how = CASES[name]
    found = told(vllm(**how))
    assert (found.engine, found.regime) == ("vllm", regime)
    first = found.findings[0]
    assert first.deciders and all(d.found and d.threshold for d in first.deciders)
    assert first.confidence >= 0.7
    assert first.levers


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_regimes_of_recorded_servers(path: Path):
    facts, scrapes = recorded(path)
    found = told(scrapes, slots=float(facts["slots"]) if "slots" in facts else None)
    assert found.regime == facts["expect"], found.findings
    assert found.engine == ("llama.cpp" if path.stem.startswith("llama") else "vllm")


def test_what_is_computed_for_the_window_alone():
    w = told(vllm(running=[256.0] * 11, waiting=80.0, queue=3.0, prefill=0.4, decode=2.0)).window
    assert w is not None
    assert w.seconds == 10.0
    assert w.ttft is not None and w.ttft.count == 40  # 500 earlier ones are not in it
    assert w.ttft.mean == pytest.approx(3.4)
    assert (w.ttft.p50.low, w.ttft.p50.high) == (2.5, 5.0)
    assert w.ttft.p50.value == pytest.approx(3.75)
    assert w.generation_tokens_per_s == pytest.approx(400)
    assert w.prompt_tokens_per_s == pytest.approx(2000)
    assert w.prefix_hit_share == pytest.approx(0.5)
    assert w.requests_per_s == pytest.approx(4.0)
    assert w.finished == {"length": 40.0}
    assert w.in_system == pytest.approx(40 * 5.4 / 10)
    assert [w.steps_per_s, w.step_tokens] == pytest.approx([50, 90])


def test_levers_depend_on_what_else_holds():
    full = told(vllm(running=[256.0] * 11, waiting=80.0, queue=3.0, prefill=0.4))
    flags = [(lever.direction, lever.flag) for lever in finding(full, "queueing").levers]
    assert ("raise", "--max-num-seqs") in flags
    slow = told(vllm(running=[256.0] * 11, waiting=80.0, queue=3.0), slo=SLO.model_validate({"itl_p50": "5 ms"}))
    assert [c.ok for c in slow.checks] == [False]
    assert ("raise", "--max-num-seqs") not in [(le.direction, le.flag) for le in finding(slow, "queueing").levers]
    kv = finding(told(vllm(running=[40.0] * 4, waiting=30.0, kv=0.97)), "kv-bound")
    assert [lever.now for lever in kv.levers if lever.flag == "--gpu-memory-utilization"] == ["0.92"]


def test_prompts_that_stall_answers_ask_for_smaller_steps():
    found = told(vllm(running=[30.0] * 4, itl=((3800, 0.02), (200, 0.45))))
    levers = {(lever.direction, lever.flag) for lever in finding(found, "decode-bound").levers}
    assert ("lower", "--max-num-batched-tokens") in levers
    calm = told(vllm(running=[30.0] * 4))
    assert ("lower", "--max-num-batched-tokens") not in {(x.direction, x.flag) for x in calm.findings[0].levers}


def test_clients_that_give_up_in_a_queue_are_not_its_cause():
    how: dict[str, Any] = {
        "running": [64.0] * 5,
        "waiting": 200.0,
        "queue": 30.0,
        "reasons": {"length": 20.0, "abort": 15.0},
    }
    found = told(vllm(**how))
    assert [f.regime for f in found.findings][:2] == ["queueing", "erroring"]
    assert "15 abort" in finding(found, "erroring").deciders[0].found


def test_one_user_at_a_time_is_the_servers_limit_where_the_slo_is_missed():
    how: dict[str, Any] = {"running": [1.0] * 5, "ended": 2, "decode": 1.5, "itl": ((100, 0.02),)}
    assert told(vllm(**how)).regime == "client-bound"
    assert told(vllm(**how), slo=SLO.model_validate({"tpot_p50": "10 ms"})).regime == "decode-bound"


def test_gauges_set_between_long_steps_do_not_make_a_busy_server_look_unused():
    how: dict[str, Any] = {"running": [0.0, 0, 1, 0, 0], "ended": 4, "prefill": 1.9, "decode": 0.1, "itl": ((4, 0.1),)}
    assert told(vllm(**how)).regime == "prefill-bound"


def test_a_busy_cpu_without_an_idle_gpu_proves_nothing():
    assert told(vllm(running=[64.0] * 5, cores=1.02)).regime == "decode-bound"
    assert told(vllm(running=[64.0] * 5, cores=1.02, gpu=0.97)).regime == "decode-bound"


def test_steps_longer_than_expected_show_a_slow_scheduler():
    found = told(vllm(running=[64.0] * 11), expected_step_s=0.008)  # 500 steps in 10 s
    assert found.regime == "cpu-bound"
    assert "20 ms, 8 ms expected" in found.findings[0].deciders[0].found
    assert told(vllm(running=[64.0] * 11), expected_step_s=0.015).regime == "decode-bound"


def test_a_restart_while_watching_is_told_and_earlier_numbers_are_dropped():
    old, new = vllm(running=[30.0] * 4), vllm(running=[30.0] * 4, ended=20)
    fresh = [s.model_copy(update={"page": s.page.replace("1e6", "0").replace("1000000.0", "0.0")}) for s in new]
    shifted = [s.model_copy(update={"at_s": s.at_s + 10}) for s in fresh]
    lower = [s.model_copy(update={"page": s.page.replace(" 300000.0", " 5.0")}) for s in shifted]
    found = told([*old, *lower])
    assert found.regime == "erroring"
    assert found.window is not None and (found.window.num_restarts, found.window.seconds) == (1, 3.0)
    assert "started anew" in found.notes[0]
    short = told([*old, lower[0]])
    assert short.regime == "erroring"
    assert [f.regime for f in short.findings] == ["erroring"]


def test_engines_behind_one_page_are_summed_and_shares_averaged():
    def both(running: float, tokens: float) -> str:
        pages = ""
        for engine, kv in (("0", 0.2), ("1", 0.6)):
            pages += State(
                gauges={"vllm:num_requests_running": running, "vllm:kv_cache_usage_perc": kv},
                counters={"vllm:generation_tokens_total": tokens},
                labels={**VLLM, "engine": engine},
            ).text()
        return pages

    w = told([Scrape(at_s=0, page=both(3, 100)), Scrape(at_s=2, page=both(5, 300))]).window
    assert w is not None
    assert [w.running, w.kv_usage, w.generation_tokens_per_s] == pytest.approx([8.0, 0.4, 200.0])


def test_older_names_of_vllm_are_read():
    def page(ended: int) -> State:
        return State(
            gauges={"vllm:num_requests_running": 12.0, "vllm:num_requests_waiting": 0.0, "vllm:gpu_cache_usage_perc": 0.3},
            counters={"vllm:generation_tokens_total": 100.0 * ended, "vllm:prompt_tokens_total": 50.0 * ended},
            observed={
                "vllm:time_to_first_token_seconds": [(ended, 0.2)],
                "vllm:time_per_output_token_seconds": [(100 * ended, 0.03)],
                "vllm:e2e_request_latency_seconds": [(ended, 3.2)],
            },
            labels={"model_name": "m"},
        )  # fmt: skip

    found = told(looks(page(0), page(20), every_s=5))
    assert found.regime == "decode-bound"
    assert found.window is not None and found.window.itl is not None and found.window.kv_usage == pytest.approx(0.3)
