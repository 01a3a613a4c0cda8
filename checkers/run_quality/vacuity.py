"""The checker `vacuity`: a run in which nothing happened proves nothing, even if every other verdict is valid.

Each criterion is a figure with its minimum.  A shortfall makes the verdict *unknown*, never invalid, because the run
showed neither a violation nor correct behaviour.  No criterion applies to a part that the system does not have.  Some
figures are only shown for the reader to weigh.  Examples are the delays of the harness, and the number of answers from
deposed leaders (counted by comparing clocks of one machine).

If an online check found a violation and ended the run early, the run need not be a full test.  Its figures are shown,
and the verdict is *not applicable*.  Such a run is never valid: either the sealed run confirms the violation, or the
harness contradicts itself (`harness/judge/judge_run.py`).

`Verdict.details` contains these lists:

    "criteria"        {"name", "value", "least", "met", "demanded", "words", "advice"}, in the order of the report
    "never_in_force"  {"kind", "dealt", "reasons"} of each kind of fault that the run was configured to inject but that
                      was never in force, sorted by kind
    "waived"          {"name", "shortfall"} of each demand that the user waived by name
    "never_invoked"   functions that the workload states but that no client invoked, sorted

The criteria ask three questions:

- Did every node hand over its log and its trace, and did the harness and the nodes get enough CPU time?
- Did enough operations succeed throughout the run, for every function, on every key and on every server?
- Were the faults in force, did each kind reach the system, and did the system work during faults?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import pyarrow.parquet as pq

from checkers.base.checker import checker_of_run
from checkers.base.results import Criterion
from checkers.base.stored_run import READS_OF_A_SERVER, Demands, StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, conclude
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import RunOutcome, Stopped
from checkers.run_quality import leadership, minimums, processor_time
from checkers.run_quality.faults_installed import INSTALLED, SKIPPED, achieved
from checkers.run_quality.history_figures import HistoryFigures, figures_of
from checkers.run_quality.minimums import END_OF_TIME, calm_spans, main_phase, stretches_of, windows
from checkers.run_quality.waivers import waived

SHARE_OF_KEYS = 0.5
WAITED_LEAST = 0.5
"""Minimum fraction of the missing invocations that waits for time-outs must account for to explain a low rate."""
LOWER_RATE = "give a lower --rate, or more --concurrency"


def never_invoked(demands: Demands, figures: HistoryFigures) -> list[str]:
    """Return the functions that the workload states but that no client invoked, sorted."""
    return sorted(demands.functions - figures.invoked_by_function.keys())


def about_operations(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return the criteria on ok operations: for each function and key, concurrent operations, and final reads."""
    keys = len(figures.keys)
    final_reads = run.outcome.final_reads
    read = sum(why == "ok" for why in final_reads.values()) if final_reads else figures.keys_read_at_end
    answered = {
        f: figures.ok_by_function[f] for f, n in figures.invoked_by_function.items() if n >= minimums.INVOKED_LEAST
    }
    silent = "".join(f"; {f} never succeeded" for f, ok in sorted(answered.items()) if not ok)
    silent += "".join(f"; {f} was never invoked" for f in never_invoked(run.demands, figures))
    unread = sorted(k for k, why in final_reads.items() if why != "ok")
    return [
        Criterion(
            "ok operations",
            figures.ok,
            minimums.ok_operations_least(run.demands),
            _words_of_ok_operations(run.demands),
        ),
        Criterion(
            "ok reads in the main phase",
            figures.in_main.ok_reads,
            minimums.ok_reads_least(run.demands, figures.in_main.reads),
            f"of {figures.in_main.reads} invoked reads: the final reads alone show only the end of the run",
        ),
        Criterion(
            "functions with an ok answer",
            sum(map(bool, answered.values())),
            len(answered),
            f"of {len(answered)} functions that were invoked {minimums.INVOKED_LEAST} times or more" + silent,
        ),
        Criterion(
            "keys with concurrency",
            figures.concurrent_keys,
            max(1, keys * SHARE_OF_KEYS),
            f"of {keys} keys: keys on which two operations were open at once",
        ),
        Criterion(
            "keys read at the end",
            read,
            max(1, keys) if run.demands.final_reads else 0,
            "keys with an ok read after recovery" + (f"; not so: {', '.join(unread)}" if unread else ""),
        ),
    ]


