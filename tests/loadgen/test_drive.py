"""The load test against a mock with known latencies must find them again, and tell of every fault."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections import Counter
from typing import Any

import pytest

from model_optimizer.errors import ServerFailed, ServerUnusable
from model_optimizer.loadgen.drive import LoadInterrupted, LoadRun, Target, run_loads
from model_optimizer.metrics.goodput import judge
from model_optimizer.metrics.requests import e2e_s, ttft_s
from model_optimizer.records.measurement import RequestTrace
from model_optimizer.records.workload import SLO, TrafficProfile


def silent(kind: str, **fields: object) -> None:
    pass


def drive(url: str, *loads: object, emit=silent, salt: str | None = None, slo: SLO | None = None, **traffic) -> LoadRun:
    values = {
        "prompt_tokens": {64: 1.0},
        "output_tokens": 10,
        "loads": loads,
        "seconds_per_load": 1.0,
        "min_requests_per_load": 5,
    }
    profile = TrafficProfile.model_validate(values | traffic)
    return run_loads(Target(base_url=url, timeout_s=20.0), profile, slo or SLO(), emit=emit, salt=salt)


def test_known_latencies_are_recovered(mock_engine) -> None:
    run = drive(mock_engine("--ttft-ms", 50, "--itl-ms", 10).url, 1, 6, output_tokens=20, seconds_per_load=2.0)
    for found, users in zip(run.results, (1, 6), strict=True):
        assert found.ttft_s is not None and found.tpot_s is not None and found.itl_s is not None
        assert found.e2e_s is not None
        assert 0.050 <= found.ttft_s.p50 < 0.058
        assert found.tpot_s.p50 == pytest.approx(0.010, abs=0.001)
        assert found.itl_s.p50 == pytest.approx(0.010, abs=0.0015)
        assert found.e2e_s.p50 == pytest.approx(0.050 + 19 * 0.010, abs=0.012)
        assert found.request_rate_per_s == pytest.approx(users / 0.244, rel=0.12)
        assert found.output_tokens_per_s == pytest.approx(20 * found.request_rate_per_s, rel=0.12)
        assert found.itl_s.n == 19 * found.num_requests
        assert (found.num_errors, found.mean_output_tokens, found.usage_reported) == (0, 20, True)
        assert found.warmup_requests >= 7
        assert found.window_s >= 2.0
    assert run.facts is not None and run.facts.dialect.model == "mock"


def test_prefill_time_grows_with_the_prompt_as_it_should(mock_engine) -> None:
    engine = mock_engine("--ttft-ms", 20, "--ms-per-prompt-token", 0.2, "--itl-ms", 1)
    run = drive(engine.url, 4, prompt_tokens={100: 0.5, 600: 0.5}, output_tokens=4, seconds_per_load=2.0)
    medians = {}
    for length in (100, 600):
        traces = [trace for trace in run.traces[0] if trace.target_prompt_tokens == length]
        tokens = statistics.fmean(trace.prompt_tokens or 0 for trace in traces)
        assert tokens == pytest.approx(length, rel=0.03)
        medians[tokens] = statistics.median(ttft_s(trace) or 0.0 for trace in traces)
    (few, fast), (many, slow) = medians.items()
    assert (slow - fast) / (many - few) == pytest.approx(0.0002, rel=0.1)


def test_the_founding_mix_is_held(mock_engine) -> None:
    mix = {128: 0.80, 512: 0.15, 2048: 0.05}
    run = drive(mock_engine("--itl-ms", 1).url, 8, prompt_tokens=mix, output_tokens=2, max_requests_per_load=200)
    counts = Counter(trace.target_prompt_tokens for trace in run.traces[0])
    total = sum(counts.values())
    assert total >= 100
    assert all(abs(counts[length] / total - share) < 0.02 for length, share in mix.items())
    expected = sum(length * share for length, share in mix.items())
    assert run.results[0].mean_prompt_tokens == pytest.approx(expected, rel=0.05)


def test_queueing_for_a_slot_is_part_of_ttft(mock_engine) -> None:
    """Three users of one slot that is busy 50 ms a request: each waits for two others."""
    run = drive(mock_engine("--ttft-ms", 32, "--itl-ms", 2, "--slots", 1).url, 3, seconds_per_load=2.0)
    (found,) = run.results
    assert found.ttft_s is not None and found.e2e_s is not None
    assert found.e2e_s.p50 == pytest.approx(3 * 0.051, rel=0.12)
    assert found.ttft_s.p50 == pytest.approx(2 * 0.051 + 0.033, rel=0.12)
    assert found.request_rate_per_s == pytest.approx(1 / 0.051, rel=0.1)


def test_open_loop_arrives_at_its_rate_and_is_timed_from_when_it_was_due(mock_engine) -> None:
    run = drive(mock_engine("--ttft-ms", 30, "--itl-ms", 1).url, "40/s", output_tokens=3, seconds_per_load=4.0)
    (found,), (traces,) = run.results, run.traces
    assert found.num_requests == pytest.approx(160, abs=40)
    assert found.request_rate_per_s == pytest.approx(found.num_requests / found.window_s, rel=0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(trace.scheduled_s for trace in traces))]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.35)
    assert found.ttft_s is not None and 0.030 <= found.ttft_s.p50 < 0.040
    assert all(trace.scheduled_s <= trace.sent_s for trace in traces)


def test_a_stalled_server_shows_its_queue_under_open_loop(mock_engine) -> None:
    """Coordinated omission: all requests due during a stall of one second feel it, not only those already under way."""
    engine = mock_engine("--ttft-ms", 10, "--itl-ms", 1)
    window_open = threading.Event()

    def emit(kind: str, **fields: object) -> None:
        if fields.get("what") == "load 30/s" and not window_open.is_set():
            window_open.set()
            engine.process.send_signal(signal.SIGSTOP)
            threading.Timer(1.0, engine.process.send_signal, (signal.SIGCONT,)).start()

    run = drive(engine.url, "30/s", output_tokens=2, seconds_per_load=3.0, emit=emit)
    waits = sorted(ttft_s(trace) or 0.0 for trace in run.traces[0])
    assert window_open.is_set()
    assert 0.85 < waits[-1] < 1.3
    assert statistics.median(waits) < 0.05
    assert 15 <= sum(wait > 0.1 for wait in waits) <= 45
    assert sum(0.3 < wait < 0.7 for wait in waits) >= 5


def test_overload_is_told(mock_engine) -> None:
    run = drive(mock_engine("--ttft-ms", 50, "--itl-ms", 1, "--slots", 1).url, "40/s", output_tokens=2)
    (found,) = run.results
    assert found.request_rate_per_s == pytest.approx(1 / 0.052, rel=0.15)
    assert any("the queue grew" in note for note in found.notes)
    assert not found.warmup_stable


def test_prompts_never_meet_the_cache_of_earlier_loads_or_runs(mock_engine) -> None:
    engine = mock_engine("--itl-ms", 1)
    loads: dict[str, Any] = {"prompt_tokens": {64: 0.5, 400: 0.5}, "output_tokens": 2, "max_requests_per_load": 60}
    first = drive(engine.url, 2, 4, **loads)
    again = drive(engine.url, 2, **loads)
    assert [found.cached_prompt_share for found in (*first.results, *again.results)] == [0.0, 0.0, 0.0]


def test_the_same_salt_draws_the_same_prompts(mock_engine) -> None:
    """Which the mock's prefix cache then shows; a fresh server sees the same work for every candidate."""
    engine = mock_engine("--itl-ms", 1)
    loads: dict[str, Any] = {"output_tokens": 2, "max_requests_per_load": 40, "prompt_tokens": {64: 0.5, 200: 0.5}}
    first, second = (drive(engine.url, 1, salt="fixed", **loads) for _ in range(2))
    assert first.results[0].cached_prompt_share == 0.0
    assert (second.results[0].cached_prompt_share or 0) > 0.8
    assert any("prefix cache" in note for note in second.results[0].notes)
    counts = [[trace.prompt_tokens for trace in run.traces[0]] for run in (first, second)]
    common = min(map(len, counts))
    assert common >= 5
    assert counts[0][:common] == counts[1][:common]


