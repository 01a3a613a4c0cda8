"""Compare two runs: differences of specs and measurements, and the points at which the runs diverge.

Two runs have two such points: the first different fault, election or violation of their timelines, and the first
different operation of their histories.  In runs with the same seed, all earlier operations are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.columns import read_history
from checkers.base.history import CREATE, MalformedHistory, Type
from checkers.record.faults import Achieved
from harness.lake.lake import Lake
from harness.lake.tables import ELECTIONS, FAULTS, RUNS, VIOLATIONS

if TYPE_CHECKING:
    from checkers.record.header_and_outcome import Header

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Table -> rows of one run."""

SPEC = (
    "system", "workload", "kinds", "backend", "nodes", "rate_hz", "keys", "time_limit_s", "seed", "bug", "finding",
    "revision", "dirty",
)  # fmt: skip
FIGURES = (
    "verdict", "violations", "symptom", "operations", "ok", "fail", "info", "p50_ms", "p99_ms", "faults",
    "elections", "duration_s", "judging_s",
)  # fmt: skip
CODE = ("subject", "workload")
"""Folders of a run that contain the files of a user's system or workload."""
_COMPARED = (RUNS, FAULTS, ELECTIONS, VIOLATIONS)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with its values in two runs.

    a, b: the values, which may be equal in `Comparison.figures`"""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class ComparedEvent:
    """One entry of a timeline.

    time_ns: nanoseconds since the test began"""

    time_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two runs.

    spec: fields of the specs that differ
    figures: all measurements, including equal ones
    timelines: pairs of entries; None after the end of the shorter timeline
    parted: index of the first different pair in `timelines`; None if the timelines are equal
    operation: sentence about the first different operation; "" if none differs or a history is missing
    """

    names: tuple[str, str]
    spec: tuple[Difference, ...]
    figures: tuple[Difference, ...]
    timelines: tuple[tuple[ComparedEvent | None, ComparedEvent | None], ...]
    parted: int | None
    operation: str

    def lines(self) -> list[str]:
        """Return the comparison as lines for a terminal."""
        a, b = self.names
        out = [f"A  {a}", f"B  {b}", "", "spec: the same" if not self.spec else "spec:"]
        out += [f"  {each.name:<14} {_plain(each.a):<28} {_plain(each.b)}" for each in self.spec]
        out += ["", "figures:"]
        for each in self.figures:
            mark = " " if each.a == each.b else "*"
            out.append(f"{mark} {each.name:<14} {_plain(each.a):<28} {_plain(each.b)}")
        out += ["", "timeline:"]
        width = max((len(_event(one)) for one, _ in self.timelines), default=0)
        for place, (one, other) in enumerate(self.timelines):
            mark = ">" if place == self.parted else " "
            out.append(f"{mark} {_event(one):<{width}}  {_event(other)}")
        out += ["", self.operation or "no operation differs that both histories contain"]
        return out


def find(lake: Lake, name: str) -> tuple[Rows, Path | None]:
    """Return the facts of a run, and its folder if it is on this machine.

    name: path of a run folder, or a prefix of the name of exactly one run in the lake
    Raises LookupError if no run or several runs match, and BrokenFile if the folder cannot be used.
    """
    folder = Path(name)
    if (folder / "test.json").exists():
        from harness.lake.facts import facts_of

        facts = facts_of(folder.resolve())
        rows = {table: facts.rows[table].to_pylist() for table in _COMPARED}
        rows[RUNS] = [{**rows[RUNS][0], "system": facts.system}]
        return rows, folder
    known = lake.read(RUNS, ["run", "path"]).to_pylist()
    fitting = [row for row in known if row["run"].startswith(name) or row["path"] == name.rstrip("/")]
    if len(fitting) != 1:
        how = "no run" if not fitting else f"{len(fitting)} runs"
        raise LookupError(f"{name} is no run folder, and {how} of the lake in {lake.folder} has a name like this")
    run = fitting[0]["run"]
    rows = {table: lake.read(table, run=run).to_pylist() for table in _COMPARED}
    path = lake.folder.parent / fitting[0]["path"]
    return rows, path if path.is_dir() else None


def compare(a: Rows, b: Rows, a_folder: Path | None = None, b_folder: Path | None = None) -> Comparison:
    """Compare two runs.

    a, b: facts of the runs
    a_folder, b_folder: folders of the runs, or None"""
    one, other = a[RUNS][0], b[RUNS][0]
    spec = tuple(Difference(name, one.get(name), other.get(name)) for name in SPEC if one.get(name) != other.get(name))
    if a_folder and b_folder:
        spec += _differences_of_folders(a_folder, b_folder, {each.name for each in spec})
    figures = tuple(Difference(name, one.get(name), other.get(name)) for name in FIGURES)
    timelines = tuple(zip_longest(timeline(a), timeline(b)))
    parted = next((place for place, pair in enumerate(timelines) if _differ(*pair)), None)
    operation = first_different_operation(a_folder, b_folder) if a_folder and b_folder else ""
    return Comparison((str(one["path"]), str(other["path"])), spec, figures, timelines, parted, operation)


