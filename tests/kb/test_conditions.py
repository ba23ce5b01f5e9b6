"""Every condition that a check can state has its entry, and the texts ask only for values that the checks give."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import model_optimizer.doctor.checks as checks
from model_optimizer.kb.conditions import conditions

_FOLDER = Path(next(iter(checks.__path__)))
_PLACE = re.compile(r"(?<![{$])\{(\w+)\}(?!\})")
_FAMILIES = {"debian", "rhel", "suse", "arch", "wsl2", "container", "any"}


def _names(tree: ast.AST) -> set[str]:
    """Keys of dictionaries and of ``values["key"] = ...`` in a piece of code."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            found |= {k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(str(node.slice.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_values":
            found |= {"path", "what"}
    return found


def _yielded() -> dict[str, set[str]]:
    """Each id in the sources of the checks, with the values given to it."""
    found: dict[str, set[str]] = {}
    for file in sorted(_FOLDER.glob("*.py")):
        tree = ast.parse(file.read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in ast.walk(function):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Hit"):
                    continue
                words = {word.arg: word.value for word in call.keywords}
                given = words.get("values")
                names = set() if given is None else _names(function if isinstance(given, ast.Name) else given)
                ids = [n.value for n in ast.walk(words["id"]) if isinstance(n, ast.Constant)]
                if isinstance(words["id"], ast.Name):
                    constants = [n.value for n in ast.walk(function) if isinstance(n, ast.Constant)]
                    ids = [v for v in constants if isinstance(v, str) and v.startswith("disk-")]
                for id in ids:
                    found[str(id)] = found.get(str(id), names) & names
    return found


def test_every_condition_of_the_checks_is_known_and_the_reverse() -> None:
    assert set(conditions()) == set(_yielded())


@pytest.mark.parametrize("id", sorted(conditions()))
def test_texts_ask_only_for_values_that_the_check_gives(id: str) -> None:
    entry = conditions()[id]
    commands = [command for steps in entry.fix.values() for command in steps]
    texts = [entry.title, entry.title_zh, entry.cause, *commands, *entry.verify]
    asked = {name for text in texts for name in _PLACE.findall(text)}
    assert asked <= _yielded()[id]


@pytest.mark.parametrize("id", sorted(conditions()))
def test_an_entry_says_what_to_do_and_where_it_is_from(id: str) -> None:
    entry = conditions()[id]
    assert set(entry.fix) <= _FAMILIES
    assert entry.severity in ("info", "warning", "error")
    assert entry.fact is not None
    assert entry.fact.startswith("https://")
    if entry.severity != "info":
        assert "any" in entry.fix
        assert entry.verify or entry.id in ("amd-gfx-unsupported", "system-not-linux")


def test_no_fix_is_dangerous() -> None:
    """No rights for everyone, no killing by name, no restart that is not a comment for a person."""
    for entry in conditions().values():
        for command in (command for steps in entry.fix.values() for command in steps):
            assert not re.search(r"chmod\s+(?:-R\s+)?[0-7]*[267]\b|\bpkill\b|\bkillall\b|\brm -rf\b", command), command
            assert command.startswith("#") or not re.search(r"\breboot\b|\bshutdown\b|restart docker", command), command
