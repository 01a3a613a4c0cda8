"""Was it a real test?  A run in which nothing happened proves nothing, even if every other verdict is valid.

Each criterion is a figure with its minimum.  A shortfall makes the verdict *unknown*, never invalid: nothing was
violated, but nothing was shown either.  Nothing is demanded of parts that a subject does not have.  Some figures
are only shown, and the reader weighs them.  Examples are whether the harness kept up, and how many answers deposed
leaders gave (counted by comparing clocks of one machine).

A run that ended early, as soon as an online check had found a violation, is not meant to be a whole test.  Its figures
are shown, and the verdict is *not applicable*.  Such a run is never valid: either the sealed run confirms the
violation, or the harness contradicts itself (`harness/judge/judge_run.py`).

`Verdict.details["criteria"]` is a list of {"name", "value", "least", "met", "demanded", "words", "advice"}, in the
order in which a report shows them.  `details["never_in_force"]` is a list of {"kind", "dealt", "reasons"}, sorted by
kind.  It names the kinds of fault that the run was to inject and of which no fault was in force.
`details["never_invoked"]` is a sorted list of the functions that the workload states and no client invoked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from checkers.base.checker import Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.demands import READS_OF_A_SERVER, Demands
from checkers.base.json_file import mapping, number
from checkers.base.run_evidence import conclude
from checkers.base.stored_run import FINAL_COPY, StoredRun, node_files
from checkers.base.verdict import Validity, Verdict
from checkers.run_quality import leaders_over_time, minimums
from checkers.run_quality import stretches as calm_stretches
from checkers.run_quality.faults_installed import INSTALLED, SKIPPED, achieved
from checkers.run_quality.history_figures import HistoryFigures, figures_of, joined
from checkers.sealing.history_rows import parts_of_history

NO_NEMESIS = "none"
"""The nemesis of a run that breaks nothing: no fault is demanded of it."""
OF_A_SCHEDULE = "schedule"
"""The nemesis of a run that plays a file."""
SHARE_IN_FAULTS = 0.10
SHARE_OF_KEYS = 0.5
DEALT_OFTEN = 2
"""From this number of faults of one kind on, at least one of them must have been in force."""
STEAL_LIMIT_S = 0.5
RATE_ADVICE = "the system and this machine are slower: give a lower --rate, or more --concurrency"

END_OF_TIME = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Criterion:
    """One figure.  met: value >= least.  words: what the value counts.  advice: what to do about a shortfall.

    demanded: whether a shortfall makes the verdict unknown."""

    name: str
    value: float
    least: float
    words: str
    demanded: bool = True
    advice: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.least

    def shortfall(self) -> str:
        words = f"{self.name}: {self.value:g}, and at least {self.least:g} is needed"
        return f"{words} ({self.advice})" if self.advice else words

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def _split(run: StoredRun) -> list[Part]:
    if not run.history.exists():
        return []
    facts = run.outcome
    final = [p["start_ns"] for p in facts.get("phases") or () if p["name"] == "final reads"]
    params = {
        "windows": windows(run.faults),
        "final_ns": final[0] if final else END_OF_TIME,
        "main": _main(run),
        "calm": _calm(run),
        "stretches": [(s.begin_ns, s.end_ns, s.early_ns) for s in _stretches(run)],
        "traces": list(node_files(run.trace).values()) if one_clock(run.test) else [],
        "reads": sorted(run.demands.reads),
        "writes": sorted(run.demands.writes),
    }
    return parts_of_history(run.history, params)


def _main(run: StoredRun) -> list[tuple[int, int]]:
    """[from, to) of the main phase in ns since the test began; empty if it did not end."""
    phases = [p for p in run.outcome.get("phases") or () if p["name"] == "main" and p["end_ns"] >= 0]
    return [(p["start_ns"], p["end_ns"]) for p in phases[:1]]


def _calm(run: StoredRun) -> list[tuple[int, int]]:
    return [span for main in _main(run) for span in minimums.calm(main, run.faults)]


def _stretches(run: StoredRun) -> list[calm_stretches.Stretch]:
    of_phases = (calm_stretches.stretches(main, run.faults, run.demands.op_timeout_s) for main in _main(run))
    return [stretch for of_phase in of_phases for stretch in of_phase]


def windows(faults: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """[from, to) in ns since the test began, of every fault that was installed; an unhealed one lasts to the end."""
    return [
        (f["injected_ns"], f["heal_ordered_ns"] if f["heal_ordered_ns"] >= 0 else END_OF_TIME)
        for f in faults
        if achieved(f).word == INSTALLED
    ]


def _combine(run: StoredRun, findings: Sequence[HistoryFigures]) -> Verdict:
    figures = joined(findings)
    facts = run.outcome
    demands = run.demands
    criteria = _about_the_run(facts)
    if demands.faults and demands.nemesis != NO_NEMESIS:
        criteria += _about_faults(run, facts, figures)
    criteria += _about_operations(run, figures) + _about_stretches(run, figures)
    if demands.nodes:
        criteria += _about_nodes(run, figures)
    criteria += _about_the_rate(run, figures) if len(figures.keys) else []
    criteria += _about_the_harness(facts, demands)
    if demands.ends_early and facts.get("stopped"):
        return _of_a_stopped_run(mapping(facts["stopped"]), criteria, figures)
    short = [c.shortfall() for c in criteria if c.demanded and not c.met]
    looked_at = {
        "criteria": sum(c.demanded for c in criteria),
        "met": sum(c.demanded and c.met for c in criteria),
        "ok operations": figures.ok,
    }
    unknown = [] if run.history.exists() else ["there is no sealed history"]
    unknown += [] if facts else ["there is no outcome.json: the harness did not come to its end"]
    details = {
        "criteria": [c.to_json() for c in criteria],
        "never_in_force": never_in_force(demands, run.faults),
        "never_invoked": _never_invoked(demands, figures),
    }
    return conclude((), looked_at, unknown + short, details)


def _of_a_stopped_run(stopped: Mapping[str, Any], criteria: Sequence[Criterion], figures: HistoryFigures) -> Verdict:
    at_s = number(stopped.get("time_ns"), 0) / 1e9
    words = f"the run ended {at_s:.1f} s after it began, when {stopped.get('checker')} was violated"
    shown = [replace(c, demanded=False).to_json() for c in criteria]
    return Verdict(Validity.NOT_APPLICABLE, {"ok operations": figures.ok}, words, details={"criteria": shown})


def _about_the_run(facts: Mapping[str, Any]) -> list[Criterion]:
    ended = not facts.get("interrupted", False) and not facts.get("set_up_failure")
    why = f": {facts['set_up_failure']}" if facts.get("set_up_failure") else ""
    return [Criterion("ran to its end", int(ended), 1, f"the run was neither interrupted nor given up in set-up{why}")]


def _about_faults(run: StoredRun, facts: Mapping[str, Any], figures: HistoryFigures) -> list[Criterion]:
    faults = run.faults
    became = [achieved(f, demanded=run.demands.ledger) for f in faults]
    installed = [f for f, what in zip(faults, became, strict=True) if what.word == INSTALLED]
    excused = [f for f, what in zip(faults, became, strict=True) if what.word == SKIPPED and f["reason"]]
    wrong = [
        f"{f['words'] or f['card']['name']}: {what.word}, {what.reason or 'for no stated reason'}"
        for f, what in zip(faults, became, strict=True)
        if f not in installed and f not in excused
    ]
    criteria = [
        Criterion("faults installed", len(installed), 1, "faults that probes proved to be in force"),
        Criterion(
            "faults installed or rightly skipped",
            len(installed) + len(excused),
            len(faults),
            "of all that were dealt" + (f"; not so: {'; '.join(wrong)}" if wrong else ""),
        ),
        _kinds_installed(run.demands, faults, installed),
    ]
    if run.demands.elections:
        calling, won = leaders_over_time.under_faults(installed, leaders_over_time.leaders(run), run.servers)
        criteria.append(
            Criterion(
                "elections won under a fault",
                won,
                min(1, calling),
                f"of {calling} faults that took the leader from its majority and left a majority to others",
            )
        )
    if beyond := sum(bool(f.get("over_budget")) for f in faults):
        words = f"{beyond} faults made a majority lose what it had fsynced, so the system is excused for that loss"
        criteria.append(Criterion("data budget kept", 0, 1, words, False))
    if installed and all(minimums.strikes_the_only_server(fault, run.demands) for fault in installed):
        return criteria  # no operation can be ok meanwhile
    share = figures.ok_in_faults / figures.ok if figures.ok else 0.0
    return [
        *criteria,
        Criterion(
            "share of ok operations in faults", round(share, 3), SHARE_IN_FAULTS, "answered while a fault lasted"
        ),
        *_about_writes_in_faults(run, installed, figures),
    ]


def _kinds_installed(
    demands: Demands, faults: Sequence[Mapping[str, Any]], installed: Sequence[Mapping[str, Any]]
) -> Criterion:
    """A kind of which every fault was skipped was not tested, although other kinds were.  One skip may be bad luck, but
    not where the record says that no fault of the kind can reach the system."""
    dealt = Counter(_kind(fault) for fault in faults)
    tested = {_kind(fault) for fault in installed}
    impossible = {_kind(fault) for fault in faults if fault.get("impossible") is True} - tested
    missing = {kind for kind, count in dealt.items() if count >= DEALT_OFTEN} - tested | impossible
    not_dealt = _kinds_to_deal(demands) - dealt.keys()
    words = f"of {len(dealt)} kinds that were dealt"
    words += f"; impossible here: {', '.join(sorted(impossible))}" if impossible else ""
    if often := sorted(missing - impossible):
        words += f"; dealt {DEALT_OFTEN} times or more, and never in force: {', '.join(often)}"
    words += f"; the time was too short for: {', '.join(sorted(not_dealt))}" if not_dealt else ""
    return Criterion("kinds of fault installed", len(tested), len(tested | missing), words)


def never_in_force(demands: Demands, faults: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kinds of fault of which none was in force.

    dealt: how many faults of the kind there were.  reasons: why these were not in force, each once, in order of time.
    """
    became = [(_kind(fault), achieved(fault, demanded=demands.ledger)) for fault in faults]
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


