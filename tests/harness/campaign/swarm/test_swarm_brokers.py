"""Brokers in a swarm: each rule is broken on purpose, planted bugs of the controller break one, a clean system none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from test_swarm_rules import Log

from harness.campaign.swarm.operators import CONFIGS, ELIGIBLE, PRODUCER_IDS, UNREGISTER, RegistryRequest, TopicRequest
from harness.campaign.swarm.scenario import BROKER_MOMENTS, Scenario, StormCard
from harness.campaign.swarm.storm_of_seed import draw
from harness.campaign.swarm.watch_brokers import BrokerWatch, CommittedBatch
from harness.campaign.swarm.world import play
from system_under_test.kraft.client import LIST, REGISTER
from system_under_test.kraft.controller import brokers, image, partition_rules
from system_under_test.kraft.controller.brokers import UNCLEAN_ELECTION, Registration, Session, Sessions
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.partition_rules import AlterPartition
from system_under_test.kraft.node.broker_life import InSyncKeeper, Proposal
from system_under_test.kraft.records import metadata

TOPIC = UUID(int=7)
SERVER = Log("n1")
REGISTERED = metadata.RegisterBrokerRecord(1, incarnation_id=UUID(int=1), broker_epoch=0, endpoints=())
UNFENCED = metadata.BrokerRegistrationChangeRecord(1, 0, fenced=-1)
MADE = (
    metadata.TopicRecord("t", TOPIC),
    metadata.PartitionRecord(0, TOPIC, (1, 2), (1,), leader=1, leader_epoch=0, partition_epoch=0),
)


class OfBrokers:
    """A log whose batches are committed one after the other, and whose only server holds what a test says."""

    def __init__(self, may_vote: tuple[str, ...] = ()) -> None:
        self.broken: list[str] = []
        self.watch = BrokerWatch(
            lambda rule, server, what: self.broken.append(rule),
            lambda moment, broker: None,
            lambda broker, epoch: False,
            may_vote,
        )
        self.end = 0

    def commit(self, *records: metadata.Record) -> None:
        values = [metadata.encode(record) for record in records]
        self.watch.decided(SERVER, self.end + len(values), 1)
        batch = CommittedBatch(self.end, self.end + len(values), 1, values)
        self.end = batch.end
        self.watch.committed(SERVER, [batch])

    def applied(self, *servers: str) -> None:
        """These have applied all that is committed."""
        for server in servers:
            self.watch.applied(Log(server), self.end, None)

    def serve(self, *made: metadata.Record) -> None:
        """Register broker 1 and unfence it; then commit the records."""
        self.commit(REGISTERED)
        self.applied("n1")
        self.commit(UNFENCED)
        if made:
            self.commit(*made)


SECOND = metadata.RegisterBrokerRecord(2, incarnation_id=UUID(int=2), broker_epoch=4, endpoints=())


@pytest.mark.parametrize("knows", ["all", "not the broker that joins", "not the last change of the partition"])
def test_a_leader_knows_the_partition_and_the_brokers_that_join_it(knows: str) -> None:
    log = OfBrokers()
    log.serve(*MADE)
    log.applied("n1")
    log.commit(SECOND)
    log.applied("n2", *(["n1"] if knows != "not the broker that joins" else []))
    log.commit(metadata.BrokerRegistrationChangeRecord(2, 4, fenced=-1))
    if knows == "not the last change of the partition":
        log.commit(metadata.PartitionChangeRecord(0, TOPIC, leader=1))
    log.commit(metadata.PartitionChangeRecord(0, TOPIC, isr=(1, 2)))
    assert log.broken == ([] if knows == "all" else ["a request ahead of its metadata"])


def test_a_record_that_a_controller_cannot_have_decided_on() -> None:
    log = OfBrokers()
    log.commit(REGISTERED)
    log.commit(*MADE)
    assert log.broken == ["leader is not alive", "fenced broker keeps its partitions"]


@pytest.mark.parametrize("how", [UNREGISTER, PRODUCER_IDS])
def test_a_request_about_a_broker_means_one_incarnation(how: str) -> None:
    image = Image()
    image.replay(metadata.encode(REGISTERED))
    sessions = Sessions(image, 0.0)
    [record], _ = RegistryRequest(how, 1, 0).decide(image, sessions)
    assert type(record) is (metadata.UnregisterBrokerRecord if how == UNREGISTER else metadata.ProducerIdsRecord)
    with pytest.raises(Refused):
        RegistryRequest(how, 1, 7).decide(image, sessions)


def test_a_mistake_that_the_watch_and_the_node_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch keeps an image by the code of the node; what states must be comes from a model of its own."""
    monkeypatch.setitem(image._APPLY, metadata.ConfigRecord, Image._nothing)
    log, held = OfBrokers(), Image()
    record = metadata.ConfigRecord(metadata.TOPIC_RESOURCE, "t", "retention.ms", "1")
    log.commit(record)
    held.replay(metadata.encode(record))
    log.watch.applied(SERVER, log.end, held.state_hash)
    assert log.broken == ["a state that no replay leads to"]


