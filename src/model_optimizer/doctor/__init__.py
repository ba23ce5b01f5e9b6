"""From what was read on a host to findings: parsers and checks, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from model_optimizer.doctor.checks import (
    accelerators,
    containers,
    disks,
    driver,
    gpu,
    limits,
    memory,
    multi,
    network,
    processor,
    software,
)
from model_optimizer.doctor.facts import describe, family, what_works
from model_optimizer.doctor.in_order import in_order
from model_optimizer.records.doctor import (
    SEVERITIES,
    Condition,
    Examination,
    Hit,
    HostFinding,
    ProbedValue,
    Survey,
)

CHECKS = tuple(
    check
    for module in (
        driver, gpu, multi, accelerators, containers, limits, memory, processor, disks, network, software
    )
    for check in module.CHECKS
)  # fmt: skip


def examine(
    survey: Survey, conditions: Mapping[str, Condition], *, measured: Iterable[ProbedValue] = (), seconds: float = 0.0
) -> Examination:
    """Every check over one survey; findings worst first, their texts filled in, with this distribution's commands."""
    kinds = family(survey)
    findings = [_finding(hit, conditions[hit.id], kinds) for check in CHECKS for hit in _safely(check, survey)]
    order = {severity: at for at, severity in enumerate(SEVERITIES)}
    findings.sort(key=lambda finding: order[finding.severity])
    return Examination(
        taken_at=survey.taken_at,
        host=describe(survey),
        findings=tuple(findings),
        in_order=in_order(survey, {finding.id for finding in findings if finding.severity in ("error", "warning")}),
        works=what_works(survey, findings),
        measured=tuple(measured),
        num_probes=len(survey.readings),
        seconds=seconds,
    )


def _safely(check: object, survey: Survey) -> Iterator[Hit]:
    assert callable(check)  # noqa: S101
    yield from check(survey)


def _finding(hit: Hit, condition: Condition, kinds: tuple[str, ...]) -> HostFinding:
    fix = next((condition.fix[kind] for kind in kinds if kind in condition.fix), ())

    def filled(text: str) -> str:
        for name, value in hit.values.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    return HostFinding(
        id=hit.id,
        severity=hit.severity or condition.severity,
        title=filled(condition.title),
        cause=filled(condition.cause),
        evidence=hit.evidence,
        fix=tuple(map(filled, fix)),
        verify=tuple(map(filled, condition.verify)),
        fact=condition.fact,
    )
