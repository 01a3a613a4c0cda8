"""Explains anomalies in words: each edge of a cycle, each contradiction of a read, with the events behind them.

A witness' `events` are those of exactly the transactions it is about, in index order.  Its `facts`, for pictures:

    {
      "transactions": {                                in the order in which they were invoked
        "T1": {
          "process": 3,
          "status": "ok",                              or "fail", "info"
          "events": [17, 21],                          index of the invoke, and of the completion if there is one
          "operations": [["append", "x", 1], ["r", "y", [2]]],
        }, ...
      },
      "cycle": [                                       only of cycles: each edge's `to` is the `from` of the next one,
        {                                              and the last one's is the first one's `from`
          "from": "T1",                                names of `transactions`
          "to": "T2",
          "edge": "ww",                                or "wr", "rw", "process", "realtime"
          "key": "x",                                  the key it stands on; null of process and realtime
          "why": "T1 appended 1 to x before T2 appended 2",
        }, ...
      ],
      "length": 2,                                     edges of the whole cycle; of a long one `cycle` is the beginning
      "why": ["T1 appended ...", ...],                 the sentences of the edges, or the one of another anomaly
      "expected": "...",                               one sentence: what would have been right
      "assumes": "strict-serializable",                only if time orders versions: the model under which
                                                       that order is certain
      "violates": ["read-committed"],                  the weakest models it violates; all stronger ones fall with them
      "rules_out": ["read-committed", ...],            every model it violates
    }

Witnesses of cycles in Kafka's logs (`checkers/kafka_log`) have "transactions", "cycle", "length" and "why" too.

*Time.*  Explains why time puts one version of a register before another: which transactions met them, and when.

`complete.py` orders versions by time under the required model.  The witness must show the two transactions that
met the versions one after the other.  These transactions need not be on the cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from checkers.base.values import encode, for_json, in_words
from checkers.base.verdict import Witness
from checkers.kernels.transactions import columns as kinds
from checkers.kernels.transactions.columns import NIL_VALUE, OK, READ, WRITE, element_bases
from checkers.kernels.transactions.dependencies import PROCESS, REALTIME, RW, WR, WW
from checkers.transactions import anomalies
from checkers.transactions.anomalies import KIND_NAMES, and_stronger, parts_of, ruled_out, weakest
from checkers.transactions.cycles import NamedCycle, Step
from checkers.transactions.read import Transcript

_KINDS = {WW: "ww", WR: "wr", RW: "rw", PROCESS: "process", REALTIME: "realtime"}
_LIST_SHOWN_MAX = 12
_EDGES_SHOWN_MAX = 20


def explain_cycle(transcript: Transcript, cycle: NamedCycle) -> Witness:
    """Explain a cycle edge by edge.  Transactions are called T1, T2, ... in the order in which they were invoked."""
    shown = cycle.steps[:_EDGES_SHOWN_MAX]
    in_time = InTime(transcript, cycle.assumes)
    met = [t for step in shown for t in in_time.met(step)]
    names = TransactionNames(transcript, [*(t for step in shown for t in (step.source, step.target)), *met])
    orders = _ListOrders(transcript)
    edges = [in_time.explained(_edge(transcript, names, orders, step), names, step) for step in shown]
    why = [edge["why"] for edge in edges]
    if (more := len(cycle.steps) - len(shown)) > 0:
        why.append(f"and so on: {more} more edges of this cycle of {len(cycle.steps)} lead back to {edges[0]['from']}")
    if cycle.name.startswith("G1c") and not any(step.kind == WR for step in cycle.steps):
        why.append(_why_no_g0(transcript, names, cycle))
    if cycle.by_longest:
        why.append("the lists of a key contradict each other, and the longest one counts as its order")
    words = "; ".join(why)
    summary = f"{cycle.name}: {words}: no order fulfils all of these"
    expected = f"an order of {names.listed()} in which each comes after all that it depends on; there is none"
    facts = {"cycle": edges, "length": len(cycle.steps), "why": why, "expected": expected}
    if cycle.assumes:
        facts["assumes"] = cycle.assumes
    excluded = and_stronger(cycle.assumes) if cycle.assumes else ruled_out([cycle.name])
    if cycle.by_longest:
        excluded = [model for model in excluded if model in and_stronger("read-committed")]
    return names.witness(cycle.name, summary, facts, excluded)


def _why_no_g0(transcript: Transcript, names: TransactionNames, cycle: NamedCycle) -> str:
    """Explain why a cycle of writes alone is a G1c: read-uncommitted allows it."""
    unanswered = {
        names[s.source]: None for s in cycle.steps[:_EDGES_SHOWN_MAX] if transcript.txns.status[s.source] != OK
    }
    if unanswered:
        return f"{' and '.join(unanswered)} had no answer, so its writes may have been read though it aborted: no G0"
    return "only reads show this order of the versions, and read-uncommitted lets a read show anything: no G0"


def explain_finding(transcript: Transcript, kind: int, sample: tuple[int, int, int]) -> Witness:
    """Explain an anomaly that a kernel noted (see the table of kinds in `kernels/transactions/columns.py`)."""
    finding = _FINDINGS[kind]
    txns, words = finding.explained(transcript, *sample)
    names = TransactionNames(transcript, txns)
    name, why = KIND_NAMES[kind], words(names)
    key = sample[finding.key] if finding.key is not None else int(transcript.txns.key[sample[finding.row]])
    facts = {"key": str(transcript.key_name(key)), "why": [why], "expected": finding.expected}
    return names.witness(name, f"{name}: {why}", facts, ruled_out([name]))


class TransactionNames:
    """The names T1, T2, ... of the transactions of one witness."""

    def __init__(self, transcript: Transcript, txns: Sequence[int]) -> None:
        self._transcript = transcript
        self._txns = sorted(set(txns))
        self._names = {t: f"T{i}" for i, t in enumerate(self._txns, 1)}

    def __getitem__(self, t: int) -> str:
        return self._names[t]

    def listed(self) -> str:
        return " and ".join(filter(None, [", ".join(list(self._names.values())[:-1]), f"T{len(self._names)}"]))

    def witness(self, kind: str, summary: str, facts: dict[str, Any], excluded: Sequence[str]) -> Witness:
        txns = self._transcript.txns
        rows = {t: self._transcript.rows(t) for t in self._txns}
        listed = {
            self[t]: {
                "process": int(txns.process[t]),
                "status": _STATUS[int(txns.status[t])],
                "events": [row["index"] for row in rows[t]],
                "operations": [
                    for_json(self._transcript.micro_operation(row)) for row in self._transcript.micro_rows(t)
                ],
            }
            for t in self._txns
        }
        events = sorted((row for t in self._txns for row in rows[t]), key=lambda row: row["index"])
        facts = {"transactions": listed, **facts, "violates": weakest(excluded), "rules_out": excluded}
        return Witness(kind, summary, tuple(events), facts=facts)


_STATUS = {kinds.OK: "ok", kinds.FAIL: "fail", kinds.INFO: "info"}


def _edge(transcript: Transcript, names: TransactionNames, orders: _ListOrders, step: Step) -> dict[str, Any]:
    a, b = names[step.source], names[step.target]
    edge: dict[str, Any] = {"from": a, "to": b, "edge": _KINDS[step.kind], "key": None}
    if step.kind == PROCESS:
        process = int(transcript.txns.process[step.source])
        return edge | {"why": f"process {process} ran {a} before {b}"}
    if step.kind == REALTIME:
        completed = transcript.rows(step.source)[-1]["index"]
        invoked = transcript.rows(step.target)[0]["index"]
        return edge | {"why": f"{a} completed (event {completed}) before {b} was invoked (event {invoked})"}
    lists = transcript.model == "list-append"
    found = _list_edge(transcript, orders, step) if lists else _register_edge(transcript, step)
    if found is None:
        return edge | {"why": f"{a} precedes {b} by the order of versions"}
    key, words = found
    return edge | {"key": key, "why": words(a, b)}


Sentence = Callable[[str, str], str]


def _list_edge(transcript: Transcript, orders: _ListOrders, step: Step) -> tuple[Any, Sentence] | None:
    """Find the key behind an edge from the micro-operations of its two transactions."""
    txns = transcript.txns
    a_rows, b_rows = transcript.micro_rows(step.source), transcript.micro_rows(step.target)
    for b in b_rows:
        key = int(txns.key[b])
        if step.through >= 0 and step.through != len(txns.status) + key:
            continue
        name = transcript.key_name(key)
        if step.kind == WR and txns.kind[b] == READ and txns.status[step.target] == OK:
            for v in reversed(transcript.elements(b).tolist()):
                if any(txns.kind[a] == WRITE and txns.key[a] == key and txns.value[a] == v for a in a_rows):
                    value = transcript.value_name(key, v)
                    return name, lambda a, b, value=value, name=name: f"{a} appended {value} to {name}, which {b} read"
        if txns.kind[b] != WRITE or step.kind == WR:
            continue
        new = int(txns.value[b])
        for a in a_rows:
            if txns.key[a] != key:
                continue
            before = orders.before(a, key, new, step.kind)
            if before is not None:
                appended = f"appended {transcript.value_name(key, new)} to {name}"
                return name, lambda a, b, before=before, appended=appended: before(a, b, appended)
    return None


class _ListOrders:
    """Explains, by the longest list of a key, why a row of one transaction comes before an append of another."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._longest: dict[int, list[int]] = {}

    def before(self, row: int, key: int, new: int, kind: int) -> Callable[[str, str, str], str] | None:
        txns, longest = self._transcript.txns, self._of(key)
        unseen = new not in longest
        if kind == RW and txns.kind[row] == READ:
            read = self._transcript.elements(row).tolist()
            if read and read[-1] not in longest:
                return None
            seen = longest.index(read[-1]) + 1 if read else 0
            if (unseen and seen < len(longest)) or (not unseen and longest.index(new) < seen):
                return None
            shown = _shown(self._transcript.read_list(row))
            name = self._transcript.key_name(key)
            return lambda a, b, did: f"{a} read {name} as {shown}, before {b} {did}"
        if kind == WW and txns.kind[row] == WRITE and int(txns.value[row]) in longest:
            old = self._transcript.value_name(key, int(txns.value[row]))
            if unseen:
                if longest[-1] != int(txns.value[row]):
                    return None
                return lambda a, b, did: (
                    f"{a} appended {old}, the last element that was read, before {b} {did}, which was never read"
                )
            if longest.index(int(txns.value[row])) + 1 <= longest.index(new):
                return lambda a, b, did: f"{a} appended {old} before {b} {did}"
        return None

    def _of(self, key: int) -> list[int]:
        if key not in self._longest:
            row = longest_read(self._transcript, key)
            self._longest[key] = [] if row is None else self._transcript.elements(row).tolist()
        return self._longest[key]