def test_a_change_that_does_not_raise_the_epochs_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = image.changed
    same_epoch = lambda before, record: replace(whole(before, record), leader_epoch=before.leader_epoch)  # noqa: E731
    monkeypatch.setattr(image, "changed", same_epoch)
    log, held = OfBrokers(), Image()
    same, led = metadata.PartitionChangeRecord(0, TOPIC, isr=(1,)), metadata.PartitionChangeRecord(0, TOPIC, leader=1)
    for records, broken in (([REGISTERED], 0), ([UNFENCED], 0), (MADE, 0), ([same], 0), ([led], 1)):
        log.commit(*records)
        for record in records:
            held.replay(metadata.encode(record))
        log.watch.applied(SERVER, log.end, held.state_hash)
        assert log.broken == ["a state that no replay leads to"] * broken


def test_what_keeps_brokers_from_serving_is_named() -> None:
    log = OfBrokers()
    assert log.watch.unsettled([1]) == "broker 1 is not registered"
    log.commit(REGISTERED)
    assert log.watch.unsettled([1]) == "broker 1 is fenced"
    log.commit(UNFENCED)
    log.commit(*MADE)
    log.commit(metadata.PartitionChangeRecord(0, TOPIC, leader=metadata.NO_LEADER))
    assert log.watch.unsettled([1]).startswith("partition 0 of t has no leader")
    log.commit(metadata.PartitionChangeRecord(0, TOPIC, isr=(), last_known_elr=(1, 2)))
    assert log.watch.unsettled([1]) == "", "all of its replicas may have lost data: an operator must decide"


def test_a_replica_that_serves_has_to_come_into_sync() -> None:
    log, were_in_sync = OfBrokers(), set[str]()
    log.serve(*MADE)
    assert log.watch.out_of_sync(set()) == "", "broker 2 is not registered"
    log.commit(metadata.RegisterBrokerRecord(2, incarnation_id=UUID(int=2), broker_epoch=log.end, endpoints=()))
    assert log.watch.out_of_sync(set()) == "", "broker 2 is fenced"
    log.commit(metadata.BrokerRegistrationChangeRecord(2, log.end - 1, fenced=-1))
    assert log.watch.out_of_sync(were_in_sync) == "[2] serve but are not in sync: partition 0 of t"
    log.commit(metadata.PartitionChangeRecord(0, TOPIC, isr=(1, 2)))
    assert log.watch.out_of_sync(were_in_sync) == ""
    log.commit(metadata.PartitionChangeRecord(0, TOPIC, isr=(1,)))
    assert log.watch.out_of_sync(were_in_sync) == "", "it was in sync since: moves of replicas go on"
    log.commit(metadata.PartitionChangeRecord(0, TOPIC, isr=(), leader=metadata.NO_LEADER))
    assert log.watch.out_of_sync(set()) == "", "nobody can ask for it"


