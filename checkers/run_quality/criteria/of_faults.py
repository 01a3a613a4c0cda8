"""Were the faults in force, did each kind reach the system, and did the system work under them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Any

from checkers.base.demands import Demands
from checkers.base.results import Criterion
from checkers.base.stored_run import StoredRun
from checkers.record.faults import FaultRecord
from checkers.run_quality import leaders_over_time
from checkers.run_quality.criteria import minimums
from checkers.run_quality.criteria.history_figures import HistoryFigures
from checkers.run_quality.criteria.spans import END_OF_TIME, main_phase, windows
from checkers.run_quality.faults_installed import INSTALLED, SKIPPED, achieved

NO_NEMESIS = "none"
"""The nemesis of a run that breaks nothing: no fault is demanded of it."""
OF_A_SCHEDULE = "schedule"
"""The nemesis of a run that plays a file."""
SHARE_IN_FAULTS = 0.10
CALLING_NS = 2_000_000_000
"""A fault that holds for less than a fetch timeout (2 s) may end before any election begins, so it demands none."""
FAILOVER_S = 4.0
"""Usual faults are made for systems that fail over within this time (`system_under_test.subject`)."""
DEALT_OFTEN = 2
"""From this number of faults of one kind on, at least one of them must have been in force."""


def about_faults(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """The criteria of a run that was to inject faults."""
    faults = run.faults
    became = [achieved(f) for f in faults]
    installed = [f for f, what in zip(faults, became, strict=True) if what.word == INSTALLED]
    excused = [f for f, what in zip(faults, became, strict=True) if what.word == SKIPPED and f.reason]
    wrong = [
        f"{f.words or f.card.name}: {what.word}, {what.reason or 'for no stated reason'}"
        for f, what in zip(faults, became, strict=True)
        if f not in installed and f not in excused
    ]
    criteria = [
        Criterion("faults installed", len(installed), 1, "faults that probes proved to be in force"),
        Criterion(
            "faults in force, or skipped for a stated reason",
            len(installed) + len(excused),
            len(faults),
            "of all that were dealt" + (f"; not so: {'; '.join(wrong)}" if wrong else ""),
            advice=wrong[0] if wrong else "",
        ),
        _kinds_installed(run.demands, faults, installed),
    ]
    if run.demands.elections:
        long_ns = int(CALLING_NS * run.demands.holds)
        elections = leaders_over_time.under_faults(installed, leaders_over_time.leaders(run), run.voters, long_ns)
        criteria.append(
            Criterion(
                "elections won under a fault",
                elections.won,
                min(1, elections.long),
                f"of {_faults(elections.calling)} that took the leader from its majority and left a majority to others",
                advice=too_short(elections) if not elections.won else "",
            )
        )
    if beyond := sum(f.over_budget for f in faults):
        words = f"{_faults(beyond)} made a majority lose what it had fsynced, so the system is excused for that loss"
        criteria.append(Criterion("data budget kept", 0, 1, words, False))
    if installed and all(minimums.strikes_the_only_server(fault, run.demands) for fault in installed):
        return criteria  # no operation can be ok meanwhile
    share = figures.ok_in_faults / figures.ok if figures.ok else 0.0
    least, words = _share_least(run, installed)
    return [
        *criteria,
        Criterion("share of ok operations in faults", round(share, 3), round(least, 3), words),
        *_about_writes_in_faults(run, installed, figures),
    ]


def _share_least(run: StoredRun, installed: Sequence[FaultRecord]) -> tuple[float, str]:
    """(the least share of ok operations in faults, what it counts).

    A schedule of the user's own may hold faults for a second of a minute: it demands half of the share of that time."""
    words, phases = "answered while a fault lasted", main_phase(run)
    if run.demands.nemesis != OF_A_SCHEDULE or not phases:
        return SHARE_IN_FAULTS, words
    (begin, end), held = phases[0], windows(installed)
    seconds = sum(max(0, min(to, end) - max(since, begin)) for since, to in held) / 1e9
    if _only_brief(run, installed):
        return 0.0, f"{words}; no fault of the schedule held long enough to demand one"
    return min(SHARE_IN_FAULTS, seconds / ((end - begin) / 1e9) / 2), words


def _only_brief(run: StoredRun, installed: Sequence[FaultRecord]) -> bool:
    """Whether a schedule of the user's own holds no fault for so long that the system could work under it."""
    long_ns = int(CALLING_NS * run.demands.holds)
    ends = [(begin, min(end, _main_end(run))) for begin, end in windows(installed)]
    return run.demands.nemesis == OF_A_SCHEDULE and bool(ends) and all(end - begin < long_ns for begin, end in ends)


