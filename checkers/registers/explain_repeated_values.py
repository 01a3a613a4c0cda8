"""Builds the witness of a key in which values repeat.  Its claims are weaker than those of `explain_unique_values.py`.

If clients write 3 again and again, a witness can rarely claim "nothing wrote 3 again".  So an answer is a *stale read*
here only if every operation that may have produced its value had certainly been overwritten before the read began.
Every other violation is a value from nowhere or an *order cycle*, and the witness lists the possible values.

Even a stale value does not prove that the read was the wrong answer.  If one node acknowledged a newer value and
another node answered the read, one of the two was wrong.  Either the node that answered the read has stale data, or the
acknowledged write never took effect.  The history decides between these cases if it shows one of the following:

    stale read           another node returned the newer value too, so the write took effect
    lost write           no answer showed the newer value, and the node that answered the read also acknowledged the
                         next write

Otherwise the kind is *read against acknowledgement*, which says that either node may be wrong.

An order cycle may depend on an earlier read: without that read, all answers have an order.  Then the summary names
both answers, and says that either may be wrong.  If both reads got the same value, and a write of another value was
acknowledged between them, the summary begins with that write: the later read does not see the write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from checkers.base.arrays import Bools
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE, Operations
from checkers.kernels.register_unique_values import Key
from checkers.registers.explain_unique_values import UNEXPLAINED, ValueStory, at, beginning, value_of, who
from checkers.registers.smallest_window import Questions, as_value, rivals_among, smallest_window, value_left
from checkers.sealing.key_buckets import Bucket

AGAINST_ACKNOWLEDGEMENT = "read against acknowledgement"


def story_of(bucket: Bucket, operations: Operations, key: Key, impossible_at: int) -> RepeatedValueStory:
    """Return the story of the only key of a bucket.

    Raises Disagreement if the independent search finds an order.

    impossible_at: position at which the kernel had proved that no order exists
    """
    positions = int(operations.positions[0])
    window = smallest_window(key, positions, impossible_at)
    story = RepeatedValueStory(bucket, operations, key, window)
    if story.kind() != "order cycle":
        return story
    everything = range(len(key.kind))
    rival = next(rivals_among(key, window.limit, window.culprit, everything, Questions(positions)), None)
    return RepeatedValueStory(bucket, operations, key, replace(window, rival=rival))


class RepeatedValueStory(ValueStory):
    """A story in which several operations may have produced the value of an answer."""

    key: Key
    kind_so_far = AGAINST_ACKNOWLEDGEMENT

    def kind(self) -> str:
        if self.window.from_nowhere:
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

    def _makers(self) -> Bools:
        return np.asarray((self.key.kind == WRITE) | (self.key.kind == CAS))

    def _acknowledged_last(self) -> int | None:
        """Return the operation that was acknowledged last before the culprit's invoke, among those that produced a
        different value than the culprit saw.  Returns None if there is none.
        """
        key, culprit = self.key, self.window.culprit
        before = np.flatnonzero(
            self._makers() & (value_left(self.key) != key.a[culprit]) & (key.ret < key.call[culprit])
        )
        return int(before[np.argmax(key.ret[before])]) if len(before) else None

    def _answered_elsewhere(self, newest: int) -> bool:
        """Return True if one node acknowledged this operation and a different node answered the read."""
        acknowledged, read = self.answer(newest)["node"], self.answer(self.window.culprit)["node"]
        return bool(acknowledged and read and acknowledged != read)

    def _took_effect(self, newest: int) -> bool:
        """Return True if a node other than the one that acknowledged this operation returned its value to a read, and
        no other operation explains that answer."""
        key, made = self.key, value_left(self.key)
        value, node = made[newest], self.answer(newest)["node"]
        seen = ((key.kind == READ) | (key.kind == CAS)) & (key.a == value)
        seen &= (key.ret != OPEN) & (key.ret > key.call[newest])
        others = self._makers() & (made == value)
        others[newest] = False
        older = key.ret[others & (key.call < key.call[newest])].max(initial=-1)
        later = key.call[others & (key.call > key.call[newest])].min(initial=OPEN)
        overwritten = self._makers() & (made != value) & (key.call > older)
        reads = [int(op) for op in np.flatnonzero(seen & (key.ret < later))]
        return any((overwritten & (key.ret < key.call[op])).any() and self.answer(op)["node"] != node for op in reads)

    def facts(self, kind: str) -> dict[str, Any]:
        if kind != AGAINST_ACKNOWLEDGEMENT:
            return super().facts(kind)
        return {"suspects": [self.accused(self.lost()), self.accused(self.window.culprit)]}

    def _read_and_acknowledgement(self) -> str:
        """Return the beginning of a sentence that names the two contradicting answers, in order of time."""
        culprit = self.window.culprit
        start = self.acknowledged_before_a_read(self.lost(), "and")
        return f"{start} got {value_of(self.key.a[culprit])} from {who(self.answer(culprit))}"

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
        """Return True if the culprit is a read and the only right answer was the value of the write that was
        acknowledged last before it."""
        newest = self._acknowledged_last()
        reads = self.key.kind[self.window.culprit] == READ
        return bool(reads) and newest is not None and tuple(self.window.right) == (self.made(newest),)

    def _written_between(self) -> int | None:
        """Return the operation of the window that was acknowledged last between two reads of the same other value.

        Returns None if there is no such operation, or if the rival and the culprit are not two such reads.
        """
        key, culprit, rival = self.key, self.window.culprit, self.window.rival
        assert rival is not None
        if key.kind[culprit] != READ or key.kind[rival] != READ or key.a[culprit] != key.a[rival]:
            return None
        between = [op for op in self.overwriters if key.call[op] > key.ret[rival] and key.ret[op] < key.call[culprit]]
        return max(between, key=lambda op: int(key.ret[op]), default=None)

    def wrong_one(self) -> str | None:
        """Return None: later answers confirm neither read, because another write may have produced their value."""
        return None

    def _both_in_words(self) -> str:
        written, culprit, rival = self._written_between(), self.window.culprit, self.window.rival
        if written is None or rival is None:
            return super()._both_in_words()
        start = self.acknowledged_before_a_read(written, "but")
        return (
            f"{start} does not see it: it got {value_of(self.key.a[culprit])} from {who(self.answer(culprit))}, the "
            f"value that a read at {at(self.answer(rival))} had returned before that write; {self._which_is_wrong()}"
        )

    def _which_is_wrong(self) -> str:
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
        """Return the value alone, without its write, because several writes may have produced it."""
        return value_of(NIL if value is None else value)

    def find_overwriters(self) -> list[int]:
        """Return the operations of the window that left a different value than the culprit saw, in order of call."""
        culprit = self.window.culprit
        makers = [op for op in self.window.operations if self.key.kind[op] in (WRITE, CAS) and op != culprit]
        return [op for op in makers if self.operations_value(op) != self.key.a[culprit]]

    def _certainly_overwritten(self) -> bool:
        key, culprit = self.key, self.window.culprit
        if key.kind[culprit] != READ:
            return False
        made, mutates = value_left(self.key), self._makers()
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
        """Return the reasons why no order explains the answer, for windows in which values repeat."""
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
        return [words, f"{beginning(self._answered_in_words(self.window.rival))}: {self._which_is_wrong()}"]

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
            f"its acknowledgement by {who(lost)} was wrong"
        )

    def made(self, op: int) -> int | None:
        if self.key.kind[op] == MISMATCH:
            return as_value(int(self.key.a[op]))
        return super().made(op)
