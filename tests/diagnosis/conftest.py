"""The known causes, the way a test asks for a diagnosis, and the recorded cases if they are beside the repository."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from model_optimizer.diagnosis import diagnose
from model_optimizer.kb.causes import causes
from model_optimizer.records.diagnosis import Diagnosis

HERE = Path(__file__).parent
CASES = HERE.parents[1].parent / "shared" / "failures"


@pytest.fixture
def ask() -> Callable[..., Diagnosis]:
    """Diagnose with the causes of the package."""

    def asked(source: Any, facts: dict[str, object] | None = None, engine: str | None = None) -> Diagnosis:
        return diagnose(source, causes(), facts, engine)

    return asked


@pytest.fixture(scope="session")
def cases() -> list[dict[str, Any]]:
    """Real public failures with their root causes."""
    if not CASES.exists():
        pytest.skip("the cases are not beside the repository")
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((CASES / "cases").glob("*.yaml"))]


@pytest.fixture(scope="session")
def named_causes() -> dict[str, Any]:
    """The root causes that those failures have."""
    if not CASES.exists():
        pytest.skip("the cases are not beside the repository")
    found: dict[str, Any] = yaml.safe_load((CASES / "causes.yaml").read_text(encoding="utf-8"))["causes"]
    return found
