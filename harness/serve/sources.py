"""Sources of the page's runs: one or several lakes, each with the folder of its runs.

Names in a request are looked up in the lake, never joined to a path.  The folder that the lake then names must be
inside the folder of the lake, without a link that leads out of it, and must be a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from checkers.record.reading import TEST
from harness.backends.leftovers import KeptCluster, kept_clusters
from harness.lake.compare import Rows, find
from harness.lake.lake import Lake
from harness.lake.past import Filter, runs
from harness.lake.tables import RUNS
from harness.plain_words import opening, shorten, upper_first
from harness.started import program
from harness.store import Mirror

SPARK_RUNS = 24
"""Number of runs of the same test in the sparkline of a row."""


@dataclass(frozen=True, slots=True)
class Source:
    """name: as the page shows it, unique.  lake: of its runs.  mirror: of the store that they are in, if it is one."""

    name: str
    lake: Lake
    mirror: Mirror | None = None

    @property
    def base(self) -> Path:
        return self.lake.folder.parent

    def folder_of(self, run: Mapping[str, Any]) -> Path | None:
        """Return the folder of a run of this lake; None if it is not here, or not inside the folder of the lake."""
        base = self.base.resolve()
        if self.mirror is not None:
            try:
                self.mirror.fetch(str(run["path"]))
            except LookupError:
                return None
        folder = (base / str(run["path"])).resolve()
        return folder if folder.is_relative_to(base) and (folder / TEST).is_file() else None

    def refresh(self) -> None:
        """Fetch new runs of the store.  Raises StoreUnavailable."""
        if self.mirror is not None:
            self.mirror.refresh()

    def run(self, name: str) -> dict[str, Any] | None:
        """Return the row of the run with exactly this name."""
        rows = self.lake.read(RUNS, run=name).to_pylist()
        return rows[0] if rows else None

    def facts(self, run: Mapping[str, Any]) -> Rows:
        return find(self.lake, str(run["run"]))[0]


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A row of the list.

    spark: verdicts of the runs of the same test, the oldest first, up to this one.
    release: the command that ends its cluster, if it was kept and is up; else "".
    test: name of the test.
    age: time since it started, such as "3 h".
    """

    source: str
    run: Mapping[str, Any]
    spark: Sequence[str]
    release: str
    test: str
    age: str

    @property
    def headline(self) -> str:
        """Return the first sentence of the run's result, without the verdict, which is shown beside it."""
        words, _ = opening(str(self.run["summary"] or "").partition(" Planted bug ")[0])
        for verdict in ("Invalid: ", "Unknown: ", "Valid: "):
            words = words.removeprefix(verdict)
        return upper_first(shorten(words, 200)) or str(self.run["run"])


def is_expected(run: Mapping[str, Any]) -> bool:
    """Return True for a run that found its planted bug, which shows that the harness can fail."""
    return run["bug_found"] is True


def shape_of(run: Mapping[str, Any]) -> str:
    """Return the shape of its verdict."""
    return str(run["verdict"]) if run["verdict"] in ("valid", "invalid") else "unknown"


_ORDERS: Mapping[str, Callable[[ListedRun], Any]] = {
    "old": lambda one: str(one.run["started"]),
    "verdict": lambda one: one.run["verdict"] != "invalid" or is_expected(one.run),
    "long": lambda one: -(one.run["duration_s"] or 0),
}
"""Name of an order, as a form sends it -> key; any other name means newest first."""


def grouped(rows: Sequence[ListedRun], by: str) -> list[tuple[str, list[ListedRun]]]:
    """Return the rows by test or symptom, in the order of their first ones; in one nameless group for other names.  A
    symptom is named by the headline of its newest run."""
    groups: dict[str, list[ListedRun]] = {}
    for row in rows:
        name = row.test if by == "test" else str(row.run["symptom"] or "no violation") if by == "symptom" else ""
        groups.setdefault(name, []).append(row)
    if by == "symptom":
        return [(mine[0].headline if mine[0].run["symptom"] else name, mine) for name, mine in groups.items()]
    return list(groups.items())


def listed(sources: Sequence[Source], wanted: Filter, text: str = "", order: str = "") -> list[ListedRun]:
    """Return the runs of all sources that pass the filter and contain a text, the newest first unless ordered."""
    found = []
    kept = {one.folder: one for one in kept_clusters() if one.alive}
    for source in sources:
        source.refresh()
        every = runs(source.lake, Filter())
        history: dict[tuple[Any, ...], list[str]] = {}
        spark_of: dict[str, tuple[str, ...]] = {}
        for run in reversed(every):
            verdicts = history.setdefault(_test(run), [])
            verdicts.append(str(run["verdict"]))
            spark_of[run["run"]] = tuple(verdicts[-SPARK_RUNS:])
        for run in runs(source.lake, wanted):
            release = release_command(source, run, kept)
            found.append(ListedRun(source.name, run, spark_of[run["run"]], release, words_of_test(run), age_of(run)))
    found = [one for one in found if text.lower() in _searched(one)]
    found.sort(key=lambda one: str(one.run["started"]), reverse=True)
    return sorted(found, key=_ORDERS[order]) if order in _ORDERS else found


def _searched(one: ListedRun) -> str:
    columns = ("run", "path", "summary", "seed", "bug", "symptom", "revision")
    return " ".join([*(str(one.run[name]) for name in columns if one.run[name] is not None), one.test]).lower()


def words_of_test(run: Mapping[str, Any]) -> str:
    """Return the test in words: `partition on kraft, register, docker`."""
    kinds = ", ".join(run["kinds"] or ()) or "no faults"
    return f"{kinds} on {run['system']}, {run['workload']}, {run['backend']}"


def age_of(run: Mapping[str, Any]) -> str:
    """Return the time since a run started, in its largest unit."""
    if run["started"] is None:
        return ""
    past_s = max(0.0, (datetime.now(UTC) - run["started"]).total_seconds())
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if past_s >= length_s:
            return f"{past_s / length_s:,.0f} {unit}"
    return f"{past_s:.0f} s"


def release_command(source: Source, run: Mapping[str, Any], kept: Mapping[str, KeptCluster] | None = None) -> str:
    """Return the command that ends the cluster of a run; "" unless it was kept and is up.

    kept: folder -> the clusters that are up; read again if None.  A run that came from a store has none here.
    """
    if kept is None:
        kept = {one.folder: one for one in kept_clusters() if one.alive}
    if source.mirror is not None or not kept:
        return ""
    folder = str((source.base / str(run["path"])).resolve())
    return f"{program()} release {shlex.quote(folder)}" if folder in kept else ""


def _test(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the common part of runs that differ only in their seeds."""
    return run["system"], run["workload"], tuple(run["kinds"] or ()), run["bug"], run["backend"], run["nodes"]


def choices(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Return the values by which a reader can filter: column -> values."""
    every = [run for source in sources for run in runs(source.lake, Filter())]
    columns = ("system", "workload", "bug", "verdict", "symptom")
    found = {column: sorted({str(run[column]) for run in every if run[column]}) for column in columns}
    return found | {"kind": sorted({kind for run in every for kind in run["kinds"] or ()})}
