"""What a report says in words: the headline, the key figures, what to read with care, one row for each candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from model_optimizer.records.measurement import Distribution, LoadResult
from model_optimizer.records.run import RunManifest
from model_optimizer.records.verdict import Verdict
from model_optimizer.render import words
from model_optimizer.render.series import STATES, STATES_OF_SEVERAL, Series, baseline_of, best, lightest_common

ENOUGH_FOR_P99 = 100
"""Below this many samples the 99th percentile is all but the slowest sample."""

CACHED_SHARE_WORTH_SAYING = 0.02


@dataclass(frozen=True)
class Figure:
    """One key number: what it is, against what (``gain``; ``good`` if to the better), where it comes from."""

    label: str
    value: str
    unit: str
    gain: str | None
    good: bool | None
    against: str
    source: str
    basis: str


@dataclass(frozen=True)
class Headline:
    """The answer in one sentence, the tone it has, and the numbers behind it."""

    tone: str
    sentence: str
    detail: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Caution:
    """Something that limits what the numbers say, and where it happened."""

    text: str
    where: tuple[str, ...]


def headline(manifest: RunManifest, series: tuple[Series, ...]) -> Headline:
    """The winner with its gain; or the nearest; or how far the run came."""
    chosen, baseline = best(series), baseline_of(series)
    figures = _figures(chosen, baseline) if chosen else ()
    if chosen is not None and chosen.role == "winner":
        return Headline("good", _winner_sentence(manifest, chosen, baseline), _tried(manifest, series), figures)
    if chosen is not None:
        what = "So far nothing meets" if manifest.status == "running" else "Nothing met"
        sentence = f"{what} the SLO. Nearest is {chosen.name}"
        return Headline("bad", f"{sentence}{_misses(chosen.verdict)}.", _tried(manifest, series), figures)
    return Headline(*_unfinished(manifest), _tried(manifest, series), figures)


def _unfinished(manifest: RunManifest) -> tuple[str, str]:
    count = words.counted(len(manifest.verdicts), "verdict")
    if manifest.status == "running":
        return "open", f"The run is still going: {count} so far, nothing chosen yet."
    if manifest.status == "interrupted":
        return (
            "open",
            f"The run was interrupted after {count}, before anything was chosen. The same command resumes it.",
        )
    if manifest.status == "failed":
        what = str((manifest.error or {}).get("what", "no reason was recorded"))
        return "bad", f"The run failed: {what.rstrip('.')}."
    if not manifest.verdicts:
        refused = len(manifest.plan.refused) if manifest.plan else 0
        return "bad", f"Nothing was tried: {words.counted(refused, 'route')} refused, none left."
    return "bad", f"Nothing met the SLO, and no candidate came near: {count}, none that could be compared."


def _winner_sentence(manifest: RunManifest, winner: Series, baseline: Series | None) -> str:
    promise = "meets every limit" if manifest.spec.slo.limits else "is the best of what was tried (no limits were set)"
    gains = _gains(winner, baseline)
    return f"{winner.name} {promise}{': ' + gains if gains else ''}."


def _gains(winner: Series, baseline: Series | None) -> str:
    load = lightest_common(winner, baseline) if baseline else None
    parts = []
    new = winner.at(load) if load else (winner.loads[0] if winner.loads else None)
    old = baseline.at(load) if baseline and load else None
    if new is not None:
        speed = f"{words.number(new.output_tokens_per_s)} output tokens/s for {words.load(new.load)}"
        factor = words.times(new.output_tokens_per_s, old.output_tokens_per_s) if old else None
        parts.append(f"{speed}, {factor} times the baseline" if factor else speed)
    if baseline and winner.peak_memory_bytes and baseline.peak_memory_bytes:
        changed = words.change(winner.peak_memory_bytes, baseline.peak_memory_bytes)
        article = "the " if changed and changed.endswith("times") else ""
        parts.append("in the same memory" if changed == "the same" else f"in {changed} {article}memory")
    if winner.accuracy is not None:
        parts.append(f"perplexity {words.perplexity_change(winner.accuracy)}")
    return ", ".join(parts)


def _misses(verdict: Verdict | None) -> str:
    missed = [check for check in verdict.checks if check.ok is False] if verdict else []
    if missed:
        listed = (f"{check.name} {check.found} where {check.limit} was asked" for check in missed[:2])
        more = f" and {words.counted(len(missed) - 2, 'more limit')}" if len(missed) > 2 else ""
        return f": {', '.join(listed)}{more}"
    return f": {verdict.reason.rstrip('.')}" if verdict and verdict.reason else ""


def _tried(manifest: RunManifest, series: tuple[Series, ...]) -> str:
    states = [s.state for s in series if s.role != "baseline"]
    counts = (
        f"{n} {STATES[state] if n == 1 else STATES_OF_SEVERAL[state]}" for state in STATES if (n := states.count(state))
    )
    text = f"{words.counted(len(states), 'candidate')}: {', '.join(counts)}." if states else ""
    refused = len(manifest.plan.refused) if manifest.plan else 0
    return f"{text} {words.counted(refused, 'route')} refused beforehand.".strip() if refused else text


def _figures(chosen: Series, baseline: Series | None) -> tuple[Figure, ...]:
    load = lightest_common(chosen, baseline) if baseline else None
    new = chosen.at(load) if load else (chosen.loads[0] if chosen.loads else None)
    old = baseline.at(load) if baseline and load else None
    figures: list[Figure | None] = []
    if new is not None:
        figures.append(_speed_figure(new, old))
    figures.append(_memory_figure(chosen, baseline))
    if new is not None:
        figures.append(_latency_figure("TTFT", new, new.ttft_s, old.ttft_s if old else None))
        figures.append(_latency_figure("TPOT", new, new.tpot_s, old.tpot_s if old else None))
    figures.append(_perplexity_figure(chosen))
    return tuple(figure for figure in figures if figure is not None)


def _speed_figure(new: LoadResult, old: LoadResult | None) -> Figure:
    factor = words.times(new.output_tokens_per_s, old.output_tokens_per_s) if old else None
    return Figure(
        label=f"Output tokens/s, {words.load(new.load)}",
        value=words.number(new.output_tokens_per_s),
        unit="tok/s",
        gain=f"{factor}×" if factor else None,
        good=new.output_tokens_per_s > old.output_tokens_per_s if old else None,
        against=f"baseline {words.number(old.output_tokens_per_s)}" if old else "no baseline at this load",
        source="measured",
        basis=f"n = {new.num_requests} in {words.seconds(new.window_s)}",
    )


def _memory_figure(chosen: Series, baseline: Series | None) -> Figure | None:
    measured = chosen.peak_memory_bytes
    predicted = chosen.estimate.memory_bytes if chosen.estimate else None
    value = measured if measured is not None else predicted
    if value is None:
        return None
    old = baseline.peak_memory_bytes if baseline else None
    amount, _, unit = words.size(value).partition(" ")
    return Figure(
        label="Peak memory of the server",
        value=amount,
        unit=unit,
        gain=words.change(value, old) if old else None,
        good=value < old if old else None,
        against=f"baseline {words.size(old)}" if old else "no baseline",
        source="measured" if measured is not None else "predicted",
        basis="peak PSS of one server" if measured is not None else "never measured",
    )


def _latency_figure(name: str, result: LoadResult, new: Distribution | None, old: Distribution | None) -> Figure | None:
    if new is None:
        return None
    value, _, unit = words.seconds(new.p50).partition(" ")
    return Figure(
        label=f"{name} p50, {words.load(result.load)}",
        value=value,
        unit=unit,
        gain=words.change(new.p50, old.p50) if old else None,
        good=new.p50 < old.p50 if old else None,
        against=f"p99 {words.seconds(new.p99)}" + (f"; baseline {words.seconds(old.p50)}" if old else ""),
        source="measured",
        basis=f"n = {new.n}",
    )


def _perplexity_figure(chosen: Series) -> Figure | None:
    accuracy = chosen.accuracy
    if accuracy is None:
        return None
    low, high = accuracy.perplexity_ci95
    value, _, unit = words.signed_share(accuracy.perplexity_rise).partition(words.NBSP)
    return Figure(
        label="Perplexity against the reference",
        value=value,
        unit=unit,
        gain="no difference" if low <= 1.0 <= high else "better" if high < 1.0 else "worse",
        good=None if low <= 1.0 <= high else high < 1.0,
        against=f"95 % interval {words.signed_share(low - 1.0)} to {words.signed_share(high - 1.0)}; reference "
        + words.perplexity(accuracy.reference_perplexity),
        source="measured",
        basis=f"n = {accuracy.num_tokens:,} tokens",
    )


def cautions(manifest: RunManifest, series: tuple[Series, ...]) -> tuple[Caution, ...]:
    """Everything that a careful reader must know before believing a number; the same remark once, with its places."""
    found: dict[str, list[str]] = {}
    for text, where in _remarks(manifest, series):
        places = found.setdefault(text, [])
        if where and where not in places:
            places.append(where)
    return tuple(Caution(text, tuple(where)) for text, where in found.items())


def _remarks(manifest: RunManifest, series: tuple[Series, ...]) -> Iterator[tuple[str, str]]:
    if manifest.spec.trust_remote_code:
        yield "trust_remote_code was on: code that came with the checkpoint was run.", ""
    if manifest.host and manifest.host.gpus:
        yield "Memory is that of the host (PSS of the server's processes); GPU memory is not measured.", ""
    for s in series:
        for result in s.loads:
            place = f"{s.name} at {result.load}"
            yield from ((text, f"{place}: {detail}" if detail else place) for text, detail in _load_remarks(result))
        yield from ((text, f"{s.name}: {detail}" if detail else s.name) for text, detail in _accuracy_remarks(s))
    small = [r.ttft_s.n for s in series for r in s.loads if r.ttft_s and r.ttft_s.n < ENOUGH_FOR_P99]
    if small:
        yield (
            f"Fewer than {ENOUGH_FOR_P99} requests at some loads (down to {min(small)}): there a p99 is all but the "
            "slowest single request. Every number shows its n.",
            "",
        )
    if any(s.loads for s in series):
        yield "Each load was measured once: a small difference between two candidates may be noise.", ""


def _load_remarks(result: LoadResult) -> Iterator[tuple[str, str]]:
    if not result.client.ok:
        yield "The load generator itself may have been too slow.", result.client.verdict
    if not result.warmup_stable:
        yield "Latencies had not settled when the measured window began.", ""
    if not result.usage_reported:
        yield "The server reported no token counts: one token is assumed for each chunk.", ""
    if result.num_errors:
        kinds = ", ".join(f"{text} ({n})" for text, n in sorted(result.errors.items())) or "no reason recorded"
        yield "Requests failed.", kinds
    cached = result.cached_prompt_share or 0.0
    if cached > CACHED_SHARE_WORTH_SAYING:
        yield "Prompt tokens came from the prefix cache, which flatters TTFT.", _percent(cached)
    yield from ((note, "") for note in result.notes)


def _accuracy_remarks(series: Series) -> Iterator[tuple[str, str]]:
    accuracy = series.accuracy
    if accuracy is None:
        return
    if accuracy.num_not_finite:
        yield "Logits that are not finite (NaN or infinite).", f"{accuracy.num_not_finite:,}"
    if accuracy.kl_is_lower_bound:
        yield "KL is a lower bound: the engine gave only its most likely tokens.", ""
    if accuracy.tokenizer_agreement is not None and accuracy.tokenizer_agreement < 1.0:
        yield (
            "The tokenizer differs from the reference's on part of the text.",
            _percent(1.0 - accuracy.tokenizer_agreement),
        )
    if accuracy.degenerate_share:
        yield "Bad answers to packaged prompts (repetition, empty, wrong stop).", _percent(accuracy.degenerate_share)


def _percent(share: float) -> str:
    return f"{words.plain(round(share * 100, 1))} %"
