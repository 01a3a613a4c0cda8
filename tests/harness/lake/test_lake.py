"""The lake: the facts of a run are those of its files, every run stands there once, and the past of symptoms."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import krucible
from facts_of_runs import T0, facts, past, violation, with_rows
from recorded_runs import unpacked

from checkers.record.run_record import RunRecord
from harness.judge.judge_run import judge
from harness.lake import lake as lakes
from harness.lake.compare import compare, find, timeline
from harness.lake.facts import RunFacts, facts_of
from harness.lake.lake import LOOSE_MAX, VARIABLE, Lake, existing_lake, lake_of
from harness.lake.past import (
    BACK_AFTER,
    Filter,
    PastRun,
    SymptomStatus,
    canary_age,
    past_runs,
    runs,
    standing_of,
    standings,
    streaks,
)
from harness.lake.tables import ELECTIONS, FAULTS, OPERATIONS, RUNS, TABLES, VIOLATIONS

RUNS_OF_TESTS = ("kraft-stale-read", "kraft-partition")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with two judged runs."""
    folder = tmp_path_factory.mktemp("results")
    for name in RUNS_OF_TESTS:
        judge(unpacked(name, folder / "recorded" / name), None, lambda _: None, report=False)
    return folder


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_the_facts_of_a_run_are_those_of_its_files(results: Path) -> None:
    root = results / "recorded" / "kraft-stale-read"
    found, judged = facts_of(root), json.loads((root / "results.json").read_text())
    [run] = found.rows[RUNS].to_pylist()
    functions = judged["checkers"]["statistics"]["details"]["functions"]
    del functions["create"]  # of the set-up
    counts = {name: sum(f[name] for f in functions.values()) for name in ("invoked", "ok", "fail", "info", "open")}
    assert run["verdict"] == "invalid" == judged["verdict"]
    assert (run["operations"], run["ok"], run["fail"]) == tuple(counts[name] for name in ("invoked", "ok", "fail"))
    assert run["info"] == counts["info"] + counts["open"] > 0
    assert found.system == "kraft" and run["kinds"] == ["partition"] and run["bug"] == "stale-read"

    rows = found.rows[OPERATIONS].to_pylist()
    assert sum(row["count"] for row in rows) == run["operations"]
    oks = Counter({f: sum(r["count"] for r in rows if (r["f"], r["outcome"]) == (f, "ok")) for f in functions})
    assert oks["read"] == functions["read"]["ok"] > 0 and oks["write"] == functions["write"]["ok"] > 0
    assert {row["faults"] for row in rows} == {"none", "partition"}
    recorded = [fault.card.number for fault in RunRecord(root).faults]
    assert [row["number"] for row in found.rows[FAULTS].to_pylist()] == recorded

    stale = next(row for row in found.rows[VIOLATIONS].to_pylist() if row["kind"] == "stale read")
    assert (stale["faults"], stale["roles"], stale["shape"]) == ("partition", "leader", "read")
    assert stale["words"] == "stale read (linearizability, by read) under partition of the leader"


def test_a_run_that_was_not_judged_is_in_the_lake_as_such(tmp_path: Path) -> None:
    [run] = facts_of(unpacked("etcd-partition", tmp_path / "run")).rows[RUNS].to_pylist()
    assert (run["verdict"], run["exit_code"], run["vacuous"]) == ("not judged", None, None)
    assert run["operations"] > 0 < run["faults"]


def test_a_run_judged_again_replaces_its_rows(lake: Lake) -> None:
    for number in range(2 * LOOSE_MAX + 3):
        lake.append(facts(number))
    lake.append(facts(5, verdict="invalid"))
    lake.append(facts(2 * LOOSE_MAX + 1, verdict="unknown"))
    verdicts = {row["seed"]: row["verdict"] for row in lake.read(RUNS, ["seed", "verdict"]).to_pylist()}
    assert len(lake.read(RUNS)) == len(verdicts) == 2 * LOOSE_MAX + 3
    assert {s: v for s, v in verdicts.items() if v != "valid"} == {5: "invalid", 2 * LOOSE_MAX + 1: "unknown"}
    assert len(lake.files(RUNS)) < LOOSE_MAX