def _words_of_ok_operations(demands: Demands) -> str:
    if demands.rate_hz:
        return f"of {minimums.operations_scheduled(demands):g} operations that could be ok{_waits(demands)}"
    if slowest := minimums.operations_of_slowest(demands):
        return f"a system that needs the whole operation timeout for each answer gives {slowest:.0f} without faults"
    return "without an answer there is nothing to judge"


def _waits(demands: Demands) -> str:
    """Return the reason why a rate below the scheduled rate is accepted; "" if it is not."""
    if demands.invoked_share == 1.0:
        return ""
    return f"; clients of this workload wait between operations, so {demands.invoked_share:.0%} of the rate is enough"


def about_stretches(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return the criterion on answers throughout the main phase.

    It is only shown for workloads in which a client may wait for another one, such as locks."""
    of_run, demands = stretches_of(run), run.demands
    if len(figures.by_stretch) != len(of_run):
        return []  # the run has no history
    without, count = minimums.silent(of_run, figures.by_stretch, demands.recovery_limit_s)
    if not count:
        return []
    words = f"of {count} stretches of {minimums.STRETCH_S_LEAST:g} s or more outside faults"
    if without:
        begin_s = (without[0].begin_ns - main_phase(run)[0][0]) / 1e9
        words += f"; the first without an ok answer began {begin_s:.0f} s after the begin of the main phase"
    return [Criterion("stretches with an ok answer", count - len(without), count, words, demands.ok_share == 1.0)]


def about_the_rate(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return the criteria on writes for each key, on the rate outside faults, and on servers that answered."""
    demands, criteria = run.demands, []
    if demands.keys and demands.writes:
        least = minimums.key_writes_least(demands)
        written = figures.keys_with_writes(demands.keys, least)
        acknowledged = "a write was" if least == 1 else f"{least} writes were"
        words = f"of {len(demands.keys)} keys: keys on which {acknowledged} acknowledged"
        criteria.append(Criterion("keys with enough ok writes", written, minimums.keys_least(demands), words))
    calm_s, main_s = (sum(end - begin for begin, end in spans) / 1e9 for spans in (calm_spans(run), main_phase(run)))
    if demands.rate_hz and calm_s > 0:
        calm_hz, main_hz = figures.in_calm.invoked / calm_s, figures.in_main.invoked / main_s
        words = (
            f"{calm_hz:.0f} operations per second in {calm_s:.0f} s outside faults, {main_hz:.0f} in all, "
            f"of {demands.rate_hz / demands.invoked_share:g} that were scheduled{_waits(demands)}"
        )
        share = round(max(calm_hz, main_hz) * demands.invoked_share / demands.rate_hz, 3)
        long_enough = calm_s >= minimums.CALM_S_LEAST * max(1.0, demands.holds)
        criteria.append(
            Criterion(
                "share of the scheduled rate",
                share,
                round(minimums.SHARE_OF_RATE * demands.invoked_share, 3),
                words,
                long_enough,
                _advice(run, figures, calm_s),
            )
        )
    return criteria + (_about_servers(run, figures) if demands.servers else [])


def _advice(run: StoredRun, figures: HistoryFigures, calm_s: float) -> str:
    """Return advice for a run in which clients invoked less than was scheduled, from measurements outside faults.

    A thread that waits for a time-out invokes nothing.  If such waits explain most of the missing invocations, the
    system did not answer, even if the machine was busy.  In the seconds after a heal a system recovers, so these
    seconds show nothing about its rate."""
    waited_s = figures.in_calm.timed_out * run.demands.op_timeout_s / max(run.demands.concurrency, 1)
    missing_s = calm_s * (1 - figures.in_calm.invoked / calm_s / run.demands.rate_hz)
    if waited_s > WAITED_LEAST * missing_s > 0:
        of = f"{figures.in_calm.timed_out} operations outside faults ended by their time-out"
        return f"{of}, which explains most of the missing operations: the system did not answer"
    (main, *_) = main_phase(run)
    if busy := processor_time.busy_in_words(processor_time.shares_between(run.outcome, *main)):
        return f"this machine was busy, {'; '.join(busy)}: {LOWER_RATE}"
    grace_ns = int(minimums.GRACE_NS * max(1.0, run.demands.holds))
    normal_s = sum(end - begin for begin, end in minimums.calm(main, run.faults, grace_ns)) / 1e9
    if normal_s < minimums.CALM_S_LEAST:
        return (
            f"the figures are of faults and of recovery: only {normal_s:.0f} s were far from any fault; give a longer "
            "--time-limit"
        )
    return f"the system answers more slowly than scheduled: {LOWER_RATE}"


def _about_servers(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return criteria on servers that answered clients.  A server whose disk a fault damaged need not answer."""
    demands = run.demands
    sound = set(demands.servers) - set(run.damaged_from)
    least = min(len(sound), demands.concurrency or len(sound)) if demands.each_server_serves else 1
    kept_to = "each has clients of its own" if least > 1 else "a server that never leads may answer nothing"

    def criterion(name: str, answering: Collection[str], what: str) -> Criterion:
        silent = sorted(sound - set(answering))
        words = f"of {len(demands.servers)} servers {what}; {kept_to}"
        words += f"; not so: {', '.join(silent)}" if least > 1 and silent else ""
        return Criterion(name, len(sound & set(answering)) if least > 1 else len(answering), least, words)

    known = set(demands.servers)
    criteria = []
    if not demands.routes_by_itself:  # otherwise no client knows which server answered
        criteria.append(criterion("servers that answered clients", figures.answering & known, "gave an ok answer"))
    if demands.each_server_read_at_end:
        wanted = {key or "" for _, key in demands.final_reads[:READS_OF_A_SERVER]}
        whole = {node for node in known if wanted <= figures.read_at_end.get(node, frozenset())}
        read = criterion("servers read at the end", whole, f"answered a read of each of {len(wanted)} keys at the end")
        criteria.append(read)
    return criteria


NO_NEMESIS = "none"
"""Name of the nemesis that injects nothing; no fault is required in its runs."""
OF_A_SCHEDULE = "schedule"
"""Name of the nemesis that replays a schedule from a file."""
SHARE_IN_FAULTS = 0.10
CALLING_NS = 2_000_000_000
"""Minimum duration in ns of a fault that requires an election.  A fetch timeout (2 s) passes before an election."""
FAILOVER_S = 4.0
"""Maximum failover time in seconds for which the default fault durations are made (`system_under_test.subject`)."""
DEALT_OFTEN = 2
"""Minimum number of planned faults of one kind from which on at least one must have been in force."""


def about_faults(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return the criteria on faults for a run that was configured to inject some."""
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
            "of all planned faults" + (f"; not so: {'; '.join(wrong)}" if wrong else ""),
            advice=wrong[0] if wrong else "",
        ),
        _kinds_installed(run.demands, faults, installed),
    ]
    if run.demands.elections:
        long_ns = int(CALLING_NS * run.demands.holds)
        elections = leadership.under_faults(installed, leadership.leaders(run), run.voters, long_ns)
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
        words = f"{_faults(beyond)} made a majority lose fsynced data, so the system is excused for this loss"
        criteria.append(Criterion("data budget kept", 0, 1, words, False))
    if installed and all(minimums.strikes_the_only_server(fault, run.demands) for fault in installed):
        return criteria  # no operation could succeed during the fault
    share = figures.in_faults.ok / figures.ok if figures.ok else 0.0
    least, words = _share_least(run, installed)
    return [
        *criteria,
        Criterion("share of ok operations in faults", round(share, 3), round(least, 3), words),
        *_about_writes_in_faults(run, installed, figures),
    ]


