"""Explains anomalies in words: each edge of a cycle, and each contradiction of a read, with the events that show it.

The `events` of a witness are the events of the transactions that it names, in index order.  Its `facts`, for pictures:

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
          "key": "x",                                  the key of the dependency; null for process and realtime
          "why": "T1 appended 1 to x before T2 appended 2",
        }, ...
      ],
      "length": 2,                                     number of edges; `cycle` lists only the first edges if it is long
      "why": ["T1 appended ...", ...],                 one sentence for each edge, or one for another anomaly
      "expected": "...",                               one sentence: the correct behaviour
      "assumes": "strict-serializable",                only if time orders versions: the model under which
                                                       that order is certain
      "violates": ["read-committed"],                  the weakest models that the anomaly violates
      "rules_out": ["read-committed", ...],            every model that the anomaly violates
    }

Witnesses of cycles in Kafka's logs (`checkers/kafka_log`) have "transactions", "cycle", "length" and "why" too.

*Time.*  Explains why time puts one version of a register before another: which transactions met the versions (read or
wrote them), and when.

`complete.py` orders versions by time under the required model.  The witness must name the two transactions that
met the versions one after the other.  These transactions need not be on the cycle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
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
_STATUS = {kinds.OK: "ok", kinds.FAIL: "fail", kinds.INFO: "info"}
_LIST_SHOWN_MAX = 12
_EDGES_SHOWN_MAX = 20


def explain_cycle(transcript: Transcript, cycle: NamedCycle) -> Witness:
    """Explain a cycle edge by edge.  Transactions are called T1, T2, ... in the order in which they were invoked."""
    shown = cycle.steps[:_EDGES_SHOWN_MAX]
    orders, in_time = _ListOrders(transcript), InTime(transcript, cycle.assumes)
    found = [_edge(transcript, orders, step) for step in shown]
    why = [words + in_time.words(step) for step, (_, words) in zip(shown, found, strict=True)]
    edges_shown = len(why)
    if (more := len(cycle.steps) - len(shown)) > 0:
        back = _named(shown[0].source)
        why.append(f"and so on: {more} more edges of this cycle of {len(cycle.steps)} lead back to {back}")
    if cycle.name.startswith("G1c") and not any(step.kind == WR for step in cycle.steps):
        why.append(_why_no_g0(transcript, shown))
    if cycle.by_longest:
        why.append("the lists of a key contradict each other, and the longest one counts as its order")
    names = TransactionNames(transcript, [*(t for step in shown for t in (step.source, step.target)), *_in(why)])
    why = [names.fill(words) for words in why]
    edges = [
        {"from": names[step.source], "to": names[step.target], "edge": _KINDS[step.kind], "key": key, "why": words}
        for step, (key, _), words in zip(shown, found, why[:edges_shown], strict=True)
    ]
    summary = f"{cycle.name}: {'; '.join(why)}: no order fulfils all of these"
    expected = f"an order of {names.listed()} in which each comes after all that it depends on; there is none"
    facts = {"cycle": edges, "length": len(cycle.steps), "why": why, "expected": expected}
    if cycle.assumes:
        facts["assumes"] = cycle.assumes
    excluded = and_stronger(cycle.assumes) if cycle.assumes else ruled_out([cycle.name])
    if cycle.by_longest:
        excluded = [model for model in excluded if model in and_stronger("read-committed")]
    return names.witness(cycle.name, summary, facts, excluded)


def _why_no_g0(transcript: Transcript, steps: Sequence[Step]) -> str:
    """Explain why a cycle of writes alone is a G1c, not a G0."""
    unanswered = dict.fromkeys(_named(s.source) for s in steps if transcript.txns.status[s.source] != OK)
    if unanswered:
        return f"{' and '.join(unanswered)} had no answer, so its writes may have been read though it aborted: no G0"
    return "only reads show this order of the versions, and read-uncommitted lets a read show anything: no G0"


def explain_finding(transcript: Transcript, kind: int, sample: tuple[int, int, int]) -> Witness:
    """Explain an anomaly that a kernel noted (see the table of kinds in `kernels/transactions/columns.py`)."""
    finding = _FINDINGS[kind]
    words = finding.words(transcript, *sample)
    names = TransactionNames(transcript, _in([words]))
    name, why = KIND_NAMES[kind], names.fill(words)
    key = sample[finding.key] if finding.key is not None else int(transcript.txns.key[sample[finding.row]])
    facts = {"key": str(transcript.key_name(key)), "why": [why], "expected": finding.expected}
    return names.witness(name, f"{name}: {why}", facts, ruled_out([name]))


_PLACE = re.compile("\0(\\d+)\0")


def _named(t: int) -> str:
    """Return a placeholder for the name of a transaction.  `TransactionNames.fill` replaces it later."""
    return f"\0{t}\0"


def _in(sentences: Iterable[str]) -> list[int]:
    """Return the transactions whose placeholders occur in the sentences."""
    return [int(t) for words in sentences for t in _PLACE.findall(words)]


class TransactionNames:
    """The names T1, T2, ... of the transactions of one witness."""

    def __init__(self, transcript: Transcript, txns: Iterable[int]) -> None:
        self._transcript = transcript
        self._names = {t: f"T{i}" for i, t in enumerate(sorted(set(txns)), 1)}

    def __getitem__(self, t: int) -> str:
        return self._names[t]

    def fill(self, words: str) -> str:
        """Replace the placeholders in a sentence by names."""
        return _PLACE.sub(lambda place: self._names[int(place[1])], words)

    def listed(self) -> str:
        return " and ".join(filter(None, [", ".join(list(self._names.values())[:-1]), f"T{len(self._names)}"]))

    def witness(self, kind: str, summary: str, facts: dict[str, Any], excluded: Sequence[str]) -> Witness:
        transcript, txns = self._transcript, self._transcript.txns
        rows = {t: transcript.rows(t) for t in self._names}
        listed = {
            name: {
                "process": int(txns.process[t]),
                "status": _STATUS[int(txns.status[t])],
                "events": [row["index"] for row in rows[t]],
                "operations": [for_json(transcript.micro_operation(row)) for row in transcript.micro_rows(t)],
            }
            for t, name in self._names.items()
        }
        events = sorted((row for some in rows.values() for row in some), key=lambda row: row["index"])
        facts = {"transactions": listed, **facts, "violates": weakest(excluded), "rules_out": excluded}
        return Witness(kind, summary, tuple(events), facts=facts)


def _edge(transcript: Transcript, orders: _ListOrders, step: Step) -> tuple[Any, str]:
    """Return (the key of an edge or None, the reason for the edge)."""
    a, b = _named(step.source), _named(step.target)
    if step.kind == PROCESS:
        return None, f"process {int(transcript.txns.process[step.source])} ran {a} before {b}"
    if step.kind == REALTIME:
        completed = transcript.rows(step.source)[-1]["index"]
        invoked = transcript.rows(step.target)[0]["index"]
        return None, f"{a} completed (event {completed}) before {b} was invoked (event {invoked})"
    lists = transcript.model == "list-append"
    found = _list_edge(transcript, orders, step) if lists else _register_edge(transcript, step)
    return found or (None, f"{a} precedes {b} by the order of versions")


def _list_edge(transcript: Transcript, orders: _ListOrders, step: Step) -> tuple[Any, str] | None:
    """Return (the key of an edge, its reason), found in the micro-operations of its two transactions; None if neither
    is found.
    """
    txns, a, b = transcript.txns, _named(step.source), _named(step.target)
    for theirs in transcript.micro_rows(step.target):
        key = int(txns.key[theirs])
        name = transcript.key_name(key)
        mine = [row for row in transcript.micro_rows(step.source) if txns.key[row] == key]
        if step.through >= 0 and step.through != len(txns.status) + key:
            continue
        if step.kind == WR and txns.kind[theirs] == READ and txns.status[step.target] == OK:
            appended = {int(txns.value[row]) for row in mine if txns.kind[row] == WRITE}
            for v in reversed(transcript.elements(theirs).tolist()):
                if v in appended:
                    return name, f"{a} appended {transcript.value_name(key, v)} to {name}, which {b} read"
        if txns.kind[theirs] != WRITE or step.kind == WR:
            continue
        did = f"{b} appended {transcript.value_name(key, int(txns.value[theirs]))} to {name}"
        for row in mine:
            if words := orders.before(row, key, int(txns.value[theirs]), step.kind):
                return name, f"{a} {words.format(did)}"
    return None


class _ListOrders:
    """The longest list of each key.  It shows why a row of one transaction comes before an append of another one."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._longest: dict[int, list[int]] = {}

    def before(self, row: int, key: int, new: int, kind: int) -> str:
        """Return a sentence like "appended 1 before {}" about a row, where {} stands for the append of `new`.

        Returns "" if the row does not come before that append.
        """
        transcript, longest = self._transcript, self._of(key)
        txns, unseen = transcript.txns, new not in longest
        if kind == RW and txns.kind[row] == READ:
            read = transcript.elements(row).tolist()
            if read and read[-1] not in longest:
                return ""
            seen = longest.index(read[-1]) + 1 if read else 0
            if (unseen and seen < len(longest)) or (not unseen and longest.index(new) < seen):
                return ""
            return f"read {_escaped(_read_words(transcript, row))}, before {{}}"
        mine = int(txns.value[row])
        if kind != WW or txns.kind[row] != WRITE or mine not in longest:
            return ""
        old = _escaped(str(transcript.value_name(key, mine)))
        if not unseen:
            return f"appended {old} before {{}}" if longest.index(mine) < longest.index(new) else ""
        if longest[-1] != mine:
            return ""
        return f"appended {old}, the last element that was read, before {{}}, which was never read"

    def _of(self, key: int) -> list[int]:
        if key not in self._longest:
            row = longest_read(self._transcript, key)
            self._longest[key] = [] if row is None else self._transcript.elements(row).tolist()
        return self._longest[key]