def longest_read(transcript: Transcript, key: int) -> int | None:
    """Return the row that read the longest list of a key; None if nothing was read."""
    txns = transcript.txns
    rows = ((txns.key == key) & (txns.kind == READ)).nonzero()[0].tolist()
    return max(rows, key=lambda row: len(transcript.elements(row)), default=None)


def _register_edge(transcript: Transcript, step: Step) -> tuple[Any, Sentence] | None:
    txns = transcript.txns
    through = version_through(transcript, step)
    a_rows, b_rows = transcript.micro_rows(step.source), transcript.micro_rows(step.target)
    for b in b_rows:
        key, new = int(txns.key[b]), int(txns.value[b])
        for a in a_rows:
            if int(txns.key[a]) != key or (through is not None and through != (key, int(txns.value[a]))):
                continue
            name = transcript.key_name(key)
            old, value = transcript.value_name(key, int(txns.value[a])), transcript.value_name(key, new)
            if step.kind == WR and txns.kind[a] == WRITE and txns.kind[b] == READ and int(txns.value[a]) == new:
                return name, lambda a, b, n=name, v=value: f"{a} wrote {v} to {n}, which {b} read"
            if step.kind == RW and txns.kind[a] == READ and txns.kind[b] == WRITE and int(txns.value[a]) != new:
                if int(txns.value[a]) >= 0 and not _follows(transcript, step.target, key, int(txns.value[a])):
                    continue
                return (
                    name,
                    lambda a, b, n=name, o=old, v=value: (
                        f"{a} read {n} as {'nil' if o is None else o}, which {b} overwrote with {v}"
                    ),
                )
            if step.kind == WW and txns.kind[a] == WRITE and txns.kind[b] == WRITE:
                return name, lambda a, b, n=name, o=old, v=value: f"{a} wrote {o} to {n} before {b} wrote {v}"
    return None