def too_short(elections: leaders_over_time.ElectionsInFaults) -> str:
    """What to do where each election came after its fault, "" where none came at all."""
    if not elections.late:
        return ""
    needed = [needed_s for needed_s, _ in elections.late]
    lasted = [lasted_s for _, lasted_s in elections.late]
    return (
        f"the system needed {_seconds(needed)} to elect another leader, and the faults lasted {_seconds(lasted)}: "
        f"state `failover_s = {ceil(max(needed))}` in your System, or give --holds {ceil(max(needed) / FAILOVER_S)}"
    )


def _seconds(values: Sequence[float]) -> str:
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{most} s" if least == most else f"{least} to {most} s"


def _kinds_installed(demands: Demands, faults: Sequence[FaultRecord], installed: Sequence[FaultRecord]) -> Criterion:
    """A kind of which every fault was skipped was not tested, although other kinds were.  One skip may be bad luck, but
    not where the record says that no fault of the kind can reach the system."""
    dealt = Counter(fault.card.kind for fault in faults)
    tested = {fault.card.kind for fault in installed}
    impossible = {fault.card.kind for fault in faults if fault.impossible} - tested
    missing = {kind for kind, count in dealt.items() if count >= DEALT_OFTEN} - tested | impossible
    not_dealt = _kinds_to_deal(demands) - dealt.keys()
    words = f"of {len(dealt)} {'kind that was' if len(dealt) == 1 else 'kinds that were'} dealt"
    words += f"; impossible here: {', '.join(sorted(impossible))}" if impossible else ""
    if often := sorted(missing - impossible):
        words += f"; dealt {DEALT_OFTEN} times or more, and never in force: {', '.join(often)}"
    words += f"; the time was too short for: {', '.join(sorted(not_dealt))}" if not_dealt else ""
    return Criterion("kinds of fault installed", len(tested), len(tested | missing), words)


def never_in_force(demands: Demands, faults: Sequence[FaultRecord]) -> list[dict[str, Any]]:
    """The kinds of fault of which none was in force.

    dealt: how many faults of the kind there were.  reasons: why these were not in force, each once, in order of time.
    """
    became = [(fault.card.kind, achieved(fault)) for fault in faults]
    in_force = {kind for kind, what in became if what.word == INSTALLED}
    missing = {*(kind for kind, _ in became), *_kinds_to_deal(demands)} - in_force
    reasons = {name: [what.reason for kind, what in became if kind == name] for name in sorted(missing)}
    return [
        {"kind": kind, "dealt": len(each), "reasons": list(dict.fromkeys(filter(None, each)))}
        for kind, each in reasons.items()
    ]


def _kinds_to_deal(demands: Demands) -> set[str]:
    if not demands.faults or demands.nemesis in (NO_NEMESIS, OF_A_SCHEDULE):
        return set()
    return {kind.strip() for kind in demands.nemesis.split(",")} - {""}


def _about_writes_in_faults(
    run: StoredRun, installed: Sequence[FaultRecord], figures: HistoryFigures
) -> list[Criterion]:
    """Criteria about writes under faults that let the system work for long enough.

    If no fault does, one acknowledged write under any fault is enough.
    """
    spans = windows(installed)
    ends = [min(end, _main_end(run)) for _, end in spans]
    struck_until = [END_OF_TIME if f.may_stay_down else e for f, e in zip(installed, ends, strict=True)]
    at_once = [
        [
            fault
            for fault, (begin, _), end in zip(installed, spans, struck_until, strict=True)
            if begin < ends[i] and spans[i][0] < end
        ]
        for i in range(len(spans))
    ]
    works = [i for i, (begin, _) in enumerate(spans) if minimums.lets_write(at_once[i], run.demands, ends[i] - begin)]
    seconds = sum(ends[i] - spans[i][0] for i in works) / 1e9
    written = sum(figures.ok_writes_by_fault[i] > 0 for i in works if i < len(figures.ok_writes_by_fault))
    least = minimums.fault_writes_least(run.demands, seconds, len(works))
    if _only_brief(run, installed):
        least = 0
    long_s = minimums.LONG_NS * run.demands.holds / 1e9
    words = f"acknowledged under a fault; {_faults(len(works))} let a majority work for {long_s:g} s or longer"
    words += f", {seconds:.0f} s in all" if works else ""
    criteria = [Criterion("ok writes in faults", figures.ok_writes_in_faults, least, words)]
    if run.demands.elections:
        share = ceil(minimums.SHARE_OF_FAULTS * len(works))
        words = f"of {_faults(len(works))} that let a majority work for {long_s:g} s or longer"
        criteria.append(Criterion("faults with an ok write", written, share, words))
    return criteria


def _faults(count: int) -> str:
    return f"{count} fault" if count == 1 else f"{count} faults"


def _main_end(run: StoredRun) -> int:
    main = run.outcome.phase("main")
    return main.end_ns if main is not None and main.end_ns >= 0 else END_OF_TIME
