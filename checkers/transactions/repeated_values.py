"""Decides histories in which a value was written more than once to a key, so that its reads do not name one writer.

A *choice* names, for every read of a repeated value, the write that the read shows.  Under a choice, every write gets a
unique value, and `complete.py` decides the resulting history.  The history fulfils a consistency model if and only if
it does under one of its choices.

    registers   a choice maps each (transaction, key, value) that was read to a write, or to the initial state if the
                value may be the initial one.  If the transaction wrote the value before, the read shows its own write
    lists       a choice maps each position of a repeated value in the longest list of its key to a transaction.  A
                transaction may be chosen at most as often as it appended the value.  All other lists must be prefixes
                of the longest list

Equal appends of one transaction keep the transaction's order.  If a list had them in another order, exchanging them
would change no list, and would remove an anomaly (reordered appends).

*Search.*  A failed choice names what its proof rests on: the reads and positions whose transactions lie on a cycle that
the search for an order found.  Only these are chosen anew.  If the proof rests on earlier choices, the search goes back
to the latest of them (conflict-directed backjumping, Prosser 1993).  Read-atomic and causal conclude more from a read
than cycles show, so under these models a proof rests on all choices.

The first choice follows the guessed order: a read shows the latest write that ended before it.
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
"""Maximum number of choices that are tried; a history with more choices may stay unknown."""

FITS, FAILS, OPEN = "fits", "fails", "open"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one choice.

    outcome: FITS, FAILS or OPEN
    involved: transactions on which the proof of a failure rests; None if it may rest on all transactions
    """

    outcome: str
    involved: frozenset[int] | None = frozenset()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of the search for a choice that fits.

    outcome: FITS, FAILS or OPEN
    transcript: the history with unique values, under the choice that fits or else under the first choice
    choices: number of reads or list positions that had a choice
    attempts: number of choices that were tried
    """

    outcome: str
    transcript: Transcript
    choices: int
    attempts: int


_Writes = tuple[int, ...]
"""Rows of equal writes of one transaction to one key, in the order of the transaction; or NOTHING_WRITTEN."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Reads, or one position of a list, for which one choice is made.

    choices: the writes that the unit may show, best first; for a list, all equal appends of one transaction together
    concerned: transactions whose place in a proof may rest on the choice
    reads: rows of the reads, or places of the elements, that get the chosen value
    exclusive: True if each write is shown by one unit only; units with the same choice show its writes in turn
    """

    choices: tuple[_Writes, ...]
    concerned: frozenset[int]
    reads: tuple[int, ...]
    exclusive: bool


def resolve(transcript: Transcript, any_write: bool, attempt: Callable[[Transcript], Attempt]) -> Resolved | None:
    """Try choices until one fits, all fail, or ATTEMPTS_MAX were tried.

    any_write: True if reads may show writes that failed or were not the last of their transaction
    attempt: a function that decides a transcript with unique values

    Returns None if two lists of a key contradict one another, so that no choice is defined.
    """
    units = _units_of_lists(transcript) if transcript.model == "list-append" else _units(transcript, any_write)
    if units is None:
        return None
    search = _Search(transcript, units, attempt)
    ended = search.solve({})
    outcome = ended if isinstance(ended, str) else FAILS
    if outcome == FAILS and any_write and transcript.model == "list-append" and _failed_to_append(transcript):
        outcome = OPEN  # a list may show a failed append, but choices for lists contain no failed appends
    shown = search.fitting if search.fitting is not None else search.first
    return Resolved(outcome, shown or transcript, len(units), search.attempts)


def _failed_to_append(transcript: Transcript) -> bool:
    """Return True if a transaction that failed appended a repeated value."""
    txns = transcript.txns
    return bool((txns.status[_owners(txns)[repeated_rows(transcript)]] == FAIL).any())


class _Search:
    """A depth-first search over choices.

    first: transcript of the first choice
    fitting: transcript of a choice that fits, or None
    """

    def __init__(self, transcript: Transcript, units: list[_Unit], attempt: Callable[[Transcript], Attempt]) -> None:
        self._transcript, self._units, self._attempt = transcript, units, attempt
        self.attempts = 0
        self._failures: dict[tuple[_Writes, ...], Attempt] = {}
        self.first: Transcript | None = None
        self.fitting: Transcript | None = None

    def solve(self, fixed: Mapping[int, _Writes]) -> frozenset[int] | str:
        """Try all choices that contain the fixed ones.

        Returns FITS, or OPEN if an attempt was undecided or ATTEMPTS_MAX was reached.  If all choices fail, returns the
        fixed units on which their failure rests.
        """
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
        """Return (a choice for each unit, an empty set).  Fixed units keep their choice.

        If the fixed units exclude every choice, returns (None, these fixed units).
        """
        taken = Counter(writes for number, writes in fixed.items() if self._units[number].exclusive)
        for writes, times in taken.items():
            if times > len(writes):
                return None, frozenset(number for number, chosen in fixed.items() if chosen == writes)
        chosen = []
        for number, unit in enumerate(self._units):
            free = (w for w in unit.choices if not unit.exclusive or taken[w] < len(w))
            found = fixed[number] if number in fixed else next(free, None)
            if found is None:  # the list contains the value more often than transactions appended it
                return None, frozenset()
            if number not in fixed:
                taken[found] += 1
            chosen.append(found)
        return chosen, frozenset()


def renamed(transcript: Transcript, units: Sequence[_Unit], chosen: Sequence[_Writes]) -> Transcript:
    """Return the transcript with a unique value for every write of a repeated value."""
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
    """Return the rows of writes whose value was written more than once, or may also be the initial value of the key."""
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
    """Return the last write by the row's transaction to the row's key before the row; -1 if there is none."""
    for earlier in range(row - 1, int(txns.first[owner[row]]) - 1, -1):
        if txns.kind[earlier] == WRITE and txns.key[earlier] == txns.key[row]:
            return earlier
    return -1


def _show_own_writes(txns: Transactions, value: Int32, own: Mapping[int, int]) -> None:
    """Give each read that follows an equal write of its own transaction the new value of that write."""
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
    """Return True if the write did not fail and its transaction did not write the key again later."""
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
