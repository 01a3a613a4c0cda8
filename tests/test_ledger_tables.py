"""The tables that are made of the ledgers of findings and of hunts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ledgers import (
    PROMISED,
    Hunt,
    clean_rows,
    finding_rows,
    hunt_in,
    hunt_rows,
    read_hunts,
    said_of,
    take_over_hunt,
)

from harness.campaign.plans import Try
from harness.real_systems import CLEAN_RUNS, EXAMPLES, FINDINGS


def test_a_row_says_how_often_a_finding_was_seen_and_how_long_that_took() -> None:
    tries = [Try("mariadb", False, True, "invalid", seconds, "bbbbbbb") for seconds in (20.0, 24.0, 22.0)]
    tries += [Try("mariadb", False, False, "valid", 99.0, "bbbbbbb")]
    tries += [Try("mariadb", True, verdict == "valid", verdict, 28.0, "ccccccc") for verdict in ("valid", "unknown")]
    row = dict(zip(FINDINGS, finding_rows(tries), strict=True))["mariadb"]
    assert row[0] == "`make find-mariadb`"
    assert row[4:6] == ("22", "3 of 4 at bbbbbbb, 1 valid")
    assert row[6].endswith(": 1 of 2 at ccccccc, 1 unknown")
    assert finding_rows([])[0][4:6] == ("", "not run yet")


def test_a_row_counts_valid_runs_and_names_the_others() -> None:
    tries = [Try("etcd-set", True, verdict == "valid", verdict, 60.0, "abcdabc") for verdict in ("valid", "unknown")]
    rows = dict(zip(CLEAN_RUNS, clean_rows(tries), strict=True))
    assert rows["etcd-set"][2:] == ("`set`", "`partition`, `pause`, `power`", "1 of 2 at abcdabc, 1 unknown")
    assert rows["etcd-lists"][-1] == "not run yet"


def run(verdict: str | None, replay: int = 0, **more: Any) -> dict[str, Any]:
    workload = more.pop("workload", "set")
    return {"replay": replay, "verdict": verdict, "seconds": 60.0, "test": {"workload": workload}, **more}


def kept(folder: Path, *runs: dict[str, Any], campaign: str = "hunt", subject: str = "/x/turso.py") -> Path:
    identity = {"campaign": campaign, "subject": subject, "seed": 41}
    found = [{"words": "set: acknowledged element lost", "seen_again": 2, "replays": 3}]
    folder.mkdir(exist_ok=True)
    (folder / "campaign.json").write_text(json.dumps({"identity": identity, "runs": runs, "found": found}))
    return folder


def test_a_hunt_counts_its_tests_and_what_was_in_force(tmp_path: Path) -> None:
    """A run that could not be made has no verdict; a replay takes time, and is no test."""
    runs = [run("valid", workload="bank", faults=["kill", "power"])]
    runs += [run("unknown", workload="large-set", faults=["power"]), run("invalid", faults=[])]
    runs += [run("invalid", replay=1, workload="list-append", faults=["disk"]), run(None)]
    hunt = hunt_in(kept(tmp_path / "hunt", *runs))
    assert (hunt.subject, hunt.seed, hunt.minutes) == ("turso.py", 41, 5.0)
    assert hunt.tests == {"valid": 1, "unknown": 1, "invalid": 1}
    assert (hunt.workloads, hunt.kinds) == (("bank", "set"), ("kill", "power"))
    assert hunt.found == ("set: acknowledged element lost (seen again in 2 of 3 replays)",)


@pytest.mark.parametrize(
    ("campaign", "subject", "words"),
    [("nightly", "/x/turso.py", "keeps no hunt"), ("hunt", "/x/mine.py", "/x/mine.py, which is no example")],
)
def test_only_hunts_over_examples_are_taken(campaign: str, subject: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        hunt_in(kept(tmp_path / "hunt", campaign=campaign, subject=subject))


def test_a_hunt_that_went_on_takes_the_place_of_itself(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    take_over_hunt(kept(tmp_path / "hunt", run("valid")), ledger)
    take_over_hunt(kept(tmp_path / "other", run("valid"), subject="examples/openldap.py"), ledger)
    every = take_over_hunt(kept(tmp_path / "hunt", run("valid"), run("valid")), ledger)
    assert [(hunt.subject, hunt.tests["valid"]) for hunt in every] == [("openldap.py", 1), ("turso.py", 2)]
    assert read_hunts(ledger) == every


def test_hunts_over_one_system_are_one_row() -> None:
    one = Hunt("turso.py", 41, 10.0, {"valid": 3, "unknown": 1}, ("set",), ("power", "kill"), ())
    other = Hunt("turso.py", 42, 5.0, {"valid": 1, "invalid": 1}, ("bank",), (), ("bank: wrong total",))
    ((system, promise, minutes, tests, workloads, kinds, found, seeds),) = hunt_rows([one, other])
    assert system == "[Turso 0.8.3, SQLite's language and files written anew in Rust](../examples/turso.py)"
    assert promise.startswith(PROMISED)
    assert (minutes, tests, seeds) == ("15", "4 valid, 1 unknown, 1 invalid", "41, 42")
    assert (workloads, kinds, found) == ("`bank`, `set`", "`kill`, `power`", "bank: wrong total")
    assert hunt_rows([Hunt("turso.py", 1, 1.0, {}, (), (), ())])[0][5:7] == ("none", "nothing")


def test_each_system_that_was_hunted_states_its_version_and_promise() -> None:
    for subject in {hunt.subject for hunt in read_hunts()}:
        assert (EXAMPLES / subject.partition(":")[0]).is_file()
        version, promise = said_of(subject)
        assert any(letter.isdigit() for letter in version) and promise.startswith(PROMISED), subject
