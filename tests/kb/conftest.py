"""Where the facts lie that this knowledge base was filled from, if they are beside the repository."""

from pathlib import Path

import pytest
import yaml

_BESIDE = Path(__file__).parents[2].parent / "shared"


def _read(name: str):
    path = _BESIDE / "facts" / name
    if not path.exists():
        pytest.skip("the fact files are not beside the repository")
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@pytest.fixture(scope="session")
def gpu_facts():
    return {entry["id"]: entry for entry in _read("gpus.yaml")["gpus"]}


@pytest.fixture(scope="session")
def engine_facts():
    return _read("engines.yaml")["engines"]


@pytest.fixture(scope="session")
def compat_facts():
    return _read("compat.yaml")


@pytest.fixture(scope="session")
def claims_text():
    path = _BESIDE / "founding" / "claims.md"
    if not path.exists():
        pytest.skip("the claims are not beside the repository")
    return path.read_text(encoding="utf-8")
