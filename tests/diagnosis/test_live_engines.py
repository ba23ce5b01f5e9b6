"""Live diagnosis of the engines other than vLLM, and of pages that do not tell."""

from __future__ import annotations

import time
from typing import Any

import pytest

from model_optimizer.diagnosis.live import classify
from model_optimizer.kb.live import engine_metrics, regimes
from model_optimizer.records.live import LiveDiagnosis, Scrape
from model_optimizer.records.workload import SLO
from tests.diagnosis.engine_pages import State, between, looks

SGLANG = {"engine_type": "unified", "model_name": "Qwen/Qwen3-8B", "pp_rank": "0", "moe_ep_rank": "0"}
TRTLLM = {"engine_type": "undefined", "model_name": "m"}


def told(scrapes: list[Scrape], **how: Any) -> LiveDiagnosis:
    return classify(scrapes, engine_metrics(), regimes(), **how)


def sglang(
    *, running: float, waiting: float, usage: float, ended: int = 50, ttft: float = 0.3, queue: float = 0.0,
    retracted: float = 0, cpu: float | None = None, busy: float | None = None, ranks: int = 1, aborted: float = 0,
) -> list[Scrape]:  # fmt: skip
    def state(share: float) -> State:
        n = round(ended * share)
        counters = {
            "sglang:prompt_tokens_total": 5e5 + 1000 * n,
            "sglang:cached_tokens_total{cache_source=\"device\"}": 1e5 + 250 * n,
            "sglang:generation_tokens_total": 1e5 + 200 * n,
            "sglang:num_requests_total{is_streaming=\"true\"}": 700.0 + n,
            "sglang:num_retracted_requests_total": 3 + retracted * share,
            "sglang:num_aborted_requests_total": 1 + aborted * share,
        }  # fmt: skip
        if cpu is not None and busy is not None:
            counters["sglang:scheduler_process_cpu_seconds_total"] = 90 + 10 * cpu * share
            for category, part in (("decode", 0.8), ("extend", 0.2)):
                counters[f'sglang:forward_execution_seconds_total{{category="{category}"}}'] = (
                    60 + 10 * busy * part * share
                )
        observed = {
            'sglang:time_to_first_token_seconds{is_streaming="true"}': [(700, 0.2), (n, ttft)],
            'sglang:e2e_request_latency_seconds{is_streaming="true"}': [(700, 5.0), (n, ttft + 4.0)],
            "sglang:queue_time_seconds": [(700, 0.0005), (n, queue)],
            "sglang:inter_token_latency_seconds": [(140_000, 0.018), (200 * n, 0.02)],
        }
        return State(counters=counters, observed=observed, labels={**SGLANG, "tp_rank": "0"})

    gauges = {"sglang:num_running_reqs": running, "sglang:num_queue_reqs": waiting, "sglang:token_usage": usage}
    scrapes = looks(*between(state(0.0), state(1.0), [gauges] * 11))
    more = [s.page.replace('tp_rank="0"', f'tp_rank="{rank}"') for rank in range(1, ranks) for s in scrapes[:1]]
    return [s.model_copy(update={"page": s.page + "".join(more)}) for s in scrapes]


@pytest.mark.parametrize(
    ("regime", "how"),
    [
        ("idle", {"running": 0, "waiting": 0, "usage": 0.0, "ended": 0}),
        ("queueing", {"running": 48, "waiting": 30, "usage": 0.5, "queue": 1.9, "ttft": 2.2}),
        ("preempting", {"running": 48, "waiting": 5, "usage": 0.98, "retracted": 30}),
        ("kv-bound", {"running": 48, "waiting": 30, "usage": 0.96}),
        ("cpu-bound", {"running": 48, "waiting": 0, "usage": 0.3, "cpu": 0.98, "busy": 0.4}),
        ("decode-bound", {"running": 48, "waiting": 0, "usage": 0.3, "cpu": 0.98, "busy": 0.9}),
        ("prefill-bound", {"running": 12, "waiting": 0, "usage": 0.3, "ttft": 9.0}),
        ("erroring", {"running": 12, "waiting": 0, "usage": 0.3, "aborted": 9}),
    ],
)
def test_regimes_of_sglang(regime, how):
    found = told(sglang(**how))
    assert (found.engine, found.regime) == ("sglang", regime)


def test_ranks_that_repeat_each_other_count_once():
    w = told(sglang(running=48, waiting=2, usage=0.5, ranks=4)).window
    assert w is not None
    assert (w.running, w.waiting, w.kv_usage) == (48, 2, 0.5)
    assert w.prefix_hit_share == pytest.approx(0.25)


def trtllm(running: float | None, waiting: float, decode: float, prefill: float = 0.2) -> list[Scrape]:
    def state(n: int) -> State:
        return State(
            counters={"trtllm_prompt_tokens_total": 900.0 * n, "trtllm_generation_tokens_total": 200.0 * n,
                      'trtllm_request_success_total{finished_reason="length"}': float(n)},
            observed={"trtllm_time_to_first_token_seconds": [(n, prefill)],
                      "trtllm_e2e_request_latency_seconds": [(n, prefill + decode)],
                      "trtllm_time_per_output_token_seconds": [(n, 0.01)],
                      "trtllm_request_queue_time_seconds": [(n, 0.001)],
                      "trtllm_request_prefill_time_seconds": [(n, prefill)],
                      "trtllm_request_decode_time_seconds": [(n, decode)]},
            labels=TRTLLM,
        )  # fmt: skip

    gauges = {} if running is None else {
        "trtllm_num_requests_running": running, "trtllm_num_requests_waiting": waiting,
        "trtllm_kv_cache_utilization": 0.5, "trtllm_max_batch_size_runtime": 64.0,
    }  # fmt: skip
    return looks(*between(state(0), state(30), [gauges] * 6))


