"""What an engine demands of the model's shapes: heads and groups that divide, equal bits in fused layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from model_optimizer.kb.engines import engine as find_engine
from model_optimizer.kb.load import data_folder, read_yaml, to_record
from model_optimizer.kb.schemes import scheme as find_scheme
from model_optimizer.kb.sources import Ids, SourceEntry, Sources
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import SchemeSpec, Source, State
from model_optimizer.records.model import ModelSpec


class _Fused(Record):
    groups: tuple[tuple[str, ...], ...]
    source: Ids


class _HeadDim(Record):
    scheme: str
    head_dim: int
    source: Ids


class _Demands(Record):
    engine: str
    heads_divide: Ids | None = None
    groups_divide: Ids | None = None
    fused: _Fused | None = None
    refused_head_dims: tuple[_HeadDim, ...] = ()


class _File(Record):
    sources: dict[str, SourceEntry]
    engines: tuple[_Demands, ...]


@cache
def _read() -> tuple[dict[str, _Demands], Sources]:
    file = data_folder() / "shapes.yaml"
    content = to_record(_File, read_yaml(file), file)
    return {demands.engine: demands for demands in content.engines}, Sources(file, content.sources)


def _refusal(scheme: str, engine: str, code: str, sentence: str, ids: Ids) -> State:
    sources: list[Source] = _read()[1].find(ids, ())
    return State(
        scheme=scheme,
        engine=engine,
        gpu="any",
        version=find_engine(engine).current_version,
        state="impossible",
        code=code,
        sentence=sentence,
        sources=tuple(sources),
        date=max(source.read for source in sources),
        status=sources[0].status,
    )


Found = Iterator[tuple[str, str, Ids]]  # reason code, sentence, source ids


def _heads(demands: _Demands, model: ModelSpec, tp: int) -> Found:
    heads = model.num_attention_heads
    if demands.heads_divide is not None and heads % tp:
        yield (
            "HEADS_NOT_DIVISIBLE_BY_TP",
            f"{heads} attention heads do not divide over {tp} GPUs.",
            demands.heads_divide,
        )


def _groups(demands: _Demands, model: ModelSpec, spec: SchemeSpec, tp: int) -> Found:
    """Row-parallel layers are cut along their input: the attention output and the MLP's down projection."""
    group = spec.group_size
    if demands.groups_divide is None or spec.kind != "weights" or group is None or tp == 1:
        return
    for name, width in (("o_proj", model.num_attention_heads * model.head_dim), ("down_proj", model.intermediate_size)):
        if width is not None and (width % tp or (width // tp) % group):
            sentence = f"{name} has {width} inputs: a share of 1/{tp} is no multiple of the group size {group}."
            yield "GROUP_SIZE_TP", sentence, demands.groups_divide


def _fused(demands: _Demands, bits_by_module: Mapping[str, float]) -> Found:
    if demands.fused is None:
        return
    for group in demands.fused.groups:
        bits = {name: bits_by_module[name] for name in group if name in bits_by_module}
        if len(set(bits.values())) > 1:
            written = ", ".join(f"{name} {value:g}" for name, value in bits.items())
            sentence = f"The engine fuses these into one layer, and their bits differ: {written}."
            yield "FUSED_LAYER_MIXED_BITS", sentence, demands.fused.source


def _head_dim(demands: _Demands, model: ModelSpec, spec: SchemeSpec) -> Found:
    for refused in demands.refused_head_dims:
        if refused.scheme == spec.id and refused.head_dim == model.head_dim:
            sentence = f"There is no kernel for {spec.title} at head size {model.head_dim}."
            yield "HEAD_DIM_UNSUPPORTED", sentence, refused.source


def shape_refusals(
    model: ModelSpec,
    scheme: str,
    engine: str,
    tensor_parallel_size: int = 1,
    bits_by_module: Mapping[str, float] | None = None,
) -> tuple[State, ...]:
    """Why this engine cannot serve the model in that shape; empty: nothing known speaks against it.

    ``bits_by_module``: bits of each module of one layer by its last name (``q_proj``), for mixed-precision checkpoints.
    Raises ``UnknownName`` for a scheme or engine that is not known.
    """
    spec, facts = find_scheme(scheme), find_engine(engine)
    demands = _read()[0].get(facts.id)
    if demands is None:
        return ()
    found = (
        *_heads(demands, model, tensor_parallel_size),
        *_groups(demands, model, spec, tensor_parallel_size),
        *_fused(demands, bits_by_module or {}),
        *_head_dim(demands, model, spec),
    )
    return tuple(_refusal(spec.id, facts.id, code, sentence, ids) for code, sentence, ids in found)
