"""Candidates for the GPU in this machine: the plan over the knowledge base, cut down to what can be served here."""

from __future__ import annotations

from collections.abc import Mapping

from model_optimizer.engines import ENGINES
from model_optimizer.errors import NothingFits
from model_optimizer.kb import query
from model_optimizer.planning.fleet import plan_fleet
from model_optimizer.records.candidate import Candidate, Estimate, PlannedCandidate, Refusal
from model_optimizer.records.fleet import Option
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.knowledge import InstalledEngine
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.run import RunSpec
from model_optimizer.records.tooling import Fit
from model_optimizer.units import format_seconds

ENGINE = "vllm"

# Schemes that need no artifact of their own: vLLM loads the checkpoint as it is, or quantizes it while loading.
ON_LOAD: dict[str, dict[str, str | int | float | bool]] = {"bf16": {}, "fp16": {}, "fp8": {"quantization": "fp8"}}

Planned = tuple[list[PlannedCandidate], list[Refusal]]


def gpu_candidates(
    spec: RunSpec, model: ModelSpec, host: HostSpec, max_model_len: int, facts: Mapping[str, InstalledEngine]
) -> Planned:
    """Options on the first GPU by predicted score, and every refusal with its source.

    A GPU that the knowledge base does not know gets the checkpoint as it is, with a refusal that says why no more.
    """
    detected = host.gpus[0]
    known = query.matching_gpus(detected.name)
    fit = _fit(spec, model, host, max_model_len)
    if len(known) != 1:
        reason = f"the knowledge base does not know {detected.name}, so schemes cannot be judged beforehand"
        fix = "add one entry: docs/adding-a-gpu.md"
        return [_unknown_gpu(fit)], [Refusal(route="other schemes", code="NOT_ESTABLISHED", reason=reason, fix=fix)]
    halves = "bf16" if known[0].peak_flops("bf16") is not None else "fp16"
    schemes = spec.schemes or (() if model.quantized_as else (halves, "fp8"))
    try:
        fleet = plan_fleet(
            model,
            known[0].id,
            spec.traffic,
            spec.slo,
            objective=spec.objective,
            max_model_len=max_model_len,
            driver=detected.driver,
            engines=(ENGINE,),
            schemes=schemes,
            installed=facts,
        )
    except NothingFits as error:
        reason = "; ".join([error.cause, *error.evidence[:2]])
        return [], [Refusal(route=f"{ENGINE} · {known[0].id}", code="NOTHING_FITS", reason=reason, fix=error.fix)]
    built = [option for option in fleet.options if _is_built_here(option, model)]
    return [_planned(option, fit) for option in built], list(fleet.refused)


def _fit(spec: RunSpec, model: ModelSpec, host: HostSpec, max_model_len: int) -> Fit:
    return Fit(
        model=model,
        host=host,
        scheme="as-is",
        max_model_len=max_model_len,
        concurrency=spec.traffic.max_concurrency,
        weight_bytes=model.weight_bytes,
    )


def _is_built_here(option: Option, model: ModelSpec) -> bool:
    """One GPU, the default KV cache (a smaller one needs a long-context check first), and no artifact to make."""
    deployment = option.deployment
    plain = deployment.parallelism.num_gpus == 1 and deployment.kv_dtype == "auto"
    return plain and (deployment.scheme in ON_LOAD or model.quantized_as is not None)


def _planned(option: Option, fit: Fit) -> PlannedCandidate:
    scheme = option.deployment.scheme
    args = {**ENGINES[ENGINE].engine_args(fit), **(ON_LOAD[scheme] if fit.model.quantized_as is None else {})}
    light = option.light
    why = (
        f"{option.state.state}; predicted for one user: TTFT {format_seconds(light.ttft_s.value)}, "
        f"TPOT {format_seconds(light.tpot_s.value)}"
    )
    return PlannedCandidate(
        candidate=Candidate(scheme=scheme, engine=ENGINE, max_model_len=fit.max_model_len, engine_args=args),
        estimate=Estimate(
            weight_bytes=round(option.memory.weight_bytes),
            memory_bytes=round(option.memory.usable_bytes),
            decode_floor_s=light.tpot_floor_s,
        ),
        why=why,
    )


def _unknown_gpu(fit: Fit) -> PlannedCandidate:
    engine = ENGINES[ENGINE]
    scheme = fit.model.quantized_as or fit.model.weight_dtype.lower()
    return PlannedCandidate(
        candidate=Candidate(
            scheme=scheme, engine=ENGINE, max_model_len=fit.max_model_len, engine_args=engine.engine_args(fit)
        ),
        estimate=Estimate(weight_bytes=fit.weight_bytes, memory_bytes=engine.memory_bytes(fit)),
        why="the checkpoint as it is",
    )
