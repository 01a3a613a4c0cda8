"""What a run is refused for before it starts, and which faults it gets."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from checkers.base.stored_run import Demands
from checkers.record.faults import Achieved, Card, FaultRecord
from checkers.run_quality import vacuity
from checkers.run_quality.leadership import ElectionsInFaults
from checkers.run_quality.minimums import GRACE_NS, LONG_NS, lets_write, stretches
from harness.run.refused_before_start import (
    Dealing,
    capabilities_of,
    check_spec,
    choose_backend,
    dealt,
    lacking,
    why_not,
    with_every_kind,
)
from harness.spec import Spec, WrongSpec
from harness.terminal.progress import Progress
from nemesis.cluster import CLIENT_PROCESSES
from nemesis.coverage import LED, Cell
from nemesis.deck import schedule_json
from nemesis.kinds import KINDS, kinds_of
from system_under_test.subject import FAILOVER_S, Declares, NodeStatus

NOTICES = """
from krucible import Client, System

class Registers(System):
    notices_damage = {noticed}

    async def start(self, node, nodes):
        return "exec sleep 1000"

class RegisterClient(Client):
    def read(self, key):
        return None

    def write(self, key, value):
        raise RuntimeError
"""


def test_all_stands_for_every_kind_that_fits_and_says_why_the_others_do_not() -> None:
    spec, left_out = with_every_kind(Spec(nemesis="all", backend="namespaces"))
    check_spec(spec)
    dealt = {kind.name for kind in kinds_of(spec.nemesis)}
    assert dealt | set(left_out) == set(KINDS)
    assert {"partition", "pause", "kill", "power", "disk"} <= dealt
    assert "member" in left_out["membership"], "a bundled KRaft whose voters are fixed"
    assert spec.test == f"test-{len(dealt)}-kinds"
    with pytest.raises(WrongSpec, match="no kind of fault fits: subject canary has no nodes to break"):
        with_every_kind(Spec(subject="canary", nemesis="all"))


def test_damage_that_a_system_does_not_promise_to_notice_is_left_out(tmp_path: Path) -> None:
    """Each of its targets would be skipped, so a run with it alone could show nothing."""
    (tmp_path / "silent.py").write_text(NOTICES.format(noticed="{}"))
    (tmp_path / "noticing.py").write_text(NOTICES.format(noticed='{"truncate": "*.log"}'))
    silent = Spec(subject=str(tmp_path / "silent.py"), nemesis="damage", backend="namespaces")
    assert "does not promise to notice" in why_not(silent, "damage")
    with pytest.raises(WrongSpec, match=r"--nemesis damage cannot be injected: .* does not promise to notice"):
        choose_backend(silent, Progress(Console(file=io.StringIO())))
    assert why_not(replace(silent, subject=str(tmp_path / "noticing.py")), "damage") == ""


def test_a_system_with_brokers_of_their_own_is_refused_on_too_few_nodes() -> None:
    check_spec(Spec(subject="kraft-apart", nodes=4))
    with pytest.raises(WrongSpec, match="--nodes must be at least 4 for kraft-apart, not 3"):
        check_spec(Spec(subject="kraft-apart", nodes=3))


STATUSES = [NodeStatus("n1", 1, "leader", "n1", 5, 6), *(NodeStatus(f"n{i}", 1, "follower", "n1") for i in range(2, 6))]


def record(card: Card, injected_ns: int = 1, heal_ordered_ns: int = -1) -> FaultRecord:
    return FaultRecord(
        card, Achieved.INSTALLED, "killed", nodes=("n1",), injected_ns=injected_ns, heal_ordered_ns=heal_ordered_ns
    )


def test_every_card_is_written_before_it_is_played() -> None:
    spec = Spec(nemesis="kill", seed=3)
    test: dict[str, object] = {}
    dealing = Dealing(spec, Declares(), lambda cards: test.update(schedule=[asdict(card) for card in cards]))
    assert dealing.breaks_things and not dealing.schedule.cards
    dealt: list[Card] = []
    while cards := dealing.next():
        dealt += cards
        assert test["schedule"] == [asdict(card) for card in dealt]
    assert len(dealt) >= 5 and len(test["schedule"]) == len(dealt)


def test_only_faults_in_force_meet_anything() -> None:
    dealing = Dealing(Spec(nemesis="kill", seed=3), Declares(), lambda cards: None)
    (card, *_) = dealing.next()
    dealing.look(STATUSES, [])
    dealing.look(STATUSES, [record(card, injected_ns=-1), record(card, heal_ordered_ns=7)])
    assert not dealing.coverage.met
    dealing.look(STATUSES, [record(card)])
    assert dealing.coverage.met == {Cell("kill", "leader", LED): 1}


def test_a_schedule_file_is_played_as_it_stands(tmp_path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(schedule_json([Card(1, "kill", "leader", 2.0, 7.0)]))
    dealing = Dealing(Spec(schedule=str(path)), Declares(), lambda cards: None)
    assert dealing.breaks_things and len(dealing.schedule.cards) == 1
    assert dealing.next() == ()


def test_nothing_is_dealt_where_nothing_can_break() -> None:
    for spec, declares in ((Spec(nemesis="none"), Declares()), (Spec(), Declares(faults=False))):
        dealing = Dealing(spec, declares, lambda cards: None)
        assert not dealing.breaks_things and dealing.next() == ()


S = 1_000_000_000


def test_a_system_that_fails_over_slowly_gets_the_same_cards_and_each_takes_as_much_longer() -> None:
    fast = dealt(Spec(time_limit_s=60), Declares())
    slow = dealt(Spec(time_limit_s=300), Declares(failover_s=5 * FAILOVER_S))
    assert [(card.kind, card.name, card.like, card.after) for card in slow] == [
        (card.kind, card.name, card.like, card.after) for card in fast
    ]
    assert [card.at_s for card in slow] == pytest.approx([5 * card.at_s for card in fast], abs=0.01)
    assert [card.heal_s for card in slow] == pytest.approx([5 * card.heal_s for card in fast], abs=0.01)
    assert dealt(Spec(time_limit_s=300, holds=5), Declares()) == slow
    assert Spec(holds=2).lengthened(5 * FAILOVER_S) == 2
    assert Spec().lengthened(FAILOVER_S / 4) == 1


def test_the_minimums_of_a_slow_system_wait_as_much_longer() -> None:
    cut = FaultRecord(Card(1, "pause", "one", 0, 1), Achieved.INSTALLED, "n1 paused", nodes=("n1",))
    servers = tuple(f"n{i}" for i in range(1, 6))
    usual = Demands(servers=servers, client_nodes=("c1",))
    assert lets_write([cut], usual, LONG_NS)
    assert not lets_write([cut], replace(usual, holds=5.0), LONG_NS)
    assert lets_write([cut], replace(usual, holds=5.0), 5 * LONG_NS)
    healed = replace(cut, injected_ns=0, healed_ns=10 * S)
    early, late = (stretches((0, 100 * S), [healed], 2.0, holds) for holds in (1, 5))
    assert early[0].end_ns - early[0].begin_ns == GRACE_NS
    assert late[0].end_ns - late[0].begin_ns == 5 * GRACE_NS


def test_a_run_that_may_stop_clients_asks_for_clients_in_processes_of_their_own() -> None:
    assert CLIENT_PROCESSES in capabilities_of(Spec(nemesis="pause"))
    assert CLIENT_PROCESSES not in capabilities_of(Spec(nemesis="partition,damage"))


def test_only_a_system_that_can_change_its_members_runs_with_that_nemesis() -> None:
    assert lacking(Spec(subject="etcd", nemesis="membership"), "namespaces") == ""
    assert "cannot change while it runs" in lacking(Spec(subject="kraft", nemesis="membership"), "namespaces")


@pytest.mark.parametrize("kinds", ["pause", "partition,kill,pause,power,clock"])
def test_a_backend_that_lacks_what_one_target_needs_plays_the_others(kinds: str) -> None:
    """The clients of a simulated client node are no process that could be paused; its servers are."""
    spec = Spec(subject="kraft", nemesis=kinds, backend="simulator")
    assert CLIENT_PROCESSES in capabilities_of(spec)
    assert lacking(spec, "simulator") == ""


def test_elections_that_fell_into_no_fault_are_a_matter_of_lengths_and_the_reason_says_so() -> None:
    assert vacuity.FAILOVER_S == FAILOVER_S
    late = ElectionsInFaults(2, 0, ((12.2, 6.0), (31.0, 10.0)))
    assert vacuity.too_short(late) == (
        "the system needed 12 to 31 s to elect another leader, and the faults lasted 6 to 10 s: "
        "state `failover_s = 31` in your System, or give --holds 8"
    )
    assert vacuity.too_short(ElectionsInFaults(2, 0)) == ""
