"""Shared by the tests of host: an environment that is our own Python, and a place to collect events."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from model_optimizer.host.toolenv import ToolEnv


class Events(list[tuple[str, dict[str, object]]]):
    """An ``Emit`` that keeps what it is told."""

    def __call__(self, kind: str, **fields: object) -> None:
        self.append((kind, fields))

    def of(self, kind: str) -> list[dict[str, object]]:
        return [fields for name, fields in self if name == kind]


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def python_env() -> ToolEnv:
    return ToolEnv(name="python", python=Path(sys.executable), version="1.2.3", digest="0" * 64, size_bytes=0)
