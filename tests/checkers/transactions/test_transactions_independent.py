"""Transactions that have nothing in common are judged in groups, with the verdict of one piece, here and on Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_transactions_table import a_run, as_written
from toy_transactions import ISOLATIONS, simulate, with_another_answer

from checkers.base.arrays import Int32
from checkers.base.checker import Budget
from checkers.base.columns import events_to_table
from checkers.base.history import Event, Type
from checkers.base.results import as_object
from checkers.base.verdict import Validity
from checkers.by_hand import Ask
from checkers.catalog import BY_MODEL
from checkers.judging import judge_run, results_of
from checkers.kernels.transactions.columns import element_bases, new_findings
from checkers.spark import session
from checkers.spark.session import SparkJudge
from checkers.transactions import complete
from checkers.transactions import groups as dividing
from checkers.transactions.anomalies import MODELS, NO_ORDER_NAME, REALTIME, WORST_FIRST, parts_of
from checkers.transactions.judge import judge_transactions, judge_transcript
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.transactions.tape import one_after_another
from harness.judge.check_files import judge_in_process, judge_on_spark

BUDGET = Budget()


def side_by_side(rng: Random, histories: Sequence[Sequence[Event]]) -> list[Event]:
    """Merge histories at random into one; each gets keys and processes of its own."""
    left = [list(events) for events in histories]
    merged: list[Event] = []
    while any(left):
        number = rng.choice([n for n, events in enumerate(left) if events])
        event = left[number].pop(0)
        steps = [[f, f"{number}.{key}", value] for f, key, value in json.loads(event.payload or "[]")]
        at = len(merged)
        process = event.process * len(histories) + number
        merged.append(replace(event, index=at, time_ns=at, process=process, payload=json.dumps(steps)))
    return merged


def tenants(rng: Random, model: Model, isolation: str, *, count: int = 3, transactions: int = 20) -> list[Event]:
    return side_by_side(
        rng, [simulate(rng, model, isolation, transactions=transactions, processes=3) for _ in range(count)]
    )


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "TRANSACTIONS_MIN", 0)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_groups_have_the_verdict_of_one_piece_at_every_level(model: Model) -> None:
    rng, seen = Random(f"groups {model}"), set()
    for isolation in ISOLATIONS:
        for falsified in (False, True):
            events = tenants(rng, model, isolation)
            events = with_another_answer(rng, events, model) if falsified else events
            transcript = read_transactions(events, model)
            for level in MODELS:
                whole = judge_transcript(transcript, consistency=level)
                groups = dividing.judge_by_groups(transcript, BUDGET, consistency=level)
                assert groups.validity is whole.validity, (level, whole.reason, groups.reason)
                assert groups.looked_at["transactions"] == whole.looked_at["transactions"]
                assert groups.looked_at["keys"] == whole.looked_at["keys"]
                assert groups.details["groups"] > 2
                seen.add((level, whole.validity))
                if whole.validity is not Validity.INVALID:
                    continue
                mine, theirs = ([w.kind for w in verdict.witnesses] for verdict in (groups, whole))
                assert theirs[0] == NO_ORDER_NAME or WORST_FIRST.index(mine[0]) <= WORST_FIRST.index(theirs[0])
                assert parts_of(level)[1] == REALTIME or set(theirs) - {NO_ORDER_NAME} <= set(mine)
    assert len(seen) > len(MODELS) + 10


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_one_violation_among_groups_has_the_witness_of_one_piece(model: Model) -> None:
    rng, found = Random(f"one {model}"), 0
    for _ in range(18):
        histories = [simulate(rng, model, "strict-serializable", transactions=15, processes=3) for _ in range(3)]
        histories[1] = with_another_answer(rng, histories[1], model)
        transcript = read_transactions(side_by_side(rng, histories), model)
        whole = judge_transcript(transcript, consistency="serializable")
        groups = dividing.judge_by_groups(transcript, BUDGET, consistency="serializable")
        if whole.validity is Validity.INVALID:
            found += 1
            of_groups, of_whole = (sorted(each.witnesses, key=lambda w: w.kind) for each in (groups, whole))
            assert [w.kind for w in of_groups] == [w.kind for w in of_whole]
            for mine, theirs in zip(of_groups, of_whole, strict=True):
                assert mine.kind == NO_ORDER_NAME or asdict(mine) == asdict(theirs)  # there may be several proofs
    assert found > 5


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("model", ["list-append", "rw-register"])
@pytest.mark.parametrize("level", ["strict-serializable", "strong-snapshot-isolation", "strong-session-serializable"])
def test_the_order_of_all_groups_fits_the_whole_history(model: Model, level: str) -> None:
    """An independent replay refuses an order that contradicts a read, a session or real time."""
    rng = Random(f"order {model} {level}")
    for _ in range(5):
        events = tenants(rng, model, "strict-serializable")
        transcript = read_transactions(events, model)
        verdict = dividing.judge_by_groups(transcript, BUDGET, consistency=level, keep_order=True)
        assert verdict.validity is Validity.VALID
        number_of = {int(row): t for t, row in enumerate(transcript.txns.invoked.tolist())}
        snapshots = level == "strong-snapshot-isolation"
        order = []
        for row in verdict.details["order"]:
            t = number_of[row["index"]]
            events_of = {"start": [2 * t], "commit": [2 * t + 1], "transaction": [2 * t, 2 * t + 1]}
            order += events_of[row["event"]] if snapshots else [t]
        fits(transcript, model, level, np.array(order, np.int32), snapshots)


def fits(transcript: Transcript, model: Model, level: str, order: Int32, snapshots: bool) -> None:
    """Raises WrongOrder if the order does not explain the history."""
    txns = transcript.txns
    known = complete.known_of(txns, model, element_bases(txns, int(txns.key.max()) + 1), new_findings())
    complete._demand_that_it_fits(txns, known, *parts_of(level), order, snapshots)


@pytest.mark.usefixtures("any_size")
def test_a_session_joins_what_it_touches_unless_real_time_orders_all() -> None:
    """Each half alone is sequentially consistent, and the two together are not."""
    txns = [(0, "wx1"), (0, "=y"), (1, "wy1"), (1, "=x")]
    events = [replace(e, process=txns[e.process][0]) for e in one_after_another(*(text for _, text in txns))]
    transcript = read_transactions(events, "rw-register")
    for level, count in (("strict-serializable", 2), ("strong-session-serializable", 1), ("serializable", 1)):
        assert dividing.group_count(dividing.groups_of(transcript, level)) == count
        assert (
            dividing.judge_by_groups(transcript, BUDGET, consistency=level).validity
            is judge_transactions(events, "rw-register", consistency=level).validity
        )


@pytest.mark.usefixtures("any_size")
def test_a_group_that_shows_nothing_counts_as_in_the_whole_history() -> None:
    events = one_after_another("wx1", "=x1", "wy1", "wz1")
    transcript = read_transactions(events, "rw-register")
    groups = dividing.groups_of(transcript, "strict-serializable")
    assert groups.tolist() == [0, 0, 0, 0]
    assert dividing.judge_by_groups(transcript, BUDGET, consistency="strict-serializable").validity is Validity.VALID


def test_a_small_history_is_one_group() -> None:
    transcript = read_transactions(one_after_another("wx1", "=x1", "wy1", "=y1"), "rw-register")
    assert dividing.group_count(dividing.groups_of(transcript, "strict-serializable")) == 1


# On Spark


def large(falsified: bool) -> list[Event]:
    """Three tenants; `falsified`: the last read of one of them misses nearly all writes."""
    rng = Random(5)
    events = tenants(rng, "rw-register", "strict-serializable", transactions=dividing.TRANSACTIONS_MIN // 3 + 10)
    if not falsified:
        return events
    last = max(
        e.index for e in events if e.type is Type.OK and all(s[0] == "r" and s[2] for s in json.loads(e.payload or ""))
    )
    steps = [[f, key, 1] for f, key, _ in json.loads(events[last].payload or "")]
    return [replace(e, payload=json.dumps(steps)) if e.index == last else e for e in events]


@pytest.mark.spark
@pytest.mark.parametrize("falsified", [False, True])
def test_groups_are_tasks_of_spark_with_the_same_verdict(tmp_path: Path, falsified: bool, spark: SparkJudge) -> None:
    events = large(falsified)
    run = a_run(tmp_path / "run", events)
    checker = BY_MODEL["rw-register"]
    assert len(checker.split(run)) == 3
    here, there = judge_run(run, [checker]), judge_run(run, [checker], spark)
    assert "Spark" in there.judged_by
    assert here["rw-register"].validity is (Validity.INVALID if falsified else Validity.VALID)
    assert as_written(as_object(results_of(here))) == as_written(as_object(results_of(there)))
    whole = judge_transactions(events, "rw-register")
    assert whole.validity is here["rw-register"].validity
    assert [w.kind for w in whole.witnesses[:1]] == [w.kind for w in here["rw-register"].witnesses[:1]]


@pytest.mark.spark
@pytest.mark.parametrize("falsified", [False, True])
def test_a_file_is_judged_in_groups_on_spark_with_the_same_verdict_and_order(
    tmp_path: Path,
    falsified: bool,
    spark: SparkJudge,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "SparkJudge", lambda _: spark)  # a process can run only one
    monkeypatch.setattr(spark, "stop", lambda: None)
    path = tmp_path / "history.parquet"
    pq.write_table(events_to_table(large(falsified)), path)
    ask = Ask("rw-register", order=True)
    [here] = judge_in_process([path], ask, BUDGET)
    [there] = judge_on_spark([path], ask, BUDGET, "local", lambda _: None)
    assert "in process" not in capsys.readouterr().err
    assert here.verdict.details["groups"] == 3
    assert here.verdict.validity is (Validity.INVALID if falsified else Validity.VALID)
    assert replace(here, file="") == replace(there, file="")
    assert ("order" in there.verdict.details) is not falsified