def test_the_metrics_page_tells_of_the_cache_where_usage_does_not(mock_engine) -> None:
    run = drive(mock_engine("--itl-ms", 1, "--fault", "no_usage").url, 1, output_tokens=2)
    assert run.results[0].cached_prompt_share == 0.0


def test_every_fifth_request_fails(mock_engine) -> None:
    engine = mock_engine("--itl-ms", 1, "--ttft-ms", 10, "--fault", "http_500", "--every", 6)
    (found,) = drive(engine.url, 3, seconds_per_load=2.0, min_requests_per_load=60).results
    assert found.error_rate == pytest.approx(1 / 6, abs=0.03)
    assert set(found.errors) == {"http_500"}
    assert found.good_share == pytest.approx(1 - found.error_rate)
    assert "http_500: mock failure" in found.notes
    (check,) = judge(found, SLO.model_validate({"error_rate": "1 %"}))
    assert check.ok is False


@pytest.mark.parametrize("fault", ["drop", "truncate", "garbage", "error_in_stream", "cut_chunk"])
def test_other_failures_are_counted_and_the_rest_is_measured(mock_engine, fault) -> None:
    engine = mock_engine("--itl-ms", 1, "--ttft-ms", 5, "--fault", fault, "--every", 8)
    (found,) = drive(engine.url, 2, min_requests_per_load=16, seconds_per_load=0.5).results
    assert 0 < found.error_rate < 0.3
    assert found.ttft_s is not None and found.ttft_s.n == found.num_requests - found.num_errors


