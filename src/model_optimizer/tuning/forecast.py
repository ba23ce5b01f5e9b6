"""What the simulation says about one subject: its scheduler's settings, and step times once they were measured."""

from __future__ import annotations

from model_optimizer.records.model import ModelSpec
from model_optimizer.records.simulation import StepModel


class Forecast:
    """Predicts boundaries for settings of one engine, model and machine; nothing before ``calibrate``."""

    def __init__(self, engine: str, model: ModelSpec) -> None:
        self.steps: StepModel | None = None
        self._engine = engine
        self._model = model