def _follows(transcript: Transcript, t: int, key: int, value: int) -> bool:
    """Return whether transaction t read this value before it wrote, or wrote without a read, so that time orders
    versions."""
    txns = transcript.txns
    rows = [r for r in transcript.micro_rows(t) if int(txns.key[r]) == key]
    first = rows[0]
    return txns.kind[first] != READ or int(txns.value[first]) == value


def _shown(elements: list[Any], at: int = -1) -> str:
    if len(elements) <= _LIST_SHOWN_MAX:
        return in_words(elements)
    if at >= 0:
        first, last = max(0, at - 2), at + 3
        before, after = "... " if first else "", " ..." if last < len(elements) else ""
        return f"[{before}{in_words(elements[first:last])[1:-1]}{after}]"
    ending = in_words(elements[-_LIST_SHOWN_MAX:])
    return f"[... {ending[1:]}"


Words = Callable[[TransactionNames], str]
Explained = tuple[list[int], Words]
"""The transactions of an anomaly, and its sentence."""


def _owner(transcript: Transcript, row: int) -> int:
    return int(transcript.txns.first.searchsorted(row, side="right")) - 1


def _read_words(transcript: Transcript, row: int, at: int = -1) -> str:
    """at: place of the element that matters, -1: the last ones do."""
    _, key, answer = transcript.micro_operation(row)
    return f"{key} as {_shown(answer, at) if isinstance(answer, list) else in_words(answer)}"


