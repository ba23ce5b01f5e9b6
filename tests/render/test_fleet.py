"""The page of a plan: loads nothing, says what the plan says, draws in a real browser, hostile text stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from model_optimizer.kb import query
from model_optimizer.records.fleet import Fleet
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import Span, Term
from model_optimizer.render.fleet import fleet_charts, fleet_html, headline, load_words, rows_of
from model_optimizer.render.quantities import money, quantity, span
from tests.planning.asking import plan, traffic
from tests.render.test_in_browser import CHROMIUM, browse, with_script
from tests.render.test_report import Page
from tests.sizing import models

GPUS = {spec.id: spec for spec in query.gpus()}
SLO = {"ttft_p95": "2 s", "tpot_p95": "60 ms"}
NAME = "</script><script>document.title='owned'</script>"
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def html(fleet: Fleet, model: ModelSpec = models.LLAMA_31_8B) -> str:
    return fleet_html(model, fleet, GPUS, query.reasons())


@pytest.fixture(scope="module")
def buyer() -> Fleet:
    return plan(models.LLAMA_31_8B, "all", SLO, of=traffic("rag"), objective="cost", explain=True)


@pytest.fixture(scope="module")
def owner() -> Fleet:
    return plan(models.LLAMA_31_8B, "4x l40s", SLO, of=traffic("rag", "3/s"), explain=True)


@pytest.fixture(scope="module")
def infeasible() -> Fleet:
    return plan(models.LLAMA_31_8B, "l20", {"tpot_p95": "8.3 ms"}, schemes=("bf16",), explain=True)


@pytest.fixture(scope="module")
def hostile() -> Fleet:
    spec = models.LLAMA_31_8B.model_copy(update={"source": NAME})
    return plan(spec, "l4", SLO, of=traffic("rag"))


def test_every_kind_of_plan_gives_a_page_that_loads_nothing(buyer, owner, infeasible, hostile):
    for fleet in (buyer, owner, infeasible, hostile):
        page = Page(html(fleet))
        loads = {"src", "srcset", "action", "formaction", "data", "poster", "background"}
        assert not [(tag, attrs) for tag, attrs in page.tags if loads & attrs.keys()]
        assert all((attrs["href"] or "").startswith("#") for _, attrs in page.tags if "href" in attrs)
        policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
        assert policy is not None and policy.startswith("default-src 'none'")


def test_hostile_text_stays_text(hostile):
    text = html(hostile)
    assert NAME not in text
    assert not re.search(r"[<>&\u2028\u2029]", Page(text).scripts[0])


def test_the_headline_is_the_answer(buyer, owner, infeasible):
    rows = rows_of(buyer, GPUS)
    best = buyer.options[0]
    sentence = headline(buyer, rows)
    assert sentence.startswith(f"First to try: {best.deployment.scheme} · {best.deployment.engine} on ")
    assert "for 16 users at once" in sentence
    assert money(best.price.usd_per_million_tokens) in sentence
    assert "for 3 requests a second" in headline(owner, rows_of(owner, GPUS))
    assert "tpot_p95" in headline(infeasible, rows_of(infeasible, GPUS))
    assert "where ≤ 8.3 ms was asked" in headline(infeasible, rows_of(infeasible, GPUS))


def test_a_comparison_has_one_row_a_gpu_and_an_owner_sees_every_option(buyer, owner):
    rows = rows_of(buyer, GPUS)
    assert len({row.gpu.id for row in rows}) == len(rows) >= 55
    assert [row.role for row in rows].count("winner") == 1
    assert len(rows_of(owner, GPUS)) == len(owner.options)
    said = Page(html(buyer)).said()
    assert all(row.gpu.title in said for row in rows)


def test_the_frontier_is_what_nothing_beats_in_both(buyer):
    chart = fleet_charts(buyer, rows_of(buyer, GPUS))[0]
    for panel in chart.data["panels"]:
        edge = {dot["id"] for dot in panel["frontier"]}
        for dot in panel["dots"]:
            beaten = any(o["x"] <= dot["x"] and o["y"] < dot["y"] for o in panel["dots"])
            if dot["id"] in edge:
                assert not beaten
    assert chart.table.rows and "is cheapest" in chart.says


def test_without_prices_the_page_says_why_there_is_no_picture():
    fleet = plan(models.LLAMA_31_8B, "l20", SLO, of=traffic("rag"))
    chart = fleet_charts(fleet, rows_of(fleet, GPUS))[0]
    assert chart.absent and "price is known" in chart.absent
    assert chart.absent in Page(html(fleet)).said()


def test_refusals_facts_and_sources_are_there(owner, infeasible):
    said = Page(html(owner)).said()
    assert "GPU too old for this engine or scheme" in said
    assert "vendor" in said and "read 2026-12-01" in said
    assert "The arithmetic, line by line" in said and "weights read a step" in said
    way_out = Page(html(infeasible)).said()
    assert "What would help" in way_out and infeasible.levers[0].change in way_out
    assert "below the floor of 17.3 ms" in way_out


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.2014, "$0.201"), (5.4, "$5.40"), (1465.2, "$1,465")])
def test_money(value: float | None, text: str):
    assert money(value) == text


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (Term(name="", value=864e9, unit="B/s", formula=""), "864 GB/s"),
        (Term(name="", value=2.39e14, unit="FLOP/s", formula=""), "239 TFLOP/s"),
        (Term(name="", value=2**30, unit="B", formula=""), "1 GiB"),
        (Term(name="", value=0.0124, unit="s", formula=""), "12.4 ms"),
        (Term(name="", value=7.5e9, formula=""), "7.5 B"),
        (Term(name="", value=131072, unit="tokens", formula=""), "131,072 tokens"),
        (Term(name="", formula="words"), ""),
    ],
)
def test_quantities(term: Term, text: str):
    assert quantity(term) == text


def test_ranges_have_the_unit_of_their_middle():
    assert span(Span(low=0.062, value=0.083, high=0.112)) == "62–112 ms"
    assert span(Span(low=0.5, value=1.2, high=2.0)) == "0.5–2 s"
    assert load_words("c=1") == "one user"


@in_a_browser
@pytest.mark.parametrize("name", ["buyer", "owner", "infeasible"])
def test_every_picture_is_drawn_and_no_script_fails(name: str, request: pytest.FixtureRequest, tmp_path: Path):
    fleet: Fleet = request.getfixturevalue(name)
    page = tmp_path / "fleet.html"
    page.write_text(html(fleet), encoding="utf-8")
    dom, console = browse(page, "--window-size=1280,900", "--dump-dom")
    assert console == []
    assert re.search(r'id="script-errors" hidden=""', dom)
    drawn = 0
    for chart in fleet_charts(fleet, rows_of(fleet, GPUS)):
        if chart.absent:
            continue
        figure = dom.partition(f'id="picture-{chart.id}"')[2].partition("</figure>")[0]
        assert f'data-drawn="{chart.kind}"' in figure
        dots = chart.data["panels"][0].get("dots") or chart.data["panels"][0]["rows"]
        assert len(re.findall(r"<circle\b", figure)) >= len(dots)
        assert "NaN" not in figure and "Infinity" not in figure and "undefined" not in figure
        drawn += 1
    assert drawn >= 1


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(width: int, buyer: Fleet, tmp_path: Path):
    script = "parent.postMessage([document.documentElement.scrollWidth, innerWidth].join(' in '), '*')"
    (tmp_path / "inner.html").write_text(with_script(html(buyer), script), encoding="utf-8")
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


@in_a_browser
def test_pointing_at_a_gpu_shows_its_numbers(buyer: Fleet, tmp_path: Path):
    data = json.loads(Page(html(buyer)).scripts[0])["pareto"]["panels"][0]["dots"]
    script = """
        const svg = document.querySelector('[data-chart="pareto"] svg');
        const dot = svg.querySelectorAll('circle')[0].getBoundingClientRect();
        const at = {clientX: dot.left + 4, clientY: dot.top + 4, bubbles: true, pointerType: "mouse"};
        svg.dispatchEvent(new PointerEvent("pointerenter", at));
        svg.dispatchEvent(new PointerEvent("pointermove", at));
    """
    page = tmp_path / "fleet.html"
    page.write_text(with_script(html(buyer), script), encoding="utf-8")
    dom, console = browse(page, "--window-size=1280,900", "--dump-dom")
    assert console == []
    figure = dom.partition('id="picture-pareto"')[2].partition("</figure>")[0]
    tip = re.sub(r"<[^>]+>", " ", figure.partition('aria-label="tip"')[2].partition("</svg>")[0])
    assert "a million tokens" in tip and "predicted" in tip
    assert any(dot["tip"].splitlines()[0] in tip for dot in data)
