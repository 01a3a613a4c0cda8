"""Was it a real test?  A run in which nothing happened proves nothing, however valid every other verdict is.

Each criterion is a figure with the least that counts.  A shortfall makes the verdict *unknown*, never invalid: nothing
was violated, but nothing was shown either.  What a subject declares it has not got is not demanded of it.  Some figures
are shown and not demanded: they are for a reader to weigh (a harness that could not keep up on its own, clocks of one
machine compared to count answers of deposed leaders).

`Verdict.details["criteria"]` is a list of {"name", "value", "least", "met", "demanded", "words"}, in the order in which
a report shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.demands import Demands
from checkers.base.history import NEMESIS, Type
from checkers.base.run_evidence import conclude, numbers, over_budget, read_table
from checkers.base.stored_run import FINAL_COPY, StoredRun, node_files
from checkers.base.verdict import Verdict
from checkers.kernels.jit import kernel
from checkers.run_quality import elections, enough
from checkers.run_quality.achieved import INSTALLED, SKIPPED, achieved

NO_NEMESIS = "none"
"""The nemesis of a run that was asked to break nothing: no fault is demanded of it."""
SHARE_IN_FAULTS = 0.10
SHARE_OF_KEYS = 0.5
STEAL_LIMIT_S = 0.5

END_OF_TIME = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Criterion:
    """One figure.  met: value >= least.  demanded: a shortfall makes the run vacuous."""

    name: str
    value: float
    least: float
    words: str
    demanded: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.least

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """What the history says: ok operations, of them in faults; keys, of them with overlapping operations; keys with an
    ok read among the final reads; answers of deposed leaders (-1: not known).

    ok_writes_by_fault: in the order of `windows`.  answering: nodes that answered anything, refusals too.
    calm_operations: invoked in the main phase outside faults and their aftermath."""

    ok: int = 0
    ok_in_faults: int = 0
    ok_writes_in_faults: int = 0
    ok_writes_by_fault: tuple[int, ...] = ()
    ok_writes_by_key: Mapping[str, int] = field(default_factory=dict)
    answering: tuple[str, ...] = ()
    calm_operations: int = 0
    keys: tuple[str, ...] = ()
    concurrent_keys: int = 0
    read_at_end: tuple[str, ...] = ()
    deposed: int = -1
    deposed_reads: int = -1
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    if not run.history.exists():
        return []
    facts = run.outcome
    final = [p["start_ns"] for p in facts.get("phases") or () if p["name"] == "final reads"]
    return [
        Part(
            (str(run.history),),
            {
                "windows": windows(run.faults),
                "final_ns": final[0] if final else END_OF_TIME,
                "calm": _calm(run),
                "traces": list(node_files(run.trace).values()),
                "reads": sorted(run.demands.reads),
                "writes": sorted(run.demands.writes),
            },
        )
    ]


def _calm(run: StoredRun) -> list[tuple[int, int]]:
    main = [p for p in run.outcome.get("phases") or () if p["name"] == "main" and p["end_ns"] >= 0]
    return enough.calm((main[0]["start_ns"], main[0]["end_ns"]), run.faults) if main else []


def windows(faults: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """[from, to) in ns since the test began, of every fault that was installed; an unhealed one lasts to the end."""
    return [
        (f["injected_ns"], f["heal_ordered_ns"] if f["heal_ordered_ns"] >= 0 else END_OF_TIME)
        for f in faults
        if achieved(f).word == INSTALLED
    ]


def _judge(part: Part, budget: Budget) -> HistoryFigures:
    if excess := over_budget(part, budget, ("time_ns", "process", "type", "f", "key", "node")):
        return HistoryFigures(unknown=excess)
    columns = ["time_ns", "process", "type", "f", "key", "node"]
    table = read_table(part.paths[0], columns)
    table = table.filter(pc.not_equal(table["process"], NEMESIS))
    times, types = numbers(table, "time_ns"), numbers(table, "type")
    functions = pc.cast(table["f"], pa.string())
    is_ok = types == Type.OK
    in_faults = np.zeros(len(table), np.bool_)
    for begin, end in part.params["windows"]:
        in_faults |= (times >= begin) & (times < end)
    is_ok_write = is_ok & _named(functions, part.params["writes"])
    is_calm = np.zeros(len(table), np.bool_)
    for begin, end in part.params["calm"]:
        is_calm |= (times >= begin) & (times < end)
    keyed = table["key"].combine_chunks().dictionary_encode()
    codes = np.asarray(pc.fill_null(keyed.indices, -1).to_numpy(zero_copy_only=False), np.int64)
    names: list[str] = keyed.dictionary.to_pylist()
    is_read = _named(functions, part.params["reads"])
    final = is_ok & is_read & (times >= part.params["final_ns"]) & (codes >= 0)
    deposed = elections.answered_by_deposed(part.params["traces"], table, is_ok)
    return HistoryFigures(
        ok=int(is_ok.sum()),
        ok_in_faults=int((is_ok & in_faults).sum()),
        ok_writes_in_faults=int((is_ok_write & in_faults).sum()),
        ok_writes_by_fault=tuple(
            int((is_ok_write & (times >= begin) & (times < end)).sum()) for begin, end in part.params["windows"]
        ),
        ok_writes_by_key=dict(
            zip(names, np.bincount(codes[is_ok_write & (codes >= 0)], minlength=len(names)).tolist(), strict=True)
        ),
        answering=tuple(sorted(set(table["node"].unique().to_pylist()) - {"", None})),
        calm_operations=int((is_calm & (types == Type.INVOKE)).sum()),
        keys=tuple(sorted(names)),
        concurrent_keys=int((_most_open(codes[codes >= 0], types[codes >= 0], len(names)) > 1).sum()),
        read_at_end=tuple(sorted(names[i] for i in np.unique(codes[final]))),
        deposed=-1 if deposed is None else int(deposed.sum()),
        deposed_reads=-1 if deposed is None else int((deposed & is_read).sum()),
    )


def _named(functions: pa.ChunkedArray, names: Sequence[str]) -> Bools:
    """Where a function is one of these."""
    return np.asarray(pc.is_in(functions, value_set=pa.array(names, pa.string())).to_numpy(), np.bool_)


def _most_open(codes: Int64, types: Int64, keys: int) -> Int64:
    """Per key, the largest number of operations open at once; an info ends its operation here."""
    return _peaks(codes, types, keys, int(Type.INVOKE))


@kernel
def _peaks(codes: Int64, types: Int64, keys: int, invoke: int) -> Int64:
    open_now = np.zeros(keys, np.int64)
    peak = np.zeros(keys, np.int64)
    for i in range(codes.shape[0]):
        if types[i] == invoke:
            open_now[codes[i]] += 1
            peak[codes[i]] = max(peak[codes[i]], open_now[codes[i]])
        else:
            open_now[codes[i]] -= 1
    return peak


def _combine(run: StoredRun, findings: Sequence[HistoryFigures]) -> Verdict:
    figures = findings[0] if findings else HistoryFigures(unknown="there is no sealed history")
    facts = run.outcome
    demands = run.demands
    criteria = _about_the_run(facts)
    if demands.faults and demands.nemesis != NO_NEMESIS:
        criteria += _about_faults(run, facts, figures)
    criteria += _about_operations(run, figures)
    if demands.nodes:
        criteria += _about_nodes(run, figures)
    criteria += _about_the_rate(run, figures) if figures.keys else []
    criteria += _about_the_harness(facts, demands)
    short = [f"{c.name}: {c.value:g}, where at least {c.least:g} counts" for c in criteria if c.demanded and not c.met]
    looked_at = {
        "criteria": sum(c.demanded for c in criteria),
        "met": sum(c.demanded and c.met for c in criteria),
        "ok operations": figures.ok,
    }
    unknown = [figures.unknown] if figures.unknown else []
    unknown += [] if facts else ["there is no outcome.json: the harness did not come to its end"]
    return conclude((), looked_at, unknown + short, {"criteria": [c.to_json() for c in criteria]})


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
    ]
    if run.demands.elections:
        calling, won = elections.under_faults(installed, elections.leaders(run), run.servers)
        criteria.append(
            Criterion(
                "elections won under a fault",
                won,
                min(1, calling),
                f"of {calling} faults that took the leader from its majority",
            )
        )
    if beyond := sum(bool(f.get("over_budget")) for f in faults):
        words = f"{beyond} faults cost a majority what it had fsynced: the system is excused for what it lost then"
        criteria.append(Criterion("data budget kept", 0, 1, words, False))
    share = figures.ok_in_faults / figures.ok if figures.ok else 0.0
    return [
        *criteria,
        Criterion(
            "share of ok operations in faults", round(share, 3), SHARE_IN_FAULTS, "answered while a fault lasted"
        ),
        *_about_writes_in_faults(run, installed, figures),
    ]


def _about_writes_in_faults(
    run: StoredRun, installed: Sequence[Mapping[str, Any]], figures: HistoryFigures
) -> list[Criterion]:
    """Of faults that let the system work for long enough; where none does, of all."""
    spans = windows(installed)
    ends = [min(end, _main_end(run)) for _, end in spans]
    struck_until = [END_OF_TIME if enough.may_stay_down(f) else e for f, e in zip(installed, ends, strict=True)]
    at_once = [
        [
            fault
            for fault, (begin, _), end in zip(installed, spans, struck_until, strict=True)
            if begin < ends[i] and spans[i][0] < end
        ]
        for i in range(len(spans))
    ]
    works = [i for i, (begin, _) in enumerate(spans) if enough.lets_write(at_once[i], run.demands, ends[i] - begin)]
    seconds = sum(ends[i] - spans[i][0] for i in works) / 1e9
    written = sum(figures.ok_writes_by_fault[i] > 0 for i in works if i < len(figures.ok_writes_by_fault))
    least = enough.fault_writes_least(run.demands, seconds, len(works))
    words = f"acknowledged under a fault; {len(works)} faults let a majority work, for {seconds:.0f} s in all"
    criteria = [Criterion("ok writes in faults", figures.ok_writes_in_faults, least, words)]
    if run.demands.elections:
        share = ceil(enough.SHARE_OF_FAULTS * len(works))
        words = f"of {len(works)} faults that let a majority work for {enough.LONG_NS / 1e9:g} s or longer"
        criteria.append(Criterion("faults with an ok write", written, share, words))
    return criteria


def _main_end(run: StoredRun) -> int:
    ends = [p["end_ns"] for p in run.outcome.get("phases") or () if p["name"] == "main" and p["end_ns"] >= 0]
    return int(ends[0]) if ends else END_OF_TIME


def _about_operations(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    keys = len(figures.keys)
    said = run.outcome.get("final_reads")
    read = sum(why == "ok" for why in said.values()) if said else len(figures.read_at_end)
    unread = sorted(k for k, why in (said or {}).items() if why != "ok")
    return [
        Criterion(
            "ok operations",
            figures.ok,
            enough.ok_operations_least(run.demands),
            f"of {enough.operations_scheduled(run.demands):g} scheduled"
            if run.demands.rate_hz
            else "without an answer there is nothing to judge",
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


def _about_the_rate(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """What was asked for, and was the run able to do it where nothing was broken?"""
    demands, criteria = run.demands, []
    if demands.keys and demands.writes:
        least = enough.key_writes_least(demands)
        written = sum(figures.ok_writes_by_key.get(key, 0) >= least for key in demands.keys)
        words = f"of {len(demands.keys)} keys: at least {least} writes were acknowledged"
        criteria.append(Criterion("keys with enough ok writes", written, enough.keys_least(demands), words))
    calm_s = sum(end - begin for begin, end in _calm(run)) / 1e9
    if demands.rate_hz and calm_s > 0:
        achieved_hz = figures.calm_operations / calm_s
        words = f"{achieved_hz:.0f} operations per second in {calm_s:.0f} s outside faults, of {demands.rate_hz:g}"
        share = round(achieved_hz / demands.rate_hz, 3)
        long_enough = calm_s >= enough.CALM_S_LEAST
        criteria.append(Criterion("share of the scheduled rate", share, enough.SHARE_OF_RATE, words, long_enough))
    if demands.servers:
        answering = len(set(figures.answering) & set(demands.servers))
        words = f"of {len(demands.servers)}; a server that never leads may answer nothing"
        criteria.append(Criterion("servers that answered clients", answering, 1, words))
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
        criteria.append(
            Criterion("nodes with a trace", delivered, max(1, len(everyone)), "which say what they did, step by step")
        )
        if figures.deposed >= 0:
            words = f"of them {figures.deposed_reads} reads; counted by the clocks of one machine, for display only"
            criteria.append(Criterion("operations answered by a deposed leader", figures.deposed, 0, words, False))
    return criteria


def _about_the_harness(facts: Mapping[str, Any], demands: Demands) -> list[Criterion]:
    """Shown next to the verdict, not demanded: whether the harness itself kept up."""
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
    judge=_judge,
    combine=_combine,
)