def _unwritten(transcript: Transcript, t: int, row: int, at: int) -> Explained:
    key, answer = transcript.micro_operation(row)[1:]
    value = answer[at] if isinstance(answer, list) else answer
    return [t], lambda n: f"{n[t]} read {_read_words(transcript, row)}, but no transaction wrote {value} to {key}"


def _duplicate(transcript: Transcript, t: int, row: int, at: int) -> Explained:
    elements = transcript.read_list(row)[: at + 1]
    value, times = elements[at], elements.count(elements[at])
    often = "twice" if times == 2 else f"{times} times"
    return [t], lambda n: f"{n[t]} read {_read_words(transcript, row)}, in which {value} stands {often}"


def _incompatible(transcript: Transcript, row: int, longest: int, at: int) -> Explained:
    a, key = _owner(transcript, row), transcript.micro_operation(row)[1]
    later = max(row, longest)
    if a == _owner(transcript, longest) and (words := _gone(transcript, a, later, transcript.read_list(later))):
        return [a], lambda n: f"{n[a]} {words}, so {key} had two histories"
    other, at = _first_against(transcript, row, longest, at)
    b = _owner(transcript, other)
    shown, then = transcript.read_list(row), transcript.read_list(other)
    if lacking := _lacking(shown, then):
        why = f"the second list is the same as far as both go, but lacks {_few(lacking)}"
    elif lacking := _lacking(then, shown):
        why = f"the first list is the same as far as both go, but lacks {_few(lacking)}"
    else:
        alike = f"after {at} equal element{'' if at == 1 else 's'} " if at else ""
        why = f"{alike}neither is the beginning of the other"
    lost = _lost_append(transcript, row, other) or _lost_append(transcript, other, row)
    why += "" if lost or lacking else f", so {key} had two histories"
    unread = "" if lost else _acknowledged_and_lost(transcript, row, longest)
    return (
        [a, b, *([lost[0]] if lost else [])],
        lambda n: (
            f"{_lost_words(transcript, n, *lost) if lost else unread}"
            f"{n[a]} read {_read_words(transcript, row, at)} and "
            f"{n[b]} read {_read_words(transcript, other, at)}: {why}"
        ),
    )