def _escaped(words: str) -> str:
    return words.replace("{", "{{").replace("}", "}}")


def longest_read(transcript: Transcript, key: int) -> int | None:
    """Return the row that read the longest list of a key; None if no row read the key."""
    txns = transcript.txns
    rows = ((txns.key == key) & (txns.kind == READ)).nonzero()[0].tolist()
    return max(rows, key=lambda row: len(transcript.elements(row)), default=None)


def _register_edge(transcript: Transcript, step: Step) -> tuple[Any, str] | None:
    txns, through = transcript.txns, version_through(transcript, step)
    a, b = _named(step.source), _named(step.target)
    for theirs in transcript.micro_rows(step.target):
        key, new = int(txns.key[theirs]), int(txns.value[theirs])
        for mine in transcript.micro_rows(step.source):
            old = int(txns.value[mine])
            if int(txns.key[mine]) != key or (through is not None and through != (key, old)):
                continue
            name, value = transcript.key_name(key), transcript.value_name(key, new)
            met, acts = transcript.value_name(key, old), (int(txns.kind[mine]), int(txns.kind[theirs]))
            if step.kind == WR and acts == (WRITE, READ) and old == new:
                return name, f"{a} wrote {value} to {name}, which {b} read"
            if step.kind == RW and acts == (READ, WRITE) and old != new:
                if old < 0 or _follows(transcript, step.target, key, old):
                    shown = "nil" if met is None else met
                    return name, f"{a} read {name} as {shown}, which {b} overwrote with {value}"
            elif step.kind == WW and acts == (WRITE, WRITE):
                return name, f"{a} wrote {met} to {name} before {b} wrote {value}"
    return None


