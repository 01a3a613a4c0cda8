"""Fates of the elements that clients added (kept, lost or unknown), with the acknowledging server and the fault then.

    set, append-log   an element is kept if the last read of its key contains it.  It is lost if it was acknowledged
                      before that read was invoked, and the read lacks it.
    queue             an element is kept if any dequeue or drain of its key returned it.  The missing elements that were
                      acknowledged before the last drain are lost if they outnumber the dequeues without an answer.

All other elements are unknown.  An element that was certainly not added is omitted.  The checkers of
`checkers/models/objects/` decide how many elements are lost; this module gives each element its position on the page.

Cost: linear in the operations; it reads the payloads of the last reads or drains, and for a queue all values.

The timeline shows every element at the time of its acknowledgement, in the row of the server that answered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.history import Type
from checkers.base.results import Results
from checkers.base.stored_run import StoredRun
from checkers.sealing.sealed_history import Row, read_rows
from harness.plain_words import listed, natural
from harness.report.run_data import OperationColumns, ReportData, load
from harness.story.findings import LossCause, cause_of_loss

PUT_BY: Mapping[str, str] = {"set": "add", "append-log": "append", "queue": "enqueue", "at-least-once-queue": "enqueue"}
"""Checker -> the function (`f`) that adds an element."""
_TAKES = ("dequeue", "drain")

KEPT, LOST, UNKNOWN = range(3)
NAMES = ("kept", "lost", "unknown")

SERVERS_NAMED = 3
"""Maximum number of servers named in a sentence; all others are counted together."""


@dataclass(frozen=True, slots=True)
class ElementFates:
    """Elements that may have been added; one entry per element.

    places: positions of the operations that added them
    time_ns: time of the answer, or of the end of waiting for an answer
    fate: KEPT, LOST or UNKNOWN
    node: index into `nodes` of the server that answered or got the request
    nodes: names of servers, "" if the server is unknown
    acknowledged: True if the addition was acknowledged
    """

    places: np.ndarray
    time_ns: np.ndarray
    fate: np.ndarray
    node: np.ndarray
    nodes: tuple[str, ...]
    acknowledged: np.ndarray

    def __len__(self) -> int:
        return len(self.fate)

    def count(self, fate: int) -> int:
        return int(np.sum(self.fate == fate))


def fates_of(data: ReportData) -> ElementFates | None:
    """Return the fates for a run whose workload adds elements; None for other runs, or if there is no sealed
    history.
    """
    checker = next((name for name in PUT_BY if name in data.checkers), None)
    ops, history = data.operations, StoredRun(data.folder).history
    if checker is None or not len(ops) or not history.is_file():
        return None
    put = ops.is_f(PUT_BY[checker]) & (ops.type != Type.FAIL) & ops.has_value & (ops.key >= 0)
    places = np.flatnonzero(put)
    if not len(places):
        return None
    fates = _of_queues if PUT_BY[checker] == "enqueue" else _of_last_reads
    try:
        fate = fates(ops, places, history)
    except (ValueError, OSError, pa.ArrowInvalid):
        return None  # the answer is no list; the checker has already reported it
    return ElementFates(places, ops.end_ns[places], fate, ops.node[places], ops.nodes, ops.type[places] == Type.OK)


def _of_last_reads(ops: OperationColumns, places: np.ndarray, history: Path) -> np.ndarray:
    reads = np.flatnonzero(ops.is_f("read") & (ops.type == Type.OK) & (ops.key >= 0))
    last = {int(ops.key[at]): int(at) for at in reads}  # operations are in order of invocation
    answers = read_rows(history, [int(ops.complete_row[at]) for at in last.values()], ["payload"])
    fate = np.full(len(places), UNKNOWN, np.int8)
    for (key, read), answer in zip(last.items(), answers, strict=True):
        mine = np.flatnonzero(ops.key[places] == key)
        put = places[mine]
        shown, ended = np.isin(ops.value[put], _numbers(answer)), ops.complete_row[put]
        due = (ops.type[put] == Type.OK) & (ended >= 0) & (ended < ops.invoke_row[read])
        fate[mine] = np.where(shown, KEPT, np.where(due, LOST, UNKNOWN))
    return fate


def _of_queues(ops: OperationColumns, places: np.ndarray, history: Path) -> np.ndarray:
    takes = np.flatnonzero(ops.is_f(*_TAKES) & (ops.key >= 0))
    answered = takes[ops.type[takes] == Type.OK]
    drains = answered[ops.is_f("drain")[answered]]
    values = pq.read_table(history, columns=["value"])["value"].take(pa.array(ops.complete_row[answered]))
    some = np.asarray(pc.is_valid(values))
    dequeued = np.asarray(pc.fill_null(values, 0), np.int64)
    payloads = read_rows(history, [int(row) for row in ops.complete_row[drains]], ["payload"])
    unanswered = takes[ops.type[takes] == Type.INFO]
    fate = np.full(len(places), UNKNOWN, np.int8)
    for key in set(ops.key[places].tolist()):
        mine = np.flatnonzero(ops.key[places] == key)
        of_key = [(int(at), _numbers(row)) for row, at in zip(payloads, drains, strict=True) if ops.key[at] == key]
        taken = np.concatenate([dequeued[some & (ops.key[answered] == key)], *(values for _, values in of_key)])
        shown = np.isin(ops.value[places[mine]], taken)
        fate[mine[shown]] = KEPT
        without_answer = unanswered[ops.key[unanswered] == key]
        if not of_key or ops.is_f("drain")[without_answer].any():
            continue
        last, _ = of_key[-1]
        open_dequeues = int((ops.invoke_row[without_answer] < ops.complete_row[last]).sum())
        before = (ops.type[places[mine]] == Type.OK) & (ops.complete_row[places[mine]] < ops.invoke_row[last])
        if (before & ~shown).sum() > open_dequeues:
            fate[mine[before & ~shown]] = LOST
    return fate


def _numbers(answer: Row) -> np.ndarray:
    """Return the integers of the list in an answer's payload.  Raises ValueError if the payload is not such a list."""
    found = json.loads(answer["payload"] or "null")
    if found is None:
        return np.empty(0, np.int64)
    if not isinstance(found, list) or not all(type(element) is int for element in found):
        raise ValueError("no list of whole numbers")
    return np.array(found, np.int64)


