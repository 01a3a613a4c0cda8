"""Records of brokers and partitions: those of real controllers are valid, and each rule finds its violation."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cluster_logs import TOPIC, Records, live_run

from checkers.cluster import replay as rules
from checkers.cluster.replay import DEAD_LEADER, DEAD_STAYS, ReplayedMetadata, replay
from system_under_test.kraft.collected.files import read_cluster
from system_under_test.kraft.controller import decisions, partition_rules
from system_under_test.kraft.records.metadata import PartitionRecord

ALIVE = [Records.register(b, b) for b in (1, 2, 3)] + [Records.unfence(b, b) for b in (1, 2, 3)]


def kinds(
    records: list[tuple[str, str, dict]], *, last: int = 1, batches: list[int] | None = None, whole: bool = True
) -> list[str]:
    """last: number of records in the last batch; each other record is one batch, unless `batches` states them."""
    first_of_last = len(records) - last + 1
    rows = [
        (offset, batches[offset - 1] if batches else min(offset, first_of_last), kind, about, json.dumps(fields))
        for offset, (kind, about, fields) in enumerate(records, 1)
    ]
    return [found.kind for found in replay(rows, whole=whole).found]


def kinds_of_runs(*bugs: str) -> set[str]:
    """Return the kinds that are found in the logs of live controllers with these bugs."""
    runs = [live_run(Random(seed), frozenset(bugs)) for seed in range(12)]
    return {found.kind for rows in runs for found in replay(rows, whole=True).found}


@pytest.mark.parametrize("seed", range(40))
def test_what_the_controller_writes_is_right(seed: int) -> None:
    replayed = replay(live_run(Random(seed)), whole=True)
    assert replayed.found == []
    assert replayed.counts["register broker"] and replayed.counts["change partition"]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([Records.register(1, 7)], [rules.EPOCH_NOT_NEW], id="an epoch that is no offset"),
        pytest.param(
            [Records.register(1, 1), Records.register(1, 1, incarnation="b")],
            [rules.EPOCH_NOT_NEW],
            id="the epoch of the incarnation before",
        ),
        pytest.param(
            [Records.register(1, 1), Records.register(1, 2)], [rules.EPOCH_NOT_NEW], id="one incarnation, two epochs"
        ),
        pytest.param([Records.register(1, 1, fenced=False)], [rules.UNFENCED_AT_ONCE], id="not fenced at first"),
        pytest.param([Records.register(1, 1), Records.unfence(1, 5)], [rules.OTHER_EPOCH], id="another epoch"),
        pytest.param([Records.unfence(1, 5)], [rules.OTHER_EPOCH], id="a broker that nobody registered"),
        pytest.param(
            [Records.register(1, 1), Records.producer_ids(1, 1, 1000), Records.producer_ids(1, 1, 1000)],
            [rules.IDS_AGAIN],
            id="a block of producer ids that was given before",
        ),
    ],
)
def test_each_rule_of_brokers_finds_its_violation(records: list, expected: list[str]) -> None:
    assert kinds(records) == expected


MADE = Records.partition([1, 2, 3], [1, 2, 3], 1)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([MADE, Records.change(isr=[2, 3])], [rules.NOT_IN_SYNC, rules.DROPPED], id="leader not in sync"),
        pytest.param([MADE, Records.change(isr=[1, 4])], [rules.NOT_A_REPLICA, rules.DEAD_JOINS], id="no replica"),
        pytest.param(
            [MADE, Records.change(isr=[1], elr=[1])], [rules.BOTH, rules.BELOW_LEVEL], id="in sync and eligible"
        ),
        pytest.param([MADE, MADE], [rules.TWICE], id="made twice"),
        pytest.param([Records.change(isr=[1])], [rules.NEVER_MADE], id="never made"),
        pytest.param(
            [MADE, ("remove topic", TOPIC, {}), Records.change(isr=[1])], [rules.NEVER_MADE], id="topic is removed"
        ),
        pytest.param([MADE, Records.change(isr=[2, 3], leader=2)], [rules.DROPPED], id="dropped without a fence"),
        pytest.param(
            [MADE, Records.change(isr=[1, 3]), Records.fence(1, 1), Records.change(isr=[2], leader=2)],
            [rules.UNCLEAN],
            id="an unclean leader",
        ),
        pytest.param([MADE, Records.fence(1, 1)], [rules.DEAD_STAYS], id="fenced and still leads"),
        pytest.param(
            [MADE, Records.change(directories=["a", "b", "c"]), Records.change(replicas=[1, 2], isr=[1, 2])],
            [rules.DIRECTORIES],
            id="a replica less, and its directory stays",
        ),
        pytest.param(
            [("feature", "metadata.version", {"level": 16}), MADE, Records.change(directories=["a", "b", "c"])],
            [rules.TOO_EARLY],
            id="directories below their level",
        ),
        pytest.param(
            [MADE, Records.change(directories=[rules.LOST, "b", "c"], isr=[2, 3], leader=2)],
            [],
            id="the directory of the leader is lost",
        ),
        pytest.param([MADE, Records.unregister(2, 2)], [rules.DEAD_STAYS], id="unregistered and still in sync"),
        pytest.param(
            [Records.partition([1, 2, 3], [1, 2], 1), Records.fence(2, 2), Records.change(isr=[1], elr=[2, 3])],
            [rules.NOT_ELIGIBLE, rules.BELOW_LEVEL],
            id="eligible without having been in sync",
        ),
        pytest.param(
            [MADE, Records.fence(2, 2), Records.change(isr=[1, 3]), Records.change(isr=[1, 2, 3])],
            [rules.DEAD_JOINS, rules.DEAD_STAYS],
            id="joins while it is fenced",
        ),
        pytest.param(
            [MADE, Records.fence(2, 2), Records.change(isr=[1, 3]), Records.change(leader=2, isr=[1, 2, 3])],
            [rules.NOT_ALONE, rules.UNCLEAN, rules.DEAD_LEADER, rules.DEAD_STAYS],
            id="leads while it is fenced",
        ),
        pytest.param(
            [
                Records.partition([1, 2], [1, 2], 1),
                Records.change(replicas=[1, 3, 2], adding=[3], removing=[2]),
                Records.change(replicas=[1, 3], adding=[], removing=[], isr=[1]),
            ],
            [rules.EARLY_END],
            id="a reassignment that ends early",
        ),
        pytest.param(
            [
                Records.partition([1, 2], [1], 1),
                Records.change(replicas=[2, 3, 1], adding=[3], removing=[1]),
                Records.fence(1, 1),
                Records.change(leader=3, isr=[3], recovery=1),
                Records.fence(3, 3),
                Records.change(leader=-1),
                Records.change(replicas=[2, 3], adding=[], removing=[], leader=2, isr=[2]),
            ],
            [rules.UNCLEAN],
            id="a reassignment that ends with an unclean election",
        ),
        pytest.param(
            [
                Records.partition([1, 2], [1], 1),
                Records.change(replicas=[2, 3, 1], adding=[3], removing=[1]),
                Records.change(isr=[1, 3]),
            ],
            [rules.LEFT_OPEN],
            id="a reassignment that waits for a replica that it keeps",
        ),
        pytest.param(
            [
                Records.partition([1, 2], [1], 1),
                Records.change(replicas=[2, 3, 1], adding=[3], removing=[1]),
                Records.fence(1, 1),
                Records.change(leader=3, isr=[3], recovery=1),
                Records.fence(3, 3),
                Records.change(leader=-1),
            ],
            [rules.UNCLEAN],
            id="a reassignment whose only replica in sync dies, so that nobody leads",
        ),
        pytest.param(
            [Records.partition([1, 2, 3], [1, 3], 1), Records.change(replicas=[2, 3, 1], removing=[1])],
            [],
            id="a reassignment that makes the partition smaller and waits for what it keeps",
        ),
        pytest.param(
            [MADE, Records.change(replicas=[1], isr=[1], elr=[2])],
            [rules.ELIGIBLE_ELSEWHERE, rules.BELOW_LEVEL],
            id="a removed replica is eligible",
        ),
    ],
)
def test_each_rule_of_partitions_finds_its_violation(records: list, expected: list[str]) -> None:
    """Where a fence and what follows from it are one write, they are one batch."""
    start = len(ALIVE)
    batches = list(range(1, start + 2)) + [start + 2] * (len(records) - 1)
    if len(records) == 4 and rules.DEAD_STAYS in expected:
        batches = [*range(1, start + 2), start + 2, start + 2, start + 4]
    assert kinds([*ALIVE, *records], batches=batches) == expected


def test_what_the_topic_allows_is_no_violation() -> None:
    unclean = ("config", "2 orders", {"name": "unclean.leader.election.enable", "value": "true"})
    records = [
        *ALIVE,
        ("topic", TOPIC, {"name": "orders"}),
        unclean,
        Records.partition([1, 2], [1], 1),
        Records.fence(1, 1),
        Records.change(isr=[2], leader=2, recovery=1),
    ]
    assert kinds(records, last=2) == []


def test_a_broker_that_is_back_within_one_batch_was_fenced_all_the_same() -> None:
    """Apache Kafka 4.3.0 puts the records of several events into one batch: a session ends, and a heartbeat comes."""
    dropped, fenced, back = Records.change(isr=[2], leader=2), Records.fence(1, 1), Records.unfence(1, 1)
    made = [*ALIVE, Records.partition([1, 2], [1, 2], 1)]
    assert kinds([*made, dropped, fenced, back], last=3) == []
    assert kinds([*made, dropped, back], last=2) == [rules.DROPPED]


@pytest.mark.parametrize(("needed", "expected"), [("2", [rules.STILL_ELIGIBLE]), ("3", [])])
def test_replicas_are_eligible_only_while_too_few_are_in_sync(needed: str, expected: list[str]) -> None:
    records = [
        *ALIVE,
        ("feature", "eligible.leader.replicas.version", {"level": 1}),
        ("topic", TOPIC, {"name": "orders"}),
        ("config", "4 orders", {"name": "min.insync.replicas", "value": "1"}),  # config of a broker: it does not count
        ("config", "2 orders", {"name": "min.insync.replicas", "value": needed}),
        Records.partition([1, 2, 3], [1, 2, 3], 1),
        Records.fence(3, 3),
        Records.change(isr=[1, 2], elr=[3]),
    ]
    assert kinds(records, last=2) == expected
    assert kinds(records, last=2, whole=False) == [], "its configs may stand in the snapshot"


ELR = ("feature", "eligible.leader.replicas.version", {"level": 1})
TWO_IN_SYNC = ("config", "4 ", {"name": "min.insync.replicas", "value": "2"})


@pytest.mark.parametrize(
    ("settings", "change", "expected"),
    [
        ([ELR, TWO_IN_SYNC], {"isr": [1]}, [rules.NOT_KEPT]),
        ([ELR, TWO_IN_SYNC], {"isr": [1], "elr": [2]}, []),
        ([ELR], {"isr": [1]}, []),
        ([TWO_IN_SYNC], {"isr": [1]}, []),
        ([TWO_IN_SYNC], {"isr": [1], "elr": [2]}, [rules.BELOW_LEVEL]),
        ([ELR, TWO_IN_SYNC, ("config", "4 3", TWO_IN_SYNC[2] | {"value": "1"})], {"isr": [1]}, []),  # 3 may decide
    ],
)
def test_who_leaves_a_small_in_sync_set_stays_eligible(settings: list, change: dict, expected: list[str]) -> None:
    records = [*ALIVE, *settings, Records.partition([1, 2], [1, 2], 1), Records.fence(2, 2), Records.change(**change)]
    assert kinds(records, last=2) == expected


@pytest.mark.parametrize(("isr", "expected"), [([2], []), ([2, 3], [rules.NOT_ALONE])])
def test_a_leader_from_outside_is_in_sync_alone(isr: list[int], expected: list[str]) -> None:
    unclean = ("config", "4 ", {"name": "unclean.leader.election.enable", "value": "true"})
    records = [*ALIVE, unclean, Records.partition([1, 2, 3], [1, 3], 1), Records.fence(1, 1)]
    records.append(Records.change(isr=isr, leader=2))
    assert kinds(records, last=2) == expected


@pytest.mark.parametrize(("again", "expected"), [(3, []), (1, [rules.UNCLEAN])])
def test_the_last_known_leader_leads_once_nobody_is_eligible(again: int, expected: list[str]) -> None:
    """Broker 3 alone is eligible.  It no longer is if it comes back in this batch, because it may have lost data."""
    records = [*ALIVE, ELR, TWO_IN_SYNC, Records.partition([1, 2, 3], [1, 3], 1), Records.fence(1, 1)]
    records += [Records.change(isr=[3], leader=3, elr=[1]), Records.register(1, 12, incarnation="b")]
    records += [Records.change(elr=[]), Records.fence(3, 3), Records.change(isr=[], leader=-1, elr=[3], last_elr=[2])]
    records += [Records.register(again, 16, incarnation="c"), Records.change(isr=[2], leader=2, elr=[], last_elr=[])]
    assert kinds(records, batches=[*range(1, 10), 10, 10, 12, 12, 14, 14, 16, 16]) == expected


def test_a_log_behind_a_snapshot_is_not_judged_on_what_it_does_not_show() -> None:
    assert kinds([Records.unfence(1, 5), Records.change(isr=[1]), MADE], whole=False) == []


def test_clusters_whose_brokers_do_not_register_are_judged_on_the_partitions_alone() -> None:
    assert kinds([MADE]) == []
    assert kinds([Records.partition([1, 2, 3], [2, 3], 1)]) == [rules.NOT_IN_SYNC]


def test_a_record_that_cannot_be_decoded_ends_the_replay() -> None:
    replayed = replay([(1, 1, "undecodable", "", json.dumps({"why": "it is torn"}))], whole=True)
    assert "it is torn" in replayed.unreadable


_led_uncleanly = partition_rules._uncleanly_led_by


def keeps_others_in_sync(target: PartitionRecord, leader: int) -> PartitionRecord:
    return replace(_led_uncleanly(target, leader), isr=tuple({leader, *target.isr, *target.replicas[:2]}))


def waits_for_all_replicas(target: PartitionRecord, _: object) -> PartitionRecord:
    """KAFKA-19975: a replica that is kept and away holds a reassignment up."""
    remaining = tuple(each for each in target.replicas if each not in target.removing)
    ends = (target.adding or target.removing) and {*remaining} <= {*target.isr}
    return replace(target, replicas=remaining, isr=remaining, removing=(), adding=()) if ends else target


@pytest.mark.parametrize(
    ("rule", "broken", "kind"),
    [
        ("_uncleanly_led_by", keeps_others_in_sync, rules.NOT_ALONE),
        ("_finish_reassignment", waits_for_all_replicas, rules.LEFT_OPEN),
    ],
)
def test_a_controller_with_a_wrong_rule_is_found(
    rule: str, broken: Callable[..., PartitionRecord], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_rules, rule, broken)
    assert kind in kinds_of_runs()


FOUND_IN_THE_LOG = {
    decisions.STALE_BROKER_EPOCH: rules.EPOCH_NOT_NEW,
    decisions.FENCE_WITHOUT_RECORD: rules.DROPPED,
    decisions.FENCED_JOINS_ISR: rules.DEAD_JOINS,
    decisions.UNCLEAN_BY_DEFAULT: rules.UNCLEAN,
    decisions.LAST_KNOWN_LEADER_UNCHECKED: rules.DEAD_LEADER,
    decisions.REASSIGNMENT_DONE_EARLY: rules.EARLY_END,
    decisions.TOPIC_ID_LOST_ON_CHANGE: rules.NEVER_MADE,
    decisions.REGISTERS_UNFENCED: rules.UNFENCED_AT_ONCE,
    decisions.LEAVING_BROKER_LEADS: rules.DEAD_LEADER,
}
"""The planted bugs that a log alone shows, and the kinds of violations."""


@pytest.mark.parametrize("bug", FOUND_IN_THE_LOG)
def test_planted_bugs_are_found_by_the_rule_that_they_break(bug: str) -> None:
    assert FOUND_IN_THE_LOG[bug] in kinds_of_runs(bug)


@pytest.mark.parametrize("seed", range(30))
def test_one_changed_record_of_a_right_log_is_found_or_harmless(seed: int) -> None:
    """Brute force: a member is added to, or removed from, one in-sync set.  The replay finds every violation that a
    simple check of all states finds.
    """
    random = Random(seed)
    rows = live_run(random)
    places = [i for i, row in enumerate(rows) if row[2] in ("partition", "change partition") and "isr" in row[4]]
    place = random.choice(places)
    fields = json.loads(rows[place][4])
    fields["isr"] = sorted(set(fields["isr"] or ()) ^ {random.choice((1, 2, 3, 9))})
    rows[place] = (*rows[place][:4], json.dumps(fields))
    if plainly_wrong(rows):
        assert replay(rows, whole=True).found


def plainly_wrong(rows: list[tuple[int, int, str, str, str]]) -> bool:
    """Return whether any state of a partition has a leader or an in-sync member that it may not have."""
    held: dict[str, dict] = {}
    for _, _, kind, about, text in rows:
        if kind in ("partition", "change partition"):
            held[about] = held.get(about, {}) | json.loads(text)
            state = held[about]
            leads = state["leader"] != -1
            if (leads and state["leader"] not in state["isr"]) or not set(state["isr"]) <= set(state["replicas"]):
                return True
    return False


# Logs of Apache Kafka's own controllers


LOGS = Path(__file__).parent / "kafka-controllers.tar.xz"


def replayed(name: str, folder: Path) -> ReplayedMetadata:
    """Replay the log of this name."""
    with tarfile.open(LOGS) as archive:
        archive.extractall(folder, filter="data")
    rows = read_cluster(folder / name)
    return replay(((offset, base, kind, about, fields) for offset, _, base, kind, about, fields in rows), whole=True)


@pytest.mark.parametrize("name", ["4.1.1-elr", "4.4.0-partition-kill-a", "4.4.0-partition-kill-b", "4.4.0-power"])
def test_a_sound_controller_is_not_accused(name: str, tmp_path: Path) -> None:
    """Kafka writes the partitions of a broker before the record that fences or registers it, in one batch."""
    found = replayed(name, tmp_path)
    assert (found.found, found.unreadable) == ([], "")
    assert found.counts["change partition"] > 10 and found.counts["register broker"] >= 3


def test_a_fenced_last_known_leader_that_is_elected_is_found(tmp_path: Path) -> None:
    """KAFKA-19522 in 4.0.0: broker 1 leads four partitions from the batch in which it is registered, fenced."""
    found = replayed("4.0.0-elr-kafka-19522", tmp_path).found
    assert [each.offset for each in found if each.kind == DEAD_LEADER] == [150, 151, 152, 153]
    assert {each.kind for each in found} == {DEAD_LEADER, DEAD_STAYS}