def _kind(fault: Mapping[str, Any]) -> str:
    return str(mapping(fault.get("card")).get("kind"))


def _about_writes_in_faults(
    run: StoredRun, installed: Sequence[Mapping[str, Any]], figures: HistoryFigures
) -> list[Criterion]:
    """Criteria about writes under faults that let the system work for long enough.

    If no fault does, one acknowledged write under any fault is enough.
    """
    spans = windows(installed)
    ends = [min(end, _main_end(run)) for _, end in spans]
    struck_until = [END_OF_TIME if minimums.may_stay_down(f) else e for f, e in zip(installed, ends, strict=True)]
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
    words = f"acknowledged under a fault; {len(works)} faults let a majority work, for {seconds:.0f} s in all"
    criteria = [Criterion("ok writes in faults", figures.ok_writes_in_faults, least, words)]
    if run.demands.elections:
        share = ceil(minimums.SHARE_OF_FAULTS * len(works))
        words = f"of {len(works)} faults that let a majority work for {minimums.LONG_NS / 1e9:g} s or longer"
        criteria.append(Criterion("faults with an ok write", written, share, words))
    return criteria


def _main_end(run: StoredRun) -> int:
    ends = [p["end_ns"] for p in run.outcome.get("phases") or () if p["name"] == "main" and p["end_ns"] >= 0]
    return int(ends[0]) if ends else END_OF_TIME


