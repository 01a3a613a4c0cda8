"""Decides histories in which a value was written more than once to a key: which write does a read show?

A *choice* names, for every read of such a value, the write that it shows.  With a choice every write gets a value of
its own, and the history is one of unique values, which `complete.py` decides.  The history fulfils a level if and only
if one of its choices does.

    registers   a choice is a write for each (transaction, key, value) that was read, or the initial state where a value
                may stand for it.  A read after an own write of that value shows the own write
    lists       a choice is a transaction for each place of a repeated value in the longest list of its key; it stands
                there as often as it appended the value, at most.  Other lists must be beginnings of that one

Equal appends of one transaction stand in its order.  If they stood in another one, to exchange them would change no
list, and it would take away an anomaly (reordered appends).

*Search.*  A failed choice names what its proof rests on: the reads and places whose transactions lie on a circle that
the search for an order met.  Only these are changed.  If a proof rests on what was decided for earlier, the search goes
back to the latest of these decisions (conflict-directed backjumping, Prosser 1993).  Read-atomic and causal conclude
more from a read than circles show, so there everything counts as part of the proof.

The first choice follows the guess of the order: a read shows the latest write that ended before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.transactions.columns import FAIL, NEVER, NIL_VALUE, OK, WRITE, Transactions
from checkers.transactions.read import Transcript

NOTHING_WRITTEN = (-1,)
"""The choice that stands for the initial state."""

ATTEMPTS_MAX = 400
"""Number of choices that are tried; a history with more may stay unknown."""

FITS, FAILS, OPEN = "fits", "fails", "open"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one choice.

    involved: the transactions that the proof rests on; None: it may rest on all of them.
    """

    outcome: str
    involved: frozenset[int] | None = frozenset()


@dataclass(frozen=True, slots=True)
class Resolved:
    """outcome: FITS, FAILS or OPEN.  transcript: with the choice that fits, or else with the first one, made unique.

    choices: how many reads or places had one.  attempts: how many choices were tried.
    """

    outcome: str
    transcript: Transcript
    choices: int
    attempts: int


_Writes = tuple[int, ...]
"""Rows of equal writes of one transaction to one key, in its order; or NOTHING_WRITTEN."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Something that has a choice.  choices: rows of the writes that it may show, best first; of a list, all equal
    appends of one transaction.  concerned: transactions whose place in a proof may rest on the choice.  exclusive: each
    row is shown by one unit only, and units that chose the same rows show them in the order of the units."""

    choices: tuple[_Writes, ...]
    concerned: frozenset[int]
    reads: tuple[int, ...]
    exclusive: bool


def resolve(transcript: Transcript, any_write: bool, attempt: Callable[[Transcript], Attempt]) -> Resolved | None:
    """Try choices until one fits, all fail, or ATTEMPTS_MAX were tried.

    any_write: whether reads may show writes that failed or were not the last of their transaction.
    attempt: decides a transcript of unique values.
    None: two lists of a key contradict one another, so that no choice is defined.
    """
    units = _units_of_lists(transcript) if transcript.model == "list-append" else _units(transcript, any_write)
    if units is None:
        return None
    search = _Search(transcript, units, attempt)
    ended = search.solve({})
    outcome = ended if isinstance(ended, str) else FAILS
    if outcome == FAILS and any_write and transcript.model == "list-append" and _failed_to_append(transcript):
        outcome = OPEN  # a list may show a failed append, and a choice names no append
    shown = search.fitting if search.fitting is not None else search.first
    return Resolved(outcome, shown or transcript, len(units), search.attempts)


def _failed_to_append(transcript: Transcript) -> bool:
    """Return whether a transaction that failed appended a repeated value."""
    txns = transcript.txns
    return bool((txns.status[_owners(txns)[repeated_rows(transcript)]] == FAIL).any())


