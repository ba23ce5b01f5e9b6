"""What a running server is busy with, from its metrics page alone; or honestly that the page does not tell.

``window`` makes numbers of the looks, ``regimes`` decides, here the texts and levers are put to it. The tuning stage
calls ``classify`` with the looks at one trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model_optimizer.diagnosis.prometheus import Page
from model_optimizer.diagnosis.promises import broken, check_window
from model_optimizer.diagnosis.regimes import Claim, claims, conditions, restarted
from model_optimizer.diagnosis.window import look_at, which_engine, window
from model_optimizer.records.live import (
    EngineMetrics,
    Lever,
    LeverEntry,
    LiveDiagnosis,
    LiveFinding,
    RegimeEntry,
    Scrape,
    Window,
)
from model_optimizer.records.workload import SLO

MIN_WINDOW_S = 1.0
_ALIKE = {"vllm-cpu": "vllm"}
_NO_PAGE = "a Prometheus page: "


def classify(
    scrapes: Sequence[Scrape],
    engines: Sequence[EngineMetrics],
    regimes: Mapping[str, RegimeEntry],
    *,
    slo: SLO | None = None,
    slots: float | None = None,
    expected_step_s: float | None = None,
    engine: str | None = None,
) -> LiveDiagnosis:
    """The regime between the first look and the last. Never raises: what cannot be told is ``unknown``.

    ``slots``: requests that may run at once, where it is known from elsewhere. ``expected_step_s``: what a step of
    this batch should take, from a fit or a roofline. ``engine`` names it where the page is not to decide.
    """
    last = next((page for scrape in reversed(scrapes) if (page := Page(scrape.page))), None)
    if last is None:
        return _unknown(None, None, _without_page(scrapes, engines, engine))
    wanted = _ALIKE.get(engine or "", engine)
    known = next((e for e in engines if e.engine == wanted), None) or which_engine(last, engines)
    if known is None:
        names, titles = ", ".join(sorted(last.samples)[:5]), ", ".join(e.title for e in engines)
        return _unknown(None, None, (f"which engine this is: the page has none of the names of {titles} ({names}, …)",))
    looks = look_at(scrapes, known)
    w = window(looks, known, num_failed=len(scrapes) - len(looks), slots=slots)
    checks = check_window(w, slo) if slo is not None else ()
    limits = broken(checks)
    if w.seconds >= MIN_WINDOW_S:
        found = claims(w, slo_broken=bool(limits), expected_step_s=expected_step_s)
    else:
        found = tuple(claim for claim in (restarted(w),) if claim)
    if not found:
        return _unknown(known, w, _too_little(w, known)).model_copy(update={"checks": checks})
    held = conditions(w, found, limits)
    aside = found[1:] if found[0].regime == "client-bound" else ()  # what to change in a server that is hardly used?
    return LiveDiagnosis(
        regime=found[0].regime,
        engine=known.engine,
        findings=tuple(_finding(claim, regimes, known, w, held, offers=claim not in aside) for claim in found),
        window=w,
        checks=checks,
        notes=_notes(w, known, scrapes),
    )


def _finding(
    claim: Claim,
    regimes: Mapping[str, RegimeEntry],
    engine: EngineMetrics,
    w: Window,
    held: frozenset[str],
    *,
    offers: bool,
) -> LiveFinding:
    entry = regimes[claim.regime]
    offered = (*entry.levers.get(engine.engine, ()), *entry.levers.get("any", ())) if offers else ()
    return LiveFinding(
        regime=claim.regime,
        title=entry.title,
        means=entry.means,
        confidence=claim.confidence,
        deciders=claim.deciders,
        levers=tuple(_lever(lever, w) for lever in offered if _applies(lever, held)),
    )


def _applies(lever: LeverEntry, held: frozenset[str]) -> bool:
    return held.issuperset(lever.when) and held.isdisjoint(lever.unless)


def _lever(entry: LeverEntry, w: Window) -> Lever:
    return Lever(
        direction=entry.direction,
        flag=entry.flag,
        now=w.settings.get(entry.flag) if entry.flag else None,
        why=entry.why,
    )


def _notes(w: Window, engine: EngineMetrics, scrapes: Sequence[Scrape] = ()) -> tuple[str, ...]:
    notes = []
    if w.num_restarts:
        notes.append("the server started anew while we looked; the numbers are of the time since")
    if w.num_failed_looks:
        why = next((f" ({scrape.error})" for scrape in reversed(scrapes) if scrape.error), "")
        notes.append(f"{w.num_failed_looks} of {len(scrapes) or w.num_failed_looks} looks brought no page{why}")
    notes += [f"{engine.title} does not show: {lacking}" for lacking in engine.lacks]
    return tuple(notes)


def _without_page(scrapes: Sequence[Scrape], engines: Sequence[EngineMetrics], engine: str | None) -> tuple[str, ...]:
    """Why there was nothing to read, and what would bring a page."""
    errors = tuple(dict.fromkeys(scrape.error for scrape in scrapes if scrape.error))
    if any(scrape.page for scrape in scrapes):
        errors = ("what came is no Prometheus page", *errors)
    wanted = _ALIKE.get(engine or "", engine)
    ways = tuple(e.turn_on for e in engines if e.engine == wanted) or tuple(e.turn_on for e in engines)
    return (_NO_PAGE + ("; ".join(errors) or "none came"), *ways)


def _too_little(w: Window, engine: EngineMetrics) -> tuple[str, ...]:
    if w.num_looks < 2 or w.seconds < MIN_WINDOW_S:
        seen = "only one look brought a page" if w.num_looks < 2 else f"{w.seconds:.1f} s were seen"
        since = " since the server's restart" if w.num_restarts else ""
        return (f"a longer window: {seen}{since}; --seconds 30 gives more",)
    asks = ["a longer window (--seconds 60): no request ended and no token was counted while requests were running"]
    asks += [f"what {engine.title} does not show: {lacking}" for lacking in engine.lacks]
    return tuple(asks)


def _unknown(engine: EngineMetrics | None, w: Window | None, ask_for: tuple[str, ...]) -> LiveDiagnosis:
    name = engine.engine if engine is not None else None
    notes = _notes(w, engine) if w is not None and engine is not None else ()
    return LiveDiagnosis(regime="unknown", engine=name, window=w, ask_for=ask_for, notes=notes)
