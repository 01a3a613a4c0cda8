"""Values that several transactions wrote to one key: no conclusion may depend on which of them a read shows."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from bench.simulated.transaction_anomalies import MicroOperations, Tape, at_once, one_after_another
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
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
    assert verdict.validity is Validity.UNKNOWN
    assert "written twice" in verdict.reason
    assert verdict.details["anomalies"] == {}


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
    assert verdict.validity is Validity.UNKNOWN


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
    for _ in range(1000):
        events = serial_history(rng, model, values)
        consistency = rng.choice(["strict-serializable", "strict-serializable", *MODELS])
        verdict = judge_transactions(events, model, consistency=consistency)
        anomalies = verdict.details.get("anomalies", {})
        assert not anomalies, (anomalies, [(e.process, e.type.name, json.loads(e.payload or "")) for e in events])
        seen[verdict.validity] += 1
    assert seen[Validity.UNKNOWN] > 300 and seen[Validity.INVALID] == 0, seen
