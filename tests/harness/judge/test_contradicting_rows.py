"""Rows that a wrong client or harness recorded contradict other rows: such a run is never valid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from altered_runs import Row, alter, edit, rows_of

from checkers.base.history import CREATE, NEMESIS, MalformedHistory, Type
from checkers.base.results import as_object
from harness.judge.judge_run import judge
from harness.story.headline import verdict_in_words
from tests.support.results_of_runs import results_in


def copied(runs: dict[str, Path], name: str, folder: Path) -> Path:
    return shutil.copytree(runs[name], folder / "run")


def judged(run: Path) -> dict[str, Any]:
    return dict(as_object(judge(run, None, lambda _: None, report=False)))


@pytest.mark.parametrize("name", ["kraft-partition", "etcd-partition", "canary"])
def test_a_run_that_is_written_again_without_a_change_is_valid(
    runs: dict[str, Path], name: str, tmp_path: Path
) -> None:
    run = copied(runs, name, tmp_path)
    alter(run, lambda rows: None)
    assert judged(run)["verdict"] == "valid"


def an_ok(rows: list[Row], f: str) -> tuple[int, int]:
    """The rows of an operation in the middle of the run: its invoke and its ok."""
    oks = [i for i, row in enumerate(rows) if row["f"] == f and row["type"] == Type.OK and row["process"] >= 0]
    ok = oks[len(oks) // 2]
    process = rows[ok]["process"]
    return max(i for i in range(ok) if rows[i]["process"] == process), ok


def both(**changes: Any) -> Callable[[list[Row], int, int], int]:
    def change(rows: list[Row], invoke: int, ok: int) -> int:
        rows[invoke].update(changes)
        rows[ok].update(changes)
        return invoke

    return change


def another_value(rows: list[Row], invoke: int, ok: int) -> int:
    rows[ok]["value"] += 1
    return ok


def a_payload(rows: list[Row], invoke: int, ok: int) -> int:
    rows[ok].update(payload=str(rows[ok]["value"]), value=None)
    return ok


@pytest.mark.parametrize("name", ["kraft-partition", "etcd-partition"])
@pytest.mark.parametrize(
    ("f", "change"),
    [
        ("write", another_value),
        ("write", a_payload),
        ("write", both(key=None)),
        ("read", both(key=None)),
        ("write", both(process=-2)),
        ("write", both(process=NEMESIS)),
        ("write", both(f=CREATE)),
        ("read", both(f=CREATE)),
        ("read", both(f="look")),
        ("read", a_payload),
    ],
)
def test_no_operation_of_a_register_is_made_to_say_something_else(
    runs: dict[str, Path], name: str, f: str, change: Callable[[list[Row], int, int], int], tmp_path: Path
) -> None:
    run = copied(runs, name, tmp_path)
    rows = rows_of(run)
    row = change(rows, *an_ok(rows, f))
    alter(run, lambda kept: kept.__setitem__(slice(None), rows))
    try:
        results = judged(run)
    except MalformedHistory as refusal:
        assert f"row {row}:" in str(refusal)
        return
    assert results["verdict"] != "valid"
    reason = results["checkers"]["linearizability"]["reason"]
    assert f"row {row}:" in reason or "look is not an operation of a register" in reason


def of_payload(change: Callable[[list[Any]], object]) -> Callable[[list[Any]], str]:
    def changed(steps: list[Any]) -> str:
        change(steps)
        return json.dumps(steps)

    return changed


def first_append(steps: list[Any]) -> list[Any]:
    return next(step for step in steps if step[0] == "append")


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: first_append(steps).__setitem__(2, 10**6),
        lambda steps: first_append(steps).__setitem__(1, "elsewhere"),
        lambda steps: steps.remove(first_append(steps)),
        lambda steps: steps.append(["r", "elsewhere", []]),
        lambda steps: steps.insert(0, ["append", "elsewhere", 1]),
        lambda steps: first_append(steps).__setitem__(slice(0, 3, 2), ["r", []]),
    ],
    ids=["value", "key", "dropped", "added", "inserted", "function"],
)
def test_no_transaction_is_made_to_have_done_something_else(
    runs: dict[str, Path], change: Callable[[list[Any]], object], tmp_path: Path
) -> None:
    run = copied(runs, "canary", tmp_path)
    rows = rows_of(run)
    ok = next(i for i, r in enumerate(rows) if r["f"] == "txn" and r["type"] == Type.OK and "append" in r["payload"])
    rows[ok]["payload"] = of_payload(change)(json.loads(rows[ok]["payload"]))
    alter(run, lambda kept: kept.__setitem__(slice(None), rows))
    results = judged(run)
    assert results["verdict"] != "valid"
    assert f"index {ok}:" in results["checkers"]["list-append"]["reason"]


# Faults.


def never_healed(records: list[Any]) -> None:
    records[-1]["heal_ordered_ns"] = -1


def skipped(records: list[Any]) -> None:
    records[0].update(achieved="skipped", reason="", injected_ns=-1, heal_ordered_ns=-1, healed_ns=-1)


@pytest.mark.parametrize("name", ["kraft-partition", "kraft-kill", "etcd-partition"])
@pytest.mark.parametrize(
    "change",
    [lambda records: records.pop(), lambda records: records[0]["card"].update(kind="pause"), never_healed, skipped],
    ids=["dropped", "of another kind", "never healed", "skipped without a reason"],
)
def test_no_record_of_a_fault_is_forgotten_or_half_written(
    runs: dict[str, Path], name: str, change: Callable[[list[Any]], object], tmp_path: Path
) -> None:
    run = copied(runs, name, tmp_path)
    edit(run, "faults", change)
    alter(run)
    assert judged(run)["verdict"] != "valid"


def test_a_run_that_ended_early_is_never_valid(runs: dict[str, Path], tmp_path: Path) -> None:
    """Less is demanded of a run that ended early, and this one leaves no violation to confirm."""
    run = copied(runs, "kraft-partition", tmp_path)
    edit(run, "test.json", lambda test: test["spec"].update(stop_on_violation=True))
    stopped = {"time_ns": 1, "checker": "vote-once", "summary": "voted twice"}
    edit(run, "outcome", lambda outcome: outcome.update(stopped=stopped))
    alter(run)
    results = judged(run)
    assert results["checkers"]["vacuity"]["verdict"] == "not applicable"
    assert (results["verdict"], results["exit_code"]) == ("unknown", 2)
    assert verdict_in_words(results_in(results), None).startswith("Unknown: the run ended early because of a violation")