def _follows(transcript: Transcript, t: int, key: int, value: int) -> bool:
    """Return True if transaction t read this value before it wrote the key, or wrote the key without reading it.

    If it did not read the key, time orders the versions."""
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


def _owner(transcript: Transcript, row: int) -> int:
    return int(transcript.txns.first.searchsorted(row, side="right")) - 1


def _read_words(transcript: Transcript, row: int, at: int = -1) -> str:
    """Return the key and the answer of a read in words.

    at: position of the list element to show, -1 for the last elements
    """
    _, key, answer = transcript.micro_operation(row)
    return f"{key} as {_shown(answer, at) if isinstance(answer, list) else in_words(answer)}"


def _unwritten(transcript: Transcript, t: int, row: int, at: int) -> str:
    key, answer = transcript.micro_operation(row)[1:]
    value = answer[at] if isinstance(answer, list) else answer
    return f"{_named(t)} read {_read_words(transcript, row)}, but no transaction wrote {value} to {key}"


def _duplicate(transcript: Transcript, t: int, row: int, at: int) -> str:
    elements = transcript.read_list(row)[: at + 1]
    value, times = elements[at], elements.count(elements[at])
    often = "twice" if times == 2 else f"{times} times"
    return f"{_named(t)} read {_read_words(transcript, row)}, in which {value} occurs {often}"


def _incompatible(transcript: Transcript, row: int, longest: int, at: int) -> str:
    a, key = _owner(transcript, row), transcript.micro_operation(row)[1]
    later = max(row, longest)
    if a == _owner(transcript, longest) and (words := _gone(transcript, a, later, transcript.read_list(later))):
        return f"{_named(a)} {words}, so {key} had two histories"
    other, at = _first_against(transcript, row, longest, at)
    b = _owner(transcript, other)
    shown, then = transcript.read_list(row), transcript.read_list(other)
    lost = _lost_append(transcript, row, other) or _lost_append(transcript, other, row)
    alike = f"after {at} equal element{'' if at == 1 else 's'} " if at else ""
    why = f"{alike}neither list is a prefix of the other"
    for which, lacking in (("second", _lacking(shown, then)), ("first", _lacking(then, shown))):
        if lacking:
            why = f"the {which} list is the same as far as both go, but lacks {_few(lacking)}"
            break
    else:
        why += "" if lost else f", so {key} had two histories"
    both = f"{_named(a)} read {_read_words(transcript, row, at)} and {_named(b)} read"
    return f"{lost}{both} {_read_words(transcript, other, at)}: {why}"


