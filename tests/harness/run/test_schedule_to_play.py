"""The cards of a run, dealt while it goes on: each is written down before it is played."""

from __future__ import annotations

from dataclasses import asdict

from checkers.record.faults import Achieved, Card, FaultRecord
from harness.run.refused_before_start import Dealing
from harness.spec import Spec
from nemesis.coverage import LED, Cell
from nemesis.deck import schedule_json
from system_under_test.subject import Declares, NodeStatus

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