class _Search:
    """A depth-first search over choices.  first, fitting: transcripts of the first choice and of one that fits."""

    def __init__(self, transcript: Transcript, units: list[_Unit], attempt: Callable[[Transcript], Attempt]) -> None:
        self._transcript, self._units, self._attempt = transcript, units, attempt
        self.attempts = 0
        self._failures: dict[tuple[_Writes, ...], Attempt] = {}
        self.first: Transcript | None = None
        self.fitting: Transcript | None = None

    def solve(self, fixed: Mapping[int, _Writes]) -> frozenset[int] | str:
        """Return FITS, OPEN (too many were tried), or the fixed units that the failure of all choices rests on."""
        chosen, clash = self._chosen(fixed)
        if chosen is None:
            return clash
        found = self._failures.get(tuple(chosen))
        if found is None:
            if self.attempts == ATTEMPTS_MAX:
                return OPEN
            self.attempts += 1
            unique = renamed(self._transcript, self._units, chosen)
            self.first = self.first or unique
            found = self._attempt(unique)
            if found.outcome == OPEN:
                return OPEN
            if found.outcome == FITS:
                self.fitting = unique
                return FITS
            self._failures[tuple(chosen)] = found
        resting = {
            number
            for number, unit in enumerate(self._units)
            if found.involved is None or unit.concerned & found.involved
        }
        free = [number for number in resting if number not in fixed]
        if not free:
            return frozenset(resting & fixed.keys())
        unit = min(free, key=lambda number: len(self._units[number].choices))
        conflict: set[int] = set()
        for writes in self._units[unit].choices:
            below = self.solve({**fixed, unit: writes})
            if isinstance(below, str) or unit not in below:
                return below
            conflict |= below
        return frozenset(conflict - {unit})

    def _chosen(self, fixed: Mapping[int, _Writes]) -> tuple[list[_Writes] | None, frozenset[int]]:
        """Return (a choice for each unit, fixed ones as they are; or None and the fixed units that exclude any
        choice).
        """
        taken = Counter(writes for number, writes in fixed.items() if self._units[number].exclusive)
        for writes, times in taken.items():
            if times > len(writes):
                return None, frozenset(number for number, chosen in fixed.items() if chosen == writes)
        chosen = []
        for number, unit in enumerate(self._units):
            free = (w for w in unit.choices if not unit.exclusive or taken[w] < len(w))
            found = fixed[number] if number in fixed else next(free, None)
            if found is None:  # the list contains the value more often than it was appended, under every choice
                return None, frozenset()
            if number not in fixed:
                taken[found] += 1
            chosen.append(found)
        return chosen, frozenset()


def renamed(transcript: Transcript, units: Sequence[_Unit], chosen: Sequence[_Writes]) -> Transcript:
    """Return the transcript with a value of its own for every write of a repeated value."""
    txns = transcript.txns
    value, lists = txns.value.copy(), txns.lists.copy()
    key_count = int(txns.key.max()) + 1
    names = [list(transcript.values[k]) if transcript.values else [] for k in range(key_count)]
    count = np.zeros(key_count, np.int64)
    np.maximum.at(count, txns.key, txns.value + 1)
    if len(lists):
        np.maximum.at(count, np.repeat(txns.key, np.diff(txns.list_first)), txns.lists + 1)
    own: dict[int, int] = {}
    for row in repeated_rows(transcript).tolist():
        key = int(txns.key[row])
        names[key] += range(len(names[key]), int(count[key]))
        names[key].append(transcript.value_name(key, int(txns.value[row])))
        own[row] = int(count[key])
        value[row] = own[row]
        count[key] += 1
    shown = Counter[_Writes]()
    for unit, writes in zip(units, chosen, strict=True):
        if unit.exclusive:
            lists[list(unit.reads)] = own[writes[shown[writes]]]
            shown[writes] += 1
        else:
            value[list(unit.reads)] = NIL_VALUE if writes == NOTHING_WRITTEN else own[writes[0]]
    if transcript.model == "rw-register":
        _show_own_writes(txns, value, own)
    for key in range(key_count):
        names[key] += range(len(names[key]), int(count[key]))
    return replace(transcript, txns=txns._replace(value=value, lists=lists), values=names, initial=frozenset())


def repeated_rows(transcript: Transcript) -> Int64:
    """Return the rows of writes whose value was written more than once, or may stand for the initial state."""
    txns = transcript.txns
    rows = np.flatnonzero(txns.kind == WRITE)
    elements = (txns.key[rows].astype(np.int64) << 32) | txns.value[rows]
    _, number, times = np.unique(elements, return_inverse=True, return_counts=True)
    repeated = times[number] > 1
    if transcript.initial:
        also = np.array([(key << 32) | value for key, value in transcript.initial], np.int64)
        repeated |= np.isin(elements, also)
    chosen: Int64 = rows[repeated]
    return chosen


def _owners(txns: Transactions) -> Int32:
    owners: Int32 = np.repeat(np.arange(len(txns.status), dtype=np.int32), np.diff(txns.first))
    return owners


def _ends(txns: Transactions) -> Int64:
    ends: Int64 = np.where(txns.completed == NEVER, txns.invoked, txns.completed)
    return ends


def _own_write(txns: Transactions, owner: Int32, row: int) -> int:
    """Return the last write of the row's key that its transaction did before it; -1 if there is none."""
    for earlier in range(row - 1, int(txns.first[owner[row]]) - 1, -1):
        if txns.kind[earlier] == WRITE and txns.key[earlier] == txns.key[row]:
            return earlier
    return -1