def _lost_append(transcript: Transcript, shown: int, lacking: int) -> tuple[int, int, int] | None:
    """Return (the transaction that appended, the element, the read that lacks it) of an element of the first read whose
    append was acknowledged before the second read was invoked; None if there is none."""
    txns, key = transcript.txns, int(transcript.txns.key[shown])
    mine, others = map(transcript.elements, (shown, lacking))
    reader = _owner(transcript, lacking)
    for value in mine[~np.isin(mine, others)].tolist():
        for writer in transcript.writers(key, value):
            if txns.status[writer] == OK and txns.completed[writer] < txns.invoked[reader]:
                return writer, value, lacking
    return None


def _lost_words(transcript: Transcript, names: TransactionNames, writer: int, value: int, lacking: int) -> str:
    key, reader = int(transcript.txns.key[lacking]), _owner(transcript, lacking)
    return (
        f"Transaction {names[writer]} appended {transcript.value_name(key, value)} to {transcript.key_name(key)} and "
        f"was acknowledged, but {names[reader]}, invoked later, read the list without it. "
    )


def _acknowledged_and_lost(transcript: Transcript, row: int, longest: int) -> str:
    """Return which elements of a read the longest list lacks though their appends were acknowledged, as a sentence
    with a space behind it; "" if none."""
    txns, key = transcript.txns, int(transcript.txns.key[row])
    mine, last = map(transcript.elements, (row, longest))
    missing = [int(value) for value in mine[~np.isin(mine, last)]]
    ok = [value for value in missing if OK in {int(txns.status[t]) for t in transcript.writers(key, value)}]
    if not ok:
        return ""
    named = _few([transcript.value_name(key, value) for value in ok])
    was = "append was" if len(ok) == 1 else "appends were"
    return f"The longest list read of {transcript.key_name(key)} lacks {named}, whose {was} acknowledged. "


def _first_against(transcript: Transcript, row: int, longest: int, at: int) -> tuple[int, int]:
    """Return (the read that completed first of those that contradict a read of a list, the place at which the two
    differ).

    longest, at: a read that contradicts it."""
    txns = transcript.txns
    reads = np.flatnonzero((txns.kind == READ) & (txns.key == txns.key[row]))
    owners = txns.first.searchsorted(reads, side="right") - 1
    reads, owners = reads[txns.status[owners] == OK], owners[txns.status[owners] == OK]
    mine = transcript.elements(row)
    for read in reads[np.argsort(txns.completed[owners], kind="stable")].tolist():
        shown = transcript.elements(read)
        size = min(len(mine), len(shown))
        if len(places := np.flatnonzero(mine[:size] != shown[:size])):
            return read, int(places[0])
    return longest, at


def _lacking(whole: list[Any], other: list[Any]) -> list[Any]:
    """Return the elements that one list has before others which both have, and which the other list lacks; [] if their
    order differs as well."""
    there = {encode(each) for each in other}
    kept = [each for each in whole if encode(each) in there]
    if kept != other[: len(kept)]:
        return []
    behind_last = next((place for place in range(len(whole), 0, -1) if encode(whole[place - 1]) in there), 0)
    return [each for each in whole[:behind_last] if encode(each) not in there]


def _aborted(transcript: Transcript, t: int, row: int, by: int) -> Explained:
    txns, key, words = transcript.txns, int(transcript.txns.key[row]), _read_words(transcript, row)
    shown = transcript.elements(row).tolist()
    for r in transcript.micro_rows(by):
        if txns.key[r] != key or txns.kind[r] != WRITE:
            continue
        times, writers = shown.count(int(txns.value[r])), transcript.writers(key, int(txns.value[r]))
        if 0 < sum(txns.status[w] != kinds.FAIL for w in writers) < times:
            often = f"{transcript.value_name(key, int(txns.value[r]))} stands {times} times"
            return (
                [t, by],
                lambda n, often=often: (
                    f"{n[t]} read {words}, in which {often}: too often without the append of {n[by]}, which failed"
                ),
            )
    return [t, by], lambda n: f"{n[t]} read {words}, of which {n[by]} wrote a part and failed"


def _dirty(transcript: Transcript, aborted: int, by: int, key: int) -> Explained:
    name = transcript.key_name(key)
    words = f"built its write of {name} on that of"
    return [aborted, by], lambda n: f"{n[aborted]} failed, but {n[by]} {words} {n[aborted]}"


