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

*Window.*  The history shrinks to the smallest window that no order explains.  As in `shrink_witness_unique_values.py`,
operations may be dropped only if this cannot create a violation: if the whole history has an order, the rest must have
one too.  With repeated values there are no blocks.  These may be dropped:

  * a read, or a mismatch: it changes nothing;
  * a value, with all operations that wrote or read it.  A cas that replaced it stays as a write of the new value, which
    demands less.  (Take an order of the whole history, and leave these operations out.  All others still find the
    values they saw, because the last mutator before them is still there.)  No value is dropped while a mismatch
    remains, because the value may explain the mismatch;
  * the past: all operations that had returned before some moment, if the states they can lead to replace them.
    An operation under way at that moment stays, and may happen at any time later, or never.

First the history is cut at the first answer that no order explains.  Then the past is cut off at the latest moment from
which the rest still has no order.  Then reads are dropped, then values, then reads again.  The independent search
judges the result.

*Budget.*  Each question to the search kernel has a budget, and all together have one too.  Before each step the kernel
answers one question: does the smaller history still have no order?  If the budget ends before the answer, an order may
exist, and the step is not made.  So the window stays larger, and it is still one that no order explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from checkers.base.arrays import Bools, Int64
from checkers.base.shrinking import drop_in_pieces, first_that_holds
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE, Operations
from checkers.kernels.registers import antichain
from checkers.kernels.registers import unique_values as register
from checkers.kernels.registers.unique_values import Key
from checkers.registers.explain_unique_values import UNEXPLAINED, ValueStory, at, beginning, value_of, who
from checkers.registers.shrink_witness_unique_values import (
    Excerpt,
    Window,
    as_value,
    drop_observers,
    judged_again,
    part_of,
    right_answers,
    value_left,
    without,
)
from checkers.sealing.key_buckets import Bucket

VALUES_MAX = 64
"""If more values than this are possible before the window, none of them is ruled out."""

PAST_MAX = 2_000
"""Number of positions before a moment that are judged to rule out a state at that moment.

If only older operations rule out a state, the window may still begin with it.  Then the window demands less, not more.
"""

POSITIONS_TRIED = 20_000_000
"""Limit of positions that are judged again while right answers are tried, all answers together."""

RIVALS_TRIED = 8
"""Reads before the culprit's answer that are left out, one at a time, to find one that contradicts it."""

NO_ORDER = 9
"""`Window.code` of windows made here, unless it is `register.FROM_NOWHERE`."""