def test_no_usage_falls_back_to_chunks_and_says_so(mock_engine) -> None:
    (found,) = drive(mock_engine("--itl-ms", 1, "--fault", "no_usage").url, 1).results
    assert not found.usage_reported
    assert found.mean_output_tokens is None
    assert found.output_tokens_per_s == pytest.approx(10 * found.request_rate_per_s, rel=0.15)
    assert any("no usage" in note for note in found.notes)


def test_answers_in_one_piece_are_told(mock_engine) -> None:
    (found,) = drive(mock_engine("--itl-ms", 1, "--fault", "one_piece").url, 1).results
    assert found.tpot_s is None
    assert any("does not stream" in note for note in found.notes)


def test_answers_may_end_early_where_ignore_eos_is_refused(mock_engine) -> None:
    engine = mock_engine("--itl-ms", 1, "--fault", "rejects_ignore_eos", "--eos-after", 4)
    (found,) = drive(engine.url, 1).results
    assert (found.mean_output_tokens, found.num_errors) == (4, 0)
    assert any("ignore_eos" in note and "4 tokens on average, up to 10" in note for note in found.notes)


def test_prompts_beyond_the_context_are_errors_in_the_servers_words(mock_engine) -> None:
    engine = mock_engine("--itl-ms", 1, "--max-model-len", 300)
    (found,) = drive(engine.url, 2, prompt_tokens={64: 0.5, 400: 0.5}, min_requests_per_load=20).results
    assert found.error_rate == pytest.approx(0.5, abs=0.1)
    assert any(note.startswith("http_400: maximum context length is 300 tokens") for note in found.notes)


def test_a_level_where_everything_fails_ends_early(mock_engine) -> None:
    began = time.monotonic()
    engine = mock_engine("--itl-ms", 1, "--max-model-len", 200)
    (found,) = drive(engine.url, 4, prompt_tokens={400: 1.0}, seconds_per_load=60.0).results
    assert time.monotonic() - began < 20
    assert found.error_rate == 1.0
    assert found.num_requests >= 5
    assert any("no request succeeded" in note for note in found.notes)


def test_requests_that_never_end_are_unfinished_and_not_forgotten(mock_engine) -> None:
    """Stalled streams hold their users; time bounds end the level, and the stalled ones count as failed."""
    engine = mock_engine("--itl-ms", 1, "--ttft-ms", 5, "--fault", "stall", "--every", 30)
    (found,) = drive(engine.url, 2, seconds_per_load=0.5, min_requests_per_load=1000).results
    assert found.errors.get("unfinished", 0) >= 1
    assert found.ttft_s is not None
    assert any("stopped after" in note for note in found.notes)


def test_a_server_too_slow_to_warm_up_is_measured_anyway(mock_engine) -> None:
    engine = mock_engine("--ttft-ms", 10, "--itl-ms", 200)
    (found,) = drive(engine.url, 2, seconds_per_load=0.5, min_requests_per_load=2).results
    assert found.num_requests >= 2
    assert found.tpot_s is not None and found.tpot_s.p50 == pytest.approx(0.2, rel=0.05)
    assert not found.warmup_stable
    assert any("no request ended during the warm-up" in note for note in found.notes)