@pytest.mark.parametrize("allows", [False, True])
def test_an_administrator_wants_unclean_elections_only_where_the_topic_allows_them(allows: bool) -> None:
    """The log does not say who wanted one, so any other one breaks a rule."""
    log = OfBrokers()
    config = metadata.ConfigRecord(metadata.TOPIC_RESOURCE, "t0", UNCLEAN_ELECTION, "true" if allows else None)
    made = metadata.PartitionRecord(0, TOPIC, (1, 2), (2,), leader=2, leader_epoch=0, partition_epoch=0)
    log.serve()
    log.commit(metadata.RegisterBrokerRecord(2, incarnation_id=UUID(int=2), broker_epoch=2, endpoints=(), fenced=False))
    log.broken.clear()  # it registers as one that already serves, which is another rule
    log.commit(metadata.TopicRecord("t0", TOPIC), config, made)
    fenced = metadata.BrokerRegistrationChangeRecord(2, 2, fenced=1)
    log.commit(fenced, metadata.PartitionChangeRecord(0, TOPIC, leader=metadata.NO_LEADER))
    records, _ = TopicRequest("unclean", 0).decide(log.watch.image, lambda: UUID(int=8), ())
    assert len(records) == allows
    log.watch.committed(
        SERVER, [CommittedBatch(log.end, log.end + len(records), 1, tuple(map(metadata.encode, records)))]
    )
    assert log.broken == []


# Whole storms


def of_brokers(count: int, bug: str = "", seconds: float = 8.0, first: int = 0) -> Iterator[Scenario]:
    """Storms whose brokers register.  first: the seed to begin with."""
    drawn = (draw(seed, seconds, bug=bug) for seed in range(first, first + 300))
    return islice((scenario for scenario in drawn if scenario.brokers), count)


def apart(*cards: StormCard, observers: int = 2, seconds: float, **more: Any) -> Scenario:
    """Brokers that are no controllers, under these cards alone."""
    return Scenario(2, brokers="apart", observers=observers, seconds=seconds, cards=cards, **more)


@pytest.mark.parametrize(("brokers", "observers"), [("combined", 0), ("apart", 2)])
def test_without_faults_brokers_register_once_and_stay(brokers: Any, observers: int) -> None:
    played = play(Scenario(1, brokers=brokers, observers=observers, seconds=10.0))
    assert played.found == []
    assert not played.moments.keys() & {"registered", "fenced", "leaving"}, "they did so before the main phase"
    assert played.operations - played.ok < 200


def test_a_broker_that_is_silent_is_fenced_and_comes_back() -> None:
    pause = StormCard("pause", "broker:0", 3.0, 6.0)
    stop = StormCard("stop", "broker:1", 4.0, 0.5)
    played = play(apart(pause, stop, seconds=20.0))
    assert played.found == []
    assert {name: played.moments[name] for name in ("registered", "leaving")} == {"registered": 1, "leaving": 1}
    assert played.moments["fenced"] == played.moments["unfenced"] == 2


def test_clocks_of_other_rates_do_not_make_a_broker_ask_for_ever() -> None:
    scenario = Scenario(1, brokers="combined", rates=(0.9, 1.1, 1.05), seconds=3.0)
    assert play(scenario).found == []


def test_brokers_find_a_controller_that_joined_the_voters_later() -> None:
    """n4 joins, and the voters that the configuration names are removed one after the other, each while it leads."""
    joins = StormCard("voters", "any:3", 1.0, 4.0, how="add")
    removals = tuple(StormCard("voters", "leader", 6.0 + 5 * n, 4.0, how="remove") for n in range(3))
    scenario = Scenario(3, brokers="apart", observers=2, spares=1, seconds=22.0, cards=(joins, *removals))
    played = play(scenario)
    assert played.moments["removed"] == 3, "n4 leads at last"
    assert played.found == []


def test_brokers_still_reach_a_leader_whose_voter_was_updated() -> None:
    update = StormCard("voters", "leader", 3.0, how="update", size=2)
    played = play(Scenario(3, brokers="combined", spares=1, seconds=10.0, cards=(update,)))
    assert played.moments["voters"] >= 1
    assert played.found == []
    assert "fenced" not in played.moments


def test_topics_have_no_config_that_clients_write() -> None:
    """What a client never wrote would be found in the log twice: once for each topic of a name."""
    assert not {REGISTER, LIST} & {name for configs in CONFIGS for name in configs}


TWO = [draw(seed, 6.0) for seed in (0, 12)]


@pytest.mark.parametrize("storms", [TWO, pytest.param(of_brokers(20, seconds=30.0), marks=pytest.mark.nightly)])
def test_a_clean_system_keeps_every_rule_of_brokers_and_recovers(storms: Iterable[Scenario]) -> None:
    played = [play(scenario) for scenario in storms]
    assert [each.found for each in played] == [[]] * len(played)
    assert all(each.calm_s >= 0 for each in played)
    met = {moment for each in played for moment in each.moments}
    assert len(met & BROKER_MOMENTS.keys()) > 8, met


