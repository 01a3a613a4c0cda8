"""Judges the keys of a history as registers, from operations in memory (`checker.py` states the rules).

The verdicts on stored runs and on history files both come from here.  This module does not import tables (pyarrow): a
small valid history needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkers.base.arrays import Int8
from checkers.base.checker import Budget
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness, nothing_shown
from checkers.kernels import register_antichain as antichain
from checkers.kernels import register_unique_values as register
from checkers.kernels.operations import (
    HAS_MISMATCH,
    NIL,
    OPEN,
    SIZE_BYTES_PER_OPERATION,
    WRITE,
    Operations,
    drop_failed_cas,
)

DID_NOT_HAPPEN, OBSERVED = "did-not-happen", "observed"
"""Values of the parameter `failed_cas` of a part: the two meanings of a failed cas.  Default: DID_NOT_HAPPEN.

Clients of runs report a cas as a mismatch only if the answer said so, so runs are judged with OBSERVED.  A history from
another tool may report any refusal as a mismatch."""

OBSERVERS = ("read", "cas")
"""The functions whose answers reveal the value of a register.  A cas that succeeded saw the expected value."""

NOTHING_ANSWERED = "no operation on a key got an answer, so there was nothing to judge"

KINDS_WORST_FIRST = ("lost write", "value from nowhere", "order cycle", "read against acknowledgement", "stale read")


@dataclass(frozen=True, slots=True)
class BucketFinding:
    """Findings of the checker in one bucket.

    keys: number of judged keys
    operations: number of judged operations
    answered: number of operations that returned
    steps: number of steps of the kernels
    witnesses: (index of the answer that no order explains, witness) for the first MAX_WITNESSES wrong keys
    invalid_keys: number of wrong keys
    unknown: (key, reason) for every key that could not be judged
    unseen: (key, number of acknowledged writes) for every key whose value no answer reveals
    """

    keys: int
    operations: int
    answered: int
    steps: int
    witnesses: tuple[tuple[int, Witness], ...]
    invalid_keys: int
    unknown: tuple[tuple[str, str], ...]
    unseen: tuple[tuple[str, int], ...]


def judge_operations(keys: Sequence[str], operations: Operations, budget: Budget, failed_cas: str) -> Verdict | None:
    """Judge operations in memory.  Returns None if a key is wrong or undecided, because a witness needs a run's files.

    operations: as `numbered_operations` returns them; key number k is `keys[k]`
    """
    needed_bytes = len(operations.kind) * SIZE_BYTES_PER_OPERATION
    if needed_bytes > budget.size_bytes:
        return None
    observed = failed_cas == OBSERVED
    operations = operations if observed else drop_failed_cas(operations)
    judged = JudgedKeys(keys, budget)
    judged.judge_operations(0, operations, Budget(budget.steps, budget.size_bytes - needed_bytes))
    return None if judged.wrong or judged.undecided else combine([judged.finding()])


class JudgedKeys:
    """Keys that have been judged so far.

    names: names of all keys
    wrong: (number of a key, position at which the search had proved the violation, or None)
    undecided: (number of a key, result code, True if the code is of the search)
    unseen: (name, number of acknowledged writes) of keys whose value no answer reveals
    """

    def __init__(self, names: Sequence[str], budget: Budget) -> None:
        self.names, self.budget = names, budget
        self.keys = self.operations = self.answered = self.steps = 0
        self.wrong: list[tuple[int, int | None]] = []
        self.undecided: list[tuple[int, int, bool]] = []
        self.unseen: list[tuple[str, int]] = []

    def judge_operations(self, first: int, ops: Operations, search: Budget) -> None:
        """Judge the keys from number `first` on.  search: budget that the searches for all of these keys share."""
        codes, _, _, steps = register.judge_keys(ops, self.budget.steps)
        searched, taken = _search(ops, codes, search)
        self.keys += len(ops.positions)
        self.operations += len(ops.kind)
        self.answered += int(np.count_nonzero(ops.ret != OPEN))
        self.unseen += [(self.names[first + k], returned) for k, returned in _unseen(ops)]
        self.steps += int(steps) + taken
        for k in codes.nonzero()[0].tolist():
            if k not in searched and codes[k] < register.FIRST_INVALID:
                self.undecided.append((first + k, int(codes[k]), False))
            elif k not in searched:
                self.wrong.append((first + k, None))
            elif searched[k].code == antichain.NO_ORDER:
                self.wrong.append((first + k, searched[k].position))
            elif searched[k].code != antichain.LINEARIZABLE:
                self.undecided.append((first + k, searched[k].code, True))

    def finding(
        self, witnesses: Sequence[tuple[int, Witness]] = (), unknown: Sequence[tuple[str, str]] = (), invalid: int = 0
    ) -> BucketFinding:
        """Return the finding.  invalid: number of wrong keys."""
        counts = (self.keys, self.operations, self.answered, self.steps)
        return BucketFinding(*counts, tuple(witnesses), invalid, tuple(sorted(unknown)), tuple(self.unseen))


def _unseen(operations: Operations) -> list[tuple[int, int]]:
    """Return (number of a key, number of its acknowledged writes) for each key whose value no answer reveals."""
    returned = operations.ret != OPEN
    firsts = operations.offsets[:-1][np.diff(operations.offsets) > 0]  # `reduceat` cannot count an empty key
    if not len(firsts):
        return []
    shows = np.logical_or.reduceat(returned & (operations.kind != WRITE), firsts)
    writes = np.add.reduceat(returned & (operations.kind == WRITE), firsts, dtype=np.int64)
    keys = np.flatnonzero(np.diff(operations.offsets) > 0)
    return [(int(keys[k]), int(writes[k])) for k in np.flatnonzero(~shows)]


def combine(findings: Sequence[BucketFinding]) -> Verdict:
    """Combine the findings of all buckets.

    The verdict is invalid if a key is wrong; else unknown if a key could not be judged, or if no answer reveals its
    value.
    """
    looked_at = {
        "keys": sum(f.keys for f in findings),
        "operations": sum(f.operations for f in findings),
        "steps": sum(f.steps for f in findings),
    }
    unknown = [sentence for _, sentence in sorted(pair for f in findings for pair in f.unknown)]
    reason = ""
    if unknown:
        reason = unknown[0] + (f" (and {len(unknown) - 1} keys more)" if len(unknown) > 1 else "")
        looked_at["unknown_keys"] = len(unknown)
    found = sorted((pair for f in findings for pair in f.witnesses), key=_worst_first)
    if found:
        looked_at["invalid_keys"] = sum(f.invalid_keys for f in findings)
        looked_at["violations"] = looked_at["invalid_keys"]  # the checker reports one violation per wrong key
        kept = tuple(witness for _, witness in found[:MAX_WITNESSES])
        return Verdict(Validity.INVALID, looked_at, reason, kept)
    if unknown:
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if not sum(f.answered for f in findings):
        return Verdict(Validity.UNKNOWN, looked_at, NOTHING_ANSWERED)
    if unseen := sorted(pair for f in findings for pair in f.unseen):
        looked_at["unseen_keys"] = len(unseen)
        names = [key for key, _ in unseen]
        return Verdict(Validity.UNKNOWN, looked_at, nothing_shown(OBSERVERS, names, sum(n for _, n in unseen)))
    return Verdict(Validity.VALID, looked_at)


def _worst_first(found: tuple[int, Witness]) -> tuple[int, int]:
    index, witness = found
    return KINDS_WORST_FIRST.index(witness.kind), index


@dataclass(frozen=True, slots=True)
class _Searched:
    """Result of the search for one key (`antichain.judge_key`)."""

    code: int
    position: int


def _search(operations: Operations, codes: Int8, budget: Budget) -> tuple[dict[int, _Searched], int]:
    """Judge the keys in which values repeat or a failed cas is an observation.

    Returns ({number of a key: result of the search}, number of steps of all searches).
    """
    sought = (codes == register.PRODUCED_TWICE) | (codes == register.PRODUCES_INITIAL)
    sought |= (codes == register.UNFIT) & (operations.unfit == HAS_MISMATCH)
    chosen = np.flatnonzero(sought).astype(np.int32)
    found: dict[int, _Searched] = {}
    if not len(chosen) or budget.steps <= 0:
        return {int(k): _Searched(antichain.OUT_OF_STEPS, -1) for k in chosen}, 0
    nil = np.array([NIL], np.int64)
    shares = np.full(len(chosen), max(1, budget.steps // len(chosen)), np.int64)
    code, position, steps = antichain.judge_keys(operations, chosen, nil, shares, budget.size_bytes)
    for i, k in enumerate(chosen.tolist()):
        found[k] = _Searched(int(code[i]), int(position[i]))
    taken = int(steps.sum())
    for k in chosen[code == antichain.OUT_OF_STEPS].tolist():
        left = np.array([max(0, budget.steps - taken)], np.int64)
        if left[0] > shares[0]:
            again = np.array([k], np.int32)
            code, position, steps = antichain.judge_keys(operations, again, nil, left, budget.size_bytes)
            found[k] = _Searched(int(code[0]), int(position[0]))
            taken += int(steps[0])
    return found, taken
