"""Values that several transactions wrote to one key: no conclusion may depend on which of them a read shows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Any

import pytest
from test_transactions_every_level import satisfied, transactions, with_another_answer
from toy_transactions import shows_nothing

from bench.simulated.transaction_histories import MicroOperations, Tape, at_once, one_after_another
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.transactions import repeated_values
from checkers.transactions.anomalies import MODELS
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model

EXPLAINED: dict[str, tuple[Model, tuple[str, ...]]] = {
    "a retry after a failure": ("list-append", ("!ax1", "ax1", "rx1")),
    "a failure after the append": ("list-append", ("ax1", "!ax1", "rx1")),
    "two appends": ("list-append", ("ax1", "ax1", "rx11")),
    "two appends in one transaction": ("list-append", ("ax1 ax1", "rx11")),
    "an append of unknown outcome": ("list-append", ("ax1", "?ax1", "rx11")),
    "a list that goes on after a retry": ("list-append", ("!ax1", "ax1 ax2", "rx12")),
    "another transaction's last append": ("list-append", ("ax1 ax2", "ax1 rx121")),
    "a retry of a write": ("rw-register", ("!wx1", "wx1", "=x1")),
    "a write built on a retry": ("rw-register", ("!wx1", "wx1", "=x1 wx2")),
    "a value that another transaction wrote too": ("rw-register", ("=x1 wx1", "wx1")),
    "a value that another transaction wrote last": ("rw-register", ("wx1 wx2", "?wx1", "=x1")),
}


@pytest.mark.parametrize("case", EXPLAINED)
def test_a_read_that_one_of_several_writers_explains_is_no_violation(case: str) -> None:
    model, texts = EXPLAINED[case]
    verdict = judge_transactions(at_once(*texts), model)
    assert verdict.validity is Validity.VALID
    assert verdict.details["anomalies"] == {}


def test_a_smaller_part_without_an_order_keeps_to_keys_whose_writers_are_known() -> None:
    texts = ("wz1", "wx1", "wx2", "=x1 =z1 wz1")
    events = [replace(event, process=0) for event in one_after_another(*texts)]
    verdict = judge_transactions(events, "rw-register", consistency="strong-session-read-atomic")
    assert verdict.validity is Validity.INVALID
    assert "z" not in json.dumps(verdict.witnesses[0].facts["why"])


UNEXPLAINED: dict[str, tuple[Model, tuple[str, ...], str, str]] = {
    "every writer failed": ("list-append", ("!ax1", "!ax1", "ay1", "rx1"), "G1a", "wrote a part and failed"),
    "once more than was appended": ("list-append", ("ax1", "ax1", "rx111"), "duplicate-elements", "1 stands 3 times"),
    "once more than did not fail": (
        "list-append",
        ("!ax1", "ax1", "rx11"),
        "G1a",
        "2 times: too often without the append of T1",
    ),
    "another element's writer failed": ("list-append", ("ax1", "ax1", "!ax2", "rx12"), "G1a", "wrote a part"),
    "every writer of a register failed": ("rw-register", ("!wx1", "!wx1", "wy1", "=x1"), "G1a", "wrote a part"),
}


@pytest.mark.parametrize("case", UNEXPLAINED)
def test_a_read_that_no_writer_explains_stays_a_violation(case: str) -> None:
    model, texts, name, words = UNEXPLAINED[case]
    verdict = judge_transactions(at_once(*texts), model)
    assert verdict.validity is Validity.INVALID
    assert list(verdict.details["anomalies"]) == [name]
    assert words in verdict.witnesses[0].summary


def test_an_unknown_transaction_did_not_happen_because_another_wrote_its_value() -> None:
    events = one_after_another("ax1")
    tape = Tape(list(events))
    tape.run(1, "ax1 ay1", Type.INFO)
    tape.run(2, "rx1 ry")
    verdict = judge_transactions(tape.events, "list-append")
    assert verdict.validity is Validity.VALID


def serial_history(rng: Random, model: Model, values: int) -> list[Event]:
    """Transactions of a database that runs each at one instant; values repeat, and outcomes may stay unknown."""
    tape, state = Tape(), dict[str, list[int]]()
    running: dict[int, tuple[MicroOperations, MicroOperations | None]] = {}
    process_of, begun, count = list(range(rng.randint(1, 3))), 0, rng.randint(2, 5)
    while begun < count or running:
        slot = rng.randrange(len(process_of))
        process = process_of[slot]
        if process not in running:
            if begun < count:
                begun += 1
                running[process] = (steps_of(rng, model, values), None)
                tape.invoke(process, running[process][0])
            continue
        steps, done = running.pop(process)
        fate = rng.random()
        if done is None and fate < 0.25:
            tape.record(process, Type.FAIL, steps)
        elif fate < 0.35:
            tape.record(process, Type.INFO, steps)
            process_of[slot] = max(process_of) + 1
        elif done is None:
            running[process] = (steps, executed(state, steps, model))
        else:
            tape.record(process, Type.OK, done)
    return tape.events


def steps_of(rng: Random, model: Model, values: int) -> MicroOperations:
    write = "append" if model == "list-append" else "w"
    return [
        ["r", rng.choice("xy"), None] if rng.random() < 0.5 else [write, rng.choice("xxy"), rng.randint(1, values)]
        for _ in range(rng.randint(1, 3))
    ]


def executed(state: dict[str, list[int]], steps: MicroOperations, model: Model) -> MicroOperations:
    done: list[list[Any]] = []
    for f, key, value in steps:
        held = state.setdefault(key, [])
        if f == "r":
            done.append([f, key, list(held) if model == "list-append" else held[-1] if held else None])
        else:
            held.append(value)
            done.append([f, key, value])
    return done


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
@pytest.mark.parametrize("values", [1, 2, 4])
def test_repeated_values_never_make_a_serial_database_invalid(model: Model, values: int) -> None:
    rng, seen = Random(f"{model} {values}"), Counter[Validity]()
    for _ in range(150):
        events = serial_history(rng, model, values)
        consistency = rng.choice(["strict-serializable", "strict-serializable", *MODELS])
        verdict = judge_transactions(events, model, consistency=consistency)
        anomalies = verdict.details.get("anomalies", {})
        assert not anomalies, (anomalies, [(e.process, e.type.name, json.loads(e.payload or "")) for e in events])
        assert verdict.validity is Validity.VALID or shows_nothing(events), verdict.reason
        seen[verdict.validity] += 1
    assert seen[Validity.VALID] > 50 and seen[Validity.INVALID] == 0, seen


CHOICES_MAX = 300
"""Histories with more choices of writers are left out."""


def distinct(events: list[Event], model: Model) -> list[list[Event]]:
    """The history once for every choice of the write that each read of a register, or each element of a list, shows.

    Every write gets a value of its own.  Returns nothing if there are too many choices.
    """
    parts = [json.loads(e.payload or "[]") for e in events]
    open_by: dict[int, int] = {}
    own: dict[tuple[int, int], int] = {}
    known: dict[tuple[str, int], list[int]] = {}
    for at, event in enumerate(events):
        if event.type is Type.INVOKE:
            open_by[event.process] = at
            for place, (f, key, value) in enumerate(parts[at]):
                if f != "r":
                    own[at, place] = len(own) + 1
                    known.setdefault((key, value), []).append(own[at, place])
        else:
            begun = open_by[event.process]
            own |= {(at, place): new for (when, place), new in own.items() if when == begun}
    reads = [
        (at, place, key, value)
        for at, event in enumerate(events)
        if event.type is Type.OK
        for place, (f, key, value) in enumerate(parts[at])
        if f == "r" and value not in (None, [])
    ]
    options = [
        [[new] for new in known.get((key, value), [])]
        if model == "rw-register"
        else [list(some) for some in product(*(known.get((key, v), []) for v in value)) if len({*some}) == len(some)]
        for _, _, key, value in reads
    ]
    if prod(map(len, options)) > CHOICES_MAX:
        return []
    found = []
    for chosen in product(*options):
        shown = {
            (at, place): some[0] if model == "rw-register" else some
            for (at, place, _, _), some in zip(reads, chosen, strict=True)
        }
        steps = [
            [
                [f, key, own.get((at, place), shown.get((at, place), value))]
                for place, (f, key, value) in enumerate(parts[at])
            ]
            for at in range(len(events))
        ]
        found.append([replace(e, payload=json.dumps(some)) for e, some in zip(events, steps, strict=True)])
    return found


def compare(model: Model, rng: Random, cases: int) -> Counter[str]:
    """Raises AssertionError if a verdict differs from trying all choices of writers."""
    seen = Counter[str]()
    while seen["histories"] < cases:
        events = with_another_answer(rng, serial_history(rng, model, rng.choice([1, 2])), model)
        choices = distinct(events, model)
        if not choices or shows_nothing(events):
            continue
        seen["histories"] += 1
        possible = set().union(*(satisfied(transactions(one), model) for one in choices))
        for level in MODELS:
            verdict = judge_transactions(events, model, consistency=level)
            seen[str(verdict.validity)] += 1
            if verdict.validity is Validity.UNKNOWN:
                assert model == "list-append" and level.endswith("read-uncommitted"), (level, events)
            else:
                assert (verdict.validity is Validity.VALID) == (level in possible), (level, verdict, events)
    return seen


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_repeated_values_are_decided_as_by_trying_every_choice(model: Model) -> None:
    seen = compare(model, Random(f"choices {model}"), 20)
    assert seen["valid"] > 100 and seen["invalid"] > 50, seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_more_repeated_values(model: Model, part: int, night: Random) -> None:
    print(compare(model, night, 2_000))


def test_a_read_may_show_an_own_write_that_was_overwritten_where_reads_need_not_agree() -> None:
    """The other writers of the 2 come later in the session, and a read-committed transaction may read its own 2."""
    events = [replace(event, process=0) for event in one_after_another("wx2 wx1 =x2", "wx2", "wx2")]
    committed = judge_transactions(events, "rw-register", consistency="strong-session-read-committed")
    assert committed.validity is Validity.VALID
    atomic = judge_transactions(events, "rw-register", consistency="read-atomic")
    assert atomic.validity is Validity.INVALID


def test_an_uncommitted_list_may_show_an_append_that_failed() -> None:
    """The 1 before the 2 was appended by a transaction that failed; the other one that appended a 1 read it before."""
    tape = Tape().run(0, "ax1 ax2", Type.FAIL).run(1, "ax2")
    events = tape.run(2, "rx12 ax1 ax1").events
    assert judge_transactions(events, "list-append", consistency="read-uncommitted").validity is Validity.UNKNOWN
    assert judge_transactions(events, "list-append", consistency="read-committed").validity is Validity.INVALID


FOUR_AND_TWO = Tape().run(0, "ax1 ax1 ax1 ax1").run(1, "ax1 ax1").run(2, "rx111111").events


def test_equal_appends_of_one_transaction_stand_in_its_order() -> None:
    """Six places and six appends: 720 choices of an append, of which 400 were tried, and 15 of a transaction."""
    stale = Tape(list(FOUR_AND_TWO)).run(2, "rx11").events
    assert judge_transactions(stale, "list-append", consistency="serializable").validity is Validity.VALID
    verdict = judge_transactions(stale, "list-append")
    assert verdict.validity is Validity.INVALID
    assert int(verdict.witnesses[0].summary.partition(" choices were tried")[0].rpartition("(")[2]) <= 15


def test_reordered_appends_are_blamed_on_their_own_places() -> None:
    """Each choice fails in the same way: the 2 stands before the 1.  The places of y have no part in it."""
    texts = ("ax1 ax2", "ax2", "ax1", "rx2121", *["ay1"] * 5, "ry11111")
    verdict = judge_transactions(one_after_another(*texts), "list-append", consistency="serializable")
    assert verdict.validity is Validity.VALID


def test_too_many_choices_stay_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest writer of the 1 is the later one, but then the read of y would have to show it, too."""
    events = Tape().run(0, "wx1").run(1, "wx1 wy2").run(2, "=x1 =y").events
    whole = judge_transactions(events, "rw-register", consistency="serializable")
    assert whole.validity is Validity.VALID
    monkeypatch.setattr(repeated_values, "ATTEMPTS_MAX", 1)
    cut = judge_transactions(events, "rw-register", consistency="serializable")
    assert cut.validity is Validity.UNKNOWN
    assert "written twice" in cut.reason and "1 choices of their writers were tried" in cut.reason