@pytest.mark.parametrize(
    ("bug", "rule", "first"),
    [
        ("stale-broker-epoch", "broker epoch is not that of its registration", 7),
        ("unfence-early", "a request ahead of its metadata", 0),
        ("elr-keeps-unclean", "broker came back uncleanly and stays an eligible leader", 12),
        ("fence-without-record", "leader is dropped and was never fenced", 0),
    ],
)
def test_a_planted_bug_of_the_controller_breaks_its_rule(bug: str, rule: str, first: int) -> None:
    found = (play(scenario).found for scenario in of_brokers(12, bug, first=first))
    assert next(each[0].rule for each in found if each) == rule


def test_a_leader_that_learns_late_of_a_registration_does_not_let_the_broker_join() -> None:
    """After the storm a broker is fenced and comes back, while the disk of one that leads partitions is slow."""
    scenario = apart(observers=3, seconds=2.0)
    assert play(scenario).found == []
    found = play(replace(scenario, bug="stale-epoch-joins-isr")).found
    assert {broken.rule for broken in found} == {"a request ahead of its metadata"}


@pytest.mark.parametrize("bug", ["", "leaving-broker-leads"])
def test_no_broker_that_leaves_comes_to_lead_while_all_leave(bug: str) -> None:
    topics = tuple(StormCard("topics", "leader", 0.1, how="create", size=size) for size in (3, 4, 9, 14))
    stops = tuple(StormCard("stop", f"broker:{number}", 2.0 + number / 100, 0.5) for number in range(3))
    played = play(apart(*topics, *stops, observers=3, seconds=5.0, bug=bug))
    assert played.moments["leaving"] == 3
    assert [broken.rule for broken in played.found][:1] == (["leader is not alive"] if bug else [])


