"""A swarm plays every seed once, says which failed and why, makes failures smaller, and keeps what replays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from harness.campaign.swarm import work
from harness.campaign.swarm.scenario import Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.swarm import Swarm, replay, shrink
from harness.campaign.swarm.watch import BrokenRule
from harness.campaign.swarm.world import play
from harness.cli.main import cli
from harness.spec import WrongSpec

SECONDS = 5.0


class Here:
    """In place of Spark and its fresh processes: plays the seeds of all tasks in this process."""

    def run(self, function: Callable[[Any], Any], items: Sequence[work.SeedTask]) -> list[Any]:
        assert function is work.run_task
        return [[self._row(task, seed, work.aims_of(seed, task.aims)) for seed in task.seeds] for task in items]

    def _row(self, task: work.SeedTask, seed: int, aims: Sequence[str]) -> dict[str, Any]:
        return work.row_of(play(task.scenario(seed, aims)), task.revision, aims)


def test_a_task_plays_its_seeds_in_a_fresh_process_as_they_are_played_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hashes of strings nor what was played before make a difference."""
    task = work.SeedTask((3, 4), 5.0)
    scenarios = [task.scenario(seed) for seed in task.seeds]
    assert [bool(scenario.brokers) for scenario in scenarios] == [False, True]
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    rows = work.run_task(task)
    assert [(row["seed"], row["verdict"]) for row in rows] == [(3, work.VALID), (4, work.VALID)]
    assert [row["digest"] for row in rows[::-1]] == [play(scenario).digest for scenario in scenarios[::-1]]
    assert rows[1]["digest"] != play(replace(scenarios[1], seed=5)).digest
    assert all(set(row) == set(work.SCHEMA.names) for row in rows)


def test_a_seed_beyond_its_cpu_time_is_reported_and_the_others_are_played() -> None:
    rows = work.run_task(work.SeedTask((1, 2), seconds=3000.0, rate_hz=400.0, nodes=5, cpu_s_max=0))
    assert [(row["seed"], row["verdict"]) for row in rows] == [(1, work.TOO_LONG), (2, work.TOO_LONG)]


def test_a_seed_that_cannot_be_played_is_a_row_with_the_reason() -> None:
    [row] = work.run_task(work.SeedTask((1,), SECONDS, bug="", nodes=-1))
    assert row["verdict"] == "failed" and set(row) == set(work.SCHEMA.names)
    assert row["what"]


# Shrinking


def played(scenario: Scenario, fails: bool) -> Any:
    return SimpleNamespace(scenario=scenario, found=[BrokenRule(2.0, "lost write", "x", "leader")] * fails)


def test_what_does_not_matter_is_left_out() -> None:
    """Two cards matter, and nothing else."""
    cards = tuple(StormCard("kill", f"any:{n}", float(n), 4.0) for n in range(20))
    needed = {cards[3].who, cards[11].who}
    scenario = Scenario(1, nodes=5, seconds=60.0, cards=cards, rates=(1.1,) * 5)

    def run(tried: Scenario) -> Any:
        return played(tried, needed <= {card.who for card in tried.cards})

    left = shrink(run(scenario), 500, run, say=lambda line: None).scenario
    assert {card.who for card in left.cards} == needed
    assert (left.nodes, left.keys, left.processes, left.rates) == (3, 1, 2, ())
    assert all(card.for_s <= 0.5 for card in left.cards)


def test_shrinking_ends_when_its_plays_are_used_up() -> None:
    cards = tuple(StormCard("kill", f"any:{n}", float(n)) for n in range(20))
    scenario, tries = Scenario(1, cards=cards), list[Scenario]()

    def run(tried: Scenario) -> Any:
        tries.append(tried)
        return played(tried, False)

    assert shrink(played(scenario, True), 5, run, say=lambda line: None).scenario == scenario
    assert len(tries) == 5


# The whole


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Swarm, list[Path]]:
    """A swarm over a planted bug, with its findings."""
    folder = tmp_path_factory.mktemp("swarm")
    swarm = Swarm(folder, work.SeedTask((), SECONDS, bug="lone-vote"), lambda line: None, each=2, waves_of=1)
    swarm.run(range(30), Here(), minutes=1000, until_found=True)  # type: ignore[arg-type]
    return swarm, swarm.keep_findings(30)


def test_a_failure_is_kept_as_a_small_schedule_that_replays_byte_for_byte(found: tuple[Swarm, list[Path]]) -> None:
    swarm, kept = found
    assert kept
    played_again, compared = replay(kept[0])
    assert compared == "byte for byte as stored"
    assert played_again.found
    rows = next(iter(swarm.failures().values()))
    original = swarm.plain.scenario(rows[0]["seed"])
    assert len(played_again.scenario.cards) < len(original.cards)


