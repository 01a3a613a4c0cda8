"""A node as a broker: carries out the decisions of `broker_life.py`, and sends requests to the active controller over
the wire.

    loop:  ask what is due -> request to the active controller -> answer -> ask again
    loop:  probe the replicas of the partitions that this broker leads -> AlterPartition if a set should change

The requests go to the leader that this node knows, possibly this node itself.  The broker takes the metadata only from
the committed image of its own node, never from an answer.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.features import supported_ranges
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log import small_files
from system_under_test.kraft.node import broker_life
from system_under_test.kraft.node.config import Brokers
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import DeadlineTimer
from system_under_test.kraft.ports import Disk, Ports
from system_under_test.kraft.wire import versions
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame, encode_request
from system_under_test.kraft.wire.quorum_service import NotQueued
from system_under_test.kraft.wire.versions import requested

STEADY_INTERVALS = 2
"""Heartbeat intervals for which the broker counts as heard after an answered heartbeat: one until the next heartbeat,
one for its answer.  A session is much longer.
"""

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
"""Name of the file that a broker writes when the controller has let it stop (KIP-966)."""


REQUEST_TIMEOUT_S = 2.0
"""Maximum seconds for a request to the controller, and for a probe."""

Send = Callable[[Entity, float], Awaitable[Entity]]
"""Function that sends a request to the active controller and returns its answer.

