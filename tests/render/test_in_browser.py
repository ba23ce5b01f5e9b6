"""The report in a real browser: every picture is drawn, no script fails, nothing sticks out, tips tell numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from model_optimizer.render.charts import charts
from model_optimizer.render.report import report_html
from model_optimizer.render.series import all_series
from tests.render import manifests

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=5000",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def browse(page: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's DOM after its scripts ran, and what they wrote to the console."""
    assert CHROMIUM is not None
    profile = page.parent / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def with_script(html: str, script: str) -> str:
    """The page with one more script, without the policy that would refuse it."""
    html = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", html)
    return html.replace("</body>", f"<script>{script}</script></body>")


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_every_picture_is_drawn_and_no_script_fails(make, tmp_path):
    manifest = make()
    page = tmp_path / "report.html"
    page.write_text(report_html(manifest), encoding="utf-8")
    dom, console = browse(page, "--window-size=1280,900", "--dump-dom")
    assert console == []
    assert re.search(r'id="script-errors" hidden=""', dom)
    assert "<title>owned" not in dom
    for chart in charts(manifest, all_series(manifest)):
        figure = dom.partition(f'id="picture-{chart.id}"')[2].partition("</figure>")[0]
        if chart.absent:
            assert not figure and f"<dd>{chart.absent}</dd>" in dom
            continue
        assert f'data-drawn="{chart.kind}"' in figure
        assert "<svg" in figure
        marks = len(re.findall(r"<(?:circle|rect|path|line)\b", figure))
        assert marks >= len({row[0] for row in chart.table.rows}), chart.id  # at least one for each candidate
        assert "NaN" not in figure and "Infinity" not in figure and "undefined" not in figure


@pytest.mark.parametrize(
    "make", [manifests.finished, manifests.one_load, manifests.hostile], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(make, width, tmp_path):
    script = "parent.postMessage([document.documentElement.scrollWidth, innerWidth].join(' in '), '*')"
    (tmp_path / "inner.html").write_text(with_script(report_html(make()), script), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        "<p id=seen></p><script>onmessage = e => { seen.textContent = e.data; }</script>"
        f'<iframe src="inner.html" style="width:{width}px;height:900px;border:0"></iframe>',
        encoding="utf-8",
    )
    dom, _ = browse(outer, "--window-size=1400,1000", "--dump-dom")
    seen = re.search(r'id="seen">(\d+) in (\d+)<', dom)
    assert seen is not None
    assert int(seen[2]) == width
    assert int(seen[1]) <= width


def test_pointing_at_a_mark_shows_its_numbers(tmp_path):
    script = """
        const svg = document.querySelector('[data-chart="memory"] svg');
        const box = svg.getBoundingClientRect();
        const at = {clientX: box.left + 20, clientY: box.top + 30, bubbles: true, pointerType: "mouse"};
        svg.dispatchEvent(new PointerEvent("pointerenter", at));
        svg.dispatchEvent(new PointerEvent("pointermove", at));
    """
    page = tmp_path / "report.html"
    page.write_text(with_script(report_html(manifests.finished()), script), encoding="utf-8")
    dom, console = browse(page, "--window-size=1280,900", "--dump-dom")
    assert console == []
    figure = dom.partition('id="picture-memory"')[2].partition("</figure>")[0]
    tip = figure.partition('aria-label="tip"')[2].partition("</svg>")[0]
    said = re.sub(r"<[^>]+>", " ", tip)
    assert "peak 414 MiB, measured" in said and "predicted 390 MiB" in said


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_of_the_page_is_taken_in_light_and_dark(scheme, tmp_path):
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(report_html(manifests.finished()), encoding="utf-8")
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(page, "--window-size=1280,2400", f"--screenshot={picture}", *dark)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 100_000


def test_it_prints(tmp_path):
    page, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(report_html(manifests.finished()), encoding="utf-8")
    browse(page, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF")
