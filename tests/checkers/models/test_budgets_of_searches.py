"""Small histories that no search can decide quickly: each search ends at its budget of steps or bytes, and says so.

Many operations without an answer may take effect at any later time.  So the number of orders grows with 2 to the power
of their number.

Violations of all objects are counted; few are explained, within a total budget of steps.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from simulated_objects import OBJECTS, Simulated, history, kv_do, mixed_up, no_lie, renumbered

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import VIOLATIONS_BY_KIND, Validity
from checkers.by_hand import judge_events
from checkers.kernels.configurations import (
    STEPS_MAX,
    WORDS_PER_STEP,
    allow,
    insert,
    is_spent,
    new_configurations,
    new_hands,
    steps_of,
)
from checkers.kernels.jit import kernel
from checkers.models import each_object
from checkers.models.model import Model, operations_of
from checkers.models.objects.counter import COUNTER
from checkers.models.objects.locks import MUTEX
from checkers.models.past import STEPS_IN_ALL, Patience
from checkers.models.search import judge_object, plain_search
from checkers.models.search import size_bytes as size_bytes_of

STEPS = 2_100_000
AMPLE_STEPS = 20_000_000


class Tape:
    def __init__(self, seed: int) -> None:
        self.events: list[Event] = []
        self.rng = Random(seed)

    def record(self, process: int, kind: Type, f: str, value: Any) -> None:
        index = len(self.events)
        first, second, payload = value, None, None
        if f == "cas":
            first, second = value
        elif value is not None and not isinstance(value, int):
            first, payload = None, json.dumps(value)
        self.events.append(Event(index, index, process, kind, f, None, first, second, payload))

    def unanswered(self, f: str, value: Any = None) -> None:
        process = 1000 + len(self.events)
        self.record(process, Type.INVOKE, f, value)
        self.record(process, Type.INFO, f, value)

    def answered(self, f: str, value: Any = None, answer: Any = None) -> None:
        self.record(0, Type.INVOKE, f, value)
        self.record(0, Type.OK, f, value if answer is None else answer)


def counter(tape: Tape) -> None:
    for _ in range(60):
        tape.unanswered("add", tape.rng.choice([n for n in range(-7, 8) if n]))
    for _ in range(60):
        tape.answered("read", answer=tape.rng.randint(-40, 40))


def queue(tape: Tape) -> None:
    for _ in range(60):
        tape.unanswered("enqueue", tape.rng.randint(1, 5))
        tape.unanswered("dequeue")
    for _ in range(30):
        tape.answered("dequeue", answer=tape.rng.randint(1, 5))


def append_log(tape: Tape) -> None:
    """No value is unique, and some acknowledged appends name their offset and others do not."""
    for each in range(60):
        tape.unanswered("append", 1 + each % 6)
    for each in range(40):
        tape.answered("append", 100 + each)
        value = tape.rng.randint(1, 5)
        tape.answered("append", value, [value, 40 + 3 * each])
    tape.answered("read", answer=[1 + each % 6 for each in range(24)])


def key_value(tape: Tape) -> None:
    text = "".join(tape.rng.choice("ab") for _ in range(80))
    for _ in range(60):
        tape.unanswered("append", tape.rng.choice("ab"))
        tape.unanswered("put", text[: tape.rng.randint(1, 40)])
    for _ in range(40):
        tape.answered("get", answer=text[: tape.rng.randint(1, 80)])


def cas_without_answers(tape: Tape) -> None:
    """Edges of a graph of 20 values, each of which may be used once, and a way through it."""
    tape.answered("write", 0)
    for _ in range(200):
        seen = tape.rng.randrange(20)
        tape.unanswered("cas", (seen, tape.rng.choice([n for n in range(20) if n != seen])))
    for _ in range(20):
        tape.answered("read", answer=tape.rng.randrange(20))


def writes_without_answers(tape: Tape) -> None:
    """Return more changes of the value than writes."""
    for _ in range(60):
        tape.unanswered("write", tape.rng.randrange(2))
    for each in range(70):
        tape.answered("read", answer=each % 2)


@pytest.mark.parametrize(
    ("history", "expected"), [(cas_without_answers, Validity.VALID), (writes_without_answers, Validity.INVALID)]
)
def test_unanswered_writes_of_a_register_are_decided_in_few_steps(
    history: Callable[[Tape], None], expected: Validity
) -> None:
    tape = Tape(1)
    history(tape)
    verdict = judge_events(tape.events, "cas-register", Budget(steps=STEPS))
    assert verdict.validity is expected
    assert int(verdict.looked_at["steps"]) < STEPS / 10


def mutex(tape: Tape) -> None:
    for _ in range(100):
        tape.unanswered(tape.rng.choice(["acquire", "release"]))
    for _ in range(200):
        tape.answered(tape.rng.choice(["acquire", "release"]))


def cas_register(tape: Tape) -> None:
    for _ in range(100):
        tape.unanswered("cas", (tape.rng.randint(1, 9), tape.rng.randint(1, 9)))
        tape.unanswered("write", tape.rng.randint(1, 9))
    for _ in range(200):
        tape.answered("read", answer=tape.rng.randint(1, 9))


UNDECIDED = {"counter": counter, "append-log": append_log}
HARD = UNDECIDED | {"queue": queue, "kv": key_value, "mutex": mutex, "cas-register": cas_register}


@pytest.mark.parametrize("name", HARD)
def test_a_hard_history_ends_within_its_budget_of_steps(name: str) -> None:
    tape = Tape(1)
    HARD[name](tape)
    verdict = judge_events(tape.events, name, Budget(steps=STEPS))
    assert int(verdict.looked_at["steps"]) <= 2 * STEPS
    if verdict.validity is Validity.UNKNOWN:
        assert f"the budget of {STEPS} steps ran out" in verdict.reason
    assert verdict.validity is Validity.UNKNOWN or name not in UNDECIDED


@pytest.mark.parametrize("name", ["append-log"])
def test_a_hard_history_ends_within_its_budget_of_bytes(name: str) -> None:
    tape = Tape(1)
    HARD[name](tape)
    verdict = judge_events(tape.events, name, Budget(size_bytes=1_000_000))
    assert verdict.validity is Validity.UNKNOWN
    assert "the budget of 1000000 bytes ran out" in verdict.reason


@kernel
def _insert_all(words: int, many: int) -> tuple[int, int, int, bool, bool]:
    """Configurations that do not dominate each other."""
    them, _, _ = new_configurations(many, words, 1)
    hands, count = new_hands(words), 0
    allow(hands, 1)
    for each in range(many):
        need = np.zeros(words, np.uint64)
        need[0] = np.uint64(1) << np.uint64(each)
        count = insert(them, count, 0, need, np.zeros(words, np.uint64), hands.work)
    work, steps, spent = hands.work[0], steps_of(hands), is_spent(hands)
    allow(hands, 2 * STEPS_MAX)
    return count, work, steps, spent, is_spent(hands)


def test_a_comparison_of_configurations_is_work() -> None:
    """All are compared, so each costs more than the one before; and no budget is so great that it overflows."""
    words, many = 2, 50
    read = words * sum(1 + before for before in range(many))
    assert _insert_all(words, many) == (many, read, -(-read // WORDS_PER_STEP), True, False)


def test_the_second_search_for_a_better_index_does_not_repeat_what_is_certain() -> None:
    """Sums beyond the value of the read that returns now are of no use, so a hundred open adds take few steps."""
    tape = Tape(1)
    for _ in range(100):
        tape.unanswered("add", tape.rng.randint(1, 7))
    for each in range(34):
        tape.answered("read", answer=3 * each)
    verdict = judge_events(tape.events, "counter", Budget(steps=AMPLE_STEPS))
    assert verdict.validity is Validity.INVALID
    assert int(verdict.looked_at["steps"]) < AMPLE_STEPS / 10


@dataclass(frozen=True, slots=True)
class Record:
    entries: tuple[int, ...]
    length: int


def appends(model_state: Callable[[Any, Any], Any]) -> Model:
    return Model("made-up", init=lambda: model_state((), None), step=lambda state, o: model_state(state, o.input))


@pytest.mark.parametrize(
    "after",
    [
        lambda state, given: 0,
        lambda state, given: (*state, given),
        lambda state, given: Record((*getattr(state, "entries", ()), given), 1),
    ],
    ids=["many open operations", "long states", "states in a record"],
)
def test_the_plain_search_takes_no_more_memory_than_it_counts(after: Callable[[Any, Any], Any]) -> None:
    tape = Tape(1)
    for each in range(300):
        tape.unanswered("append", each)
    tape.answered("append", 300)
    operations = operations_of(tape.events)
    size_bytes = 20_000_000
    tracemalloc.start()
    try:
        answer = plain_search(appends(after), operations, Budget(10**12, size_bytes))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if answer.linearizable is None:
        assert answer.reason == f"the budget of {size_bytes} bytes ran out"
    assert peak < size_bytes


def test_a_record_counts_with_its_fields() -> None:
    entries = tuple(range(1000))
    for record in ((entries, 7), Record(entries, 7)):
        assert size_bytes_of(record) > size_bytes_of(entries) > size_bytes_of(())


@pytest.mark.parametrize("model", [COUNTER, MUTEX], ids=lambda model: model.name)
def test_what_the_compiled_search_leaves_out_changes_no_answer(model: Model) -> None:
    """Compared with the plain search, which leaves out nothing."""
    rng, answers = Random(7), set()
    for _ in range(400):
        events = history(OBJECTS[model.name].make(rng), rng, rng.randint(3, 7), 7, 0.2, rng.choice([0, 1, 2]))
        operations = operations_of(mixed_up(events, rng, 3) if model is MUTEX else events)
        kept = [o for o in operations if o.returned or o.f not in model.observers]
        expected = plain_search(model, kept, Budget()).linearizable
        found = judge_object(model, kept, Budget())
        assert (found.linearizable, found.compiled) == (expected, True)
        answers.add(expected)
    assert answers == {True, False}


STORE = Simulated(
    "",
    lambda rng, _: rng.choice([("get", None), ("append", rng.choice("abc")), ("put", f"x{rng.randrange(1000)}")]),
    kv_do,
    no_lie,
)


TOO_OFTEN = "c" * 500
"""Appends of c make such a string, but there are fewer of them."""


def wrong_keys(count: int, operations: int) -> list[Event]:
    """Stores of strings, each with one answer that nothing explains, three quarters through."""
    rng = Random(count)
    events: list[Event] = []
    for number in range(count):
        some = history(STORE, rng, operations, 4, 0.01, 0)
        reads = [e for e in some if e.f == "get" and e.type is Type.OK]
        wrong = reads[len(reads) * 3 // 4]
        some[wrong.index] = replace(wrong, value=None, payload=json.dumps(TOO_OFTEN))
        events += [replace(e, key=f"k{number}", process=e.process + 1000 * number) for e in some]
    return renumbered(events)


def test_all_violations_are_counted_and_the_explanations_stay_within_their_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[Patience] = []

    def watched() -> Patience:
        used.append(Patience())
        return used[-1]

    monkeypatch.setattr(each_object, "Patience", watched)
    verdict = judge_events(wrong_keys(10, 250), "kv")
    assert verdict.validity is Validity.INVALID
    assert verdict.looked_at["violations"] == 10
    assert verdict.details[VIOLATIONS_BY_KIND] == {"no order": 10}
    assert 1 <= len(verdict.witnesses) <= 10
    assert TOO_OFTEN[:9] in verdict.witnesses[0].summary
    [patience] = used
    assert patience.spent <= STEPS_IN_ALL + 100_000, "at most one compiled search beyond"


def test_an_explanation_that_runs_out_of_steps_is_larger_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each_object, "Patience", lambda: Patience(20, 20))
    verdict = judge_events(wrong_keys(3, 60), "kv")
    assert verdict.validity is Validity.INVALID
    assert verdict.looked_at["violations"] == 3
    [witness] = verdict.witnesses
    assert "not the smallest" in witness.facts["note"]
    assert witness.facts["rejudged"] is False
    assert witness.events and witness.facts["why"]