def _share_least(run: StoredRun, installed: Sequence[FaultRecord]) -> tuple[float, str]:
    """Return (minimum fraction of ok operations that are answered during faults, words about it).

    In a user's schedule, faults may be in force for a small fraction of the time; then half of this fraction is
    required."""
    words, phases = "answered while a fault lasted", main_phase(run)
    if run.demands.nemesis != OF_A_SCHEDULE or not phases:
        return SHARE_IN_FAULTS, words
    (begin, end), held = phases[0], windows(installed)
    seconds = sum(max(0, min(to, end) - max(since, begin)) for since, to in held) / 1e9
    if _only_brief(run, installed):
        return 0.0, f"{words}; no fault of the schedule held long enough to demand one"
    return min(SHARE_IN_FAULTS, seconds / ((end - begin) / 1e9) / 2), words


def _only_brief(run: StoredRun, installed: Sequence[FaultRecord]) -> bool:
    """Return True if all faults of a user's schedule were too short for the system to work during them."""
    long_ns = int(CALLING_NS * run.demands.holds)
    ends = [(begin, min(end, _main_end(run))) for begin, end in windows(installed)]
    return run.demands.nemesis == OF_A_SCHEDULE and bool(ends) and all(end - begin < long_ns for begin, end in ends)


def too_short(elections: leadership.ElectionsInFaults) -> str:
    """Return advice for a run in which elections came only after their faults; "" if no election came at all."""
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
    """Return the criterion on kinds of fault.  A kind was not tested if all its faults were skipped.

    A single skipped fault of a kind may be chance, unless its record states that this kind cannot reach the system."""
    dealt = Counter(fault.card.kind for fault in faults)
    tested = {fault.card.kind for fault in installed}
    impossible = {fault.card.kind for fault in faults if fault.impossible} - tested
    missing = {kind for kind, count in dealt.items() if count >= DEALT_OFTEN} - tested | impossible
    not_dealt = _kinds_to_deal(demands) - dealt.keys()
    words = f"of {len(dealt)} planned {'kind' if len(dealt) == 1 else 'kinds'}"
    words += f"; impossible here: {', '.join(sorted(impossible))}" if impossible else ""
    if often := sorted(missing - impossible):
        words += f"; planned {DEALT_OFTEN} times or more, but never in force: {', '.join(often)}"
    words += f"; the time was too short for: {', '.join(sorted(not_dealt))}" if not_dealt else ""
    return Criterion("kinds of fault installed", len(tested), len(tested | missing), words)