def _lost_append(transcript: Transcript, shown: int, lacking: int) -> str:
    """Return a sentence about an append that read `shown` shows and read `lacking` lacks.

    The append was acknowledged before `lacking` was invoked.  Returns "" if there is no such append."""
    txns, key = transcript.txns, int(transcript.txns.key[shown])
    mine, others = map(transcript.elements, (shown, lacking))
    reader = _owner(transcript, lacking)
    for value in mine[~np.isin(mine, others)].tolist():
        for writer in transcript.writers(key, value):
            if txns.status[writer] == OK and txns.completed[writer] < txns.invoked[reader]:
                did = f"{_named(writer)} appended {transcript.value_name(key, value)} to {transcript.key_name(key)}"
                late = f"{_named(reader)}, invoked later, read the list without it"
                return f"Transaction {did} and was acknowledged, but {late}. "
    return ""


def _first_against(transcript: Transcript, row: int, longest: int, at: int) -> tuple[int, int]:
    """Return (the first completed read that contradicts the list read by `row`, position at which the lists differ).

    longest, at: the result if no committed read contradicts the list"""
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
    """Return the elements of `whole` that `other` lacks, up to the last element that both contain.

    Returns [] if the lists order their common elements differently."""
    there = {encode(each) for each in other}
    kept = [each for each in whole if encode(each) in there]
    if kept != other[: len(kept)]:
        return []
    behind_last = next((place for place in range(len(whole), 0, -1) if encode(whole[place - 1]) in there), 0)
    return [each for each in whole[:behind_last] if encode(each) not in there]


def _aborted(transcript: Transcript, t: int, row: int, by: int) -> str:
    txns, key, words = transcript.txns, int(transcript.txns.key[row]), _read_words(transcript, row)
    shown = transcript.elements(row).tolist()
    for r in transcript.micro_rows(by):
        times, writers = shown.count(int(txns.value[r])), transcript.writers(key, int(txns.value[r]))
        did_not_fail = sum(txns.status[w] != kinds.FAIL for w in writers)
        if txns.key[r] == key and txns.kind[r] == WRITE and 0 < did_not_fail < times:
            often = f"{transcript.value_name(key, int(txns.value[r]))} occurs {times} times"
            without = f"too often without the append of {_named(by)}, which failed"
            return f"{_named(t)} read {words}, in which {often}: {without}"
    return f"{_named(t)} read {words}, of which {_named(by)} wrote a part and failed"


def _dirty(transcript: Transcript, aborted: int, by: int, key: int) -> str:
    words = f"built its write of {transcript.key_name(key)} on the write of {_named(aborted)}"
    return f"{_named(aborted)} failed, but {_named(by)} {words}"


def _intermediate(transcript: Transcript, t: int, row: int, by: int) -> str:
    return f"{_named(t)} read {_read_words(transcript, row)}, which is not the last value that {_named(by)} wrote"


def _internal(transcript: Transcript, t: int, row: int, other: int) -> str:
    f, key, value = transcript.micro_operation(other)
    answer = transcript.micro_operation(row)[2]
    if isinstance(answer, list) and (words := _gone(transcript, t, row, answer)):
        return f"{_named(t)} {words}"
    did = f"read {_read_words(transcript, other)}" if f == "r" else f"wrote {value} to {key}"
    return f"{_named(t)} {did} and then read {_read_words(transcript, row)}, which contradicts it"


def _gone(transcript: Transcript, t: int, row: int, answer: list[Any]) -> str:
    """Return a sentence about elements that a transaction had read or appended before and that its later read lacks.

    Returns "" if there are none.
    """
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


def _future(transcript: Transcript, t: int, row: int, later: int) -> str:
    _, key, value = transcript.micro_operation(later)
    return f"{_named(t)} read {_read_words(transcript, row)} before it wrote {value} to {key} itself"


