"""The lines around one violation, merged from all sources: nodes' output, nodes' traces, faults, clients.

Significant lines are kept over the whole span: faults, elections, starts, errors and the rows of the witness.  Of all
other lines the nearest are kept; the page states the span that is shown completely.

Every system leaves files in `nodes/<node>/`.  Lines with a time are placed on the time axis of the test; a line without
a time belongs to the line before it.  Traces are thinned: frequent events are shown near the violation only.  The
clocks that order the lines may differ, so the order is for reading only; no verdict depends on it.

A line's time is recognized in one of these forms: ISO 8601, syslog, redis, glog, seconds, clock.

    "2026-11-24T10:11:49.460Z", "2026/11/24 10:11:49.460 UTC", "Nov 24 10:11:49", "24 Nov 2026 10:11:49.460",
    "I1124 10:11:49.460123", "1795774309.460", "1795774309460", "10:11:49.460"

A line may lack its time zone, or a node may have another time zone than the harness.  Then the time is shifted by
quarters of an hour until it falls into the run.  A line that cannot fall into the run has no time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.history import Type
from checkers.base.stored_run import StoredRun
from checkers.sealing.sealed_history import read_rows
from harness.plain_words import seconds, shorten
from harness.report.fault_views import FaultView
from harness.report.run_data import NEVER, ReportData
from harness.story.operations import TRANSACTIONS, payload, said
from harness.story.story import Story, trace_words

NEAR_NS = 500_000_000
"""Nanoseconds before and after the violation that are shown first."""
FAR_NS = 10_000_000_000
"""Maximum nanoseconds before and after the violation on the page."""
LINES_MOST = 700
"""Maximum number of lines on the page; the nearest ones are kept."""
FILE_MOST_BYTES = 64_000_000
"""Number of bytes that are read from the end of a larger file."""
_WORDS_MOST = 320
_PAYLOADS_MOST = 20_000
_DECIDING = frozenset({"role", "vote", "start", "stop", "fatal", "truncate", "quorum-state"})
_ALARMING = re.compile(r"\b(FATAL|ERROR|PANIC|CRITICAL|panic|Traceback|Exception|assertion failed)\b")
_OFTEN = frozenset({"append", "flush", "high-watermark", "applied"})
_NO_OUTPUT = frozenset({"copies", "data"})
_OUTCOMES = {Type.OK: "ok", Type.FAIL: "failed", Type.INFO: "outcome unknown"}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log.

    source: a node, "faults" or "clients"
    kind: "output", "trace", "fault" or "client"
    decides: True for a significant line, which is kept at any distance
    marked: True for a row of the witness
    """

    time_ns: int
    source: str
    kind: str
    words: str
    decides: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class LogsAround:
    """Lines around a violation.

    near_ms: milliseconds before and after the violation that are shown first
    whole_ms: milliseconds before and after the violation in which no line is omitted
    far_ms: milliseconds before and after the violation for significant lines
    """

    at_ns: int
    lines: list[LogLine]
    sources: list[str]
    near_ms: int
    whole_ms: int
    far_ms: int
    left_out: int
    unread: list[str]


