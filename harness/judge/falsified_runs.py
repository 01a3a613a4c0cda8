"""Falsified copies of a stored run: its evidence is damaged or falsified in every way, one at a time.

A verdict rests on the primary files of a run.  So each of them is deleted, emptied, truncated, flipped in one bit and
exchanged for that of another run; and each class of row of a history is dropped, doubled, exchanged and altered.
What comes out must be *invalid*, *unknown* or a refusal in words.  *Valid* means that the judge is asleep.

There are two kinds of forger.  A *plain* one leaves the manifest as it was.  A *careful* one writes a fresh manifest
and numbers the rows anew, so that the ledger and other evidence must give him away.  If a forger rewrites the whole
ledger too, only histories, logs and traces can show it: `judging/mutation.py` falsifies what they must notice.

No verdict rests on these: results and reports of an earlier judging; buckets and tables, which are made again; the
spaces in the manifest's JSON; bytes of history.parquet that change no row (under a fresh manifest).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import HISTORY
from checkers.base.history import NEMESIS, MalformedHistory, Type
from checkers.base.verdict import Validity
from checkers.record.reading import SMALL_FILES, BrokenFile
from checkers.sealing.manifest import MANIFEST, SEALED, STREAM, primary_files, write_manifest
from harness.judge.judge_run import judge
from harness.spec import WrongSpec

Row = dict[str, Any]
Rows = list[Row]
Bytes = Callable[[bytes, Random], bytes | None]

REFUSALS = (MalformedHistory, BrokenFile, WrongSpec, OSError)
"""What judging raises where it refuses in one sentence."""

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Falsification:
    """One change.  where: the class it is counted under.  what: in words.  apply: changes a copy of the run."""

    where: str
    what: str
    apply: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class JudgedFalsification:
    """A falsification and its verdict.  by: the checkers that were invalid, else unknown; or the refusal."""

    falsification: Falsification
    verdict: str
    by: str

    @property
    def noticed(self) -> bool:
        return self.verdict != Validity.VALID


def judge_falsified_runs(
    run: Path, rng: Random, other: Path | None = None, per_class: int = 1, most: int | None = None
) -> Iterator[JudgedFalsification]:
    """Judge one copy of a sealed run per falsification.

    other: another run of the same subject, whose files are exchanged for those of this one; without it none are.
    per_class: how many places, picked by rng, each kind of change is tried in.  most: try only so many, picked by rng.
    """
    chosen = list(falsifications(run, rng, other, per_class))
    if most is not None and most < len(chosen):
        chosen = rng.sample(chosen, most)
    for falsification in chosen:
        with tempfile.TemporaryDirectory(prefix="krucible-falsified-") as scratch:
            copy = Path(scratch) / "run"
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report.html", "plots", "results.json"))
            try:
                falsification.apply(copy)
            except NoSuchRow:
                continue
            if _differ(run, copy):
                yield _judged(copy, falsification)


def falsifications(run: Path, rng: Random, other: Path | None, per_class: int) -> Iterator[Falsification]:
    """Every falsification of a sealed run: files, folders of copies, rows of the history, values of small files."""
    yield from _of_files(run, [*primary_files(run), run / MANIFEST], rng, other, per_class)
    for falsification in _of_files(run, list(primary_files(run)), rng, other, per_class):
        where = falsification.where.replace(":", ", fresh manifest:", 1)
        yield replace(falsification, where=where, apply=partial(_then_bound, falsification.apply))
    for folder in sorted({path.parent for path in primary_files(run)}):
        name = str(folder.relative_to(run))
        if "/copies/" in name:
            yield Falsification("copy: folder deleted", name, partial(_delete, name))
    for change, falsify in ROWS.items():
        for forger, careful in (("plain", False), ("fresh manifest", True)):
            for seed in _seeds(rng, per_class):
                where, what = f"history, {forger}: {change}", f"seed {seed}"
                yield Falsification(where, what, partial(_falsify, falsify, seed, careful))
    for name in SMALL_FILES:
        for seed in _seeds(rng, per_class if (run / name).exists() else 0):
            where = f"{name}, fresh manifest: one value removed"
            yield Falsification(where, f"seed {seed}", partial(_without_a_value, name, seed))


def _of_files(run: Path, paths: list[Path], rng: Random, other: Path | None, per_class: int) -> Iterator[Falsification]:
    for path in paths:
        name = str(path.relative_to(run))
        kind = _kind(name)
        yield Falsification(f"{kind}: deleted", name, partial(_delete, name))
        for change, make in BYTES.items():
            for seed in _seeds(rng, per_class):
                what = f"{name}, seed {seed}"
                yield Falsification(f"{kind}: {change}", what, partial(_rewrite, name, make, seed))
        if other is not None and (other / name).is_file():
            yield Falsification(f"{kind}: of another run", name, partial(_copy, other / name, name))


def _seeds(rng: Random, count: int) -> list[int]:
    return [rng.getrandbits(32) for _ in range(count)]


def summary(results: list[JudgedFalsification]) -> Mapping[str, tuple[int, int]]:
    """Noticed and tried, by class."""
    tried = Counter(result.falsification.where for result in results)
    noticed = Counter(result.falsification.where for result in results if result.noticed)
    return {where: (noticed[where], tried[where]) for where in tried}


# Bytes.


def _flipped(content: bytes, rng: Random) -> bytes | None:
    if not content:
        return None
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


BYTES: Mapping[str, Bytes] = {
    "emptied": lambda content, rng: b"" if content else None,
    "truncated": lambda content, rng: content[: rng.randrange(len(content))] if content else None,
    "one bit flipped": _flipped,
    "bytes appended": lambda content, rng: content + rng.randbytes(rng.randrange(1, 200)),
}


# Rows.

Item = TypeVar("Item")


class NoSuchRow(Exception):
    """The run has no row that this change could alter: not every workload writes, or reads one value."""


def _any(rng: Random, items: list[Item]) -> Item:
    if not items:
        raise NoSuchRow
    return rng.choice(items)


def _dropped(rows: Rows, rng: Random) -> None:
    """One operation of a client, both rows of it."""
    at = _any(rng, [i for i, row in enumerate(rows) if row["process"] != NEMESIS and row["type"] == Type.INVOKE])
    process = rows[at]["process"]
    answer = next((i for i in range(at + 1, len(rows)) if rows[i]["process"] == process), None)
    for i in sorted({at, *([answer] if answer is not None else [])}, reverse=True):
        del rows[i]


def _entry_dropped(rows: Rows, rng: Random) -> None:
    del rows[_any(rng, [i for i, row in enumerate(rows) if row["process"] == NEMESIS])]


def _entry_doubled(rows: Rows, rng: Random) -> None:
    at = _any(rng, [i for i, row in enumerate(rows) if row["process"] == NEMESIS])
    rows.insert(at, dict(rows[at]))


def _answer_doubled(rows: Rows, rng: Random) -> None:
    at = _any(rng, [i for i, row in enumerate(rows) if row["type"] == Type.OK and row["process"] != NEMESIS])
    rows.insert(at, dict(rows[at]))


def _exchanged(rows: Rows, rng: Random) -> None:
    """Two rows that follow one another, of different processes."""
    at = _any(rng, [i for i in range(len(rows) - 1) if rows[i]["process"] != rows[i + 1]["process"]])
    rows[at], rows[at + 1] = rows[at + 1], rows[at]


def _retyped(rows: Rows, rng: Random) -> None:
    """The ok of a write becomes a fail."""
    _any(rng, [r for r in rows if r["type"] == Type.OK and r["f"] == "write"])["type"] = int(Type.FAIL)


def _revalued(rows: Rows, rng: Random) -> None:
    """A read answers what was never written."""
    _any(rng, [r for r in rows if r["type"] == Type.OK and r["f"] == "read"])["value"] = 10**15


def _rekeyed(rows: Rows, rng: Random) -> None:
    """One row names a key that no client uses."""
    _any(rng, [r for r in rows if r["key"] is not None])["key"] = "no such key"


def _cut_short(rows: Rows, rng: Random) -> None:
    del rows[rng.randrange(len(rows) // 4, len(rows)) :]


def _entry_altered(rows: Rows, rng: Random) -> None:
    _any(rng, [r for r in rows if r["process"] == NEMESIS])["payload"] = '"nothing"'


ROWS: Mapping[str, Callable[[Rows, Random], None]] = {
    "an operation dropped": _dropped,
    "an answer doubled": _answer_doubled,
    "two rows exchanged": _exchanged,
    "a write's ok made a fail": _retyped,
    "an answer that no client wrote": _revalued,
    "another key": _rekeyed,
    "cut short": _cut_short,
    "a row of the ledger dropped": _entry_dropped,
    "a row of the ledger doubled": _entry_doubled,
    "a row of the ledger altered": _entry_altered,
}


# How they are carried out.


def _then_bound(apply: Callable[[Path], None], root: Path) -> None:
    apply(root)
    write_manifest(root)


def _delete(name: str, root: Path) -> None:
    if (root / name).is_dir():
        shutil.rmtree(root / name)
    else:
        (root / name).unlink()


def _rewrite(name: str, make: Bytes, seed: int, root: Path) -> None:
    content = make((root / name).read_bytes(), Random(seed))
    (root / name).write_bytes(b"\0" if content is None else content)


def _copy(source: Path, name: str, root: Path) -> None:
    shutil.copyfile(source, root / name)


def _falsify(falsify: Callable[[Rows, Random], None], seed: int, careful: bool, root: Path) -> None:
    """careful: rows are numbered anew and a fresh manifest is written; the counts of the end mark stay."""
    path = root / SEALED
    rows: Rows = pq.read_table(path).to_pylist()
    falsify(rows, Random(seed))
    if careful:
        for index, row in enumerate(rows):
            row["index"] = index
    pq.write_table(pa.Table.from_pylist(rows, schema=HISTORY), path)
    if careful:
        write_manifest(root)


def _without_a_value(name: str, seed: int, root: Path) -> None:
    """Remove one value, anywhere in a JSON file, and write a fresh manifest."""
    rng, content = Random(seed), json.loads((root / name).read_text())
    holders: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, dict | list) and value:
            holders.append(value)
            for inner in value.values() if isinstance(value, dict) else value:
                visit(inner)

    visit(content)
    if holders:
        holder = rng.choice(holders)
        del holder[rng.choice(sorted(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))]
    else:
        content = [{}]
    (root / name).write_text(json.dumps(content))
    write_manifest(root)


def _judged(copy: Path, falsification: Falsification) -> JudgedFalsification:
    try:
        results = judge(copy, None, lambda _: None, report=False)
    except REFUSALS as refusal:
        return JudgedFalsification(falsification, REFUSED, str(refusal))
    wanted = results["verdict"]
    by = ", ".join(name for name, entry in results["checkers"].items() if entry["verdict"] == wanted)
    return JudgedFalsification(falsification, wanted, by)


def _differ(run: Path, copy: Path) -> bool:
    """Whether anything that a verdict rests on is different (the list stands at the top of this file)."""
    if _bound_but(SEALED, run) != _bound_but(SEALED, copy):
        return True
    fresh = _bound_but("", run) != _bound_but("", copy)
    ours, theirs = ({str(p.relative_to(root)): p for p in primary_files(root)} for root in (run, copy))
    changed = [name for name in ours.keys() & theirs.keys() if ours[name].read_bytes() != theirs[name].read_bytes()]
    if ours.keys() != theirs.keys() or set(changed) - {SEALED}:
        return True
    return SEALED in changed and not (fresh and _rows(run) == _rows(copy))


def _bound_but(name: str, root: Path) -> Any:
    """What the manifest says of all files but one, whose bytes may differ where its rows do not."""
    try:
        manifest = json.loads((root / MANIFEST).read_bytes())
        manifest["files"].pop(name, None)
        return manifest
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _rows(root: Path) -> Any:
    try:
        return pq.read_table(root / SEALED, schema=HISTORY).to_pylist()
    except (OSError, pa.ArrowException, ValueError):
        return None


def _kind(name: str) -> str:
    """The class of a primary file."""
    parts = Path(name).parts
    if parts[0] == "trace":
        return "trace"
    if "copies" in parts:
        return f"copy, {'log' if name.endswith('.log') else parts[-1]}"
    if parts[0] in ("subject", "workload"):
        return f"kept {parts[0]}"
    return "node's own log" if parts[0] == "nodes" else ("history" if name in (STREAM, SEALED) else name)