def _intermediate(transcript: Transcript, t: int, row: int, by: int) -> Explained:
    words = f"read {_read_words(transcript, row)}, which is not the last that"
    return [t, by], lambda n: f"{n[t]} {words} {n[by]} wrote there"


def _internal(transcript: Transcript, t: int, row: int, other: int) -> Explained:
    f, key, value = transcript.micro_operation(other)
    answer = transcript.micro_operation(row)[2]
    if isinstance(answer, list) and (words := _gone(transcript, t, row, answer)):
        return [t], lambda n: f"{n[t]} {words}"
    did = f"read {_read_words(transcript, other)}" if f == "r" else f"wrote {value} to {key}"
    return [t], lambda n: f"{n[t]} {did} and then read {_read_words(transcript, row)}, which contradicts it"


def _gone(transcript: Transcript, t: int, row: int, answer: list[Any]) -> str:
    """Return which elements a transaction had read or appended itself that its later read lacks, "" if none."""
    key = transcript.micro_operation(row)[1]
    held: list[Any] = []
    appended: list[Any] = []
    for f, other, given in map(transcript.micro_operation, range(int(transcript.txns.first[t]), row)):
        if other == key and f == "r":
            held, appended = list(given), []
        elif other == key:
            appended.append(given)
    lost = [each for each in held if each not in answer]
    if not lost:
        own = [each for each in appended if each not in answer]
        return f"appended {_few(own)} to {key} and then read {key} without {_few(own)}" if own else ""
    then = f", appended {_few(appended)}" if appended else ""
    return f"read {key} with {_few(lost)}{then}, and then read {key} without {_few(lost)}"


def _few(elements: list[Any]) -> str:
    more = len(elements) - 3
    words = [encode(each) for each in elements[:3]]
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _future(transcript: Transcript, t: int, row: int, later: int) -> Explained:
    _, key, value = transcript.micro_operation(later)
    return [t], lambda n: f"{n[t]} read {_read_words(transcript, row)} before it wrote {value} to {key} itself"


def _lost(transcript: Transcript, a: int, b: int, row: int) -> Explained:
    key = transcript.micro_operation(row)[1]
    value = transcript.txns
    read = row if value.kind[row] == READ else _first_read(transcript, b, row)
    return [a, b], lambda n: f"{n[a]} and {n[b]} both read {_read_words(transcript, read)} and then wrote to {key}"


def _first_read(transcript: Transcript, t: int, row: int) -> int:
    txns = transcript.txns
    return next(r for r in range(int(txns.first[t]), row) if txns.key[r] == txns.key[row] and txns.kind[r] == READ)


def _reordered(transcript: Transcript, t: int, row: int, earlier: int) -> Explained:
    txns = transcript.txns
    key, value, before = int(txns.key[row]), int(txns.value[row]), transcript.micro_operation(earlier)[2]
    longest = longest_read(transcript, key)
    assert longest is not None
    name, later = transcript.key_name(key), transcript.value_name(key, value)
    reader = _owner(transcript, longest)
    return (
        [t, reader],
        lambda n: (
            f"{n[t]} appended {before} to {name} and then {later}, "
            f"but {n[reader]} read {_read_words(transcript, longest)}, where {later} does not come after {before}"
        ),
    )


def _cyclic(transcript: Transcript, key: int, a: int, b: int) -> Explained:
    name, old, new = transcript.key_name(key), transcript.value_name(key, a), transcript.value_name(key, b)
    writers = [*transcript.writers(key, a), *transcript.writers(key, b)]
    return writers, lambda n: f"the versions {old} and {new} of {name} each come before the other"


class _Finding(NamedTuple):
    """How a kind of anomaly is explained.

    explained: its transactions, and its sentence.  expected: what would have been right.
    row: place of a micro-operation on the key in what its kernel noted.  key: place of the key itself, if it is there.
    """

    explained: Callable[[Transcript, int, int, int], Explained]
    expected: str
    row: int = 1
    key: int | None = None


