"""Rows of schema CLUSTER for tests: written by hand, or by a live controller."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from system_under_test.kraft.collected.files import row_of
from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller.brokers import SESSION_TIMEOUT_S, Heartbeat, Registration, Sessions
from system_under_test.kraft.controller.features import ELR_VERSION, METADATA_VERSION, supported_ranges
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.partition_requests import (
    alter_partitions,
    assign_directories,
    elect_leaders,
    reassign_partitions,
)
from system_under_test.kraft.controller.partition_rules import AlterPartition, Election, IsrMember
from system_under_test.kraft.controller.topics import NewTopic, create_topics, delete_topics, registered
from system_under_test.kraft.records.metadata import LOST, Endpoint, FeatureLevelRecord, Record, encode_at

TOPIC = "ab" * 16
BROKERS = (1, 2, 3, 4)


class Records:
    """(kind, about, fields) of single records."""

    @staticmethod
    def register(broker: int, epoch: int, incarnation: str = "a", *, fenced: bool = True) -> tuple[str, str, dict]:
        fields = {"incarnation": incarnation, "epoch": epoch, "rack": None, "fenced": fenced, "leaving": False}
        return "register broker", f"broker {broker}", fields

    @staticmethod
    def unfence(broker: int, epoch: int) -> tuple[str, str, dict]:
        return "change broker", f"broker {broker}", {"epoch": epoch, "fenced": -1}

    @staticmethod
    def fence(broker: int, epoch: int) -> tuple[str, str, dict]:
        return "change broker", f"broker {broker}", {"epoch": epoch, "fenced": 1}

    @staticmethod
    def unregister(broker: int, epoch: int) -> tuple[str, str, dict]:
        return "unregister broker", f"broker {broker}", {"epoch": epoch}

    @staticmethod
    def producer_ids(broker: int, epoch: int, following: int) -> tuple[str, str, dict]:
        return "producer ids", f"broker {broker}", {"epoch": epoch, "next": following}

    @staticmethod
    def partition(replicas: list[int], isr: list[int], leader: int) -> tuple[str, str, dict]:
        fields = {"replicas": replicas, "isr": isr, "removing": [], "adding": [], "leader": leader}
        return "partition", f"{TOPIC}/0", fields

    @staticmethod
    def change(**fields: Any) -> tuple[str, str, dict]:
        return "change partition", f"{TOPIC}/0", fields


def live_run(
    random: Random, bugs: frozenset[str] = frozenset(), steps: int = 120
) -> list[tuple[int, int, str, str, str]]:
    """Return the records of a controller while brokers join, leave, fall silent and report, and users move
    partitions.
    """
    world = _World(random, bugs)
    for _ in range(steps):
        world.step()
    return world.rows


class _World:
    def __init__(self, random: Random, bugs: frozenset[str]) -> None:
        self.random = random
        self.bugs = bugs
        self.image = Image(bugs)
        self.sessions = Sessions(self.image, 0.0, bugs)
        self.now_s = 1000.0
        self.end_offset = 1
        self.rows: list[tuple[int, int, str, str, str]] = []
        self.incarnations = dict.fromkeys(BROKERS, 0)
        self.topics = 0
        self.leaving: set[int] = set()  # a broker that asked to stop does not change its mind
        level = random.choice([None, 14, 17, 25, 33])
        if level is not None:
            self.write([FeatureLevelRecord(METADATA_VERSION, level)])
        if random.random() < 0.7 and (level is None or level >= 23):
            self.write([FeatureLevelRecord(ELR_VERSION, 1)])
        for broker in BROKERS:
            self.restart(broker)
            self.beat(broker)

    def write(self, records: list[Record]) -> None:
        base, level = self.end_offset, self.image.metadata_version
        for record in [encode_at(each, level) for each in records]:
            self.image.replay(record)
            if (row := row_of(record, self.end_offset, 1, base)) is not None:
                offset, _, batch, kind, about, fields = row
                self.rows.append((offset, batch, kind, about, fields))
            self.end_offset += 1

    def restart(self, broker: int) -> None:
        self.incarnations[broker] += 1
        known = self.image.brokers.get(broker)
        clean = known.broker_epoch if known is not None and self.random.random() < 0.3 else -1
        request = Registration(
            broker,
            UUID(int=broker << 32 | self.incarnations[broker]),
            (Endpoint("PLAINTEXT", f"n{broker}", 9092),),
            supported_ranges(),
            log_dirs=tuple(UUID(int=1000 * broker + disk) for disk in range(1, 2 + broker % 2)),
            previous_epoch=clean,
        )
        self._decide(lambda: life.register(self.image, self.sessions, request, self.end_offset, self.now_s))
        if self.image.brokers[broker].incarnation_id == request.incarnation:
            self.leaving.discard(broker)

    def beat(self, broker: int, **wants: bool) -> None:
        if wants.get("wants_shutdown"):
            self.leaving.add(broker)
        epoch = self.image.brokers[broker].broker_epoch
        wants |= {"wants_shutdown": broker in self.leaving}
        known = self.image.brokers[broker].log_dirs
        lost = known[:1] if len(known) > 1 and self.random.random() < 0.1 else ()
        request = Heartbeat(broker, epoch, self.end_offset - 1, lost_dirs=lost, **wants)
        self._decide(lambda: life.heartbeat(self.image, self.sessions, request, self.end_offset, self.now_s)[0])

    def _decide(self, decide: Any) -> None:
        try:
            self.write(decide())
        except Refused:
            return

    def step(self) -> None:
        random, broker = self.random, self.random.choice(BROKERS)
        move = random.randrange(10)
        if move == 0:
            self.now_s += random.choice([1.0, 4.0, SESSION_TIMEOUT_S])
            while records := life.fence_stale(self.image, self.sessions, self.now_s):
                self.write(records)
        elif move == 1:
            self.restart(broker)
        elif move == 2 and len(self.image.topics) < 3:
            self.topics += 1
            name, number = f"t{self.topics}", UUID(int=self.topics)
            records, _ = create_topics(self.image, [NewTopic(name, 2, 3)], registered(self.image), lambda: number)
            self.write(records)
        elif move == 3:
            self._reassign()
        elif move == 4:
            election = random.choice([Election.PREFERRED, Election.PREFERRED])
            self.write(elect_leaders(self.image, None, election, self.bugs)[0])
        elif move in (5, 6):
            self._alter()
        elif move == 7 and random.random() < 0.5:
            self._assign(broker)
        elif move == 7:
            name = random.choice(["t1", "t2", "t3"])
            self.write(delete_topics(self.image, [name])[0] if random.random() < 0.3 else [])
        else:
            self.beat(broker, wants_fence=random.random() < 0.1, wants_shutdown=random.random() < 0.1)

    def _reassign(self) -> None:
        partitions = [(t.name, n) for t in self.image.topics.values() for n in t.partitions]
        if partitions:
            name, number = self.random.choice(partitions)
            target = self.random.sample(BROKERS, 3) if self.random.random() < 0.8 else None
            self.write(reassign_partitions(self.image, [(name, number, target)], self.bugs)[0])

    def _assign(self, broker: int) -> None:
        """A broker reports where a replica is, or that its directory is lost."""
        held = [p for t in self.image.topics.values() for p in t.partitions.values() if broker in p.replicas]
        known = self.image.brokers[broker]
        if held and known.log_dirs:
            which = self.random.choice(held)
            wanted = [(which.topic_id, which.partition, self.random.choice([*known.log_dirs, LOST]))]
            self._decide(lambda: assign_directories(self.image, broker, known.broker_epoch, wanted, self.bugs)[0])

    def _alter(self) -> None:
        """A leader proposes some in-sync set, by what it may believe."""
        led = [p for t in self.image.topics.values() for p in t.partitions.values() if p.leader != -1]
        if not led:
            return
        held = self.random.choice(led)
        isr = {held.leader, *self.random.sample(held.replicas, self.random.randint(1, len(held.replicas)))}
        members = tuple(IsrMember(b, self.image.brokers[b].broker_epoch) for b in held.replicas if b in isr)
        proposal = AlterPartition(held.leader, held.leader_epoch, held.partition_epoch, members)
        epoch = self.image.brokers[held.leader].broker_epoch
        wanted = [(held.topic_id, held.partition, proposal)]
        self.write(alter_partitions(self.image, held.leader, epoch, wanted, self.bugs)[0])