def _show_own_writes(txns: Transactions, value: Int32, own: Mapping[int, int]) -> None:
    """Map reads that follow an own write of their value to that write."""
    owner = _owners(txns)
    written = {(int(txns.key[row]), int(txns.value[row])) for row in own}
    for row in _reads_of(txns, written):
        earlier = _own_write(txns, owner, row)
        if earlier >= 0 and txns.value[earlier] == txns.value[row]:
            value[row] = own[earlier]


def _reads_of(txns: Transactions, elements: set[tuple[int, int]]) -> list[int]:
    """Return the rows of committed reads of registers that show one of these elements (key, value)."""
    keys = np.array(sorted({key for key, _ in elements}), np.int32)
    committed = np.repeat(txns.status == OK, np.diff(txns.first))
    rows = np.flatnonzero(committed & (txns.kind != WRITE) & (txns.value >= 0) & np.isin(txns.key, keys))
    return [row for row in rows.tolist() if (int(txns.key[row]), int(txns.value[row])) in elements]


def _units(transcript: Transcript, any_write: bool) -> list[_Unit]:
    """Return the units of a history of registers, in order of transactions."""
    txns = transcript.txns
    owner, ends = _owners(txns), _ends(txns)
    writes: dict[tuple[int, int], list[int]] = {}
    for row in repeated_rows(transcript).tolist():
        writes.setdefault((int(txns.key[row]), int(txns.value[row])), []).append(row)
    reads: dict[tuple[int, int, int], list[int]] = {}
    for row in _reads_of(txns, set(writes)):
        earlier = _own_write(txns, owner, row)
        if earlier < 0 or txns.value[earlier] != txns.value[row]:
            reads.setdefault((int(owner[row]), int(txns.key[row]), int(txns.value[row])), []).append(row)
    units = []
    for (t, key, shown), rows in reads.items():
        versions = [w for w in writes[key, shown] if owner[w] != t and _is_version(txns, owner, w)]
        own = [w for w in writes[key, shown] if owner[w] == t and w < rows[0]]  # overwritten before the reads
        usable = writes[key, shown] if any_write or not versions else [*versions, *own]
        ahead = {w: int(ends[owner[w]]) - int(ends[t]) for w in usable}
        usable = sorted(usable, key=lambda w: (ahead[w] > 0, abs(ahead[w])))
        concerned = frozenset({t, *(int(owner[w]) for w in usable)})
        choices = [(w,) for w in usable] + ([NOTHING_WRITTEN] if (key, shown) in transcript.initial else [])
        units.append(_Unit(tuple(choices), concerned, tuple(rows), exclusive=False))
    return units


def _is_version(txns: Transactions, owner: Int32, row: int) -> bool:
    """Return whether a write may be seen: it did not fail, and its transaction did not write the key later."""
    later = range(row + 1, int(txns.first[owner[row] + 1]))
    return bool(
        txns.status[owner[row]] != FAIL
        and not any(txns.kind[r] == WRITE and txns.key[r] == txns.key[row] for r in later)
    )


def _units_of_lists(transcript: Transcript) -> list[_Unit] | None:
    """Return the units of a history of lists; None if two lists of a key contradict one another."""
    txns = transcript.txns
    owner, ends = _owners(txns), _ends(txns)
    appends: dict[tuple[int, int], list[int]] = {}
    for row in repeated_rows(transcript).tolist():
        if txns.status[owner[row]] != FAIL:
            appends.setdefault((int(txns.key[row]), int(txns.value[row])), []).append(row)
    repeated = {(int(txns.key[row]), int(txns.value[row])) for row in repeated_rows(transcript).tolist()}
    keys = {key for key, _ in repeated}
    lists: dict[int, list[tuple[int, int]]] = {key: [] for key in keys}
    for row in np.flatnonzero(txns.kind != WRITE).tolist():
        if int(txns.key[row]) in keys and txns.status[owner[row]] == OK:
            lists[int(txns.key[row])].append((int(txns.list_first[row]), int(txns.list_first[row + 1])))
    units = []
    for key, spans in lists.items():
        begin, end = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
        longest = txns.lists[begin:end]
        if any(not np.array_equal(txns.lists[b:e], longest[: e - b]) for b, e in spans):
            return None
        for place, shown in enumerate(longest.tolist()):
            if (key, shown) not in repeated:
                continue
            by: dict[int, list[int]] = {}
            for row in appends.get((key, shown), []):
                by.setdefault(int(owner[row]), []).append(row)
            choices = tuple(tuple(by[t]) for t in sorted(by, key=lambda t: int(ends[t])))
            reads = tuple(b + place for b, e in spans if e - b > place)
            units.append(_Unit(choices, frozenset(by), reads, exclusive=True))
    return units
