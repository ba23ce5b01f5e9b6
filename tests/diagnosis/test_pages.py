"""The troubleshooting pages are in step with the data."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from model_optimizer.kb.causes import causes

SCRIPT = Path(__file__).parents[2] / "scripts" / "docs-troubleshooting"


def script(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("docs_troubleshooting", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_pages_are_in_step(monkeypatch, capsys):
    assert script(monkeypatch).main(check=True) == 0, capsys.readouterr().out


def test_check_notices_a_stale_page(monkeypatch, tmp_path, capsys):
    module = script(monkeypatch)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    module.main(check=False)
    (tmp_path / "troubleshooting.md").write_text("old", encoding="utf-8")
    assert module.main(check=True) == 1
    assert "troubleshooting.md is not in step" in capsys.readouterr().out


def test_every_cause_is_on_both_pages(monkeypatch):
    docs = script(monkeypatch).DOCS
    english, chinese = ((docs / f"troubleshooting{end}.md").read_text(encoding="utf-8") for end in ("", ".zh-CN"))
    for cause in (c for c in causes() if c.kind == "cause"):
        assert f"### {cause.title}\n\n`{cause.id}`" in english
        assert f"### {cause.title_zh}\n\n`{cause.id}`" in chinese