def _differences_of_folders(a: Path, b: Path, named: set[str]) -> tuple[Difference, ...]:
    """Return differences that the lake does not contain: options without a column, the schedule, and the user's
    files."""
    from checkers.record.run_record import RunRecord

    one, other = RunRecord(a).header, RunRecord(b).header
    if one is None or other is None:
        return ()
    pairs = {name: (one.spec.get(name), other.spec.get(name)) for name in one.spec.keys() | other.spec.keys()}
    pairs = {name: pair for name, pair in pairs.items() if name not in {*SPEC, *_SPEC_AS_COLUMN, *named}}
    pairs["schedule"] = (_cards(one), _cards(other))
    pairs |= {f"{folder}/": (_digest(a / folder), _digest(b / folder)) for folder in CODE}
    return tuple(Difference(name, *pair) for name, pair in sorted(pairs.items()) if pair[0] != pair[1])


_SPEC_AS_COLUMN = ("subject", "nemesis")
"""Options that are in the table of runs under other names, `system` and `kinds`."""


def _cards(header: Header) -> str:
    cards = header.schedule or ()
    text = json.dumps([asdict(card) for card in cards], sort_keys=True, default=str)
    return f"{len(cards)} cards ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _digest(folder: Path) -> str | None:
    """Return a short hash of the names and bytes of all files in a folder; None if the folder does not exist."""
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:8]


def timeline(rows: Rows) -> list[ComparedEvent]:
    """Return the faults, elections, and first violations of each symptom, in order of time."""
    events = []
    for fault in rows[FAULTS]:
        name = f"fault {fault['number']}: {fault['kind']} {fault['name']}"
        skipped = fault.get("achieved") == Achieved.SKIPPED
        if fault["injected_ns"] >= 0:
            events.append(ComparedEvent(fault["injected_ns"], f"{name} skipped" if skipped else name))
        if fault["healed_ns"] >= 0 and not skipped:
            events.append(ComparedEvent(fault["healed_ns"], f"fault {fault['number']} healed"))
    events += [
        ComparedEvent(each["time_ns"], f"{each['node']} leads epoch {each['epoch']}") for each in rows[ELECTIONS]
    ]
    seen = set()
    for violation in sorted(rows[VIOLATIONS], key=lambda row: row["place"]):
        if violation["symptom"] not in seen and violation["moment_ns"] >= 0:
            seen.add(violation["symptom"])
            events.append(
                ComparedEvent(violation["moment_ns"], f"violated: {violation['kind']} ({violation['checker']})")
            )
    return sorted(events, key=lambda event: (event.time_ns, event.words))


def _differ(one: ComparedEvent | None, other: ComparedEvent | None) -> bool:
    """Return True if two entries differ in anything but their times, which always differ slightly."""
    return one is None or other is None or one.words != other.words


def first_different_operation(a: Path, b: Path) -> str:
    """Return a sentence about the first different operation of any process; "" if none differs or a history is
    missing."""
    try:
        one, other = _rows_by_process(a), _rows_by_process(b)
    except MalformedHistory:
        return ""
    found = []
    for process in sorted(one.keys() & other.keys()):
        for mine, theirs in zip(one[process], other[process], strict=False):
            if mine[1:] != theirs[1:]:
                found.append((min(mine[0], theirs[0]), process, mine, theirs))
                break
    if not found:
        return ""
    _, process, mine, theirs = min(found)
    return f"first different operation, of process {process}: A {_operation(mine)}; B {_operation(theirs)}"


_Row = tuple[int, int, str, str, str]


def _rows_by_process(root: Path) -> dict[int, list[_Row]]:
    """Return process -> its rows as (time, type, f, key, value), in order, without those of the set-up."""
    history = read_history(root)
    history = history.filter(pc.greater_equal(history["process"], 0))
    names = ("process", "time_ns", "type", "f", "key", "value", "value2", "payload")
    columns = [history[name].cast(pa.string()) if name == "f" else history[name] for name in names]
    rows: dict[int, list[_Row]] = {}
    for process, time_ns, type_, f, key, *values in zip(*(column.to_pylist() for column in columns), strict=True):
        if f != CREATE:
            value = " ".join(str(each) for each in values if each is not None)
            rows.setdefault(process, []).append((time_ns, type_, f, key or "", value))
    return rows


def _operation(row: _Row) -> str:
    time_ns, type_, f, key, value = row
    words = " ".join(filter(None, (f, key, value)))
    return f"{Type(type_).name.lower()} {words} at {time_ns / 1e9:.3f} s"


def _event(event: ComparedEvent | None) -> str:
    return "-" if event is None else f"{event.time_ns / 1e9:7.2f} s  {event.words}"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