def never_in_force(demands: Demands, faults: Sequence[FaultRecord]) -> list[dict[str, Any]]:
    """Return the kinds of fault that were never in force, as a list of {"kind", "dealt", "reasons"}.

    "dealt" is the number of planned faults of the kind.  "reasons" lists each reason why they were not in force once,
    in order of time.
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
    """Return criteria on writes during faults that let the system work for long enough.

    If there is no such fault, one acknowledged write during any fault is enough.
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
    written = sum(figures.by_fault[i].ok_writes > 0 for i in works if i < len(figures.by_fault))
    least = minimums.fault_writes_least(run.demands, seconds, len(works))
    if _only_brief(run, installed):
        least = 0
    long_s = minimums.LONG_NS * run.demands.holds / 1e9
    words = f"acknowledged under a fault; {_faults(len(works))} let a majority work for {long_s:g} s or longer"
    words += f", {seconds:.0f} s in all" if works else ""
    criteria = [Criterion("ok writes in faults", figures.in_faults.ok_writes, least, words)]
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


def _combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    figures = figures_of(run) if run.history.exists() else HistoryFigures()
    outcome = run.outcome
    demands = run.demands
    criteria = _about_the_run(outcome)
    if demands.faults and demands.nemesis != NO_NEMESIS:
        criteria += about_faults(run, figures)
    criteria += about_operations(run, figures) + about_stretches(run, figures)
    if demands.nodes:
        criteria += about_nodes(run, figures)
    criteria += about_the_rate(run, figures) if len(figures.keys) else []
    criteria += about_the_harness(outcome, demands, next(iter(main_phase(run)), None))
    criteria, left_out = waived(criteria, demands.waived)
    if demands.ends_early and outcome.stopped is not None:
        return _of_a_stopped_run(outcome.stopped, criteria, figures)
    short = [c.shortfall() for c in criteria if c.demanded and not c.met]
    looked_at = {
        "criteria": sum(c.demanded for c in criteria),
        "met": sum(c.demanded and c.met for c in criteria),
        "ok operations": figures.ok,
    }
    unknown = [] if run.history.exists() else ["there is no sealed history"]
    if run.record.outcome is None:  # this explains every shortfall
        unknown, short = [*unknown, "the harness did not finish"], []
    details = {
        "criteria": [c.to_json() for c in criteria],
        "never_in_force": never_in_force(demands, run.faults),
        "never_invoked": never_invoked(demands, figures),
        "waived": left_out,
    }
    return conclude((), looked_at, unknown + short, details)


