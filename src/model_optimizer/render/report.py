"""RunManifest → one HTML file: everything in it, nothing loaded from anywhere, the same bytes for the same manifest."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from model_optimizer.records.run import RunManifest
from model_optimizer.render import facts, words
from model_optimizer.render.chart import Chart, finite
from model_optimizer.render.charts import charts
from model_optimizer.render.series import STATES, Series, all_series, baseline_of, lightest_common
from model_optimizer.render.story import cautions, headline
from model_optimizer.render.tuning import tuning_story
from model_optimizer.units import format_count

SHOWN_REFUSALS = 12
"""More refusals than this are folded away."""

SHOWN_ANSWERS = 3
"""More answers of a candidate than this are folded away."""

SCRIPTS = ("templates/errors.js", "vendor/d3.min.js", "vendor/plot.umd.min.js", "templates/charts.js")


def report_html(manifest: RunManifest) -> str:
    """The report of a run, finished or not, as one self-contained HTML page.

    A content security policy in the page names the hash of each script and forbids all loading, so that text from a
    model, a log or a file name can neither run nor fetch, even if an escape were forgotten.
    """
    series = all_series(manifest)
    pictures = charts(manifest, series)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            manifest=manifest,
            spec=manifest.spec,
            series=series,
            baseline=baseline_of(series),
            head=headline(manifest, series),
            cautions=cautions(manifest, series),
            charts=pictures,
            chart_data=script_json({c.id: {"kind": c.kind, **c.data} for c in pictures if not c.absent}),
            tunings=[tuning_story(tuning) for tuning in manifest.tunings],
            answers={s.id: a for s in series if (a := facts.answers(manifest, s))},
            request=facts.request_values(manifest),
            request_file=facts.request_file(manifest),
            shown_refusals=SHOWN_REFUSALS,
            shown_answers=SHOWN_ANSWERS,
        )
    )


@cache
def environment() -> jinja2.Environment:
    """The templates with what every page shares: words, style, scripts and the hashes that its policy names."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("model_optimizer.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [_resource(name) for name in SCRIPTS]
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    made.globals.update(
        words=words,
        states=STATES,
        versus=_versus,
        count=format_count,
        style=Markup(_resource("templates/report.css")),  # noqa: S704 (our own files)
        scripts=[Markup(text) for text in scripts],  # noqa: S704
        script_hashes=Markup(" ".join(f"'sha256-{value}'" for value in hashes)),  # noqa: S704
        licenses=_resource("vendor/LICENSES.txt"),
    )
    made.tests["drawn"] = lambda chart: isinstance(chart, Chart) and not chart.absent
    return made


def _resource(name: str) -> str:
    return files("model_optimizer.render").joinpath(name).read_text(encoding="utf-8")


def script_json(value: Any) -> Markup:
    """JSON that is safe inside a script element: no character that could end it, open a comment or break a line."""
    text = json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704


def _versus(series: Series, baseline: Series | None) -> str:
    """How many times the baseline's output tokens/s, at the lightest load that both have."""
    load = lightest_common(series, baseline) if baseline and series is not baseline else None
    new, old = series.at(load), baseline.at(load) if baseline else None
    if load is None or new is None or old is None:
        return words.NOTHING
    factor = words.times(new.output_tokens_per_s, old.output_tokens_per_s)
    return f"{factor}×" if factor else words.NOTHING
