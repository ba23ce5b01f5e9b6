"""No test reaches the user's home or anything but loopback."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Each test has a home of its own; slow tests share one (tests/e2e/conftest.py), since environments are large."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setenv("MODEL_OPTIMIZER_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family in (socket.AF_INET, socket.AF_INET6) and host not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
