"""Which runs a hunt makes, what it keeps of them, and when a bug counts as found."""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from harness.campaign import child_run
from harness.campaign.hunt_bugs import LOCK, Caught, Prey, hunt, preys, read, seconds_to_find, table
from harness.registry import load_subject
from harness.spec import WrongSpec

QUIET = Console(quiet=True)
FAKE_RUN = """
import json, sys
from pathlib import Path
given = dict(zip(sys.argv[4::2], sys.argv[5::2]))
folder = Path(given["--results"])
with (folder / "made.txt").open("a") as made:
    made.write(given["--bug"] + " " + given["--seed"] + "\\n")
if given["--seed"] == "3":
    raise SystemExit(3)
run = folder / f"run-{given['--bug']}-{given['--seed']}"
run.mkdir()
found = given["--seed"] == "1"
(run / "results.json").write_text(json.dumps({"planted": {"found": found, "reason": "because"}}))
(run / "test.json").write_text(json.dumps({"main_began_ns": 2_000_000_000}))
(run / "outcome.json").write_text(json.dumps({"phases": [{"end_ns": 9_000_000_000}]}))
Path(given["--note-folder"]).write_text(str(run))
"""


@pytest.fixture
def fake_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m harness run` is a script that makes a run folder."""
    script = tmp_path / "fake"
    script.write_text(f"#!{sys.executable}\n{FAKE_RUN}")
    script.chmod(0o700)
    monkeypatch.setattr(child_run.sys, "executable", str(script))


def test_every_bug_that_nodes_can_show_is_hunted_with_a_nemesis_that_can_show_it() -> None:
    bugs = load_subject("kraft").bugs
    wanted = list(preys("kraft", (), [1, 2]))
    assert {p.bug for p in wanted} == {name for name, bug in bugs.items() if bug.in_containers}
    assert all(p.nemesis in bugs[p.bug].shown_by and p.workload in bugs[p.bug].workloads for p in wanted)
    assert [p.seed for p in wanted] == sorted(p.seed for p in wanted), "a hunt that is broken off has seen every bug"


def test_one_bug_and_another_nemesis_can_be_chosen() -> None:
    assert list(preys("kraft", ("no-fsync",), [4], "power,kill")) == [Prey("no-fsync", "power,kill", "register", 4)]
    with pytest.raises(ValueError, match="no planted bug 'no-such' that a run on nodes can show"):
        list(preys("kraft", ("no-such",), [1]))


@pytest.mark.usefixtures("fake_runs")
def test_a_hunt_keeps_what_was_run_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    folder = tmp_path / "hunt"
    first = hunt("kraft", list(preys("kraft", ("no-fsync",), [1, 2])), folder, (), QUIET)
    assert [(c.seed, c.found, c.seconds) for c in first] == [(1, True, 7.0), (2, False, -1.0)]
    again = hunt("kraft", list(preys("kraft", ("no-fsync",), [1, 2, 3])), folder, (), QUIET)
    assert again[:2] == first
    assert (again[2].found, again[2].words) == (False, "the run failed; see hunt.log")
    assert (folder / "made.txt").read_text().split("\n")[:-1] == ["no-fsync 1", "no-fsync 2", "no-fsync 3"]
    assert read(folder) == again
    assert "| `no-fsync` | power | 1 of 3 | 7 | 7 |" in (folder / "hunt.md").read_text()
    assert json.loads((folder / "hunt.json").read_text())[0]["folder"] == "run-no-fsync-1"


def test_the_seconds_end_with_the_first_online_finding_of_that_checker() -> None:
    outcome = {
        "phases": [{"end_ns": 4_000_000_000}, {"end_ns": 90_000_000_000}],
        "online": {
            "findings": [
                {"checker": "log-matching", "time_ns": 5_000_000_000},
                {"checker": "vote-once", "time_ns": 21_000_000_000},
                {"checker": "vote-once", "time_ns": 20_500_000_000},
            ]
        },
    }
    test = {"main_began_ns": 4_000_000_000}
    assert seconds_to_find("vote-once", test, outcome) == 16.5
    assert seconds_to_find("linearizability", test, outcome) == 86.0


def test_the_table_counts_each_bug_and_nemesis_apart() -> None:
    def run(seed: int, nemesis: str, found: bool) -> Caught:
        return Caught("stale-read", nemesis, "register", seed, found, 10.0 * seed if found else -1.0, "", "")

    rows = table([run(1, "pause", True), run(2, "pause", False), run(3, "pause", True), run(4, "kill", False)])
    assert rows.splitlines()[2:] == [
        "| `stale-read` | kill | 0 of 1 | - | - |",
        "| `stale-read` | pause | 2 of 3 | 20 | 30 |",
    ]


@pytest.mark.usefixtures("fake_runs")
def test_two_hunts_in_one_folder_would_take_each_others_runs_for_their_own(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(WrongSpec, match=r"another hunt works in .*: wait for its end"):
            hunt("kraft", [Prey("no-fsync", "power", "register", 1)], tmp_path, [], QUIET)
    (caught,) = hunt("kraft", [Prey("no-fsync", "power", "register", 1)], tmp_path, [], QUIET)
    assert caught.found
