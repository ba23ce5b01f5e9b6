"""Memory: how much there is, swap, overcommitting, huge pages, and what the kernel killed for want of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from model_optimizer.doctor.read.places import group, is_wsl
from model_optimizer.doctor.read.system import lines_of, meminfo, whole
from model_optimizer.records.doctor import Hit, Seen, Survey
from model_optimizer.units import format_bytes

_GIB = 1 << 30
_SMALL = 4 * _GIB
_SOURCE = "/proc/meminfo"


def _line(name: str, value: int) -> Seen:
    return Seen(source=_SOURCE, text=f"{name}: {value >> 10} kB")


def small(survey: Survey) -> Iterator[Hit]:
    """Little memory in all, or little of it free now. In WSL2 the limit is a setting, and its check speaks."""
    memory = meminfo(survey.text("meminfo"))
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    if total is None or available is None or total <= 0:
        return
    if total < _SMALL and not is_wsl(survey):
        yield Hit(
            id="memory-small",
            evidence=(_line("MemTotal", total),),
            values={"total": format_bytes(total)},
            severity="error" if total < _GIB else "warning",
        )
    elif available < min(2 * _GIB, total // 10):
        yield Hit(
            id="memory-taken",
            evidence=(_line("MemTotal", total), _line("MemAvailable", available)),
            values={"total": format_bytes(total), "available": format_bytes(available)},
        )


def swap(survey: Survey) -> Iterator[Hit]:
    """Swap that is really in use while memory is short; no swap at all on a machine with little memory."""
    memory = meminfo(survey.text("meminfo"))
    total, swap_total, free = memory.get("MemTotal"), memory.get("SwapTotal"), memory.get("SwapFree")
    if not total or swap_total is None or free is None:
        return
    used = swap_total - free
    available = memory.get("MemAvailable", total)
    if used > max(total // 20, 256 << 20) and available < total // 4:
        yield Hit(
            id="swap-in-use",
            evidence=(_line("SwapTotal", swap_total), _line("SwapFree", free), _line("MemAvailable", available)),
            values={"used": format_bytes(used), "available": format_bytes(available)},
        )
    elif not swap_total and total < 16 * _GIB and group(survey).memory is None:
        yield Hit(id="swap-none", evidence=(_line("SwapTotal", 0),), values={"total": format_bytes(total)})


def overcommit(survey: Survey) -> Iterator[Hit]:
    """Strict overcommitting: what is reserved counts, and engines reserve far more than they use."""
    settings = dict(lines_of(survey.text("overcommit")))
    if whole(settings.get("/proc/sys/vm/overcommit_memory", "")) != 2:
        return
    memory = meminfo(survey.text("meminfo"))
    evidence = [Seen(source="/proc/sys/vm/overcommit_memory", text="2")]
    evidence += [_line(name, memory[name]) for name in ("CommitLimit", "Committed_AS") if name in memory]
    yield Hit(id="overcommit-strict", evidence=tuple(evidence))


def huge_pages(survey: Survey) -> Iterator[Hit]:
    """Transparent huge pages switched off: weights of many GB then need millions of small pages."""
    text = survey.text("huge-pages").strip()
    if re.fullmatch(r"always madvise \[never\]", text):
        yield Hit(
            id="huge-pages-never", evidence=(Seen(source="/sys/kernel/mm/transparent_hugepage/enabled", text=text),)
        )


def killed(survey: Survey) -> Iterator[Hit]:
    """Processes that the kernel killed for want of memory since it started."""
    match = re.search(r"^oom_kill (\d{1,18})$", survey.text("vmstat"), re.MULTILINE)
    if match and int(match[1]) > 0:
        yield Hit(
            id="memory-oom-kills",
            evidence=(Seen(source="/proc/vmstat", text=match[0]),),
            values={"count": int(match[1])},
        )


def wsl_limit(survey: Survey) -> Iterator[Hit]:
    """WSL2 gives half of Windows' memory (some older builds at most 8 GB) unless .wslconfig says otherwise."""
    total = meminfo(survey.text("meminfo")).get("MemTotal", 0)
    if not is_wsl(survey) or not 0 < total < 12 * _GIB:
        return
    evidence = [_line("MemTotal", total), Seen(source="/proc/version", text=survey.text("kernel").strip()[:120])]
    setting = re.search(r"^\s*memory\s*=\s*(\S+)", survey.text("wslconfig"), re.MULTILINE | re.IGNORECASE)
    if setting:
        evidence.append(Seen(source=".wslconfig", text=setting[0].strip()))
    yield Hit(
        id="wsl2-memory-limit",
        evidence=tuple(evidence),
        values={"total": format_bytes(total), "setting": f"memory={setting[1]}" if setting else "no memory= line"},
        severity="warning" if total < 8.5 * _GIB else "info",
    )


CHECKS = (small, swap, overcommit, huge_pages, killed, wsl_limit)
