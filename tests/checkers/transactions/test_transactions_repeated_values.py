"""Values that several transactions wrote to one key: no conclusion may depend on which of them a read shows."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
from toy_transactions import of_one_process, shows_nothing, simulate

from checkers.base.history import Type
from checkers.base.verdict import Validity
from checkers.transactions import repeated_values
from checkers.transactions.anomalies import MODELS
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model
from checkers.transactions.tape import Tape, at_once, one_after_another

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
    events = of_one_process(one_after_another(*texts))
    verdict = judge_transactions(events, "rw-register", consistency="strong-session-read-atomic")
    assert verdict.validity is Validity.INVALID
    assert "z" not in json.dumps(verdict.witnesses[0].facts["why"])


UNEXPLAINED: dict[str, tuple[Model, tuple[str, ...], str, str]] = {
    "every writer failed": ("list-append", ("!ax1", "!ax1", "ay1", "rx1"), "G1a", "wrote a part and failed"),
    "once more than was appended": ("list-append", ("ax1", "ax1", "rx111"), "duplicate-elements", "1 occurs 3 times"),
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


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
@pytest.mark.parametrize("values", [1, 2, 4])
def test_repeated_values_never_make_a_serial_database_invalid(model: Model, values: int) -> None:
    rng, seen = Random(f"{model} {values}"), Counter[Validity]()
    for _ in range(150):
        sizes = {"transactions": rng.randint(2, 5), "processes": rng.randint(1, 3), "keys": 2, "operations_max": 3}
        events = simulate(rng, model, "strict-serializable", **sizes, trouble=0.2, values=values)
        consistency = rng.choice(["strict-serializable", "strict-serializable", *MODELS])
        verdict = judge_transactions(events, model, consistency=consistency)
        anomalies = verdict.details.get("anomalies", {})
        assert not anomalies, (anomalies, [(e.process, e.type.name, json.loads(e.payload or "")) for e in events])
        assert verdict.validity is Validity.VALID or shows_nothing(events), verdict.reason
        seen[verdict.validity] += 1
    assert seen[Validity.VALID] > 50 and seen[Validity.INVALID] == 0, seen


def test_a_read_may_show_an_own_write_that_was_overwritten_where_reads_need_not_agree() -> None:
    """The other writers of the 2 come later in the session, and a read-committed transaction may read its own 2."""
    events = of_one_process(one_after_another("wx2 wx1 =x2", "wx2", "wx2"))
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