def words_of_lost(folder: Path, results: Results) -> str:
    """Return `lost_in_words` of a run whose results.json is not written yet."""
    if not PUT_BY.keys() & results.invalid.keys():
        return ""
    data = replace(load(folder), results=results)
    fates = fates_of(data)
    return "" if fates is None else lost_in_words(fates, data)


def lost_in_words(fates: ElementFates, data: ReportData) -> str:
    """Return sentences on the servers that had acknowledged lost elements, and the faults nearby; "" if nothing was
    lost.  For a queue, the first sentence counts the elements that were never dequeued but may still exist.
    """
    lost = np.flatnonzero(fates.fate == LOST)
    if not len(lost):
        return ""
    counted = Counter(fates.nodes[code] or "an unknown server" for code in fates.node[lost])
    ends = [(int(fates.time_ns[at]), fates.nodes[fates.node[at]]) for at in lost]
    causes = [cause_of_loss(at_ns, by, data.faults, data.leadership) for at_ns, by in ends]
    most_first = sorted(counted.items(), key=lambda entry: (-entry[1], natural(entry[0])))
    queue = not {"set", "append-log"} & data.checkers.keys()
    rest = int(np.sum(fates.acknowledged & (fates.fate == UNKNOWN))) if queue else 0
    servers = [(f"{'through' if data.declares.get('forwards') else 'by'} {name}", n) for name, n in most_first]
    others = sum(n for _, n in servers[SERVERS_NAMED:])
    servers = servers[:SERVERS_NAMED] + ([("by others", others)] if others else [])
    near = _near_faults(causes)
    if len(servers) == len(near) == 1:
        servers, near = [(f"{servers[0][0]}, {near[0][0]}", len(lost))], []
    return " ".join(filter(None, [_counted(len(lost), rest), _in_a_sentence(servers), _in_a_sentence(near)]))


def _counted(lost: int, rest: int) -> str:
    """Return a sentence on certain and possible losses. rest: number of never dequeued elements that may still
    exist.
    """
    other = "the other" if rest == 1 else f"the other {rest:,}"
    where = "may have been taken by a dequeue without an answer, or be in a queue that was not drained"
    return f"{lost:,} of them {'is' if lost == 1 else 'are'} lost for certain; {other} {where}." if rest else ""


def _in_a_sentence(parts: Sequence[tuple[str, int]]) -> str:
    """Return a sentence. parts: (where or when elements were acknowledged, their number)."""
    if len(parts) > 1:
        (first, count), *others = parts
        return f"{listed([f'{count:,} were acknowledged {first}', *(f'{n:,} {w}' for w, n in others)])}."
    return f"{'It was' if parts[0][1] == 1 else 'All were'} acknowledged {parts[0][0]}." if parts else ""


def _near_faults(causes: Sequence[LossCause | None]) -> list[tuple[str, int]]:
    """Return (nearby fault, number of losses); [] if no fault explains any loss. causes: one per lost element."""
    alike: dict[Any, list[LossCause | None]] = {}
    for cause in sorted(causes, key=lambda c: (c is None, c.fault.card.number if c else 0, c.phase if c else 0)):
        alike.setdefault((cause.fault.card.number, cause.phase) if cause else None, []).append(cause)
    return [(_near(mine), len(mine)) for mine in alike.values()] if any(causes) else []


def _near(causes: Sequence[LossCause | None]) -> str:
    """Return when the elements were acknowledged. causes: of elements acknowledged in the same phase of one fault."""
    known = [cause for cause in causes if cause is not None]
    return max(known, key=lambda c: c.before_ns).words() if known else "without a fault that explains it"