def _never_invoked(demands: Demands, figures: HistoryFigures) -> list[str]:
    return sorted(demands.functions - figures.invoked_by_function.keys())


def _about_operations(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    keys = len(figures.keys)
    final_reads = run.outcome.get("final_reads")
    read = sum(why == "ok" for why in final_reads.values()) if final_reads else figures.keys_read_at_end
    answered = {
        f: figures.ok_by_function[f] for f, n in figures.invoked_by_function.items() if n >= minimums.INVOKED_LEAST
    }
    silent = "".join(f"; {f} never was" for f, ok in sorted(answered.items()) if not ok)
    silent += "".join(f"; {f} was never invoked" for f in _never_invoked(run.demands, figures))
    unread = sorted(k for k, why in (final_reads or {}).items() if why != "ok")
    return [
        Criterion(
            "ok operations",
            figures.ok,
            minimums.ok_operations_least(run.demands),
            _words_of_ok_operations(run.demands),
        ),
        Criterion(
            "functions with an ok answer",
            sum(map(bool, answered.values())),
            len(answered),
            f"of {len(answered)} that were invoked {minimums.INVOKED_LEAST} times or more" + silent,
        ),
        Criterion(
            "keys with concurrency",
            figures.concurrent_keys,
            max(1, keys * SHARE_OF_KEYS),
            f"of {keys} keys: two operations were open at once",
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
        return f"of {minimums.operations_scheduled(demands):g} scheduled"
    if slowest := minimums.operations_of_slowest(demands):
        return f"a system that needs the whole operation timeout for each answer gives {slowest:.0f} without faults"
    return "without an answer there is nothing to judge"


def _about_stretches(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Whether answers came throughout the main phase.  A lock may be held all the while, so it is only shown there."""
    of_run, demands = _stretches(run), run.demands
    if len(figures.ok_by_stretch) != len(of_run):
        return []  # the run has no history
    without, count = calm_stretches.silent(
        of_run, figures.invoked_by_stretch, figures.ok_by_stretch, demands.recovery_limit_s
    )
    if not count:
        return []
    words = f"of {count} stretches of {calm_stretches.STRETCH_S_LEAST:g} s or more outside faults"
    if without:
        begin_s = (without[0].begin_ns - _main(run)[0][0]) / 1e9
        words += f"; the first without one began {begin_s:.0f} s after the main phase"
    return [Criterion("stretches with an ok answer", count - len(without), count, words, demands.ok_share == 1.0)]


def _about_the_rate(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """How much of its spec the run did: writes for each key, the rate outside faults, and servers that answered."""
    demands, criteria = run.demands, []
    if demands.keys and demands.writes:
        least = minimums.key_writes_least(demands)
        written = figures.keys_with_writes(demands.keys, least)
        words = f"of {len(demands.keys)} keys: at least {least} writes were acknowledged"
        criteria.append(Criterion("keys with enough ok writes", written, minimums.keys_least(demands), words))
    calm_s, main_s = (sum(end - begin for begin, end in spans) / 1e9 for spans in (_calm(run), _main(run)))
    if demands.rate_hz and calm_s > 0:
        calm_hz, main_hz = figures.calm_operations / calm_s, figures.main_operations / main_s
        words = (
            f"{calm_hz:.0f} operations per second in {calm_s:.0f} s outside faults, {main_hz:.0f} in all, "
            f"of {demands.rate_hz:g}"
        )
        share = round(max(calm_hz, main_hz) / demands.rate_hz, 3)
        long_enough = calm_s >= minimums.CALM_S_LEAST
        criteria.append(
            Criterion("share of the scheduled rate", share, minimums.SHARE_OF_RATE, words, long_enough, RATE_ADVICE)
        )
    return criteria + (_about_servers(run, figures) if demands.servers else [])


def _about_servers(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Which servers answered clients.  One whose disk a fault damaged may be gone, so nothing is demanded of it."""
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
    criteria = [criterion("servers that answered clients", figures.answering & known, "gave an ok answer")]
    if demands.each_server_read_at_end:
        wanted = {key or "" for _, key in demands.final_reads[:READS_OF_A_SERVER]}
        whole = {node for node in known if wanted <= figures.read_at_end.get(node, frozenset())}
        read = criterion("servers read at the end", whole, f"answered a read of each of {len(wanted)} keys at the end")
        criteria.append(read)
    return criteria


def _about_nodes(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    everyone = run.servers
    criteria = []
    if run.demands.logs:
        readable = {c["node"] for c in run.copies if c["when"] == FINAL_COPY and not c["error"]}
        damaged = set(run.damaged_from) & set(everyone)
        words = f"; faults damaged the disk of {', '.join(sorted(damaged))}" if damaged else ""
        criteria.append(
            Criterion(
                "nodes with a final log",
                len(readable & set(node_files(run.log)) & set(everyone)),
                max(1, len(everyone) - len(damaged)),
                f"whose data directory was copied at the end and could be read{words}",
            )
        )
    if run.demands.traces:
        spoke = {node for node, file in node_files(run.trace).items() if pq.read_metadata(file).num_rows}
        delivered = len(spoke & set(everyone))
        criteria.append(Criterion("nodes with a trace", delivered, max(1, len(everyone)), "which recorded their steps"))
        if figures.deposed >= 0:
            words = f"of them {figures.deposed_reads} reads; counted by the clocks of one machine, for display only"
            criteria.append(Criterion("operations answered by a deposed leader", figures.deposed, 0, words, False))
    return criteria


def _about_the_harness(facts: Mapping[str, Any], demands: Demands) -> list[Criterion]:
    """Whether the harness itself kept up.  These figures are shown next to the verdict and not demanded."""
    criteria = []
    stalls = facts.get("loop_stalls") or []
    longest = max((s["stall_ms"] for s in stalls), default=0)
    words = f"{len(stalls)} stalls of the harness' own loop over 500 ms, the longest {longest:g} ms"
    criteria.append(Criterion("harness kept up", int(not stalls), 1, words, False))
    if demands.nodes:
        steal: Mapping[str, float] = facts.get("steal_s") or {}
        robbed = [f"{node} lost {s:g} s" for node, s in sorted(steal.items()) if s > STEAL_LIMIT_S]
        words = f"no node lost more than {STEAL_LIMIT_S:g} s of CPU to its host" + (
            f"; not so: {', '.join(robbed)}" if robbed else ""
        )
        criteria.append(Criterion("nodes had their CPU", int(not robbed), 1, words, False))
    return criteria


VACUITY = Checker(
    name="vacuity",
    title="Was it a real test?",
    question="Did enough happen, and under faults that were really there, for a verdict to mean something?",
    split=_split,
    judge=figures_of,
    combine=_combine,
    about_the_run=True,
)