Raises NotQueued, TimeoutError or OSError if there is no answer.
"""


class BrokerRole:
    """A node as a broker.

    address: host and port for clients of this broker
    incarnation: new at each start of the process
    """

    def __init__(
        self,
        quorum: QuorumNode,
        address: tuple[str, int],
        incarnation: UUID,
        settings: Brokers,
        send: Send,
        ports: Ports,
    ) -> None:
        self._random = ports.random(f"moves/{quorum.incarnation}")
        self._say = ports.say
        self._quorum = quorum
        self._address = address
        self._incarnation = incarnation
        self._settings = settings
        self._send = send
        self._clock = ports.clock
        self._disk = ports.disk
        self._network = ports.network
        self._keeper = broker_life.InSyncKeeper(quorum.node_id, settings.lag_s)
        self._life = broker_life.Lifecycle(
            ports.clock.now(), _take_clean_epoch(ports.disk), settings.heartbeat_interval_s
        )
        self._answered = broker_life.Answered(STEADY_INTERVALS * settings.heartbeat_interval_s)
        self._unheard_timer = DeadlineTimer(ports.clock, self._look_whether_heard)
        self._probes: dict[int, Connection] = {}
        self._living: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def state(self) -> broker_life.LifeState:
        return self._life.state

    def start(self) -> None:
        self._living = self._quorum.spawn(self._live(), "life of the broker")
        self._quorum.spawn(self._keep_in_sync(), "in-sync sets")
        self._quorum.spawn(self._move(), "moves")

    async def leave(self) -> None:
        """Shut down in agreement with the controller.  Returns when the controller has told this broker to stop, or has
        not done so in time.
        """
        if self._life.state in (broker_life.LifeState.FENCED, broker_life.LifeState.SERVING):
            self._report(f"leaving {self._answered.for_ms(self._clock.now())}")
        self._life.leave(self._clock.now())
        self._hurry.set()
        if self._living is not None:
            await asyncio.wait({self._living})  # this task also ends with the node
        if self._life.left_cleanly:
            small_files.replace(self._disk, CLEAN_SHUTDOWN, _clean(self._life.epoch))
            self._report("left")

    def close(self) -> None:
        self._unheard_timer.cancel()
        for connection in self._probes.values():
            connection.close()

    # Registration and heartbeats

    async def _live(self) -> None:
        life = self._life
        while life.state is not broker_life.LifeState.STOPPED:
            now_s = self._clock.now()
            ask = life.ask(now_s, self._quorum.applied_offset - 1)
            if ask is not None:
                await self._tell(ask)
                continue
            if math.isinf(life.due_s):  # the broker has stopped without the controller's consent
                self._say(
                    f"broker {self._me} is {life.state.value}: no controller answered in time, epoch {life.epoch}"
                )
                return
            self._hurry.clear()
            # Use the clock that `ask` reads: another clock may fire slightly early, repeatedly.
            timer = self._clock.call_at(life.due_s, self._hurry.set)
            try:
                await self._hurry.wait()
            finally:
                timer.cancel()

    async def _tell(self, ask: broker_life.AskToRegister | broker_life.Beat) -> None:
        sent_s = self._clock.now()
        answer = await self._ask(
            self._registration(ask) if isinstance(ask, broker_life.AskToRegister) else _heartbeat(self._me, ask)
        )
        now_s, before = self._clock.now(), self._life.state
        if answer is None or answer.error_code != ErrorCode.none:
            if answer is not None and answer.error_code == ErrorCode.duplicate_broker_registration:
                self._report(f"refused {math.ceil((now_s - sent_s) * 1000)} {self._incarnation.hex}")
            self._life.unanswered(now_s)
        elif isinstance(ask, broker_life.AskToRegister):
            self._life.registered(now_s, answer.broker_epoch)
            self._report(f"registered {ask.previous_epoch} {self._incarnation.hex}")
        else:
            self._note_answered(sent_s, now_s)
            self._life.beaten(
                now_s, caught_up=answer.is_caught_up, fenced=answer.is_fenced, should_shut_down=answer.should_shut_down
            )
        if self._life.state is not before:
            self._say(f"broker {self._me} is {self._life.state.value}, epoch {self._life.epoch}")

    def _note_answered(self, sent_s: float, now_s: float) -> None:
        self._report(self._answered.look(now_s))
        self._report(self._answered.answered(sent_s, now_s))
        self._unheard_timer.set(self._answered.due_s)

    def _look_whether_heard(self) -> None:
        self._report(self._answered.look(self._clock.now()))
        self._unheard_timer.set(self._answered.due_s)

    def _report(self, change: str | None) -> None:
        if change is not None:
            self._quorum.report_broker(self._life.epoch, change)

    @property
    def _me(self) -> int:
        return self._quorum.node_id

    def _registration(self, ask: broker_life.AskToRegister) -> Entity:
        host, port = self._address
        given = {
            "broker_id": self._me,
            "cluster_id": self._quorum.cluster_id,
            "incarnation_id": self._incarnation,
            "listeners": [{"name": "PLAINTEXT", "host": host, "port": port, "security_protocol": 0}],
            "features": supported_ranges(),
            "rack": self._settings.rack,
            "is_migrating_zk_broker": False,
            "log_dirs": () if self._quorum.directory is None else (self._quorum.directory,),
            "previous_broker_epoch": ask.previous_epoch,
        }
        return requested(versions.BROKER_REGISTRATION, 3, given)

    async def _ask(self, request: Entity) -> Entity | None:
        """Return the answer of the active controller; None if there is no answer."""
        try:
            return await self._send(request, REQUEST_TIMEOUT_S)
        except (NotQueued, OSError):
            return None

    # In-sync sets

    async def _keep_in_sync(self) -> None:
        while self._life.state is not broker_life.LifeState.STOPPED:
            await asyncio.sleep(self._settings.probe_interval_s)
            if self._life.state is not broker_life.LifeState.SERVING:
                continue
            image = self._quorum.committed_image()
            followers = sorted(self._keeper.followers(image))
            await asyncio.gather(*(self._probe(image, broker) for broker in followers))
            proposals = self._keeper.proposals(self._quorum.committed_image(), self._clock.now())
            if proposals and self._life.state is broker_life.LifeState.SERVING:
                await self._ask(self._alteration(proposals))

    async def _probe(self, image: Image, number: int) -> None:
        """Send a request to a replica.  If the replica answers, it counts as in sync."""
        broker = image.brokers.get(number)
        if broker is None or not broker.endpoints:
            return
        epoch, endpoint = broker.broker_epoch, broker.endpoints[0]
        connection = self._probes.get(number)
        if connection is None:
            connection = Connection(endpoint.host, endpoint.port, f"krucible-replica-{self._me}", network=self._network)
            self._probes[number] = connection
        try:
            # The probe of one silent replica must not delay the next probes of the others.
            async with asyncio.timeout(min(REQUEST_TIMEOUT_S, self._settings.lag_s / 4)):
                await connection.exchange(_encode_probe, _taken)
        except (OSError, MalformedFrame):
            return  # the keeper notices the silence
        self._keeper.heard(number, epoch, self._clock.now())

    async def _move(self) -> None:
        """Request random changes as an operator would, for tests: move a partition that this broker leads, or elect its
        preferred replica.  The controller decides.
        """
        interval_s = self._settings.move_interval_s
        while interval_s is not None and self._life.state is not broker_life.LifeState.STOPPED:
            await asyncio.sleep(interval_s * self._random.uniform(0.5, 1.5))
            image = self._quorum.committed_image()
            led = [(t.name, p) for t in image.topics.values() for p in t.partitions.values() if p.leader == self._me]
            if not led or self._life.state is not broker_life.LifeState.SERVING:
                continue
            topic, partition = self._random.choice(led)
            brokers = sorted(image.brokers)
            if self._random.random() < 0.3 or len(brokers) < len(partition.replicas):
                await self._ask(_election(topic, partition.partition))
                continue
            factor = len(set(partition.replicas) - set(partition.adding))
            replicas = self._random.sample(brokers, min(factor, len(brokers)))
            await self._ask(_reassignment(topic, partition.partition, replicas))

    def _alteration(self, proposals: list[broker_life.Proposal]) -> Entity:
        topics = [
            {
                "topic_id": each.topic_id,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "leader_epoch": each.leader_epoch,
                        "new_isr_with_epochs": [{"broker_id": one, "broker_epoch": epoch} for one, epoch in each.isr],
                        "leader_recovery_state": 0,
                        "partition_epoch": each.partition_epoch,
                    }
                ],
            }
            for each in proposals
        ]
        given = {"broker_id": self._me, "broker_epoch": self._life.epoch, "topics": topics}
        return requested(versions.ALTER_PARTITION, 3, given)


def _election(topic: str, partition: int) -> Entity:
    wanted = [{"topic": topic, "partitions": [partition]}]
    given = {"election_type": 0, "topic_partitions": wanted, "timeout": timedelta(seconds=30)}
    return requested(versions.ELECT_LEADERS, 2, given)


def _reassignment(topic: str, partition: int, replicas: Sequence[int]) -> Entity:
    wanted = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    return requested(versions.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout": timedelta(seconds=30), "topics": wanted})


def _heartbeat(me: int, ask: broker_life.Beat) -> Entity:
    given = {
        "broker_id": me,
        "broker_epoch": ask.epoch,
        "current_metadata_offset": ask.metadata_offset,
        "want_fence": ask.wants_fence,
        "want_shut_down": ask.wants_shutdown,
        "offline_log_dirs": (),
    }
    return requested(versions.BROKER_HEARTBEAT, 1, given)


def _encode_probe(correlation_id: int, client_id: str) -> bytes:
    """Encode an ApiVersions request in a version whose answer is always the same."""
    return encode_request(correlation_id, client_id, requested(versions.API_VERSIONS, 2, {}))


def _taken(frame: bytes) -> tuple[int, None]:
    """Accept the answer to a probe, regardless of its content."""
    return int.from_bytes(frame[:4], "big", signed=True), None


def _clean(epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": epoch}).encode()


def _take_clean_epoch(disk: Disk) -> int:
    """Return the broker epoch that the previous incarnation stored at a clean shutdown.  The file is removed, so that
    it counts for one start only.
    """
    data = small_files.read(disk, CLEAN_SHUTDOWN)
    if data is None:
        return broker_life.UNKNOWN_EPOCH
    disk.remove(CLEAN_SHUTDOWN)
    disk.fsync_dir("")
    return clean_epoch(data)


def clean_epoch(data: bytes) -> int:
    """Return the broker epoch in the content of CLEAN_SHUTDOWN."""
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return broker_life.UNKNOWN_EPOCH  # a torn or foreign file counts as missing