@pytest.mark.parametrize(
    ("mistake", "broken"),
    [
        ("", ""),
        ("refused", "broker is refused because of itself"),
        ("new epoch", "broker epoch is not that of its registration"),
    ],
)
def test_a_broker_whose_registration_was_not_answered_registers_again(
    mistake: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in KAFKA-16952: the retry may not be refused for the time of a session, and keeps the epoch."""
    whole, first_s, repeated = brokers.register, dict[UUID, float](), list[bool]()

    def register(
        image: Image, sessions: Sessions, request: Registration, offset: int, now_s: float
    ) -> list[metadata.Record]:
        known = image.brokers.get(request.broker)
        again = known is not None and known.incarnation_id == request.incarnation
        repeated.append(again)
        if again and mistake == "refused" and now_s < first_s[request.incarnation] + 3:
            raise Refused(ErrorCode.duplicate_broker_registration, "")
        first_s.setdefault(request.incarnation, now_s)
        records = whole(image, sessions, request, offset, now_s)
        if again and mistake == "new epoch" and isinstance(records[0], metadata.RegisterBrokerRecord):
            records[0] = replace(records[0], broker_epoch=offset)
        return records

    monkeypatch.setattr(brokers, "register", register)
    kill = StormCard("kill", "broker:0", 1.0, 4.5)
    cut = StormCard("cut", "it", 2.0, 2.3, moment="registered", how="in")
    played = play(apart(kill, cut, seconds=10.0))
    assert any(repeated)
    assert [each.rule for each in played.found][:1] == ([broken] if broken else [])


def test_a_refusal_that_a_controller_may_have_given_before_it_knew_breaks_nothing() -> None:
    log, said = OfBrokers(("n1", "n2")), f"refused 500 {REGISTERED.incarnation_id.hex}"
    log.commit(REGISTERED)
    log.watch.applied(Log("n1"), log.end, None, 1.0)
    log.watch.reported(SERVER, said, 5.0)
    assert log.broken == [], "n2 may lead and not know"
    log.watch.applied(Log("n2"), log.end, None, 6.0)
    for known, now_s in ((said, 6.4), (f"refused 500 {UUID(int=9).hex}", 8.0), ("registered -1 0", 8.0)):
        log.watch.reported(SERVER, known, now_s)
    assert log.broken == []
    log.watch.reported(SERVER, said, 6.7)
    assert log.broken == ["broker is refused because of itself"]


def test_a_broker_that_is_down_is_unregistered_and_registers_anew() -> None:
    down = StormCard("kill", "broker:1", 3.0, 8.0)
    ids = StormCard("registry", "broker:0", 2.0, how=PRODUCER_IDS)
    gone = StormCard("registry", "broker:1", 7.5, how=UNREGISTER)
    alive = StormCard("registry", "broker:0", 8.0, how=UNREGISTER)
    played = play(apart(down, ids, gone, alive, observers=3, seconds=20.0))
    assert played.found == []
    assert sum(count for (fault, *_), count in played.faults.items() if fault == "registry") == 2, "one is alive"
    assert played.moments["registered"] == 1


def test_heartbeats_that_do_not_renew_the_session_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is fenced serves again with its next heartbeat, so that nothing else is missing."""
    scenario = apart(seconds=2.0)
    assert play(scenario).found == []
    whole = Sessions.of

    def never_renewed(self: Sessions, broker: int, now_s: float) -> Session:
        known = broker in self._by_broker
        session = whole(self, broker, now_s)
        return replace(session) if known else session

    monkeypatch.setattr(Sessions, "of", never_renewed)
    assert {broken.rule for broken in play(scenario).found} == {"a broker is fenced without a cause"}


@pytest.mark.parametrize("wrong", [False, True])
def test_a_controller_that_keeps_eligible_leaders_without_regard_to_min_insync_is_found(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = partition_rules._with_elr
    if wrong:
        any_one = lambda before, target, lost, rules: whole(before, target, lost, replace(rules, min_insync=1))  # noqa: E731
        monkeypatch.setattr(partition_rules, "_with_elr", any_one)
    two_in_sync = StormCard("topics", "leader", 0.1, how=ELIGIBLE, size=5)
    kills = (StormCard("kill", f"broker:{number}", 1.0, 6.0) for number in range(2))
    played = play(apart(two_in_sync, *kills, observers=3, seconds=9.0))
    assert {each.rule for each in played.found} == ({"no eligible leader, though it was in sync"} if wrong else set())


@pytest.mark.parametrize("who", ["leader", "controller"])
def test_an_in_sync_set_that_never_grows_is_found(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the leader of the partition never asks for it, or the controller refuses it."""
    scenario = apart(StormCard("pause", "broker:0", 2.0, 5.0), seconds=9.0)
    if who == "leader":
        assert play(scenario).found == []
    proposals, why_refused = InSyncKeeper.proposals, partition_rules.why_refused

    def never(self: InSyncKeeper, image: Image, now_s: float) -> list[Proposal]:
        return [each for each in proposals(self, image, now_s) if not grows(image, each)]

    def grows(image: Image, each: Proposal) -> bool:
        topic, proposed = image.topic_of(each.topic_id), {number for number, _ in each.isr}
        return topic is not None and bool(proposed - set(topic.partitions[each.partition].isr))

    def refused(partition: metadata.PartitionRecord, request: AlterPartition, *others: Any) -> ErrorCode | None:
        joins = {member.broker for member in request.isr} - set(partition.isr)
        return ErrorCode.ineligible_replica if joins else why_refused(partition, request, *others)

    if who == "leader":
        monkeypatch.setattr(InSyncKeeper, "proposals", never)
    else:
        monkeypatch.setattr(partition_rules, "why_refused", refused)
    [found] = play(scenario).found
    assert found.rule == "no progress"
    assert "not in sync" in found.what


def test_a_new_controller_that_does_not_know_who_is_silent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean system passes the same storms, with a broker that dies and a controller that fails over."""
    scenarios = [Scenario(seed, brokers="apart", observers=2, seconds=3.0) for seed in range(2)]
    assert [play(each).found for each in scenarios] == [[]] * 2
    whole = Sessions.__init__

    def forgetful(self: Sessions, image: Image, now_s: float, *others: Any) -> None:
        whole(self, image, now_s, *others)
        self._by_broker = {}

    monkeypatch.setattr(Sessions, "__init__", forgetful)
    rules = {broken.rule for each in scenarios for broken in play(each).found}
    assert rules == {"a silent broker is not fenced"}
