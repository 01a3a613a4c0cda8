"""An order that keeps real time shows that no level has a cycle: verdicts are those of the search for cycles."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from test_transactions_every_level import tiny_history
from toy_transactions import ISOLATIONS, simulate

from bench.simulated.isolation_histories import by_session
from bench.simulated.isolation_histories import simulate as simulate_registers
from checkers.base.history import Event
from checkers.base.verdict import Validity, Verdict
from checkers.transactions import anomalies
from checkers.transactions.anomalies import MODELS
from checkers.transactions.judge import _Question, judge_transcript
from checkers.transactions.read import Transcript, read_transactions


def histories(rng: Random, cases: int) -> Iterator[list[Event]]:
    """Tiny ones, some with a made-up answer, and longer ones of every database, with open and failed transactions."""
    for _ in range(cases):
        yield tiny_history(rng, "rw-register")
        yield simulate(
            rng,
            "rw-register",
            rng.choice(ISOLATIONS),
            transactions=rng.randint(5, 25),
            processes=rng.randint(2, 6),
            keys=rng.randint(1, 4),
            trouble=rng.choice([0, 0.1]),
        )


def transcripts(rng: Random, cases: int) -> Iterator[Transcript]:
    for events in histories(rng, cases):
        yield read_transactions(events, "rw-register")
    for seed in range(4):
        for snapshots in (False, True):
            history, begin, end = simulate_registers(60, 4, 20, snapshots=snapshots, seed=seed)
            yield from (history, by_session(history), by_session(history, (begin, end)))


def all_searched(cases: list[tuple[Transcript, str]], monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    with monkeypatch.context() as patched:
        patched.setattr(_Question, "_is_strict_serializable", lambda self, _: self.consistency == STRICT)
        return [judge_transcript(transcript, consistency=level) for transcript, level in cases]


STRICT = anomalies.STRICT_SERIALIZABLE


def test_verdicts_stay_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every level: validity, anomalies, witnesses and what is ruled out."""
    cases = [(transcript, level) for transcript in transcripts(Random(2), 20) for level in MODELS]
    with_it = [judge_transcript(transcript, consistency=level) for transcript, level in cases]
    assert with_it == all_searched(cases, monkeypatch)
    assert {verdict.validity for verdict in with_it} >= {Validity.VALID, Validity.INVALID}


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_more_histories(part: int, night: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(each, "serializable") for each in transcripts(Random(night.randrange(2**31)), 2000)]
    assert [judge_transcript(each, consistency=level) for each, level in cases] == all_searched(cases, monkeypatch)
