"""The fixes of an examination as a shell script for a person to read; only what is harmless is not commented out."""

from __future__ import annotations

import re

from model_optimizer.records.doctor import Examination, HostFinding

_HARMLESS = re.compile(
    r"(?:chmod 600|ls|df|free|cat|ps|lsmod|dkms status|journalctl|ss|model-optimize tools install"
    r"|nvidia-smi(?= -L$| -q| mig -lgip$|$))\b"
)
_PLAIN = re.compile(r"[A-Za-z0-9_ .,:=/'|@%+-]*")
"""No substitution, redirection or second command can be written with these."""
_HARMLESS_PIPES = re.compile(r"\|(?! head\b| grep\b)")


def fix_script(found: Examination) -> str:
    """A script that prints and repairs little by itself.

    What needs root, a restart or a decision stands in comments. Values of the host never reach an uncommented line
    unless they consist of plain characters.
    """
    lines = [
        "#!/bin/sh",
        "# Written by model-optimize doctor for:",
        f"# {_one_line(found.host)}",
        f"# {_one_line(found.taken_at)}",
        "# Read it before you run it. What needs root, a restart or a decision is commented out.",
        "set -u",
    ]
    wanted = [finding for finding in found.findings if finding.severity != "info" and finding.fix]
    for finding in wanted:
        lines += ["", *_steps(finding)]
    if not wanted:
        lines += ["", "# Nothing to fix was found."]
    return "\n".join(lines) + "\n"


def _steps(finding: HostFinding) -> list[str]:
    lines = [f"# {finding.severity}: {_one_line(finding.title)} ({finding.id})"]
    lines += [f"# seen: {_one_line(seen.source)}: {_one_line(seen.text)}" for seen in finding.evidence[:4]]
    lines.append(f"# cause: {_one_line(finding.cause)}")
    for step in finding.fix:
        words = _one_line(step)
        if words.startswith("#") or may_run(step):
            lines.append(words)
        else:
            lines.append(f"#> {words}")
    lines += [f"# verify: {_one_line(step)}" for step in finding.verify]
    return lines


def may_run(step: str) -> bool:
    """True for a command that looks, or that mends something of this user's own, and holds plain characters only."""
    return bool(
        _HARMLESS.match(step)
        and _PLAIN.fullmatch(step)
        and step.count("'") % 2 == 0
        and not _HARMLESS_PIPES.search(step)
    )


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x1f\x7f\u0085\u2028\u2029]", " ", text).split())