@pytest.mark.parametrize("killed_at", ["write", "remove"])
def test_a_merge_that_was_killed_is_finished_and_doubles_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    for number in range(LOOSE_MAX - 1):
        lake.append(facts(number))

    class Killed(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        if killed_at == "write":
            real = lakes._write
            patch.setattr(
                lakes, "_write", lambda rows, path: die() if path.name == "merged.parquet" else real(rows, path)
            )
        else:
            patch.setattr(lakes.shutil, "rmtree", die)
        lake.append(facts(LOOSE_MAX - 1))
    lake.append(facts(LOOSE_MAX))
    assert sorted(row["seed"] for row in lake.read(RUNS).to_pylist()) == list(range(LOOSE_MAX + 1))


def test_the_lake_is_made_again_from_the_run_folders(results: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(results, tmp_path / "copy")
    (copied / "recorded" / "broken").mkdir()
    (copied / "recorded" / "broken" / "test.json").write_text("{")
    lake, said = Lake(lake_of(copied)), []
    assert lake.rebuild(copied, said.append) == lake.rebuild(copied, said.append) == len(RUNS_OF_TESTS)
    assert "broken is omitted: test.json is not JSON" in said[0]
    paths = {row["path"] for row in lake.read(RUNS, ["path"]).to_pylist()}
    assert paths == {f"recorded/{name}" for name in RUNS_OF_TESTS}


def test_runs_of_a_campaign_go_into_the_lake_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert existing_lake(tmp_path) is None and lake_of(tmp_path) == tmp_path / "lake"
    Lake(tmp_path / "lake").append(facts(1))
    assert lake_of(tmp_path / "nightly" / "runs") == tmp_path / "lake"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    assert lake_of(tmp_path / "nightly" / "runs") == tmp_path / "other"


def test_a_filter_keeps_what_fits_and_the_newest_come_first(lake: Lake) -> None:
    for number in range(4):
        lake.append(facts(number, day=number))
    lake.append(facts(9, day=9, system="etcd", kinds=["kill", "partition"], workload="append", revision="b" * 40))
    found = with_rows("20260101T000500Z-5", datetime(2026, 1, 1, tzinfo=UTC), "kraft", {"violations": [violation()]})
    lake.append(
        type(found)(found.run, found.date, found.system, found.rows | {RUNS: facts(5, bug="stale-read").rows[RUNS]})
    )

    def seeds(**wanted: object) -> list[int]:
        return [run["seed"] for run in runs(lake, Filter(**wanted))]  # type: ignore[arg-type]

    assert seeds() == [9, 3, 2, 1, 5, 0]
    assert seeds(system="etcd") == seeds(kind="kill") == seeds(workload="append") == seeds(revision="bbb") == [9]
    assert seeds(symptom="6b96ad0f") == seeds(bug="stale-read") == [5]
    assert seeds(verdict="invalid") == seeds(symptom="00000000") == []
    assert seeds(since=datetime(2026, 1, 3, tzinfo=UTC), until=datetime(2026, 1, 9, tzinfo=UTC)) == [3, 2]


def test_an_empty_lake_has_tables_without_rows(lake: Lake) -> None:
    assert [len(lake.read(name)) for name in TABLES] == [0] * len(TABLES)
    assert runs(lake, Filter()) == [] and not lake.folder.exists()


def test_two_runs_part_at_the_first_thing_that_differs(results: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    stale, clean = (results / "recorded" / name for name in RUNS_OF_TESTS)
    same = compare(find(lake, str(stale))[0], find(lake, str(stale))[0], stale, stale)
    assert (same.spec, same.parted, same.operation) == ((), None, "")
    other = compare(find(lake, str(stale))[0], find(lake, str(clean))[0], stale, clean)
    assert {each.name: (each.a, each.b) for each in other.spec}["bug"] == ("stale-read", None)
    assert other.parted is not None and other.timelines[other.parted][0] != other.timelines[other.parted][1]
    assert other.operation.startswith("first different operation, of process ")
    assert any("violated: stale read" in line for line in other.lines())


def test_runs_that_differ_in_their_schedule_alone_do_not_have_the_same_spec(results: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    stale = results / "recorded" / "kraft-stale-read"
    other = shutil.copytree(stale, tmp_path / "other")
    header = json.loads((other / "test.json").read_text())
    header["schedule"][0]["at_s"] += 1.0
    (other / "test.json").write_text(json.dumps(header))
    (other / "subject").mkdir()
    (other / "subject" / "system.py").write_text("")
    found = compare(find(lake, str(stale))[0], find(lake, str(other))[0], stale, other)
    assert [each.name for each in found.spec] == ["schedule", "subject/"]


def test_a_skipped_fault_is_not_called_healed() -> None:
    faults = [{"number": 1, "kind": "kill", "name": "leader", "achieved": "skipped", "injected_ns": 5, "healed_ns": 5}]
    [event] = timeline({FAULTS: faults, ELECTIONS: [], VIOLATIONS: []})
    assert event.words == "fault 1: kill leader skipped"


def test_a_name_that_fits_no_run_or_several_is_refused(lake: Lake) -> None:
    for number in (1, 2):
        lake.append(facts(number))
    assert find(lake, "20260101T000100")[0][RUNS][0]["seed"] == 1
    for name, how in (("2026", "2 runs"), ("1999", "no run")):
        with pytest.raises(LookupError, match=f"{name} is no run folder, and {how} of the lake"):
            find(lake, name)


def test_commands_list_and_compare(results: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(results, tmp_path / "copy")

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return krucible(*words, "--results", str(copied))

    listed = asked("runs", "--rebuild", "--verdict", "invalid", "--json")
    assert listed.returncode == 0, listed.stderr
    [row] = map(json.loads, listed.stdout.splitlines())
    assert row["bug"] == "stale-read" and row["symptom"]
    shown = asked("runs", "--symptom", row["symptom"])
    assert shown.stdout.splitlines()[1].endswith("recorded/kraft-stale-read")
    assert "is no run folder" in asked("compare", "a", "b").stderr
    assert "verdict" in asked("compare", row["run"], str(copied / row["path"])).stdout


def test_a_list_sees_what_was_written_since_the_last_one(lake: Lake) -> None:
    for number in range(3):
        lake.append(facts(number))
        assert [run["seed"] for run in runs(lake, Filter())] == list(range(number, -1, -1))
    lake.append(facts(1, verdict="invalid"))
    assert [run["verdict"] for run in runs(lake, Filter())] == ["valid", "invalid", "valid"]
    (lake.folder / "_index.parquet").unlink()
    assert len(runs(lake, Filter())) == 3
    lake.files(RUNS)[0].unlink()
    assert [run["seed"] for run in runs(lake, Filter())] == [2, 1]
    assert lake.read(RUNS, ["seed"], run=facts(1).run).to_pylist() == [{"seed": 1}]


def test_a_list_opens_only_what_has_changed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lake.append(facts(number))
    assert len(runs(lake, Filter())) == 3
    opened: list[str] = []
    read = lakes._read
    monkeypatch.setattr(lakes, "_read", lambda path, *rest: (opened.append(path.stem), read(path, *rest))[1])
    assert len(runs(lake, Filter())) == 3 and opened == []
    lake.append(facts(7))
    assert len(runs(lake, Filter())) == 4 and opened == [facts(7).run]


A, B = "0000000a", "0000000b"


NEW, KNOWN, BACK, GONE = SymptomStatus.NEW, SymptomStatus.KNOWN, SymptomStatus.BACK, SymptomStatus.GONE
RESTED = [past(2 + day) for day in range(BACK_AFTER)]
OF_ANOTHER_TEST = [past(2 + day, test="kill") for day in range(9)]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([past(1)], [past(9, A)], {A: NEW}),
        ([], [past(9, A, B)], {A: NEW, B: NEW}),
        ([past(1, A), *RESTED[1:]], [past(9, A)], {A: KNOWN}),
        ([past(1, A), *RESTED], [past(9, A)], {A: BACK}),
        ([past(1, A), *OF_ANOTHER_TEST], [past(9, A)], {A: KNOWN}),
        ([past(1, A)], [past(8), past(9)], {A: GONE}),
        ([past(1, A)], [past(9, test="kill")], {}),
        # A run that proved nothing does not show that it is gone.
        ([past(1, A)], [past(9, good=False)], {}),
        ([past(1, A, planted=True)], [past(9, B, planted=True)], {}),
    ],
)
def test_a_symptom_is_new_known_back_or_gone(
    before: list[PastRun], now: list[PastRun], expected: dict[str, SymptomStatus]
) -> None:
    assert {one.symptom: one.state for one in standings(before, now)} == expected


def test_what_is_back_has_its_first_time_and_the_runs_that_passed_since() -> None:
    [one] = standings([past(1, A), *RESTED], [past(9, A)])
    assert (one.shown[0].started, one.passed_since) == (T0 + timedelta(days=1), BACK_AFTER)


def test_a_streak_is_broken_by_every_run_that_did_not_end_well() -> None:
    runs = [past(1), past(2), past(3, A), past(4), past(5), past(6, test="kill", good=False)]
    assert streaks(runs) == {("kraft", "register", "partition", ""): 2, ("kraft", "register", "kill", ""): 0}


def test_the_age_of_the_canary_counts_from_its_last_find() -> None:
    canary = replace(past(1, A, planted=True, good=True), test=("canary", "register", "none", "stale"))
    assert canary_age([canary, past(5)], T0 + timedelta(days=3)) == 2.0
    assert canary_age([past(5)], T0) is None


def test_the_lake_knows_what_ran_and_what_it_showed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    bad = facts(2, verdict="invalid", symptom=A)
    started = bad.rows[RUNS]["started"][0].as_py()
    rows = with_rows(bad.run, started, "kraft", {VIOLATIONS: [violation(A), violation(A, place=1)]}).rows
    lake.append(RunFacts(bad.run, bad.date, "kraft", {**rows, RUNS: bad.rows[RUNS]}))
    lake.append(facts(1, bug="stale-read", bug_found=True, verdict="invalid"))
    lake.append(facts(3, bug="stale-read", bug_found=False, verdict="valid"))
    planted, seen, missed = past_runs(lake)
    assert (planted.good, planted.planted, missed.good) == (True, True, False)
    assert (seen.good, set(seen.symptoms)) == (False, {A})


def test_a_symptom_says_since_when_and_how_often_and_which_run_passed_last() -> None:
    runs = [past(1), past(2, A), past(3), past(4, A), past(5, test="kill")]
    one = standing_of(A, [replace(run, revision=f"abcdef{i}99") for i, run in enumerate(runs)], [past(9, A)])
    assert one is not None and one.passed is not None and one.passed.path == "run-3", "of its own test"
    assert one.seen() == (
        "Seen in 2 of 4 earlier runs, first on 2026-11-03 (revision abcdef1), last on 2026-11-05 (revision abcdef3)."
    )
    new = standing_of(B, runs, [past(9, B)])
    assert new is not None and new.seen() == "Not seen in the 4 earlier runs of its test."
    first = standing_of(B, [], [past(9, B)])
    assert first is not None and first.seen() == "This is the first run of its test."


def test_a_planted_bug_is_compared_with_a_run_without_it() -> None:
    bug = replace(past(9, A, planted=True), test=("kraft", "register", "partition", "stale-read"))
    one = standing_of(A, [past(1)], [bug])
    assert one is not None and one.passed is not None and one.passed.path == "run-1"
