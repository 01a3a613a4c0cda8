"""Turns the window of a wrong key into a witness that a reader can verify: its kind, its summary, and the reasons.

A witness of each kind makes one claim:

    value from nowhere   no write that may have happened could have produced the value of the answer
    lost write           a read returned an older value although a newer one was acknowledged.  No answer ever showed
                         the newer value, and one of these shows that the older value stayed: the node that acknowledged
                         the newer value returned the older one again, or the last read of the history did, or the node
                         that answered the read acknowledged the next write.  So the acknowledgement was wrong, and not
                         the read
    stale read           a read returned a value that had certainly been overwritten before the read began
    order cycle          no order explains the answers, for any other reason (e.g. two cas replaced the same value)

Two answers may contradict each other: if either of them is left out, all answers have an order.  Then the summary names
both.  It calls one of them wrong only if later answers of other nodes confirm the other answer and not this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkers.base.history import doubt_of_refusal
from checkers.base.values import letter, span_in_words
from checkers.base.verdict import Witness
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE, Operations
from checkers.kernels.register_unique_values import Key
from checkers.registers.smallest_window import Window, as_value, producer_of, smallest_window, value_left
from checkers.sealing.key_buckets import Bucket
from checkers.sealing.sealed_history import Row, read_rows, refused

UNEXPLAINED = ", which no order of the operations around it explains"


def story_of(bucket: Bucket, operations: Operations, key: Key) -> ValueStory:
    """Return the story of the only key of a bucket.

    Raises Disagreement if the independent search finds an order.

    operations: the key's operations, with values and rows
    """
    return ValueStory(bucket, operations, key, smallest_window(key, int(operations.positions[0])))


def witness_of(story: ValueStory) -> tuple[int, Witness]:
    """Return the index of the answer that no order explains, and the witness."""
    window = story.window
    kind = story.kind()
    facts = {
        "key": story.name,
        "states_before": list(window.states_before),
        "why": story.why(kind),
        "expected": story.expected(),
        "operations": story.listed(),
        "letters": {str(story.invoke(op)["index"]): name for op, name in story.letters.items()},
        "culprit": story.letters[window.culprit],
        "rejudged": window.rejudged,
    }
    facts |= story.facts(kind)
    notes = [
        f"the cas {story.letters[op]} counts as a write only: the value that it replaced lies outside the window"
        for op in window.operations
        if op in window.weakened
    ]
    if window.unfinished:
        notes.append("a smaller window may exist: the budget of steps for explanations ran out")
    if notes:
        facts["note"] = "; ".join(notes)
    return story.answer(window.culprit)["index"], Witness(kind, story.summary(kind), story.events(), facts=facts)


class ValueStory:
    """The rows of a window, and the sentences about them."""

    kind_so_far = "stale read"
    """Kind reported instead of a lost write while the run goes on, because a later answer may still show the value."""

    def __init__(self, bucket: Bucket, operations: Operations, key: Key, window: Window) -> None:
        self.bucket, self.operations, self.key, self.window = bucket, operations, key, window
        [self.name] = bucket.keys
        self.letters = {op: letter(place) for place, op in enumerate(window.operations)}
        self._rows: dict[int, Row] = {}
        self._named: set[int] = set()
        self._refused: tuple[Row, ...] = ()
        self.last_before = window.last_before
        shown = [*window.operations, *([] if self.last_before is None else [self.last_before])]
        wanted = sorted({row for op in shown for row in self._places(op) if row >= 0})
        self._rows = dict(zip(wanted, read_rows(bucket.history, wanted), strict=True))
        self.overwriters = self.find_overwriters()

    def _places(self, op: int) -> tuple[int, int]:
        """Return the rows of the invoke and the completion (-1 if none), even of a completion after the window."""
        return int(self.operations.invoked[op]), int(self.operations.completed[op])

    def invoke(self, op: int) -> Row:
        return self._rows[self._places(op)[0]]

    def answer(self, op: int) -> Row:
        row = self._places(op)[1]
        if row not in self._rows:  # an operation outside the window
            [self._rows[row]] = read_rows(self.bucket.history, [row])
        return self._rows[row]

    def acknowledged(self, op: int) -> bool:
        return bool(self.key.ret[op] < self.window.limit)

    def made(self, op: int) -> int | None:
        return as_value(self.operations_value(op))

    def wrote(self, op: int) -> str:
        return _value_of(self.made(op))

    def events(self) -> tuple[Row, ...]:
        """Return the rows of the window, and of an operation outside the window if the summary names it."""
        rows = {row for op in self.window.operations for row in self._places(op) if row >= 0}
        further = sorted(self._named - rows)
        found = [self._rows[row] for row in rows] + read_rows(self.bucket.history, further) + list(self._refused)
        return tuple(sorted(found, key=lambda row: row["index"]))

    def find_overwriters(self) -> list[int]:
        """Return the mutators of the window that replaced the value seen by the culprit, in order of call.

        These are all mutators except the culprit and the chain of operations that produced that value.
        """
        source, seen = int(self.key.a[self.window.culprit]), set()
        while (made_by := producer_of(self.key, source, self.window.limit)) >= 0 and made_by not in seen:
            seen.add(made_by)
            source = int(self.key.a[made_by]) if self.key.kind[made_by] == CAS else NIL
        makers = [op for op in self.window.operations if self.key.kind[op] != READ and op != self.window.culprit]
        return [op for op in makers if op not in seen]

    def facts(self, kind: str) -> dict[str, Any]:
        """Return the facts that only violations of this kind have."""
        if self.window.rival is not None and kind != "lost write":
            named = {"rival": self.accused(self.window.rival), "culprit": self.accused(self.window.culprit)}
            wrong = self.wrong_one()
            return {"suspects": list(named.values())} if wrong is None else {"guilty": named[wrong]}
        if kind != "lost write":
            return {}
        so_far = self.kind_so_far
        return {"guilty": self.accused(self.lost()), "so_far": {"kind": so_far, "summary": self.summary(so_far)}}

    def accused(self, op: int) -> dict[str, Any]:
        """Return the node that gave an answer, and the time of the answer."""
        row = self.answer(op)
        return {"node": row["node"], "time_ns": row["time_ns"]}

    def kind(self) -> str:
        if self.window.from_nowhere:
            return "value from nowhere"
        if self.key.kind[self.window.culprit] != READ or not self.overwriters:
            return "order cycle"
        return "lost write" if self._vanished() else "stale read"

    def wrong_one(self) -> str | None:
        """Return which of two contradicting answers is wrong: "rival", "culprit", or None if neither is confirmed."""
        rival, culprit = self.window.rival, self.window.culprit
        assert rival is not None
        confirmed = {"rival": self._confirmed(rival), "culprit": self._confirmed(culprit)}
        wrong = [name for name, right in confirmed.items() if not right]
        return wrong[0] if len(wrong) == 1 else None

    def _confirmed(self, op: int) -> bool:
        """Return True if an answer after the culprit's, from another node, shows the value that this operation left."""
        key, culprit = self.key, self.window.culprit
        shows = (key.kind != WRITE) & (key.kind != MISMATCH) & (key.ret != OPEN) & (key.a == value_left(key, op))
        later = np.flatnonzero(shows & (key.call > key.ret[culprit]))
        node = self.answer(op)["node"]
        answers = read_rows(self.bucket.history, [self._places(int(each))[1] for each in later], ["node"])
        return any(not node or row["node"] != node for row in answers)

    def lost(self) -> int:
        """Return the overwriter that was acknowledged last before the culprit's invoke."""
        return max(self._acknowledged_before(), key=lambda op: int(self.key.ret[op]))

    def _acknowledged_before(self) -> list[int]:
        return [op for op in self.overwriters if self.key.ret[op] < self.key.call[self.window.culprit]]

    def _vanished(self) -> bool:
        """Return True if no answer ever showed an acknowledged value and the older value stayed in its place."""
        key = self.key
        makers = np.array([self.operations_value(op) for op in self.overwriters])
        seen = np.isin(key.a, makers) & (key.kind != WRITE) & (key.ret != OPEN)
        return bool(self._acknowledged_before() and not seen.any()) and (self._read_again() or self._reader_leads())

    def _reader_leads(self) -> bool:
        """Return True if the node that answered the read also acknowledged the next write, and a different node had
        acknowledged the newer value.

        If so, the node that answered the read was not a deposed leader: the system continued from its state.
        """
        key, culprit = self.key, self.window.culprit
        later = ((key.kind == WRITE) | (key.kind == CAS)) & (key.call > key.ret[culprit]) & (key.ret != OPEN)
        if not later.any():
            return False
        following = int(np.flatnonzero(later)[np.argmin(key.ret[later])])
        after, lost, reader = (self.answer(op)["node"] for op in (following, self.lost(), culprit))
        return reader is not None and lost is not None and after == reader != lost

    def _read_again(self) -> bool:
        """Return True if the older value was returned again, by the node that acknowledged the newer value or by the
        last read."""
        key, culprit, last = self.key, self.window.culprit, self.lost()
        again = np.flatnonzero((key.kind == READ) & (key.a == key.a[culprit]) & (key.call > key.ret[last]))
        if len(again) < 2:
            return False
        reads = np.flatnonzero(key.kind == READ)
        to_the_end = bool(reads[np.argmax(key.ret[reads])] in again)
        node = self.answer(last)["node"]
        answers = read_rows(self.bucket.history, [self._places(int(op))[1] for op in again], ["node"])
        return to_the_end or any(row["node"] == node for row in answers)

    def operations_value(self, op: int) -> int:
        return int(value_left(self.key, op))

    def _lost_in_words(self) -> str:
        """Return the summary of a lost write, which blames the node that acknowledged the write."""
        culprit = self.window.culprit
        older, answered = value_of(self.key.a[culprit]), self.answer(culprit)
        start = self.acknowledged_before_a_read(self.lost(), "but no answer ever showed it:")
        return f"{start} got the older {older} from {who(answered)}"

    def acknowledged_before_a_read(self, op: int, then: str) -> str:
        """Return the beginning of a sentence: an operation was acknowledged before the culprit, a read, began."""
        row = self.answer(op)
        later = span_before(row, self.invoke(self.window.culprit), "later")
        return (
            f"At {at(row)} {who(row)} acknowledged {self.wrote(op)} for {self.name}, {then} a read that began {later}"
        )

    def _answered_in_words(self, op: int) -> str:
        """Return a phrase with an answer, its node and its time: "at 4.100 s n2 answered a read of k5 with 3"."""
        answered, what = self.answer(op), value_of(self.key.a[op])
        when = f"at {at(answered)} {who(answered)}"
        if self.key.kind[op] == READ:
            return f"{when} answered a read of {self.name} with {what}"
        if self.key.kind[op] == MISMATCH:
            return f"{when} refused a cas of {self.name} because it did not hold {what}"
        return f"{when} let a cas of {self.name} from {what} to {self.wrote(op)} succeed"

    def _both_in_words(self) -> str:
        """Return the summary of two contradicting answers, and which of them later answers confirm."""
        rival, culprit = self.window.rival, self.window.culprit
        assert rival is not None
        first, second = beginning(self._answered_in_words(rival)), self._answered_in_words(culprit)
        return f"{first}, and {second}: {self._which_is_wrong()}"

    def _which_is_wrong(self) -> str:
        culprit = self.window.culprit
        f = "read" if self.key.kind[culprit] == READ else "cas"
        match self.wrong_one():
            case "rival":
                return f"later answers confirm the {f} at {at(self.answer(culprit))}, so the first read was wrong"
            case "culprit":
                return f"later answers confirm the first read, so this {f} was wrong"
        return f"the first read or this {f} was wrong, and no other answer shows which"

    def summary(self, kind: str) -> str:
        if kind == "lost write":
            return self._lost_in_words()
        culprit = self.window.culprit
        if self.window.rival is not None:
            return self._both_in_words()
        invoked, start = self.invoke(culprit), beginning(self._answered_in_words(culprit))
        if kind == "value from nowhere":
            return f"{start}, {self._from_nowhere(culprit)}"
        newest = self._newest_before(culprit)
        if newest is None:
            return start + UNEXPLAINED
        row = self.answer(newest)
        before = span_before(row, invoked, "before")
        how = "seen" if self.key.kind[newest] == READ else "acknowledged"
        value = value_of(self.key.a[newest]) if self.key.kind[newest] == READ else self.wrote(newest)
        return f"{start} although {value} was {how} {before} the {invoked['f']} was invoked"

    def _newest_before(self, culprit: int) -> int | None:
        """Return the operation that left a different value and returned last before the culprit's invoke.

        Mutators take precedence over reads.
        """
        before = [
            op
            for op in self.window.operations
            if self.key.ret[op] < self.key.call[culprit] and self.operations_value(op) != self.key.a[culprit]
        ]
        makers = [op for op in before if self.key.kind[op] != READ]
        return max(makers or before, key=lambda op: int(self.key.ret[op]), default=None)

    def _from_nowhere(self, culprit: int) -> str:
        """Return the end of a sentence that says why a value comes from nowhere."""
        value = int(self.key.a[culprit])
        for _ in self.window.operations:  # backwards along the chain of cas on which the value depends
            if (made_by := producer_of(self.key, value, self.window.limit)) >= 0:
                value = int(self.key.a[made_by])
        direct = len(self.letters) == 1
        only_write = "a value whose only write" if direct else f"which depends on {value_of(value)}, whose only write"
        both = refused(self.bucket.history, self.name, as_value(value), not self.bucket.mismatch_observed)
        later = producer_of(self.key, value, OPEN)
        row = read_rows(self.bucket.history, [self._places(later)[0]])[0] if later >= 0 else None
        afterwards = f"was invoked afterwards (index {row['index']})" if row and later not in self.letters else ""
        if afterwards:
            self._named |= {place for place in self._places(later) if place >= 0}
        if both and (not afterwards or both[1]["index"] < self.answer(culprit)["index"]):
            failed, self._refused = both[1], both
            why = f": {failed['error']}" if failed["error"] else ""
            words = f"was refused (index {failed['index']}{why})"
            if doubt := doubt_of_refusal(failed["error"]):
                words += f"; {doubt}"
            if not afterwards:
                return f"{only_write} {words}"
            return f"{only_write.replace('only write', 'write')} {words}, and the next {afterwards}"
        if afterwards:
            return f"{only_write} {afterwards}"
        return "a value never written to it" if direct else f"which depends on {value_of(value)}, a value never written"

    def why(self, kind: str) -> list[str]:
        """Return sentences that say what happened, in order, and then why no order explains it."""
        sentences = []
        if self.last_before is not None:
            sentences.append(self.before())
        sentences += [f"{letter}: {self._in_words(op)}" for op, letter in self.letters.items()]
        culprit = self.letters[self.window.culprit]
        value = value_of(self.key.a[self.window.culprit])
        if kind == "value from nowhere":
            sentences.append(f"{culprit} saw {value}, {self._from_nowhere(self.window.culprit)}")
        else:
            sentences += self.no_order(culprit, value)
        if kind == "lost write":
            sentences.append(self.lost_in_why())
        count = "the one operation" if len(self.letters) == 1 else f"these {len(self.letters)} operations"
        if self.window.rejudged:
            sentences.append(f"An independent search tried every order of {count} and found none that fits")
        return sentences

    def lost_in_why(self) -> str:
        """Return why the acknowledgement of a lost write was the wrong answer."""
        lost = self.lost()
        stayed = f"No answer ever showed {self.wrote(lost)}, and the older value stayed in its place"
        return f"{stayed}, so its acknowledgement by {who(self.answer(lost))} was wrong"

    def before(self) -> str:
        """Return a sentence that says what the key held before the window.

        `last_before` is the last operation before the window.
        """
        held = " or ".join(_value_of(state) for state in self.window.states_before)
        assert self.last_before is not None
        return f"Before this window {self.name} held {held}; this is certain at {at(self.answer(self.last_before))}"

    def no_order(self, culprit: str, value: str) -> list[str]:
        """Return why no order of the window explains the culprit's answer."""
        taken = self._taken_twice()
        if taken:
            took = " and ".join(self.letters[op] for op in taken)
            return [f"Each of {took} replaced {value_of(self.key.a[taken[0]])}, which had been written only once"]
        newest = self._newest_before(self.window.culprit)
        if newest is None:
            return [f"In no order of these operations does {culprit} find {value}"]
        letter = self.letters[newest]
        sentences = [f"{letter} had returned before {culprit} was invoked, so {letter} comes first"]
        makers = [self.letters[op] for op in self.overwriters]
        if self.window.rival is not None:
            rival = self.letters[self.window.rival]
            sentences.append(
                f"Without {rival}, or without {culprit}, all answers have an order: one of the two is wrong"
            )
        elif makers:
            sentences.append(f"After {' and '.join(makers)} nothing wrote {value} again, so {culprit} cannot find it")
        return sentences

    def _taken_twice(self) -> list[int]:
        """Return the cas operations of the window that replaced the same value; [] if no two did."""
        taken: dict[int, list[int]] = {}
        for op in self.window.operations:
            if self.key.kind[op] == CAS and op not in self.window.weakened:
                taken.setdefault(int(self.key.a[op]), []).append(op)
        return next((ops for ops in taken.values() if len(ops) > 1), [])

    def _in_words(self, op: int) -> str:
        """Return one operation in words."""
        invoked = self.invoke(op)
        kind = self.key.kind[op]
        what = {READ: "read", WRITE: f"write of {self.wrote(op)}"}.get(int(kind))
        if what is None or invoked["f"] == "cas":
            what = f"cas from {_value_of(invoked['value'])} to {_value_of(invoked['value2'])}"
        if not self.acknowledged(op):
            completed = self._places(op)[1]
            until = f" until {at(self._rows[completed])}" if completed >= 0 else ""
            return f"process {invoked['process']} invoked a {what} at {at(invoked)}, and no answer came{until}"
        answered = self.answer(op)
        result = f", with {value_of(self.key.a[op])}" if invoked["f"] == "read" else ""
        result = ", as a mismatch" if kind == MISMATCH else result
        times = f"invoked at {at(invoked)} and answered at {at(answered)}"
        return f"the {what} of process {invoked['process']} was {times} by {who(answered)}{result}"

    def expected(self) -> str:
        """Return the end of a sentence that says which answer would have been right."""
        if self.window.rival is None or self.wrong_one() == "culprit":
            return self._expected_of_culprit()
        other = f"another answer to the read {self.letters[self.window.rival]}"
        if self.wrong_one() == "rival":
            return other
        return f"{other}, or, if that read was right, {self._expected_of_culprit()}"

    def _expected_of_culprit(self) -> str:
        values, reads = self.window.right, self.key.kind[self.window.culprit] == READ
        if self.key.kind[self.window.culprit] == MISMATCH:
            return "that the cas did match"
        named = [self._with_its_write(v) if reads and len(values) > 1 else _value_of(v) for v in values[:4]]
        listed = " or ".join(named) + (f" or one of {len(values) - 4} older ones" if len(values) > 4 else "")
        if reads:
            return f"an answer of {listed}" if listed else "another answer; all answers that were tried are wrong, too"
        return "that the cas did not match" + (f": {self.name} held {listed}" if listed else "")

    def _with_its_write(self, value: int | None) -> str:
        """Return a value, and whether its write had been acknowledged when the culprit was invoked."""
        if value is None or (op := producer_of(self.key, value, self.window.limit)) < 0:
            return _value_of(value)
        if self.key.ret[op] > self.key.call[self.window.culprit]:
            return f"{value} (its write was under way)"
        [row] = read_rows(self.bucket.history, [self._places(op)[1]])
        by = f" by {row['node']}" if row["node"] else ""
        return f"{value} (acknowledged{by} at {at(row)})"

    def listed(self) -> list[Row]:
        """Return the data of the witness's picture: one entry for each operation of the window, in order of call."""
        return [
            {
                "letter": letter,
                "process": self.invoke(op)["process"],
                "f": self.invoke(op)["f"],
                "saw": as_value(int(self.key.a[op])) if self.key.kind[op] != WRITE else None,
                "made": self.made(op) if self.key.kind[op] in (WRITE, CAS) else None,
                "acknowledged": self.acknowledged(op),
                "overwrites": op in self.overwriters,
                "words": self._in_words(op),
            }
            for op, letter in self.letters.items()
        ]


def beginning(words: str) -> str:
    """Return words as the beginning of a sentence."""
    return words[0].upper() + words[1:]


def who(row: Row) -> str:
    return row["node"] or "the system"


def at(row: Row) -> str:
    if not row["time_ns"] and row["index"]:
        return f"index {row['index']}"  # histories from other tools may have no times
    return f"{row['time_ns'] / 1e9:.3f} s"


def span_before(first: Row, second: Row, word: str) -> str:
    """Return the time between two rows and a word, e.g. "3.00 ms before".

    Returns only the word if a row has no time, or if the times contradict the order of the rows."""
    timed = first["time_ns"] and second["time_ns"] and first["time_ns"] <= second["time_ns"]
    return f"{span_in_words(second['time_ns'] - first['time_ns'])} {word}" if timed else word


def _value_of(value: int | None) -> str:
    return "nil" if value is None else str(value)


def value_of(number: int) -> str:
    return _value_of(as_value(int(number)))