_FINDINGS = {
    kinds.UNWRITTEN_READ: _Finding(_unwritten, "only values that some transaction wrote"),
    kinds.DUPLICATE_ELEMENTS: _Finding(_duplicate, "each element as often as it was appended at most"),
    kinds.INCOMPATIBLE_ORDER: _Finding(_incompatible, "lists of which one is the beginning of the other", row=0),
    kinds.ABORTED_READ: _Finding(_aborted, "no value that a failed transaction wrote"),
    kinds.DIRTY_UPDATE: _Finding(_dirty, "no version built on a write of a failed transaction", key=2),
    kinds.INTERMEDIATE_READ: _Finding(_intermediate, "only the last value that a transaction wrote"),
    kinds.INTERNAL: _Finding(_internal, "the value that the transaction itself had read or written before"),
    kinds.FUTURE_READ: _Finding(_future, "no value that the transaction wrote only later"),
    kinds.LOST_UPDATE: _Finding(_lost, "one transaction at most that read a version and then wrote the key", row=2),
    kinds.CYCLIC_VERSIONS: _Finding(_cyclic, "an order of the versions", key=0),
    kinds.REORDERED_APPENDS: _Finding(_reordered, "a transaction's appends in the order in which it made them"),
}


def version_through(transcript: Transcript, step: Step) -> tuple[int, int] | None:
    """Return (key, value) of the version whose group an edge goes through, or None.

    The value of the initial version is NIL_VALUE.
    """
    if step.through < 0:
        return None
    txns = transcript.txns
    base = element_bases(txns, int(txns.key.max()) + 1)
    version = step.through - len(txns.status)
    if version >= base[-1]:
        return int(version - base[-1]), NIL_VALUE
    key = int(np.searchsorted(base, version, side="right")) - 1
    return key, int(version - base[key])


class InTime:
    """The edges of one cycle that follow from time.  assumes: the model under which they follow, or ""."""

    def __init__(self, transcript: Transcript, assumes: str) -> None:
        self._transcript = transcript
        self._assumes = assumes
        self._by_process = bool(assumes) and parts_of(assumes)[1] == anomalies.PROCESS

    def met(self, step: Step) -> tuple[int, ...]:
        """Return the two transactions that met the versions of an edge in turn; () if time gives no order."""
        found = self._meeting(step)
        return () if found is None else found[:2]

    def explained(self, edge: dict[str, Any], names: Mapping[int, str] | Any, step: Step) -> dict[str, Any]:
        """Return the edge, with the two transactions added to its reason."""
        found = self._meeting(step)
        if found is None:
            return edge
        one, other, old, new = found
        name = self._transcript.key_name(self._key_of(step))
        after = "in the same process" if self._by_process else "after it had completed"
        words = f"{names[one]} met {name} as {old}, and {names[other]} met it as {new} {after}"
        return edge | {"why": f"{edge['why']} ({words})"}

    def _key_of(self, step: Step) -> int:
        through = version_through(self._transcript, step)
        return -1 if through is None else through[0]

    def _meeting(self, step: Step) -> tuple[int, int, Any, Any] | None:
        """Return (two transactions, the values they met) that order the version before that of the step's target."""
        if not self._assumes or step.kind not in (WW, RW):
            return None
        through = version_through(self._transcript, step)
        if through is None or through[1] == NIL_VALUE:
            return None
        key, old = through
        txns = self._transcript.txns
        rows = [r for r in self._transcript.micro_rows(step.target) if txns.key[r] == key]
        if txns.kind[rows[0]] == READ and int(txns.value[rows[0]]) == old:
            return None  # the transaction read the version itself and then wrote, so time is not needed
        new = int(txns.value[max(r for r in rows if txns.kind[r] == WRITE)])
        before, after = self._who_met(key, old), self._who_met(key, new)
        for one in before:
            for other in after:
                same = txns.process[one] == txns.process[other]
                in_order = txns.status[one] == OK and txns.completed[one] < txns.invoked[other]
                if in_order and (same or not self._by_process):
                    one_met, other_met = (self._transcript.value_name(key, value) for value in (old, new))
                    return one, other, one_met, other_met
        return None

    def _who_met(self, key: int, value: int) -> list[int]:
        txns = self._transcript.txns
        rows = np.flatnonzero((txns.key == key) & (txns.value == value))
        owners = np.searchsorted(txns.first, rows, side="right") - 1
        return [int(t) for t, row in zip(owners, rows, strict=True) if txns.kind[row] == WRITE or txns.status[t] == OK]