def _lost(transcript: Transcript, a: int, b: int, row: int) -> str:
    txns, key = transcript.txns, transcript.micro_operation(row)[1]
    rows = [r for r in range(int(txns.first[b]), row) if txns.key[r] == txns.key[row] and txns.kind[r] == READ]
    read = row if txns.kind[row] == READ else rows[0]
    return f"{_named(a)} and {_named(b)} both read {_read_words(transcript, read)} and then wrote to {key}"


def _reordered(transcript: Transcript, t: int, row: int, earlier: int) -> str:
    txns = transcript.txns
    key, value, before = int(txns.key[row]), int(txns.value[row]), transcript.micro_operation(earlier)[2]
    longest = longest_read(transcript, key)
    assert longest is not None
    later, reader = transcript.value_name(key, value), _named(_owner(transcript, longest))
    did = f"{_named(t)} appended {before} to {transcript.key_name(key)} and then {later}"
    return f"{did}, but {reader} read {_read_words(transcript, longest)}, where {later} does not come after {before}"


def _cyclic(transcript: Transcript, key: int, a: int, b: int) -> str:
    old, new = (
        f"{transcript.value_name(key, value)} (by {' and '.join(map(_named, transcript.writers(key, value)))})"
        for value in (a, b)
    )
    return f"the versions {old} and {new} of {transcript.key_name(key)} each come before the other"


class _Finding(NamedTuple):
    """The explanation of a kind of anomaly.

    words: a function that returns its sentence from the sample of the kernel
    expected: the correct behaviour
    row: position in the sample of a micro-operation on the key
    key: position in the sample of the key itself, or None if the sample lacks it
    """

    words: Callable[[Transcript, int, int, int], str]
    expected: str
    row: int = 1
    key: int | None = None


_FINDINGS = {
    kinds.UNWRITTEN_READ: _Finding(_unwritten, "only values that some transaction wrote"),
    kinds.DUPLICATE_ELEMENTS: _Finding(_duplicate, "each element at most as often as it was appended"),
    kinds.INCOMPATIBLE_ORDER: _Finding(_incompatible, "lists of which one is a prefix of the other", row=0),
    kinds.ABORTED_READ: _Finding(_aborted, "no value that a failed transaction wrote"),
    kinds.DIRTY_UPDATE: _Finding(_dirty, "no version built on a write of a failed transaction", key=2),
    kinds.INTERMEDIATE_READ: _Finding(_intermediate, "only the last value that a transaction wrote"),
    kinds.INTERNAL: _Finding(_internal, "the value that the transaction itself had read or written before"),
    kinds.FUTURE_READ: _Finding(_future, "no value that the transaction wrote only later"),
    kinds.LOST_UPDATE: _Finding(_lost, "at most one transaction that read a version and then wrote the key", row=2),
    kinds.CYCLIC_VERSIONS: _Finding(_cyclic, "an order of the versions", key=0),
    kinds.REORDERED_APPENDS: _Finding(_reordered, "a transaction's appends in the order in which it made them"),
}


def version_through(transcript: Transcript, step: Step) -> tuple[int, int] | None:
    """Return (key, value) of the version whose group node an edge goes through, or None if it goes through none.

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
    """The edges of one cycle that follow from time.

    assumes: the model under which time orders versions, or ""
    """

    def __init__(self, transcript: Transcript, assumes: str) -> None:
        self._transcript = transcript
        self._assumes = assumes
        self._by_process = bool(assumes) and parts_of(assumes)[1] == anomalies.PROCESS

    def words(self, step: Step) -> str:
        """Return the end of a sentence about an edge: it names the transactions that met the versions in turn.

        Returns "" if the edge does not follow from time.
        """
        found = self._meeting(step)
        if found is None:
            return ""
        one, other, (key, old), new = found
        name, after = self._transcript.key_name(key), f"after {_named(one)} had completed"
        if self._by_process:
            after = "in the same process"
        first, then = (self._transcript.value_name(key, value) for value in (old, new))
        return f" ({_named(one)} met {name} as {first}, and {_named(other)} met {name} as {then} {after})"

    def _meeting(self, step: Step) -> tuple[int, int, tuple[int, int], int] | None:
        """Return the two transactions that put the version that the step goes through before the version of its target.

        The result is (first transaction, other transaction, (key, value that the first met), value that the other met).
        """
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
                    return one, other, through, new
        return None

    def _who_met(self, key: int, value: int) -> list[int]:
        txns = self._transcript.txns
        rows = np.flatnonzero((txns.key == key) & (txns.value == value))
        owners = np.searchsorted(txns.first, rows, side="right") - 1
        return [int(t) for t, row in zip(owners, rows, strict=True) if txns.kind[row] == WRITE or txns.status[t] == OK]
