"""A run of today's format holds every field that the harness records; fields that were removed are noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from checkers.base import ledger
from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.record.faults import Achieved, Card, Condition, FaultRecord, Measurement, Ordered
from checkers.record.reading import COPIES_INDEX, FAULTS, OUTCOME, TEST
from checkers.record.writing import as_json
from checkers.run_quality.cross_checks import whole_records
from checkers.run_quality.cross_checks.whole_records import WHOLE_SINCE, lacking
from harness.backends.backend import Exit
from harness.run.outcome import RunOutcome
from harness.run.run_folder import describe_test
from harness.run.watching.deaths import deaths
from harness.spec import Spec
from system_under_test.subject import Collected, Complaint, Declares
from workloads.generators import VERSION

DEMANDS = Demands(servers=("n1",), format=ledger.FORMAT, generators=VERSION, dealt=lambda thread: iter(()))
CARD = Card(1, "kill", "leader", 3.0, 8.0)


def names(record: type) -> set[str]:
    return {field.name for field in fields(record)}


NEWER = {"reports", "processor"}
"""Runs of format 2 that are older than `leadership` have no reports.  Without them that checker is not applicable.
Where a kernel measures nothing of processors, none is blamed."""


def test_the_fields_are_those_that_the_harness_records() -> None:
    outcome = set(RunOutcome(Declares(), 1.0).to_json())
    assert outcome - NEWER == whole_records.OF_OUTCOME
    assert names(FaultRecord) == whole_records.OF_A_FAULT
    assert names(Card) == whole_records.OF_A_CARD
    assert names(Condition) == whole_records.OF_AN_ORDER
    assert names(Measurement) == whole_records.OF_A_MEASUREMENT
    assert names(Collected) == whole_records.OF_A_COPY


def test_test_json_and_deaths_hold_these_fields() -> None:
    described = describe_test(Spec(), "1", "namespaces", datetime.now(UTC), 0)
    assert whole_records.OF_TEST - described.keys() == {"schedule", "clocks"}, "these are known later"
    found = deaths([Exit("n1", 5, 7, -9, True)], [Complaint("n1", "it gave up")], 0, lambda end: "")
    assert all(death.keys() >= whole_records.OF_A_DEATH for death in found)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The small files of a run in which a server was killed."""
    measured = (Measurement("hold", 4, 5, states={"n1": "dead"}),)
    fault = FaultRecord(CARD, Achieved.INSTALLED, "n1 was killed", ordered=Ordered(), measured=measured)
    outcome = RunOutcome(Declares(), 1.0, phases=[{"name": "main", "start_ns": 1, "end_ns": 2}])
    outcome.deaths = deaths([Exit("n1", 5, 7, -9, True)], [], 0, lambda end: "")
    copy = Collected(0, "final", "n1", "running", Path("nodes/n1/copies/0"), 5, 9)
    test = describe_test(replace(Spec(), backend="namespaces"), "1", "namespaces", datetime.now(UTC), 0)
    contents: dict[str, Any] = {
        TEST: test | {"schedule": [], "clocks": {}},
        OUTCOME: outcome.to_json(),
        FAULTS: [as_json(fault)],
        COPIES_INDEX: [{name: str(getattr(copy, name)) for name in names(Collected)} | {"taken_ns": 9}],
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_a_whole_run_lacks_nothing(whole: Path) -> None:
    assert lacking(StoredRun(whole, DEMANDS)) == []


def without(name: str, *path: str | int) -> Callable[[Path], str]:
    def change(run: Path) -> str:
        content = json.loads((run / name).read_text())
        holder = content
        for step in path[:-1]:
            holder = holder[step]
        del holder[path[-1]]
        (run / name).write_text(json.dumps(content))
        return f"lacks {path[-1]}"

    return change


def updated(name: str, words: str, **changes: Any) -> Callable[[Path], str]:
    def change(run: Path) -> str:
        content = json.loads((run / name).read_text())
        (content if isinstance(content, dict) else content[0]).update(changes)
        (run / name).write_text(json.dumps(content))
        return words

    return change


def unbound_code(run: Path) -> str:
    (run / "subject").mkdir()
    (run / "manifest.json").write_text(json.dumps({"files": {"test.json": {}}}))
    return "binds no file of subject/"


OTHER_MACHINE = {"spec": {"backend": "ssh"}}
CHANGES: dict[str, Callable[[Path], str]] = {
    "the version of the generators": without(TEST, "generators"),
    "the clocks": without(TEST, "clocks"),
    "the schedule": without(TEST, "schedule"),
    "what online checks found": without(OUTCOME, "online"),
    "who ordered a death": without(OUTCOME, "deaths", 0, "ordered"),
    "the measurements of a fault": without(FAULTS, 0, "measured"),
    "its orders": without(FAULTS, 0, "ordered"),
    "the states that it ordered": without(FAULTS, 0, "ordered", "held", "states"),
    "what a measurement could not measure": without(FAULTS, 0, "measured", 0, "problems"),
    "the card that it waited for": without(FAULTS, 0, "card", "after"),
    "the time of a copy": without(COPIES_INDEX, 0, "taken_ns"),
    "a copy of no known time": updated(COPIES_INDEX, "does not say when it was taken", taken_ns=-1),
    "other generators": updated(TEST, "version 0 of the generators", generators=0),
    "another machine without clocks": updated(TEST, "how far the clock of n1 is ahead", **OTHER_MACHINE),
    "a clock that shows any time": updated(
        TEST, "how far the clock of n1 is ahead", clocks={"n1": {"ahead_ns": 0, "error_ns": 10**12}}, **OTHER_MACHINE
    ),
    "code that nothing binds": unbound_code,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_removed_is_named(whole: Path, change: str) -> None:
    words = CHANGES[change](whole)
    found = lacking(StoredRun(whole, DEMANDS))
    assert found and words in found[0]


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_of_an_older_format_that_is_trusted_need_not_hold_it(whole: Path, change: str) -> None:
    CHANGES[change](whole)
    assert lacking(StoredRun(whole, replace(DEMANDS, format=WHOLE_SINCE - 1))) == []


def test_operations_that_no_seed_deals_may_be_of_other_generators(whole: Path) -> None:
    updated(TEST, "", generators=0)(whole)
    assert lacking(StoredRun(whole, replace(DEMANDS, dealt=None))) == []
