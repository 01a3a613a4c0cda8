"""The witness of a register's key in which values repeat: the story of `unique_witness.py`, with weaker claims.

A witness can rarely claim "nothing wrote 3 again" where 3 is written all the time.  So an answer is a *stale read* here
only if every operation that may have produced its value had certainly been overwritten before the read began.  Every
other violation is a value from nowhere or an *order cycle*, and the witness lists what the window could have held.
"""

from __future__ import annotations

import numpy as np

from checkers.base.independent_search import Disagreement
from checkers.base.verdict import Witness
from checkers.kernels.operations import CAS, MISMATCH, NIL, READ, WRITE, Operations
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key
from checkers.registers.repeated_window import smallest_window
from checkers.registers.unique_window import as_value
from checkers.registers.unique_witness import UNEXPLAINED, Story, witness_of
from checkers.sealing.key_buckets import Bucket


def explain(bucket: Bucket, operations: Operations, k: int, impossible_at: int) -> tuple[int, Witness]:
    """The witness for key number k, and the index of the answer that no order explains.

    impossible_at: the position at which the kernel knew.  Raises Disagreement where the independent search contradicts.
    """
    key = register.key_of(operations, k)
    try:
        window = smallest_window(key, int(operations.positions[k]), impossible_at)
    except Disagreement as problem:
        raise Disagreement(f"key {bucket.keys[k]}: {problem}; this is an error of the checker") from problem
    return witness_of(RepeatedStory(bucket, operations, k, key, window))


class RepeatedStory(Story):
    """As Story, where several operations may have produced what an answer saw."""

    key: Key

    def kind(self) -> str:
        if self.window.code == register.FROM_NOWHERE:
            return "value from nowhere"
        return "stale read" if self._certainly_overwritten() else "order cycle"

    def summary(self, kind: str) -> str:
        summary = super().summary(kind)
        if summary.endswith(UNEXPLAINED) and self.window.right:
            return summary.removesuffix(UNEXPLAINED) + f"; right would have been {self.expected()}"
        return summary

    def find_overwriters(self) -> list[int]:
        """The operations of the window that produced another value than the culprit saw, in order of call."""
        culprit = self.window.culprit
        makers = [op for op in self.window.operations if self.key.kind[op] in (WRITE, CAS) and op != culprit]
        return [op for op in makers if self.operations_value(op) != self.key.a[culprit]]

    def _certainly_overwritten(self) -> bool:
        key, culprit = self.key, self.window.culprit
        if key.kind[culprit] != READ:
            return False
        made = np.where(key.kind == CAS, key.b, key.a)
        mutates = (key.kind == WRITE) | (key.kind == CAS)
        producers = np.flatnonzero(mutates & (made == key.a[culprit]) & (key.call < self.window.limit))
        last_ret = int(key.ret[producers].max(initial=-1)) if len(producers) or key.a[culprit] == NIL else None
        if last_ret is None:
            return False
        others = mutates & (made != key.a[culprit])
        return bool((others & (key.call > last_ret) & (key.ret < key.call[culprit])).any())

    def before(self) -> str:
        held = [str(value) if value is not None else "nil" for value in self.window.states_before]
        listed = " or ".join(held[:6]) + (f" or one of {len(held) - 6} more" if len(held) > 6 else "")
        return f"Before this window {self.name} can only have held {listed}"

    def no_order(self, culprit: str, value: str) -> list[str]:
        """Why no order explains the answer, if no chain of values shows it."""
        op = self.window.culprit
        if self.key.kind[op] == MISMATCH:
            return [f"In every order of the others {self.name} held {value} all the while {culprit} was under way"]
        if self._certainly_overwritten():
            return [f"Every write of {value} had been overwritten before {culprit} was invoked"]
        return [f"In no order of the others does {self.name} hold {value} while {culprit} is under way"]

    def made(self, op: int) -> int | None:
        if self.key.kind[op] == MISMATCH:
            return as_value(int(self.key.a[op]))
        return super().made(op)