def around(
    data: ReportData, faults: Sequence[FaultView], at_ns: int, key: str, witness: Story | None = None
) -> LogsAround | None:
    """Return the lines around a time; None for -1. key: key whose operations are shown, "" for all keys."""
    if at_ns < 0:
        return None
    marked = _rows_of(witness) if witness is not None else frozenset()
    unread: list[str] = []
    lines = [
        line
        for line in (
            *_output(data, unread),
            *_traces(data, at_ns, marked),
            *_faults(faults),
            *_clients(data, at_ns, key, marked),
        )
        if abs(line.time_ns - at_ns) <= FAR_NS
    ]
    if not lines:
        return None
    nearest = sorted(lines, key=lambda line: (not (line.decides or line.marked), abs(line.time_ns - at_ns)))
    kept, beyond = nearest[:LINES_MOST], nearest[LINES_MOST:]
    whole = min((abs(line.time_ns - at_ns) for line in beyond), default=FAR_NS)
    kept.sort(key=lambda line: line.time_ns)
    present = {line.source for line in kept}
    sources = [name for name in (*data.servers, "faults", "clients") if name in present]
    sources += sorted(present - set(sources))
    near = min(NEAR_NS, max(whole, NEAR_NS // 10))
    return LogsAround(at_ns, kept, sources, near // 10**6, whole // 10**6, FAR_NS // 10**6, len(beyond), unread)


def _rows_of(witness: Story) -> frozenset[tuple[Any, Any]]:
    """Return (node, seq) of the trace rows of a witness, and (process, time) of its completions."""
    traced = {(row.get("node"), row.get("seq")) for row in witness.rows if row.get("table") == "trace"}
    return frozenset(traced | {(event.get("process"), event.get("time_ns")) for event in witness.events})


def _output(data: ReportData, unread: list[str]) -> Iterator[LogLine]:
    """Yield the output and the log files of the nodes' processes."""
    began = _began(data)
    if began is None:
        return
    for path in sorted((data.folder / "nodes").glob("*/**/*")):
        parts = path.relative_to(data.folder / "nodes").parts
        if _NO_OUTPUT & set(parts[1:-1]) or not path.is_file() or path.is_symlink() or not _is_log(path):
            continue
        at_ns: int | None = None
        any_line = False
        for text in _lines(path):
            found = time_of(text, began, data.end_ns)
            at_ns = at_ns if found is None else found
            if words := shorten(text.strip(), _WORDS_MOST):
                any_line = True
                if at_ns is not None:
                    yield LogLine(at_ns, shorten(parts[0], 24), "output", words, _ALARMING.search(words) is not None)
        if any_line and at_ns is None:
            unread.append("/".join(("nodes", *parts)))


def _began(data: ReportData) -> datetime | None:
    try:
        began = datetime.fromisoformat(data.header.started_utc if data.header is not None else "")
    except ValueError:
        return None
    return began if began.tzinfo else began.replace(tzinfo=UTC)


def _is_log(path: Path) -> bool:
    name = path.name.lower()
    return path.suffix in (".log", ".out", ".err", ".txt") or name in ("stdout", "stderr", "output", "log")


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - FILE_MOST_BYTES))
            for line in file:
                yield line[:4000].decode("utf-8", errors="replace")
    except OSError:
        return


def _traces(data: ReportData, at_ns: int, marked: Collection[tuple[Any, Any]]) -> Iterator[LogLine]:
    for node, table in data.traces.items():
        near = pc.less_equal(pc.abs(pc.subtract(table["time_ns"], at_ns)), FAR_NS)
        names = ["time_ns", "seq", "event", "epoch", "offset", "peer", "role", "detail"]
        for row in table.filter(near).select(names).to_pylist():
            wanted = (node, row["seq"]) in marked
            if row["event"] in _OFTEN and abs(row["time_ns"] - at_ns) > NEAR_NS and not wanted:
                continue
            decides = row["event"] in _DECIDING
            yield LogLine(int(row["time_ns"]), shorten(node, 24), "trace", trace_words(row), decides, wanted)


def _faults(faults: Sequence[FaultView]) -> Iterator[LogLine]:
    for f in (f for f in faults if f.happened):
        name = f"fault {f.number} ({f.name})"
        yield LogLine(f.start_ns, "faults", "fault", f"{name} in force. {f.words}".strip(), True)
        yield LogLine(f.end_ns, "faults", "fault", f"{name} healed", True)


def _clients(data: ReportData, at_ns: int, key: str, marked: Collection[tuple[Any, Any]]) -> Iterator[LogLine]:
    """Yield the operations on one key, each at the time of its answer; transactions with their steps."""
    ops = data.operations
    mine = np.flatnonzero(ops.on(key)) if key else np.arange(len(ops))
    mine = mine[np.abs(ops.end_ns[mine] - at_ns) <= FAR_NS]
    done = _payloads(data, mine)
    for i in mine.tolist():
        f = ops.fs[ops.f[i]]
        given = (done.get(i) or "").removeprefix(f"{f} ") or (str(ops.value[i]) if ops.has_value[i] else "")
        given += f" to {ops.value2[i]}" if ops.has_value2[i] else ""
        node, outcome = ops.nodes[ops.node[i]], _OUTCOMES.get(Type(int(ops.type[i])), "")
        on = f" {ops.keys[ops.key[i]]}" if ops.key[i] >= 0 and f not in TRANSACTIONS else ""
        asked = f"process {ops.process[i]}: {f}{on} {given}".rstrip() + (f" at {node}" if node else "")
        why = f" ({ops.errors[ops.error[i]]})" if ops.error[i] >= 0 else ""
        words = f"{asked}, {outcome}{why}; invoked at {seconds(int(ops.start_ns[i]))}"
        wanted = (int(ops.process[i]), int(ops.end_ns[i])) in marked
        yield LogLine(int(ops.end_ns[i]), "clients", "client", shorten(words, _WORDS_MOST), False, wanted)


def _payloads(data: ReportData, places: npt.NDArray[np.int64]) -> dict[int, str]:
    """Return the answers in words for operations without a plain value, for as many operations as a page may show."""
    ops = data.operations
    if not any(f in TRANSACTIONS for f in ops.fs):
        return {}
    some = [i for i in places.tolist() if ops.fs[ops.f[i]] in TRANSACTIONS and ops.complete_row[i] != NEVER]
    del some[_PAYLOADS_MOST:]
    try:
        rows = read_rows(StoredRun(data.folder).history, [int(ops.complete_row[i]) for i in some], ["payload"])
    except (pa.ArrowInvalid, OSError):
        return {}
    return {i: said(ops.fs[ops.f[i]], payload(row)) for i, row in zip(some, rows, strict=True)}


_MONTHS = {name: n for n, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}  # noqa: SIM905
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d)(?:[.,](?P<f>\d{1,9}))?"
_FORMS = (
    re.compile(
        rf"(?P<y>20\d\d)[-/.](?P<mo>0\d|1[0-2])[-/.](?P<d>[0-3]\d)[T _]{_CLOCK}\s?(?P<z>Z|UTC|GMT|[+-]\d\d:?\d\d)?"
    ),
    re.compile(rf"(?P<d>[0-3]?\d)[ /-](?P<mon>{_MONTH})[ /-](?P<y>20\d\d)[ :T]{_CLOCK}"),
    re.compile(rf"(?P<mon>{_MONTH}) +(?P<d>[0-3]?\d) {_CLOCK}"),
    re.compile(rf"^[IWEFD](?P<mo>0\d|1[0-2])(?P<d>[0-3]\d) +{_CLOCK}"),
    re.compile(r"(?:^\W?|[:=]\s?)(?P<unix>1[6-9]\d{8}|2\d{9})(?:\.(?P<f>\d{1,9}))?(?![\d.])"),
    re.compile(r"(?:^\W?|[:=]\s?)(?P<unix_ms>1[6-9]\d{11}|2\d{12})(?![\d.])"),
    re.compile(rf"^\W?{_CLOCK}"),
)
_LOOKED_AT = 200
"""Maximum position of the time in a line; lines in JSON may begin with other fields."""

