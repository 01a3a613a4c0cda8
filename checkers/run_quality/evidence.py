"""Is the evidence whole?  Nothing on which a verdict depends may be missing, cut short or changed after the run.

Three kinds of proof are held together:

* The ledger (`base/ledger.py`).  The last row of a history counts all rows before it, so a history that was cut short,
  or lost a row, or gained one, shows it.
* The manifest (`sealing/manifest.py`).  It binds the size and the hash of every primary file.
* Agreement.  test.json, outcome.json, faults.json and copies.json have counterparts in the history: phases, faults,
  copies and final reads.  Both must agree.

A difference makes the run *unknown*, never invalid: damaged evidence shows nothing about the system.  The other
checkers go on with the remaining evidence.

The history is read in parts, a few columns at a time, so its length does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from checkers.base import ledger
from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.history import NEMESIS, MalformedHistory, Type
from checkers.base.json_file import BrokenFile, mapping, read_json, sequence
from checkers.base.run_evidence import conclude, numbers
from checkers.base.stored_run import COPIES_INDEX, FAULTS, OUTCOME, TEST, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.run_quality.fault_rows import differences, orders_differ
from checkers.sealing.codes import dictionary_codes
from checkers.sealing.history_rows import parts_of_history, read_rows
from checkers.sealing.manifest import MANIFEST, SEALED, STREAM, bound_files, broken_bonds
from checkers.sealing.row_digest import row_digest, together

PHASES = ("set-up", "main", "recovery", ledger.FINAL_READS, "collection")
SHOWN = 8
"""Differences of one kind that are named; the rest are counted."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartFinding:
    """The findings on some row groups.  counts: rows by function and type.  ledger: rows of process -1, whole.
    first_ns, last_ns: time of the first and the last row.  backwards: row whose time lies before its predecessor's.
    digest: of all rows but the end mark."""

    rows: int
    counts: Mapping[tuple[str, int], int]
    ledger: tuple[dict[str, Any], ...]
    first_ns: int
    last_ns: int
    backwards: int
    digest: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The findings of all parts, in order of the history."""

    rows: tuple[dict[str, Any], ...]
    total: int
    counts: Mapping[tuple[str, int], int]
    backwards: int
    digest: int

    def of(self, f: str, type_: Type) -> list[Row]:
        return ledger.of(self.rows, f, type_)


def split(run: StoredRun) -> list[Part]:
    """Runs of row groups.  Raises MalformedHistory where the history is not sealed."""
    if not run.history.exists():
        raise MalformedHistory(f"{run.root}: the history is not sealed, there is no {run.history.name}")
    return parts_of_history(run.history, {})


def judge(part: Part, budget: Budget) -> PartFinding:
    counts: Counter[tuple[str, int]] = Counter()
    found: list[dict[str, Any]] = []
    times: list[tuple[int, int]] = []
    at, backwards, digest = part.params["row"], -1, 0
    with pq.ParquetFile(part.paths[0]) as file:
        for group in range(part.params["first"], part.params["end"]):
            table = file.read_row_group(group, list(HISTORY.names), use_threads=False)
            if not len(table):
                continue
            functions, names = dictionary_codes(table["f"])
            code = functions.astype(np.int64) * 256 + numbers(table, "type")
            for value, count in zip(*np.unique(code, return_counts=True), strict=True):
                counts[names[int(value) // 256], int(value) % 256] += int(count)
            time_ns = numbers(table, "time_ns")
            falls = np.flatnonzero(np.diff(time_ns) < 0)
            if backwards < 0 and (len(falls) or (times and time_ns[0] < times[-1][1])):
                backwards = at + (int(falls[0]) + 1 if len(falls) else 0)
            times.append((int(time_ns[0]), int(time_ns[-1])))
            digest = together([digest, row_digest(table)])
            for i in np.flatnonzero(numbers(table, "process") == NEMESIS).tolist():
                row = table.slice(i, 1)
                found.append({**row.to_pylist()[0], "row": at + i})
                if found[-1]["f"] == ledger.END:
                    digest = together([digest, -row_digest(row)])
            at += len(table)
    first, last = (times[0][0], times[-1][1]) if times else (0, 0)
    return PartFinding(at - part.params["row"], counts, tuple(found), first, last, backwards, digest)


def combine(run: StoredRun, findings: Sequence[PartFinding]) -> Verdict:
    kept = _joined(findings)
    begun = any(row["f"] in (ledger.BEGIN, ledger.END, ledger.FILE) for row in kept.rows)
    if not begun and not run.demands.ledger:
        return Verdict(Validity.NOT_APPLICABLE, reason="the run was recorded before histories had a ledger")
    looked_at = {"rows": kept.total, "rows of the ledger": len(kept.rows)}
    if not begun:
        words = "the history has no ledger: it was recorded by an older version (analyze --trust-old-format), or cut"
        return conclude((), looked_at, [words, *_few(broken_bonds(run.root))])
    questions = [f"row {kept.backwards} is earlier than the row before it"] if kept.backwards >= 0 else []
    for agree in (_ends, _phases_ran, _bonds, _files, _phases, _faults, _copies, _final_reads, _declared):
        try:
            questions += _few(agree(run, kept))
        except BrokenFile as problem:
            questions.append(str(problem))
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            questions.append(
                f"{_NAMES[agree]} cannot be compared with the history ({type(problem).__name__}: {problem})"
            )
    return conclude((), looked_at, list(dict.fromkeys(questions)))


def _joined(findings: Sequence[PartFinding]) -> Ledger:
    counts: Counter[tuple[str, int]] = Counter()
    rows: list[dict[str, Any]] = []
    total, last_ns, backwards = 0, None, -1
    for finding in findings:
        counts.update(finding.counts)
        rows += finding.ledger
        if backwards < 0:
            fell = last_ns is not None and finding.rows > 0 and finding.first_ns < last_ns
            backwards = total if fell else finding.backwards
        total += finding.rows
        last_ns = finding.last_ns if finding.rows else last_ns
    return Ledger(tuple(rows), total, counts, backwards, together([finding.digest for finding in findings]))


# The ledger itself.


def _ends(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether the history begins and ends as it must, and holds as many rows as its end says."""
    begin, end = kept.rows[0], kept.rows[-1]
    clauses = []
    if begin["f"] != ledger.BEGIN or begin["row"] != 0:
        clauses.append("the history does not begin with its first row")
    elif mapping(ledger.payload(begin)).get("format") != ledger.FORMAT:
        clauses.append(f"the history is not of format {ledger.FORMAT}")
    if end["f"] != ledger.END or end["row"] != kept.total - 1:
        return [*clauses, f"the history was cut short: row {kept.total - 1}, its last, is not its end mark"]
    said = mapping(ledger.payload(end))
    before = Counter(kept.counts)
    before[ledger.END, int(Type.OK)] -= 1
    if said.get("rows") != kept.total - 1:
        clauses.append(f"the history holds {kept.total - 1} rows before its end mark, which counts {said.get('rows')}")
    if said.get("digest") != f"{kept.digest:016x}":
        clauses.append("rows of the history were changed after the run: their digest is not that of its end mark")
    here, there = ledger.counted(+before), mapping(said.get("by_function"))
    clauses += [
        f"the end mark counts {there.get(f)} rows of {f} (invoke, ok, fail, info), the history holds {here.get(f)}"
        for f in sorted(here.keys() | there.keys())
        if here.get(f) != there.get(f)
    ]
    told = {
        "phases": len(kept.of(ledger.PHASE, Type.INVOKE)),
        "files": len(kept.of(ledger.FILE, Type.OK)),
        "faults": len(run.faults),
        "copies": len(run.copies_index),
        "final_reads": len(_read_at_the_end(run, kept)),
    }
    clauses += [
        f"the end mark counts {said.get(n)} {n}, there are {count}" for n, count in told.items() if said.get(n) != count
    ]
    return clauses