def _of_a_stopped_run(stopped: Stopped, criteria: Sequence[Criterion], figures: HistoryFigures) -> Verdict:
    words = f"the run ended {stopped.time_ns / 1e9:.1f} s after it began, when {stopped.checker} was violated"
    shown = [replace(c, demanded=False).to_json() for c in criteria]
    return Verdict(Validity.NOT_APPLICABLE, {"ok operations": figures.ok}, words, details={"criteria": shown})


def _about_the_run(outcome: RunOutcome) -> list[Criterion]:
    ended = not outcome.interrupted and not outcome.set_up_failure
    why = f": {outcome.set_up_failure}" if outcome.set_up_failure else ""
    return [Criterion("ran to its end", int(ended), 1, f"the run was neither interrupted nor given up in set-up{why}")]


VACUITY = checker_of_run(
    "vacuity",
    "Was enough tested?",
    "Did the run test enough, under faults that were measured, for its verdict to mean something?",
    _combine,
)


STEAL_LIMIT_S = 0.5


def about_nodes(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return the criteria on logs and traces that nodes must have handed over."""
    everyone = run.servers
    criteria = []
    if run.demands.logs:
        damaged = set(run.damaged_from) & set(everyone)
        words = f"; faults damaged the disk of {', '.join(sorted(damaged))}" if damaged else ""
        criteria.append(
            Criterion(
                "nodes with a final log",
                len(run.final_copies.keys() & set(node_files(run.log)) & set(everyone)),
                max(1, len(everyone) - len(damaged)),
                f"whose data directory was copied at the end and could be read{words}",
            )
        )
    if run.demands.traces:
        spoke = {node for node, file in node_files(run.trace).items() if pq.read_metadata(file).num_rows}
        delivered = len(spoke & set(everyone))
        criteria.append(Criterion("nodes with a trace", delivered, max(1, len(everyone)), "which recorded their steps"))
        if figures.deposed >= 0:
            words = f"including {figures.deposed_reads} reads; counted by the clocks of one machine, for display only"
            criteria.append(Criterion("operations answered by a deposed leader", figures.deposed, 0, words, False))
    return criteria


def about_the_harness(outcome: RunOutcome, demands: Demands, span: tuple[int, int] | None = None) -> list[Criterion]:
    """Return figures that show if the harness kept up.  A report shows them next to the verdict; none is required.

    span: [from, to) of the main phase in ns"""
    criteria = []
    stalls = outcome.loop_stalls
    longest = max((stall.stall_ms for stall in stalls), default=0)
    counted = "1 stall" if len(stalls) == 1 else f"{len(stalls)} stalls"
    words = f"{counted} of the harness' own loop over 500 ms, the longest {longest:.0f} ms"
    criteria.append(Criterion("harness kept up", int(not stalls), 1, words, False))
    if demands.nodes:
        robbed = [f"{node} lost {s:g} s" for node, s in sorted(outcome.steal_s.items()) if s > STEAL_LIMIT_S]
        shares = {} if span is None else processor_time.shares_between(outcome, *span)
        not_so = [*robbed, *processor_time.busy_in_words(shares)]
        words = f"no node lost more than {STEAL_LIMIT_S:g} s of CPU to its host"
        words += ", and none waited for a processor for long" if shares else "; waiting for a CPU was not measured"
        words += f"; not so: {', '.join(not_so)}" if not_so else ""
        criteria.append(Criterion("nodes had their CPU", int(not not_so), 1, words, False))
    return criteria