def test_regimes_of_tensorrt_llm_with_gauges_and_of_older_builds_without():
    full = told(trtllm(64, 20, 3.0))
    assert (full.engine, full.regime) == ("tensorrt-llm", "queueing")
    assert "64.0 of 64" in str(full.findings[0].deciders)
    assert "--max_batch_size" in [lever.flag for lever in full.findings[0].levers]
    assert told(trtllm(None, 0, 3.0)).regime == "decode-bound"
    assert told(trtllm(None, 0, 0.1, prefill=2.0)).regime == "prefill-bound"


def test_regimes_of_tgi():
    def state(n: int, size: float, queue: float) -> State:
        return State(
            gauges={"tgi_batch_current_size": size, "tgi_queue_size": queue},
            counters={"tgi_request_success": float(n), "tgi_request_count": float(n)},
            observed={
                'tgi_batch_inference_duration{method="prefill"}': [(n, 0.05)],
                'tgi_batch_inference_duration{method="decode"}': [(40 * n, 0.03)],
                "tgi_request_duration": [(n, 4.0)],
                "tgi_request_queue_duration": [(n, 2.0)],
                "tgi_request_generated_tokens": [(n, 100.0)],
                "tgi_request_input_length": [(n, 400.0)],
            },
        )

    found = told(looks(state(0, 32, 12), state(10, 32, 14), state(20, 32, 13)))
    assert (found.engine, found.regime) == ("tgi", "queueing")
    assert [f.regime for f in found.findings] == ["queueing", "decode-bound"]
    assert found.window is not None and found.window.generation_tokens_per_s == pytest.approx(1000)


def page(text: str, at_s: float = 0.0, **more: Any) -> Scrape:
    return Scrape(at_s=at_s, page=text, **more)


NODE = 'node_cpu_seconds_total{cpu="0",mode="idle"} 1.0\nnode_load1 0.5\n'
RUNNING = 'vllm:num_requests_running{engine="0"} 3.0\n'


@pytest.mark.parametrize(
    ("scrapes", "asked"),
    [
        ([], "a Prometheus page"),
        ([Scrape(at_s=0, error="GET /metrics: HTTP 404")], "HTTP 404"),
        ([page("<!doctype html><html><body>Welcome</body></html>")] * 2, "what came is no Prometheus page"),
        ([page(NODE), page(NODE, 5)], "which engine this is"),
        ([page(RUNNING)], "only one look"),
        ([page(RUNNING), page(RUNNING, 0.2)], "0.2 s were seen"),
        ([page(RUNNING), page(RUNNING, 5)], "a longer window"),
        ([page("\x00\x01 binary \xff")], "no Prometheus page"),
    ],
)
def test_not_enough_to_tell_says_what_would(scrapes, asked):
    found = told(scrapes)
    assert (found.regime, found.findings) == ("unknown", ())
    assert asked in " | ".join(found.ask_for)


def test_a_server_without_its_page_is_told_how_to_switch_it_on():
    found = told([Scrape(at_s=0, error="GET /metrics: HTTP 501")], engine="llama.cpp")
    assert found.ask_for[1:] == ("start llama-server with --metrics",)


def test_llama_cpp_says_what_its_page_does_not_show():
    zero = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 0\n"
    found = told([page(zero), page(zero, 5)])
    assert found.regime == "unknown"
    assert any("latencies" in question for question in found.ask_for)


def test_an_slo_is_decided_only_where_the_buckets_allow():
    slo = SLO.model_validate(
        {"ttft_p50": "1 s", "ttft_p99": "250 ms", "ttft_mean": "100 ms", "e2e_max": "9 s", "error_rate": "1 %",
         "output_tokens_per_s": "500/s", "peak_memory": "8 GiB", "itl_p95": "18 ms"}
    )  # fmt: skip
    checks = {check.name: check for check in told(sglang(running=9, waiting=0, usage=0.2), slo=slo).checks}
    assert checks["ttft_p50"].ok is True  # between 0.2 and 0.4 s
    assert checks["ttft_p99"].ok is None
    assert checks["ttft_p99"].found == "200 ms to 400 ms"
    assert checks["ttft_mean"].ok is False
    assert checks["e2e_max"].ok is None
    assert checks["itl_p95"].ok is None
    assert checks["output_tokens_per_s"].ok is True
    assert checks["peak_memory"].ok is None
    assert checks["error_rate"].ok is True


def test_the_pages_of_a_large_deployment_are_read_quickly():
    one = sglang(running=48, waiting=2, usage=0.5)
    big = "".join(
        one[0].page.replace("pp_rank", "dp_rank").replace('dp_rank="0"', f'dp_rank="{n}"') for n in range(200)
    )
    junk = "".join(f'other_metric_{n}{{a="b"}} 1.0\n' for n in range(50_000))
    began = time.perf_counter()
    found = told([page(junk + big, float(at)) for at in range(4)])
    assert time.perf_counter() - began < 10
    assert found.window is not None and found.window.running == 48 * 200