def test_max_requests_ends_the_window(mock_engine) -> None:
    run = drive(
        mock_engine("--itl-ms", 1).url, 2, "50/s", max_requests_per_load=12, output_tokens=2, seconds_per_load=30.0
    )
    assert [found.num_requests for found in run.results] == [12, 12]


def test_users_do_not_march_in_step(mock_engine) -> None:
    run = drive(mock_engine("--ttft-ms", 100, "--itl-ms", 10).url, 8, output_tokens=10, seconds_per_load=2.0)
    starts = sorted(trace.scheduled_s for trace in run.traces[0])
    together = sum(later - earlier < 0.002 for earlier, later in itertools.pairwise(starts))
    assert together < 0.3 * len(starts)


def test_the_load_is_kept_up_until_the_last_counted_request_has_ended(mock_engine) -> None:
    """One slot, four users: a request that ends alone would have waited for nobody."""
    run = drive(mock_engine("--ttft-ms", 40, "--itl-ms", 1, "--slots", 1).url, 4, max_requests_per_load=16)
    last = max(run.traces[0], key=lambda trace: trace.end_s)
    assert (e2e_s(last) or 0) > 3 * 0.045


def test_a_server_that_dies_is_a_failure_of_the_server(mock_engine) -> None:
    engine = mock_engine("--itl-ms", 1)

    def emit(kind: str, **fields: object) -> None:
        if fields.get("what") == "load c=2":
            engine.process.kill()

    with pytest.raises(ServerFailed, match="stopped accepting connections") as caught:
        drive(engine.url, 2, seconds_per_load=30.0, emit=emit)
    assert any(line.startswith("connect") for line in caught.value.evidence)


def test_what_is_no_server_of_this_kind_is_refused(mock_engine) -> None:
    with pytest.raises(ServerUnusable, match="does not say which model"):
        drive(mock_engine("--fault", "not_openai").url, 1)


def test_ctrl_c_keeps_what_was_measured(mock_engine) -> None:
    def emit(kind: str, **fields: object) -> None:
        if str(fields.get("what")).startswith("load c=3"):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        drive(mock_engine("--itl-ms", 5).url, 1, 3, emit=emit)
    assert isinstance(caught.value, LoadInterrupted)
    assert [str(found.load) for found in caught.value.partial.results] == ["c=1"]
    assert len(caught.value.partial.traces[0]) == caught.value.partial.results[0].num_requests


def test_progress_is_told_a_few_times_a_second(mock_engine) -> None:
    seen: list[tuple[str, float, float]] = []

    def emit(kind: str, **fields: object) -> None:
        if kind == "progress":
            seen.append((str(fields["what"]), float(str(fields["done"])), float(str(fields["total"]))))

    began = time.monotonic()
    drive(mock_engine("--itl-ms", 1).url, 2, emit=emit)
    assert len(seen) <= 6 * (time.monotonic() - began) + 2
    assert {"probing the server", "load c=2: warming up", "load c=2"} >= {what for what, _, _ in seen}
    assert all(0 <= done <= total for _, done, total in seen)
    window = [done for what, done, _ in seen if what == "load c=2"]
    assert window == sorted(window) and len(window) >= 2


def test_goodput_follows_the_slo(mock_engine) -> None:
    slo = SLO.model_validate({"ttft_p99": "45 ms"})
    engine = mock_engine("--ttft-ms", 20, "--ms-per-prompt-token", 0.1, "--itl-ms", 1)
    (found,) = drive(engine.url, 1, prompt_tokens={50: 0.5, 400: 0.5}, min_requests_per_load=20, slo=slo).results
    assert found.good_share == pytest.approx(0.5, abs=0.12)
    assert found.goodput_per_s == pytest.approx(found.request_rate_per_s * found.good_share, rel=0.01)


def test_results_survive_their_json(mock_engine) -> None:
    run = drive(mock_engine("--itl-ms", 1).url, 1, output_tokens=2)
    assert LoadRun.from_json(run.to_json()) == run
    assert all(isinstance(trace, RequestTrace) for trace in run.traces[0])