def test_a_swarm_that_was_broken_off_goes_on(found: tuple[Swarm, list[Path]]) -> None:
    swarm, _ = found
    stored = sum(pq.read_table(path).num_rows for path in (swarm.folder / "rows").glob("*.parquet"))
    assert stored == len(swarm.rows)
    again = Swarm(swarm.folder, swarm.plain, lambda line: None)

    class NotAsked:
        def run(self, function: object, items: object) -> list[Any]:
            raise AssertionError("every seed was played already")

    again.run([row["seed"] for row in swarm.rows], NotAsked(), minutes=1000)  # type: ignore[arg-type]
    assert len(again.rows) == len(swarm.rows)
    assert {row["verdict"] for row in again.rows} >= {work.INVALID}


def test_what_was_never_met_is_listed() -> None:
    coverage = work.StormCoverage()
    assert "elected" in coverage.never_met()["moments"]
    transitions, faults = '{"candidate > leader": 1}', '{"kill / leader / steady": 3}'
    coverage.add({"moments": '{"elected": 2}', "transitions": transitions, "faults": faults})
    never = coverage.never_met()
    assert "elected" not in never["moments"]
    assert "candidate > leader" not in never["transitions"]
    assert "kill / leader" not in never["faults and roles"]
    assert "kill / follower" in never["faults and roles"]
    assert "kill / steady" not in never["faults and phases"]


def test_what_was_met_or_aimed_at_often_is_aimed_at_seldom() -> None:
    """All points but two were met; one of the two was aimed at in vain a hundred times."""
    rare, vain = "kill / resigned / steady", "cut / candidate / no leader"
    coverage = work.StormCoverage()
    met = {aim: 50 for aim in work.ALL_AIMS if aim not in (rare, vain)}
    coverage.add({"moments": "{}", "transitions": "{}", "faults": json.dumps(met), "aims": [vain] * 100})
    chosen = [aim for number in range(20) for aim in coverage.aims_at(Random(number), 5)]
    assert Counter(chosen).most_common(1)[0][0] == rare
    assert chosen.count(vain) < 3


def test_a_storm_that_is_aimed_strikes_what_random_ones_seldom_strike() -> None:
    """A voter that has just asked for votes is cut off, killed or paused."""
    aims = [f"{fault} / prospective / no leader" for fault in ("cut", "kill", "pause")]
    plain = draw(11, SECONDS)
    storm = work.aimed(plain, aims)
    assert len(storm.cards) == len(plain.cards) + len(aims)
    assert {(card.moment, card.who) for card in storm.cards if card not in plain.cards} == {("campaign", "it")}
    assert {key[:2] for key in play(storm).faults} & {("cut", "prospective"), ("kill", "prospective")}


def test_a_later_wave_is_aimed_and_its_rows_say_at_what(tmp_path: Path) -> None:
    """A seed that was aimed is played again from its row alone."""
    swarm = Swarm(tmp_path, work.SeedTask((), 2.0), lambda line: None, each=2, waves_of=1)
    swarm.run(range(4), Here(), minutes=1000)  # type: ignore[arg-type]
    first, _, third, _ = swarm.rows
    assert first["aims"] == []
    assert 1 <= len(third["aims"]) <= work.AIMS
    assert set(third["aims"]) <= set(work.ALL_AIMS)
    assert play(swarm.plain.scenario(third["seed"], third["aims"])).digest == third["digest"]
    assert work.aims_of(7, ()) == ()


def test_a_replay_of_a_changed_schedule_says_so(found: tuple[Swarm, list[Path]], tmp_path: Path) -> None:
    _, kept = found
    path = tmp_path / "changed.json"
    fields = json.loads(kept[0].read_text())
    path.write_text(json.dumps({**fields, "seed": fields["seed"] + 1}))
    assert replay(path)[1].startswith("other than stored")


def test_the_command_replays_a_schedule_and_refuses_what_is_none(
    found: tuple[Swarm, list[Path]], tmp_path: Path
) -> None:
    _, kept = found
    answer = CliRunner().invoke(cli, ["swarm", "--replay", str(kept[0])])
    assert answer.exit_code == 1
    assert "byte for byte as stored" in answer.output
    (tmp_path / "none.json").write_text("{}")
    refused = CliRunner().invoke(cli, ["swarm", "--replay", str(tmp_path / "none.json")])
    assert isinstance(refused.exception, WrongSpec)
    assert "no schedule of a swarm" in str(refused.exception)


@pytest.mark.spark
def test_the_command_plays_seeds_on_spark_and_counts_them_there(tmp_path: Path) -> None:
    words = ["swarm", "--seeds", "4", "--first-seed", "20", "--seconds", "5", "--each", "2", "--results", str(tmp_path)]
    # A process can run only one Spark; other tests of this process may have started theirs.
    answer = subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    summary = json.loads((tmp_path / "20" / "summary.json").read_text())
    assert [(row["verdict"], row["seeds"]) for row in summary["verdicts"]] == [(work.VALID, 4)]
