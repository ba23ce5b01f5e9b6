"""From hits to a verdict: which causes hold, which is the root, and when to say that the log does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from model_optimizer.diagnosis.facts import derive, fill
from model_optimizer.diagnosis.match import Hit, Scan
from model_optimizer.records.diagnosis import Cause, Evidence, Finding, Signature

ENOUGH = 0.5  # a finding below this confidence is considered, not claimed
LIKELY, CERTAIN = 0.6, 0.8
_SUPPORT, _MAX_SUPPORT, _AGAINST, _CEILING = 0.05, 0.10, 0.5, 0.99
_SEVERITIES = ("error", "warning", "note")

_CANNOT = "open|load|find|create|allocate|initialize|insert|connect|start|read|bind|access|map|import"
# What a program says when it fails, whatever the reason. Loggers write levels in capitals; others begin a message.
ERRORS = (
    r"(?#traceback)^.{0,120}Traceback \(most recent call last\)",
    r"(?#error fatal critical)(?:^|[\s\[(|])(?-i:ERROR|FATAL|CRITICAL)(?:[\s:\])|]|$)",
    r"(?#~error ~exception)(?:^|[\s\])|:.])(?-i:[A-Z]\w*)?(?:Error|Exception)\b: ?\S",
    r"(?#error erro)(?:^|[\s(\]])(?:error|ERRO)[:\[]\s?\S",  # codespell:ignore erro
    r"(?#failed fail)(?:^|\s)(?:FAILED|failed to|has failed|FAIL)\b",
    rf"\b(?:could not|cannot|can't|unable to) (?:{_CANNOT})\b",
    r"(?#segmentation core panic aborted killed bus)"
    r"\b(?:segmentation fault|core dumped|panic:|bus error|^Aborted\b|^Killed\b)",
    r"\bexit(?:ed with)?(?: status| code)?[ :=]+(?:137|139|134|143|-9|-11)\b",
    r"\b(?:NVRM: Xid|Xid \(PCI)",
    r"(?#e)(?-i:\[E[\]:]|^[\d.]{8,} E \S)",
    r"错误[:：]|(?:加载|启动|连接|分配|打开|初始化|创建|读取|写入|运行)失败|异常[:：]|崩溃",
)
# A line that says of itself, before it names an exception, that it is information or a warning is no error.
_RAISED = re.compile(r"\b[A-Z]\w*(?:Error|Exception): ")
_MILD = re.compile(
    r"(?:^|[\s\[(|=])(?:INFO|DEBUG|NOTE|WARN(?:ING)?|FutureWarning|UserWarning|DeprecationWarning)\b"
    r"|\[W\]|\[I\]|^W\d{4} "
)


class Known(NamedTuple):
    """What the scan found and what the facts say, as the conditions of a cause ask for it."""

    scan: Scan
    facts: Sequence[str]

    def has(self, pattern: str) -> bool:
        """True where a line of the log, harmless or not, or a fact matches."""
        if pattern in self.scan.hits or pattern in self.scan.context:
            return True
        compiled = re.compile(pattern, re.IGNORECASE)
        return any(compiled.search(line) for line in self.facts)


def findings(causes: Iterable[Cause], known: Known) -> list[Finding]:
    """Every cause of which a signature holds, the most likely root first."""
    found = [(cause, finding) for cause in causes if (finding := _finding(cause, known))]
    beaten = {loser for cause, finding in found if finding.confidence >= LIKELY for loser in cause.outranks}
    found.sort(key=lambda pair: _rank(pair[0], pair[1], beaten))
    return [finding for _, finding in found]


def _finding(cause: Cause, known: Known) -> Finding | None:
    holding = [(s, known.scan.hits[s.match]) for s in cause.signatures if _holds(s, known)]
    if not holding:
        return None
    # The strongest line is the evidence; among equals the first, because what follows is often its echo.
    strength, hit = min(((s.strength, hits[0]) for s, hits in holding), key=lambda pair: (-pair[0], pair[1].line))
    confidence = strength + min(_MAX_SUPPORT, _SUPPORT * sum(map(known.has, cause.supports)))
    confidence = min(confidence, max(strength, _CEILING))
    if any(map(known.has, cause.against)):
        confidence *= _AGAINST
    numbers = derive(_numbers(cause, hit, known))
    return Finding(
        cause=cause.id,
        title=cause.title,
        severity=cause.severity,
        confidence=round(confidence, 2),
        evidence=Evidence(line=hit.line, text=hit.text),
        fix=tuple(fill(step, numbers) for step in cause.fix),
        verify=tuple(fill(step, numbers) for step in cause.verify),
        numbers=numbers,
    )


def _holds(signature: Signature, known: Known) -> bool:
    return (
        signature.match in known.scan.hits
        and all(map(known.has, signature.needs))
        and not any(map(known.has, signature.unless))
    )


def _numbers(cause: Cause, hit: Hit, known: Known) -> dict[str, str]:
    """Named groups: of the evidence line first, then of the cause's other patterns, then of the facts."""
    numbers = dict(hit.groups)
    patterns = (*(s.match for s in cause.signatures), *cause.numbers)
    for pattern in patterns:
        for other in known.scan.hits.get(pattern, ()):
            numbers = {**other.groups, **numbers}
        for line in known.facts:
            if match := re.search(pattern, line, re.IGNORECASE):
                numbers = {**{k: v for k, v in match.groupdict().items() if v}, **numbers}
    return numbers


def _rank(cause: Cause, finding: Finding, beaten: set[str]) -> tuple[object, ...]:
    """Claims before doubts, roots before symptoms, errors before warnings, near-certain first; then what came first."""
    return (
        finding.confidence < ENOUGH,
        cause.symptom,
        finding.confidence < LIKELY,
        _SEVERITIES.index(cause.severity),
        cause.id in beaten,
        finding.confidence < CERTAIN,
        finding.evidence.line,
        -finding.confidence,
    )


def first_error(scan: Scan) -> Evidence | None:
    """The first line that reports an error of any kind: the exception's own line where a traceback comes first."""
    hits = [hit for pattern in ERRORS for hit in scan.hits.get(pattern, ()) if not _is_mild(hit.text)]
    if not hits:
        return None
    first = min(hits, key=lambda hit: hit.line)
    if "Traceback" in first.text:
        exceptions = [h for h in scan.hits.get(ERRORS[2], ()) if h.line > first.line]
        first = min(exceptions, key=lambda hit: hit.line, default=first)
    return Evidence(line=first.line, text=first.text)


def _is_mild(text: str) -> bool:
    level, raised = _MILD.search(text), _RAISED.search(text)
    return level is not None and (raised is None or level.start() < raised.start())
