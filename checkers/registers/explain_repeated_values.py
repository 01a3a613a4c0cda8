"""The witness of a register's key in which values repeat: the story of `explain_unique_values.py`, with weaker claims.

If clients write 3 again and again, a witness can rarely claim "nothing wrote 3 again".  So an answer is a *stale read*
here only if every operation that may have produced its value had certainly been overwritten before the read began.
Every other violation is a value from nowhere or an *order cycle*, and the witness lists the possible values.

Even a stale value does not prove that the read was the wrong answer.  If one node acknowledged a newer value and
another node answered the read, one of the two was wrong.  Either the node that answered the read is behind, or the
acknowledged write never took effect.  The history decides this in two cases:

    stale read           another node showed the newer value too, so the write took effect
    lost write           nothing showed the newer value, and the node that answered the read acknowledged the next write

Otherwise the kind is *read against acknowledgement*, which blames neither node.

An order cycle may rest on an earlier read: if that read is left out, all answers have an order.  Then the summary names
both answers, and blames neither.  If both reads got one value, and a write of another value was acknowledged between
them, the summary begins with that write: the later read does not see it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from checkers.base.arrays import Bools, Int64
from checkers.base.independent_search import Disagreement
from checkers.base.verdict import Witness
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE, Operations
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key
from checkers.registers.explain_unique_values import UNEXPLAINED, ValueStory, at, span_before, value_of, who, witness_of
from checkers.registers.shrink_witness_repeated_values import Questions, latest_rival, smallest_window
from checkers.registers.shrink_witness_unique_values import as_value
from checkers.sealing.history_rows import Row, read_rows
from checkers.sealing.key_buckets import Bucket

AGAINST_ACKNOWLEDGEMENT = "read against acknowledgement"


def explain(bucket: Bucket, operations: Operations, k: int, impossible_at: int) -> tuple[int, Witness]:
    """The witness for key number k, and the index of the answer that no order explains.

    impossible_at: the position at which the kernel was certain that no order exists.
    Raises Disagreement if the independent search finds an order.
    """
    key = register.key_of(operations, k)
    try:
        window = smallest_window(key, int(operations.positions[k]), impossible_at)
    except Disagreement as problem:
        raise Disagreement(f"key {bucket.keys[k]}: {problem}; this is an error of the checker") from problem
    story = RepeatedValueStory(bucket, operations, k, key, window)
    if story.kind() == "order cycle":
        rival = latest_rival(key, window.limit, window.culprit, Questions(int(operations.positions[k])))
        story = RepeatedValueStory(bucket, operations, k, key, replace(window, rival=rival))
    return witness_of(story)


class RepeatedValueStory(ValueStory):
    """A story in which several operations may have produced the value of an answer."""

    key: Key
    kind_so_far = AGAINST_ACKNOWLEDGEMENT

    def kind(self) -> str:
        if self.window.code == register.FROM_NOWHERE:
            return "value from nowhere"
        if not self._certainly_overwritten():
            return "order cycle"
        newest = self._acknowledged_last()
        if newest is None or not self._answered_elsewhere(newest) or self._took_effect(newest):
            return "stale read"
        return "lost write" if self._reader_leads() else AGAINST_ACKNOWLEDGEMENT

    def lost(self) -> int:
        newest = self._acknowledged_last()
        assert newest is not None
        return newest

    def answer(self, op: int) -> Row:
        row = self._places(op)[1]
        if row not in self._rows:  # an operation that the states before the window replace
            [self._rows[row]] = read_rows(self.bucket.history, [row])
        return self._rows[row]

    def _makers(self) -> Bools:
        return np.asarray((self.key.kind == WRITE) | (self.key.kind == CAS))

    def _made_by(self) -> Int64:
        return np.where(self.key.kind == CAS, self.key.b, self.key.a)

    def _acknowledged_last(self) -> int | None:
        """The operation that was acknowledged last before the culprit's invoke, of those that produced another value
        than the culprit saw; None if there is none."""
        key, culprit = self.key, self.window.culprit
        before = np.flatnonzero(self._makers() & (self._made_by() != key.a[culprit]) & (key.ret < key.call[culprit]))
        return int(before[np.argmax(key.ret[before])]) if len(before) else None

    def _answered_elsewhere(self, newest: int) -> bool:
        """Whether one node acknowledged this operation, and a different node answered the read."""
        acknowledged, read = self.answer(newest)["node"], self.answer(self.window.culprit)["node"]
        return bool(acknowledged and read and acknowledged != read)

    def _took_effect(self, newest: int) -> bool:
        """Whether a node showed the value of this operation that another node acknowledged, and only this operation
        explains the answer."""
        key, made = self.key, self._made_by()
        value = made[newest]
        seen = ((key.kind == READ) | (key.kind == CAS)) & (key.a == value)
        seen &= (key.ret != OPEN) & (key.ret > key.call[newest])
        others = self._makers() & (made == value)
        others[newest] = False
        older = key.ret[others & (key.call < key.call[newest])].max(initial=-1)
        later = key.call[others & (key.call > key.call[newest])].min(initial=OPEN)
        overwritten = self._makers() & (made != value) & (key.call > older)
        for read in np.flatnonzero(seen & (key.ret < later)):
            if (overwritten & (key.ret < key.call[read])).any() and self._node_of(int(read)) != self._node_of(newest):
                return True
        return False

    def _node_of(self, op: int) -> str | None:
        node: str | None = read_rows(self.bucket.history, [self._places(op)[1]], ["node"])[0]["node"]
        return node

    def facts(self, kind: str) -> dict[str, Any]:
        if kind != AGAINST_ACKNOWLEDGEMENT:
            return super().facts(kind)
        answers = [self.answer(self.lost()), self.answer(self.window.culprit)]
        return {"suspects": [{"node": row["node"], "time_ns": row["time_ns"]} for row in answers]}

    def _read_and_acknowledgement(self) -> str:
        """The beginning of a sentence: the two answers that contradict each other, in order of time."""
        culprit, lost = self.window.culprit, self.answer(self.lost())
        later = span_before(lost, self.invoke(culprit), "later")
        return (
            f"At {at(lost)} {who(lost)} acknowledged {self.wrote(self.lost())} for {self.name}, and a read that began "
            f"{later} got {value_of(self.key.a[culprit])} from {who(self.answer(culprit))}"
        )

    def summary(self, kind: str) -> str:
        if kind == "lost write":
            return self._read_and_acknowledgement() + ", which acknowledged the next write too"
        if kind == AGAINST_ACKNOWLEDGEMENT:
            return self._read_and_acknowledgement() + ": one of the two answers was wrong"
        summary = super().summary(kind)
        if summary.endswith(UNEXPLAINED) and self._only_newest_is_right():
            return f"{self._read_and_acknowledgement()}: that read does not see the acknowledged write"
        if summary.endswith(UNEXPLAINED) and self.window.right:
            return summary.removesuffix(UNEXPLAINED) + f"; right would have been {self.expected()}"
        return summary

    def _only_newest_is_right(self) -> bool:
        """Whether the culprit is a read that had to show the value of the write that was acknowledged last before."""
        newest = self._acknowledged_last()
        reads = self.key.kind[self.window.culprit] == READ
        return bool(reads) and newest is not None and tuple(self.window.right) == (self.made(newest),)

    def _written_between(self) -> int | None:
        """The operation of the window that was acknowledged last between two reads of one and the same other value;
        None if there is none, or if the rival and the culprit are no such reads."""
        key, culprit, rival = self.key, self.window.culprit, self.window.rival
        assert rival is not None
        if key.kind[culprit] != READ or key.kind[rival] != READ or key.a[culprit] != key.a[rival]:
            return None
        between = [op for op in self.overwriters if key.call[op] > key.ret[rival] and key.ret[op] < key.call[culprit]]
        return max(between, key=lambda op: int(key.ret[op]), default=None)

    def wrong_one(self) -> str | None:
        """None: a later answer with the same value may show another write of it."""
        return None

    def _both_in_words(self) -> str:
        assert self.window.rival is not None
        if (written := self._written_between()) is not None:
            return self._missing_in_words(written)
        first, second = self._answered_in_words(self.window.rival), self._answered_in_words(self.window.culprit)
        return f"{first[0].upper()}{first[1:]}, and {second}: {self._without_either()}"

    def _missing_in_words(self, written: int) -> str:
        """The summary of two reads of one value, between which another value was acknowledged."""
        culprit, rival = self.window.culprit, self.window.rival
        assert rival is not None
        row, later = self.answer(written), span_before(self.answer(written), self.invoke(culprit), "later")
        got = value_of(self.key.a[culprit])
        return (
            f"At {at(row)} {who(row)} acknowledged {self.wrote(written)} for {self.name}, but a read that began "
            f"{later} does not see it: it got {got} from {who(self.answer(culprit))}, as a read "
            f"before that write had at "
            f"{at(self.answer(rival))}; {self._without_either()}"
        )

    def _without_either(self) -> str:
        f = "read" if self.key.kind[self.window.culprit] == READ else "cas"
        left_out = f"if the first read or this {f} is left out, all answers so far have an order"
        return f"{left_out}, so the two contradict each other"

    def expected(self) -> str:
        if self.window.rival is None:
            return super().expected()
        right = self._expected_of_culprit()
        return (
            f"another answer to the read at {at(self.answer(self.window.rival))}, or, if that read was right, {right}"
        )

    def _with_its_write(self, value: int | None) -> str:
        """The value alone: several writes may have produced it."""
        return value_of(NIL if value is None else value)

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
            return [f"In every order of the other operations {self.name} holds {value} while {culprit} is under way"]
        if self.kind() == AGAINST_ACKNOWLEDGEMENT:
            return self._either()
        if self._certainly_overwritten():
            return [f"Every write of {value} had been overwritten before {culprit} was invoked"]
        words = f"In no order of the other operations does {self.name} hold {value} while {culprit} is under way"
        if self.window.rival is None:
            return [words]
        first = self._answered_in_words(self.window.rival)
        return [words, f"{first[0].upper()}{first[1:]}: {self._without_either()}"]

    def _either(self) -> list[str]:
        newest, read = self.answer(self.lost()), self.answer(self.window.culprit)
        return [
            f"Every write of {value_of(self.key.a[self.window.culprit])} had been overwritten before the read was "
            f"invoked, if {self.wrote(self.lost())} was written",
            f"Either {who(newest)} acknowledged a write that did not take effect, or {who(read)} answered with an "
            "older value; the answers do not show which",
        ]

    def lost_in_why(self) -> str:
        lost, read = self.answer(self.lost()), self.answer(self.window.culprit)
        return (
            f"No other node showed {self.wrote(self.lost())}, and {who(read)} acknowledged the next write, so "
            f"{who(lost)} was wrong to acknowledge it"
        )

    def made(self, op: int) -> int | None:
        if self.key.kind[op] == MISMATCH:
            return as_value(int(self.key.a[op]))
        return super().made(op)
