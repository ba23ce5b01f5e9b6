"""The measurements of prediction.yaml as records: rows, the sets they came in, models by their public shapes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from model_optimizer.kb.load import read_yaml, to_record
from model_optimizer.kb.sources import SourceEntry
from model_optimizer.records.base import Record
from model_optimizer.records.model import ModelSpec
from model_optimizer.sizing.speed import Mix
from tests.sizing.models import model as build_model

DATA = Path(__file__).parent / "prediction.yaml"
Metric = Literal["tpot", "ttft", "output_tokens_per_s"]
METRICS: tuple[Metric, ...] = ("tpot", "ttft", "output_tokens_per_s")


class Row(Record):
    """A measurement and what was running. Times are means; tokens a second follow from them where not given."""

    engine: str
    version: str | None = None
    model: str
    scheme: str
    kv: Literal["auto", "fp8"] = "auto"
    gpu: str = ""
    tensor: int = 1
    prompt_tokens: float | dict[float, float]
    output_tokens: float
    concurrency: int
    kind: Literal["closed_loop", "decode"] = "closed_loop"
    length_share: float = 1.0
    compare: tuple[Metric, ...] = METRICS
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    output_tokens_per_s: float | None = None
    use: Literal["fit", "held-out"] = "held-out"
    set: str = ""
    note: str = ""

    @property
    def mix(self) -> Mix:
        """The lengths in the mean, by class."""
        mix = self.prompt_tokens if isinstance(self.prompt_tokens, dict) else {self.prompt_tokens: 1.0}
        share, answer = self.length_share, self.output_tokens * self.length_share
        return Mix(tuple((prompt * share, answer, part) for prompt, part in mix.items()))

    @property
    def measured(self) -> dict[Metric, float]:
        """What is compared, in seconds and tokens a second."""
        found: dict[Metric, float] = {}
        if self.ttft_ms is not None and self.tpot_ms is not None:
            ttft, tpot, answer = self.ttft_ms / 1e3, self.tpot_ms / 1e3, self.mix.output_tokens
            found = {"tpot": tpot, "ttft": ttft}
            found["output_tokens_per_s"] = self.concurrency * answer / (ttft + tpot * (answer - 1))
        if self.output_tokens_per_s is not None:
            found["output_tokens_per_s"] = self.output_tokens_per_s
        return {metric: value for metric, value in found.items() if metric in self.compare}

    @property
    def title(self) -> str:
        """For tables."""
        prompt = "mix" if isinstance(self.prompt_tokens, dict) else f"{self.prompt_tokens:g}"
        kv = ", FP8 KV" if self.kv == "fp8" else ""
        split = f" TP{self.tensor}" if self.tensor > 1 else ""
        return (
            f"{self.engine}{split} {self.model} {self.scheme}{kv} {prompt}/{self.output_tokens:g} c={self.concurrency}"
        )


class Shape(Record):
    """A model by its public config values; see tests/sizing/models.py."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int = 131072
    attention: Literal["gqa", "sliding"] = "gqa"
    experts: tuple[int, int] | None = None
    sliding: tuple[int, int] | None = None
    stored_bits: dict[str, float] = {}
    quantized_as: str | None = None

    def spec(self, name: str) -> ModelSpec:
        """The record that the arithmetic takes."""
        own = {"stored_bits", "quantized_as"}
        spec = build_model(name, **{field: getattr(self, field) for field in Shape.model_fields if field not in own})
        classes = tuple(
            item.model_copy(update={"weight_bytes": int(item.parameters * self.stored_bits.get(item.name, 16.0) / 8)})
            for item in spec.weight_classes
        )
        total = sum(item.weight_bytes for item in classes)
        return spec.model_copy(
            update={"weight_classes": classes, "weight_bytes": total, "quantized_as": self.quantized_as}
        )


class RowSet(Record):
    """Rows of one origin; what they have in common."""

    id: str
    source: tuple[str, ...]
    gpu: str
    kind: Literal["closed_loop", "decode"]
    length_share: float = 1.0
    compare: tuple[Metric, ...] = METRICS
    note: str = ""
    rows: tuple[Row, ...]


class File(Record):
    """prediction.yaml."""

    sources: dict[str, SourceEntry]
    models: dict[str, Shape]
    sets: tuple[RowSet, ...]

    def all_rows(self) -> list[Row]:
        """The rows with what their sets say."""
        return [
            row.model_copy(
                update={"set": s.id, "gpu": s.gpu, "kind": s.kind, "length_share": s.length_share, "compare": s.compare}
            )
            for s in self.sets
            for row in s.rows
        ]


@cache
def read_file() -> File:
    """prediction.yaml, checked."""
    return to_record(File, read_yaml(DATA), DATA)


@cache
def spec_of(name: str) -> ModelSpec:
    """A model of the file."""
    return read_file().models[name].spec(name)