def _phases_ran(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every phase began and ended, in order."""
    rows = [(ledger.payload(row), Type(row["type"])) for row in kept.rows if row["f"] == ledger.PHASE]
    wanted = [(name, type_) for name in PHASES for type_ in (Type.INVOKE, Type.OK)]
    if rows == wanted:
        return []
    at = next((i for i, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b), min(len(rows), len(wanted)))
    if at == len(wanted):
        return ["the ledger holds more phases than a run has"]
    return [f"the ledger does not show that phase {wanted[at][0]!r} {'began' if at % 2 == 0 else 'ended'}"]


# The files of the run, against the ledger and the history.


def _bonds(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every primary file is as the manifest names it, and the manifest names what the ledger names."""
    clauses = broken_bonds(run.root)
    named = mapping(bound_files(run.root))
    entered = kept.of(ledger.BOUND, Type.OK)
    if len(entered) != 1:
        return [*clauses, "the ledger does not name the files of the run once"]
    known = mapping(ledger.payload(entered[0]))
    others = (known.keys() | named.keys()) - {STREAM, SEALED}
    wrong = sorted(name for name in others if known.get(name) != named.get(name))
    return clauses + [f"{MANIFEST} names another {name} than the history" for name in wrong]


def _files(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every small file holds what the ledger entered."""
    entered = {entry["name"]: entry["content"] for entry in map(ledger.payload, kept.of(ledger.FILE, Type.OK))}
    wanted = {TEST, OUTCOME, FAULTS, *((COPIES_INDEX,) if run.demands.logs else ())}
    clauses = [f"the history does not hold the content of {name}" for name in sorted(wanted - entered.keys())]
    for name, content in entered.items():
        if not (run.root / name).exists():
            clauses.append(f"{name} is missing")
        elif read_json(run.root / name) != content:
            clauses.append(f"{name} differs from what the history recorded of it")
    begun = mapping(ledger.payload(kept.rows[0]))
    if begun.get("spec") != run.test.get("spec") or begun.get("run_id") != run.test.get("run_id"):
        clauses.append("test.json is not that of this history")
    return clauses


def _phases(run: StoredRun, kept: Ledger) -> list[str]:
    shown = []
    for row in kept.rows:
        if row["f"] == ledger.PHASE and row["type"] == Type.INVOKE:
            shown.append([ledger.payload(row), row["time_ns"], -1])
        elif row["f"] == ledger.PHASE and shown:
            shown[-1][2] = row["time_ns"]
    said = [[p["name"], p["start_ns"], p["end_ns"]] for p in sequence(run.outcome.get("phases"))]
    return [] if shown == said else ["the phases of outcome.json are not those of the history"]


def _faults(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether the history shows the faults on record, as they were ordered and healed, and no other.

    Where a phase was broken off, faults in force were healed without rows: only the orders are compared then.
    """
    broken_off = bool(kept.of(ledger.PHASE, Type.INFO))
    return orders_differ(run.faults, kept.rows) if broken_off else differences(run.faults, kept.rows)


def _copies(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every copy that the history shows is in the index, is of every server, and lies in its folder."""
    shown = {
        (entry["copy"], node, state)
        for entry in map(ledger.payload, kept.of(ledger.COPY, Type.OK))
        for node, state in entry["nodes"].items()
    }
    listed = {(row["copy"], row["node"], row["state"]) for row in run.copies_index}
    clauses = [f"copy {copy} of {node} is not in {COPIES_INDEX}" for copy, node, _ in sorted(shown - listed)]
    clauses += [f"copy {copy} of {node} is not in the history" for copy, node, _ in sorted(listed - shown)]
    for number in sorted({copy for copy, _, _ in shown}):
        lacking = set(run.demands.servers) - {node for copy, node, _ in shown if copy == number}
        clauses += [f"copy {number} was not taken of {node}" for node in sorted(lacking)]
    for row in run.copies_index:
        folder = run.root / str(row["folder"])
        if not folder.is_dir() or not any(folder.iterdir()):
            clauses.append(f"copy {row['copy']} of {row['node']} is missing: there is nothing in {row['folder']}")
    return clauses


def _final_reads(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether outcome.json calls those final reads ok that the history shows to be ok."""
    shown = {str(key) for _, key in _read_at_the_end(run, kept)}
    said = {key for key, why in mapping(run.outcome.get("final_reads")).items() if why == "ok"}
    return [] if shown == said else [f"outcome.json calls {len(said)} final reads ok, the history shows {len(shown)}"]


def _read_at_the_end(run: StoredRun, kept: Ledger) -> set[tuple[str, str | None]]:
    """The demanded final reads that were ok in the phase of final reads."""
    bounds = [row["row"] for row in kept.rows if row["f"] == ledger.PHASE and ledger.payload(row) == ledger.FINAL_READS]
    if not bounds:
        return set()
    rows = range(bounds[0], bounds[1] if len(bounds) > 1 else kept.total)
    there = read_rows(run.history, rows, ("process", "type", "f", "key"))
    ok = {(row["f"], row["key"]) for row in there if row["process"] != NEMESIS and row["type"] == Type.OK}
    return ok & set(run.demands.final_reads)


def _declared(run: StoredRun, kept: Ledger) -> list[str]:
    """outcome.json declares the parts of the subject; it must agree with the subject itself."""
    said = mapping(run.outcome.get("declares"))
    wrong = [
        name
        for name in ("nodes", "logs", "traces", "elections", "faults")
        if said.get(name) is not getattr(run.demands, name)
    ]
    return [
        f"outcome.json declares {name}: {said.get(name)}, the subject {getattr(run.demands, name)}" for name in wrong
    ]


Agree = Callable[[StoredRun, Ledger], list[str]]

_NAMES: Mapping[Agree, str] = {
    _ends: "the end mark",
    _phases_ran: "the order of phases",
    _bonds: "the manifest",
    _files: "a small file",
    _phases: "the phases of outcome.json",
    _faults: "faults.json",
    _copies: "copies.json",
    _final_reads: "the final reads of outcome.json",
    _declared: "what outcome.json declares",
}


def _few(clauses: Sequence[str]) -> list[str]:
    more = len(clauses) - SHOWN
    return [*clauses[:SHOWN], f"and {more} more of this kind"] if more > 0 else list(clauses)


EVIDENCE = Checker(
    name="evidence",
    title="Is the evidence whole?",
    question="Is everything there that the run recorded, unchanged, and does it agree?",
    split=split,
    judge=judge,
    combine=combine,
)
