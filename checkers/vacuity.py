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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers import elections
from checkers.checker import Budget, Checker, Part, RunFiles
from checkers.evidence import (
    conclude,
    copies,
    node_files,
    numbers,
    outcome,
    over_budget,
    read_table,
    servers,
)
from checkers.history import NEMESIS, Type
from checkers.json_file import read_objects
from checkers.kernels.jit import kernel
from checkers.kernels.raft import Bools, Int64
from checkers.verdict import Verdict

SHARE_IN_FAULTS = 0.10
SHARE_OF_KEYS = 0.5
SHARE_OF_RATE = 0.8
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
    ok read among the final reads; answers of deposed leaders (-1: not known)."""

    ok: int = 0
    ok_in_faults: int = 0
    ok_writes_in_faults: int = 0
    keys: tuple[str, ...] = ()
    concurrent_keys: int = 0
    read_at_end: tuple[str, ...] = ()
    deposed: int = -1
    deposed_reads: int = -1
    unknown: str = ""


def _split(run: RunFiles) -> list[Part]:
    if not run.history.exists():
        return []
    facts = outcome(run)
    final = [p["start_ns"] for p in facts.get("phases") or () if p["name"] == "final reads"]
    return [
        Part(
            (str(run.history),),
            {
                "windows": windows(read_objects(run.faults)),
                "final_ns": final[0] if final else END_OF_TIME,
                "traces": list(node_files(run.trace).values()),
            },
        )
    ]


def windows(faults: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """[from, to) in ns since the test began, of every fault that was installed; an unhealed one lasts to the end."""
    return [
        (f["injected_ns"], f["heal_ordered_ns"] if f["heal_ordered_ns"] >= 0 else END_OF_TIME)
        for f in faults
        if f["achieved"] == "installed" and f["injected_ns"] >= 0
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
    keyed = table["key"].combine_chunks().dictionary_encode()
    codes = np.asarray(pc.fill_null(keyed.indices, -1).to_numpy(zero_copy_only=False), np.int64)
    names: list[str] = keyed.dictionary.to_pylist()
    is_read = _where(pc.equal(functions, "read"))
    final = is_ok & is_read & (times >= part.params["final_ns"]) & (codes >= 0)
    deposed = elections.answered_by_deposed(part.params["traces"], table, is_ok)
    return HistoryFigures(
        ok=int(is_ok.sum()),
        ok_in_faults=int((is_ok & in_faults).sum()),
        ok_writes_in_faults=int((is_ok & in_faults & _where(pc.equal(functions, "write"))).sum()),
        keys=tuple(sorted(names)),
        concurrent_keys=int((_most_open(codes[codes >= 0], types[codes >= 0], len(names)) > 1).sum()),
        read_at_end=tuple(sorted(names[i] for i in np.unique(codes[final]))),
        deposed=-1 if deposed is None else int(deposed.sum()),
        deposed_reads=-1 if deposed is None else int((deposed & is_read).sum()),
    )


def _where(mask: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.fill_null(mask, False).to_numpy(), np.bool_)


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


def _combine(run: RunFiles, findings: Sequence[HistoryFigures]) -> Verdict:
    figures = findings[0] if findings else HistoryFigures(unknown="there is no sealed history")
    facts = outcome(run)
    declares: Mapping[str, bool] = facts.get("declares") or {}
    criteria = _about_the_run(facts)
    if declares.get("faults", True):
        criteria += _about_faults(run, facts, declares, figures)
    criteria += _about_operations(facts, figures)
    if declares.get("nodes", True):
        criteria += _about_nodes(run, declares, figures)
    criteria += _about_the_harness(facts, declares)
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


def _about_faults(
    run: RunFiles, facts: Mapping[str, Any], declares: Mapping[str, bool], figures: HistoryFigures
) -> list[Criterion]:
    faults = read_objects(run.faults)
    installed = [f for f in faults if f["achieved"] == "installed"]
    excused = [f for f in faults if f["achieved"] == "skipped" and f["reason"]]
    wrong = [
        f"{f['words'] or f['card']['name']}: {f['achieved']}, {f['reason'] or 'for no stated reason'}"
        for f in faults
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
    if declares.get("elections", True):
        calling, won = elections.under_faults(installed, elections.leaders(run, facts), servers(run))
        criteria.append(
            Criterion(
                "elections won under a fault",
                won,
                min(1, calling),
                f"of {calling} faults that took the leader from its majority",
            )
        )
    share = figures.ok_in_faults / figures.ok if figures.ok else 0.0
    return [
        *criteria,
        Criterion(
            "share of ok operations in faults", round(share, 3), SHARE_IN_FAULTS, "answered while a fault lasted"
        ),
        Criterion("ok writes in faults", figures.ok_writes_in_faults, 1, "acknowledged under a fault"),
    ]


def _about_operations(facts: Mapping[str, Any], figures: HistoryFigures) -> list[Criterion]:
    keys = len(figures.keys)
    said = facts.get("final_reads")
    read = sum(why == "ok" for why in said.values()) if said else len(figures.read_at_end)
    unread = sorted(k for k, why in (said or {}).items() if why != "ok")
    return [
        Criterion("ok operations", figures.ok, 1, "without an answer there is nothing to judge"),
        Criterion(
            "keys with concurrency",
            figures.concurrent_keys,
            max(1, keys * SHARE_OF_KEYS),
            f"of {keys} keys: two operations were open at once",
        ),
        Criterion(
            "keys read at the end",
            read,
            max(1, keys),
            "keys with an ok read after recovery" + (f"; not so: {', '.join(unread)}" if unread else ""),
        ),
    ]


def _about_nodes(run: RunFiles, declares: Mapping[str, bool], figures: HistoryFigures) -> list[Criterion]:
    everyone = servers(run)
    criteria = []
    if declares.get("logs", False):
        readable = {c["node"] for c in copies(run) if c["when"] == "final" and not c["error"]}
        criteria.append(
            Criterion(
                "nodes with a final log",
                len(readable & set(node_files(run.log)) & set(everyone)),
                max(1, len(everyone)),
                "whose data directory was copied at the end and could be read",
            )
        )
    if declares.get("traces", False):
        delivered = len(set(node_files(run.trace)) & set(everyone))
        criteria.append(
            Criterion("nodes with a trace", delivered, max(1, len(everyone)), "which say what they did, step by step")
        )
        if figures.deposed >= 0:
            words = f"of them {figures.deposed_reads} reads; counted by the clocks of one machine, for display only"
            criteria.append(Criterion("operations answered by a deposed leader", figures.deposed, 0, words, False))
    return criteria


def _about_the_harness(facts: Mapping[str, Any], declares: Mapping[str, bool]) -> list[Criterion]:
    """Shown next to the verdict, not demanded: whether the harness itself kept up."""
    criteria = []
    scheduled, achieved = facts.get("scheduled_rate_hz"), facts.get("achieved_rate_hz")
    if scheduled and achieved is not None:
        words = f"{achieved:.0f} operations per second outside faults, of {scheduled:g} scheduled"
        criteria.append(
            Criterion("share of the scheduled rate", round(achieved / scheduled, 3), SHARE_OF_RATE, words, False)
        )
    stalls = facts.get("loop_stalls") or []
    longest = max((s["stall_ms"] for s in stalls), default=0)
    words = f"{len(stalls)} stalls of the harness' own loop over 500 ms, the longest {longest:g} ms"
    criteria.append(Criterion("harness kept up", int(not stalls), 1, words, False))
    if declares.get("nodes", True):
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