def smallest_window(key: Key, positions: int, impossible_at: int, questions: Questions | None = None) -> Window:
    """The smallest window of a key without an order.

    impossible_at: the position at which the search kernel was certain that there is no order.
    questions: the budget of questions to the kernel.  If it runs out, the window is larger, and `Window.unfinished` is
    true.
    Raises Disagreement if the independent search finds an order.
    """
    ask = Questions(positions) if questions is None else questions
    made = _first_made(key)
    limit = _first_impossible(ask, key, positions, impossible_at + 1, made)
    [culprit] = (int(op) for op in np.flatnonzero(key.ret == limit - 1))
    everything = Excerpt(np.flatnonzero(key.call < limit))
    produced = _values_before(made, limit)

    def impossible(some: Excerpt) -> bool:
        return _impossible(ask, key, limit, some)

    from_nowhere = key.kind[culprit] in (READ, CAS) and int(key.a[culprit]) not in produced
    if from_nowhere:
        excerpt = Excerpt(np.array([culprit]))
    else:
        excerpt = _cut_past(ask, key, limit, everything, made)
        excerpt = drop_observers(key, excerpt, culprit, impossible)
        excerpt = _drop_values(key, excerpt, culprit, produced, impossible)
        excerpt = drop_observers(key, excerpt, culprit, impossible)
    tried = produced[: min(VALUES_MAX, max(1, POSITIONS_TRIED // limit))]
    window = Window(
        code=register.FROM_NOWHERE if from_nowhere else NO_ORDER,
        limit=limit,
        culprit=culprit,
        operations=tuple(excerpt.operations.tolist()),
        weakened=excerpt.weakened,
        last_before=_last_before(key, excerpt.since),
        states_before=tuple(as_value(value) for value in excerpt.starts),
        right=right_answers(key, culprit, tried, lambda k: ask.code(k, limit, (NIL,)) == antichain.LINEARIZABLE),
    )
    return judged_again(key, replace(window, unfinished=ask.ran_out), "the antichain kernel", excerpt.carried)


def _first_impossible(ask: Questions, key: Key, positions: int, certain: int, made: tuple[Int64, Int64]) -> int:
    """The length, in positions, of the shortest prefix that has no order.  certain: a lower bound of it.

    The kernel reads events ahead, so it is certain before the prefix ends.  Mostly the events near `certain` have no
    order by themselves.  Then the whole history is judged only once more, one position shorter.
    """
    earlier, near = max(0, certain - PAST_MAX), min(positions, certain + PAST_MAX)

    def shown(limit: int) -> bool:
        excerpt = _since(key, earlier, limit, made)
        return len(excerpt.starts) <= VALUES_MAX and _impossible(ask, key, limit, excerpt)

    def impossible(limit: int) -> bool:
        return ask.has_no_order(key, limit, (NIL,), whole=True)

    if earlier and shown(near):
        positions = first_that_holds(certain, near, shown, times=4)
        if positions == certain or not impossible(positions - 1):
            return _to_the_last_return(key, positions)
        positions -= 1
    return _to_the_last_return(key, first_that_holds(certain, positions, impossible, times=4))


def _to_the_last_return(key: Key, limit: int) -> int:
    """The length of a prefix without the calls at its end.  A call without a return forbids no order.

    There are such calls only if a question had no answer within its budget.
    """
    return int(key.ret[key.ret < limit].max()) + 1


def _last_before(key: Key, since: int) -> int | None:
    """The operation that returned last before a position; None if there is none."""
    last = int(np.argmax(np.where(key.ret < since, key.ret, -1)))
    return last if key.ret[last] < since else None


def _impossible(ask: Questions, key: Key, limit: int, excerpt: Excerpt) -> bool:
    if ask.ran_out:
        return False
    part, points = part_of(key, limit, excerpt)
    return ask.has_no_order(part, len(points), excerpt.starts)


def _first_made(key: Key) -> tuple[Int64, Int64]:
    """(all values that an operation may produce, ascending; for each the position of its first such call).

    nil is among the values, with the position -1.
    """
    makers = (key.kind == WRITE) | (key.kind == CAS)
    values = np.append(value_left(key)[makers], NIL)
    calls = np.append(key.call[makers], -1)
    order = np.argsort(calls, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    return found, calls[order][first].astype(np.int64)


def _values_before(made: tuple[Int64, Int64], position: int) -> list[int]:
    """nil and all values that an operation may have produced before a position, ascending.  made: of `_first_made`."""
    values, first = made
    return [int(value) for value in values[first < position]]


def _cut_past(ask: Questions, key: Key, limit: int, everything: Excerpt, made: tuple[Int64, Int64]) -> Excerpt:
    """The excerpt from the latest moment from which the rest has no order.

    Moments are tried from the end backwards in steps that double, and then by halving.
    """
    moments = key.call[everything.operations]
    found = {len(moments): everything}

    def impossible_since(moments_left: int) -> bool:
        excerpt = _from_moment(ask, key, limit, int(moments[-moments_left]), made)
        if excerpt is not None:
            found[moments_left] = excerpt
        return excerpt is not None

    return found[first_that_holds(1, len(moments), impossible_since, times=2)]


def _from_moment(ask: Questions, key: Key, limit: int, since: int, made: tuple[Int64, Int64]) -> Excerpt | None:
    """The excerpt from a position on; None unless it has no order from any state that the past may have led to."""
    excerpt = _since(key, since, limit, made)
    held = list(excerpt.starts)
    if len(held) <= VALUES_MAX and not _impossible(ask, key, limit, excerpt):
        held = [value for value in held if _may_hold(ask, key, since, value, made)]
        excerpt = replace(excerpt, starts=tuple(held))
    if not held or not _impossible(ask, key, limit, excerpt):
        return None
    if len(held) <= VALUES_MAX:
        certain = tuple(value for value in held if _may_hold(ask, key, since, value, made))
        excerpt = replace(excerpt, starts=certain or excerpt.starts)
    return excerpt


def _since(key: Key, since: int, limit: int, made: tuple[Int64, Int64]) -> Excerpt:
    """The operations called from a position on, and the mutators that are under way there."""
    mutates = (key.kind == WRITE) | (key.kind == CAS)
    carried = np.flatnonzero((key.call < since) & (key.ret > since) & mutates)
    later = np.flatnonzero((key.call >= since) & (key.call < limit))
    operations = np.sort(np.concatenate([carried, later]))
    return Excerpt(operations, tuple(_values_before(made, since)), since, frozenset(carried.tolist()))


def _may_hold(ask: Questions, key: Key, since: int, value: int, made: tuple[Int64, Int64]) -> bool:
    """Return whether the key may hold a value at a position.  It may, unless the past certainly forbids such a read."""
    if ask.ran_out:
        return True
    earlier = max(0, since - PAST_MAX)
    recent = _since(key, earlier, since, made) if earlier else Excerpt(np.flatnonzero(key.call < since))
    past, points = part_of(key, since, recent)
    end = len(points)
    columns: tuple[Any, ...] = past
    cells = (READ, value, NIL, end, end + 1)
    read = (np.append(column, np.array([cell], column.dtype)) for column, cell in zip(columns, cells, strict=True))
    return not ask.has_no_order(Key._make(read), end + 2, recent.starts)


def _drop_values(
    key: Key, excerpt: Excerpt, culprit: int, produced: list[int], impossible: Callable[[Excerpt], bool]
) -> Excerpt:
    """Drop every value that is not needed, with all operations that wrote or read it."""
    if (key.kind[excerpt.operations] == MISMATCH).any():
        return excerpt
    needed = {int(key.a[culprit]), int(value_left(key, culprit))}
    values = [value for value in produced if value not in needed]

    def without(some: Sequence[int], rest: Excerpt) -> Excerpt:
        ops = rest.operations
        gone = np.isin(value_left(key, ops), some)
        replaced = ops[~gone & (key.kind[ops] == CAS) & np.isin(key.a[ops], some)]
        return replace(rest, weakened=rest.weakened | set(replaced.tolist())).without(ops[gone].tolist())

    return drop_in_pieces(values, excerpt, without, impossible)


def latest_rival(key: Key, limit: int, culprit: int, ask: Questions) -> int | None:
    """The latest read before the culprit's answer without which all answers so far have an order.

    At most RIVALS_TRIED reads are tried.  None if there is none among them.
    """
    reads = np.flatnonzero((key.kind == READ) & (key.ret < limit) & (np.arange(len(key.kind)) != culprit))
    latest = reads[np.argsort(-key.ret[reads])]
    for op in latest[: min(RIVALS_TRIED, max(1, POSITIONS_TRIED // limit))].tolist():
        if ask.code(without(key, op), limit, (NIL,), whole=True) == antichain.LINEARIZABLE:
            return int(op)
    return None


STEPS_OF_ONE = 20_000_000
"""Steps of one question."""

STEPS_BESIDES = 20_000
"""Additional steps of each question, for the time in which Python makes its arrays (0.5 ms, measured)."""

STEPS_IN_ALL, STEPS_IN_ALL_PER_POSITION = 200_000_000, 10
"""Steps of all questions of one witness: at most 5 to 10 s of a core for a history of some million operations."""

SIZE_BYTES_MAX = 1_000_000_000


class Questions:
    """The steps that are left for one witness."""

    def __init__(self, positions: int, steps_in_all: int | None = None) -> None:
        """positions: of the whole key.  The budget grows with them, so a few questions may be about a long history."""
        self._positions = positions
        in_all = STEPS_IN_ALL + STEPS_IN_ALL_PER_POSITION * positions
        self._left = in_all if steps_in_all is None else steps_in_all

    @property
    def ran_out(self) -> bool:
        """Return whether no steps are left.  Then no further question gets an answer."""
        return self._left <= 0

    def code(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> int:
        """The kernel's code for the first `limit` positions of a key; OUT_OF_STEPS if no step is left.

        starts: values that the key may hold at first.  whole: the question is about the whole history, so its budget
        grows with the number of positions.
        """
        if self._left <= 0:
            return antichain.OUT_OF_STEPS
        allowed = STEPS_OF_ONE + (10 * self._positions if whole else 0)
        code, _, steps = antichain.judge_key(
            key, limit, np.array(starts, np.int64), min(allowed, self._left), SIZE_BYTES_MAX
        )
        self._left -= int(steps) + STEPS_BESIDES
        return int(code)

    def has_no_order(self, key: Key, limit: int, starts: Sequence[int], whole: bool = False) -> bool:
        """Return whether it is certain that no order exists.  Parameters as of `code`."""
        return self.code(key, limit, starts, whole) == antichain.NO_ORDER


AGAINST_ACKNOWLEDGEMENT = "read against acknowledgement"


def story_of(bucket: Bucket, operations: Operations, key: Key, impossible_at: int) -> RepeatedValueStory:
    """Return the story of the only key of a bucket.

    impossible_at: position at which the kernel was certain that no order exists.
    Raises Disagreement if the independent search finds an order."""
    positions = int(operations.positions[0])
    window = smallest_window(key, positions, impossible_at)
    story = RepeatedValueStory(bucket, operations, key, window)
    if story.kind() != "order cycle":
        return story
    rival = latest_rival(key, window.limit, window.culprit, Questions(positions))
    return RepeatedValueStory(bucket, operations, key, replace(window, rival=rival))


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

    def _makers(self) -> Bools:
        return np.asarray((self.key.kind == WRITE) | (self.key.kind == CAS))

    def _acknowledged_last(self) -> int | None:
        """The operation that was acknowledged last before the culprit's invoke, of those that produced another value
        than the culprit saw; None if there is none."""
        key, culprit = self.key, self.window.culprit
        before = np.flatnonzero(
            self._makers() & (value_left(self.key) != key.a[culprit]) & (key.ret < key.call[culprit])
        )
        return int(before[np.argmax(key.ret[before])]) if len(before) else None

    def _answered_elsewhere(self, newest: int) -> bool:
        """Return whether one node acknowledged this operation, and a different node answered the read."""
        acknowledged, read = self.answer(newest)["node"], self.answer(self.window.culprit)["node"]
        return bool(acknowledged and read and acknowledged != read)

    def _took_effect(self, newest: int) -> bool:
        """Return whether a read at one node returned the value of this operation, which another node had acknowledged,
        and no other operation explains that answer."""
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
        """The beginning of a sentence: the two answers that contradict each other, in order of time."""
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
        """Return whether the culprit is a read that had to show the value of the write that was acknowledged last
        before."""
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
        written, culprit, rival = self._written_between(), self.window.culprit, self.window.rival
        if written is None or rival is None:
            return super()._both_in_words()
        start = self.acknowledged_before_a_read(written, "but")
        return (
            f"{start} does not see it: it got {value_of(self.key.a[culprit])} from {who(self.answer(culprit))}, as a "
            f"read before that write had at {at(self.answer(rival))}; {self._which_is_wrong()}"
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
        """Return why no order explains the answer, if no chain of values shows it."""
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
