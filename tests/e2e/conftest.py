"""Slow tests run the real product. Tool environments are large, so they are built once and shared by all homes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tool environments. ``MODEL_OPTIMIZER_TEST_TOOLS`` names one to keep between test runs."""
    kept = os.environ.get("MODEL_OPTIMIZER_TEST_TOOLS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("tools")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Callable[[], Path]:
    """Makes homes of Model-Optimizer: empty but for the tools."""

    def make() -> Path:
        home = tmp_path_factory.mktemp("home")
        (home / "tools").symlink_to(tools)
        return home

    return make


@pytest.fixture(scope="session")
def cli() -> Run:
    """Runs the command line in a home, as a user would."""

    def run(home: Path, *args: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "model_optimizer", *args],
            env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