_NS = 1_000_000_000
_QUARTER_NS = 900 * _NS


def time_of(line: str, began: datetime, length_ns: int) -> int | None:
    """Return the time of a line in ns since the run began; None if the line has no time, or a time outside of the run.

    began: start of the run, with its time zone
    length_ns: length of the run; a minute before it and ten minutes after it belong to the run, too
    """
    text = line[:_LOOKED_AT]
    for form in _FORMS:
        if (found := form.search(text)) is not None:
            at_ns = _since(found.groupdict(), began)
            if at_ns is not None and (fitted := _fitted(at_ns, length_ns, moved=found.groupdict().get("z") is None)):
                return fitted[0]
    return None


def _since(part: dict[str, str | None], began: datetime) -> int | None:
    fraction = int((part.get("f") or "0").ljust(9, "0"))
    base = round(began.timestamp() * 1e6) * 1000
    if unix := part.get("unix"):
        return int(unix) * _NS + fraction - base
    if unix_ms := part.get("unix_ms"):
        return int(unix_ms) * 1_000_000 - base
    try:
        named = part.get("z") or "Z"
        zone = UTC if named.isalpha() else datetime.strptime(named, "%z").tzinfo
        here = began.astimezone(zone)
        month = _MONTHS.get(part.get("mon") or "") or int(part.get("mo") or here.month)
        year, day = int(part.get("y") or here.year), int(part.get("d") or here.day)
        hour, minute, second = (int(part[unit] or 0) for unit in "hms")
        at = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        return None
    return round(at.timestamp()) * _NS + fraction - base


def _fitted(at_ns: int, length_ns: int, *, moved: bool) -> tuple[int] | None:
    """Return a time within the run unchanged; else shift it by quarters of an hour into the run."""
    if -60 * _NS <= at_ns <= length_ns + 600 * _NS:
        return (at_ns,)
    if not moved or abs(at_ns) > 26 * 3600 * _NS:
        return None
    near = at_ns - round((at_ns - length_ns / 2) / _QUARTER_NS) * _QUARTER_NS
    return (near,) if -60 * _NS <= near <= length_ns + 60 * _NS else None
