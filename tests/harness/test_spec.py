"""The spec: what a run may demand, how threads are placed, and which command repeats a run."""

from pathlib import Path

import pytest

from checkers.record.faults import Card
from harness.cli.run import run, titled_by_schedule
from harness.registry import names_for_bug
from harness.spec import CLIENT_NODES, OPTIONS, Spec, WrongSpec, beside_of
from harness.started import program
from nemesis.deck import schedule_json


@pytest.mark.parametrize("concurrency", range(8, 33))
def test_every_client_node_has_readers_and_writers_that_follow_and_that_stay(concurrency: int) -> None:
    placements = Spec(concurrency=concurrency).placements()
    assert [p.thread for p in placements] == list(range(concurrency))
    for node in CLIENT_NODES:
        here = [p for p in placements if p.client_node == node]
        assert sorted(p.follows for p in here if p.reads_only) == [False, True]
        assert {p.follows for p in here if not p.reads_only} == {False, True}, "or no thread writes behind a partition"
    for group in (True, False):
        members = [p.member for p in placements if p.follows == group]
        counts = [members.count(server) for server in Spec().servers]
        assert max(counts) - min(counts) <= 1, (
            "every server is read through, by those that follow and by those that stay"
        )
    following = sum(p.follows for p in placements)
    assert abs(2 * following - concurrency) <= 2


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rate_hz": -1}, "--rate"),
        ({"concurrency": 7}, "--concurrency"),
        ({"stop_on_violation": True, "online": False}, "--stop-on-violation"),
        ({"waive": "electons"}, "unknown demand to waive 'electons'; did you mean 'elections'"),
        ({"waive": "elections,faults"}, "unknown demand to waive 'faults'"),
    ],
)
def test_an_impossible_value_is_refused_by_its_option_s_name(wrong: dict[str, int | str], word: str) -> None:
    with pytest.raises(WrongSpec, match=word):
        Spec(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("subject", "bug", "workload", "nemesis"),
    [
        ("kraft", None, "register", "partition"),
        ("kraft", "stale-read", "register", "partition"),
        ("kraft", "no-op-unconfirmed", "repeated-register", "partition"),
        ("kraft", "no-fsync", "register", "power"),
        ("canary", "lose-element", "set", "partition"),
        ("kraft", "no-such-bug", "register", "partition"),
    ],
)
def test_a_run_that_names_only_a_bug_takes_what_can_show_it(
    subject: str, bug: str | None, workload: str, nemesis: str
) -> None:
    assert names_for_bug(subject, bug) == {"workload": workload, "nemesis": nemesis}


@pytest.mark.parametrize(
    ("functions", "workload"),
    [
        ("read write cas add members", "register"),
        ("add members", "set"),
        ("transact_registers open_account transfer balances", "rw-register"),
        ("enqueue dequeue drain", "queue"),
    ],
)
def test_a_run_that_names_no_workload_takes_the_strongest_of_what_its_clients_have(
    functions: str, workload: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    methods = "".join(f"    def {name}(self, *given): ...\n" for name in functions.split())
    start = "    async def start(self, node, nodes): return 'true'\n"
    file.write_text(
        f"from krucible import Client, System\nclass Mine(System):\n{start}class Clients(Client):\n{methods}"
    )
    assert names_for_bug(str(file), None)["workload"] == workload


RUN = f"{program()} run"


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        (
            # A bug alone would choose a workload.
            Spec(seed=7, nodes=3, rate_hz=50.0, bug="stale", subject="canary"),
            "make test-partition SEED=7 NODES=3 RATE=50 WORKLOAD=register SUBJECT=canary BUG=stale",
        ),
        (Spec(recovery_limit_s=120.0, stop_on_violation=True), "RECOVERY_LIMIT=120 STOP_ON_VIOLATION=1"),
        (Spec(nemesis="none", keys=3, stop_on_violation=True), "--keys 3 --stop-on-violation"),
        (Spec(online=False), "--no-online"),
    ],
)
def test_the_command_to_run_again_names_all_that_is_not_default(spec: Spec, command: str) -> None:
    again = spec.rerun()
    assert again.endswith(command)
    assert again.startswith(("make test-partition ", f"{RUN} "))


def test_a_spec_survives_json() -> None:
    spec = Spec(seed=3, bug="lose", subject="canary")
    assert Spec.from_json({**spec.to_json(), "from_a_newer_version": 1}) == spec


@pytest.mark.parametrize(
    "spec",
    [
        Spec(seed=7, bug="no-op-unconfirmed", recovery_limit_s=120.0, over_budget=True, nemesis="none"),
        Spec(nemesis="none", online=False, rate_hz=0.0, op_timeout_s=0.7, schedule=__file__),
        Spec(nemesis="power,kill", stop_on_violation=True, backend="ssh", inventory="hosts.toml", nodes=3),
    ],
)
def test_the_words_of_a_spec_are_the_command_that_runs_this_very_test(spec: Spec) -> None:
    name, *words = spec.words()
    given = {key: value for key, value in run.make_context(name, words).params.items() if value is not None}
    assert Spec(**{key: value for key, value in given.items() if key in OPTIONS}) == spec


def test_a_run_that_plays_a_schedule_is_named_after_the_kinds_of_fault_in_it(tmp_path: Path) -> None:
    cards = [
        Card(1, "kill:agent", "one", 2.0, 3.0),
        Card(2, "pause", "leader", 4.0, 5.0),
        Card(3, "pause", "one", 6, 7),
    ]
    (path := tmp_path / "schedule.json").write_text(schedule_json(cards))
    assert titled_by_schedule(Spec(schedule=str(path))).test == "test-kill-agent-pause"
    path.write_text("[")
    assert titled_by_schedule(Spec(schedule=str(path), nemesis="clock")).test == "test-clock"
    assert titled_by_schedule(Spec()).test == "test-partition"


def test_a_command_to_run_again_ends_with_what_no_spec_holds() -> None:
    beside = ["--results", "a b", "--store", "s3://bucket/runs"]
    command = Spec(seed=7).rerun(beside)
    assert not command.startswith("make ") and command.endswith("--results 'a b' --store s3://bucket/runs")
    assert beside_of(command) == beside and beside_of("make test-partition SEED=7") == beside_of("it's") == []
