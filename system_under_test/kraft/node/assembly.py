"""Assembles a node, in one place: for a process in a container, for a simulator and for tests.

    node = assemble(config, ports)     reads the disk; raises CannotStart
    await node.start()                 joins the quorum and listens; raises CannotStart
    await node.ended                   the exit status (see `executor`)
    await node.close()

Time, disk, sockets, randomness and the trace come only through `ports`.

*Own entry.*  A replica reports its identity, and it may make itself a voter (KIP-853).

Report.  A voter reports its identity to the leader with UpdateRaftVoter.  While `kraft.version` is 0, it sends one
report to each leader, which keeps the report in memory for an upgrade (`raft/changes.py`).  From version 1 on, a voter
sends reports only while its entry in the log differs from its identity.  The leader reports itself, too, because no
other node knows its endpoints.

Registration.  A controller registers with the active controller, because Kafka rejects a feature level that a voter has
not declared to support (KIP-919).

Join.  A controller with `controller.quorum.auto.join.enable` that follows a leader and is no voter sends AddRaftVoter.
The leader refuses until the controller has caught up, so the controller repeats the request.  If the log names this id
with the directory of another disk, that disk was replaced.  Then the controller first requests the removal of its
former voter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

from system_under_test.kraft.controller import decisions as of_controller
from system_under_test.kraft.controller.features import CONTROLLERS_REGISTER_SINCE, KRAFT_VERSION, supported_ranges
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import DutySettings
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.log import FOLDER, CorruptLog, open_log
from system_under_test.kraft.log.small_files import QuorumStateFile, UnreadableQuorumState, WrongDirectory, kafka_uuid
from system_under_test.kraft.log.snapshot_file import CorruptSnapshot
from system_under_test.kraft.node.broker_role import BrokerRole
from system_under_test.kraft.node.config import BROKER, Config
from system_under_test.kraft.node.disk import with_bugs
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import NodeParts
from system_under_test.kraft.node.trace import Trace, UnreadableTrace, continue_trace
from system_under_test.kraft.ports import Calls, Network, Ports, Transport
from system_under_test.kraft.raft import decisions as of_raft
from system_under_test.kraft.raft.changes import KRAFT_VERSIONS, AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.decisions import must_check_batches
from system_under_test.kraft.raft.messages import FetchRequest, Identity, RaftRequest, RaftResponse, ReplicaKey, Timing
from system_under_test.kraft.raft.states import Role
from system_under_test.kraft.raft.voters import LISTENER, VoterEndpoint, VoterEntry, VoterSet
from system_under_test.kraft.records.metadata import CorruptRecord, Endpoint, RegisterControllerRecord
from system_under_test.kraft.wire import translate, versions
from system_under_test.kraft.wire.api import Api
from system_under_test.kraft.wire.channel import Channel
from system_under_test.kraft.wire.frames import Entity, MalformedFrame, RequestHeader, encode_response
from system_under_test.kraft.wire.quorum_service import NotQueued
from system_under_test.kraft.wire.server import Reply, Server, TakeAtOnce
from system_under_test.kraft.wire.versions import Finalized, filled, requested

log = logging.getLogger(__name__)

UNKNOWN_PEER_S = 0.1


class CannotStart(RuntimeError):
    """Raised if a node cannot start.  The message names the obstacle and the remedy."""


class KraftNode:
    """A voter with its API, its listening socket and its connections to the other voters."""

    def __init__(self, config: Config, ports: Ports, quorum: QuorumNode, api: Api, transport: ChannelTransport) -> None:
        """Raises CannotStart if the disk fails."""
        self.quorum = quorum
        self._config = config
        self._network = ports.network
        self._api = api
        self._transport = transport
        take_of_voter = taking_raft_requests(quorum)
        self._server = Server(
            api.handle,
            quorum.on_disconnect,
            take_at_once=lambda *request: take_of_voter(*request) or api.take_at_once(*request),
            finalized=lambda: _finalized(quorum),
        )
        self._broker = _broker_role(config, ports, quorum, api)
        me = config.peers[config.node_id]
        at = VoterEndpoint(LISTENER, me.host, me.port)
        drawn = UUID(int=ports.random(f"controller/{quorum.incarnation}").getrandbits(128), version=4)
        incarnation = drawn if quorum.registers_brokers and config.is_controller else None
        self._own_voter = OwnVoter(
            quorum, at, api.ask_controller, ports.say, joins=config.auto_join, incarnation=incarnation
        )

    @property
    def ended(self) -> asyncio.Future[int]:
        return self.quorum.ended

    async def start(self) -> None:
        self.quorum.start()
        host, port = self._config.host, self._config.port
        try:
            await self._server.listen(self._network, host, port)
        except OSError as problem:
            raise CannotStart(f"cannot listen on {host}:{port}: {problem.strerror}") from None
        if self._broker is not None:
            self._broker.start()
        self._own_voter.start()

    async def stop(self) -> None:
        """Shut down cleanly: first the broker transfers its leaderships, then the voter stops (`QuorumNode.stop`)."""
        if self._broker is not None:
            await self._broker.leave()
        await self.quorum.stop()

    async def close(self) -> None:
        """Close every connection.  Call this after the node has ended."""
        if self._broker is not None:
            self._broker.close()
        await self._server.close()
        await self._transport.close()
        self._api.close()


def assemble(
    config: Config,
    ports: Ports,
    timing: Timing | None = None,
    *,
    calls: Calls | None = None,
    trace: Trace | None = None,
) -> KraftNode:
    """Return a node on the running loop, with the content of its disk.  Raises CannotStart.

    timing: None for Kafka's defaults
    calls: carries the requests to other voters instead of connections
    trace: replaces the trace of `ports`
    """
    transport = ChannelTransport(config, ports.network)
    quorum = assemble_quorum(config, ports, timing, transport=transport, calls=calls, trace=trace)
    new_uuid = new_uuids(ports, quorum.incarnation)
    api = Api(quorum, new_uuid=new_uuid, network=ports.network, log_dir=str(config.data_dir))
    return KraftNode(config, ports, quorum, api, transport)


def _broker_role(config: Config, ports: Ports, quorum: QuorumNode, api: Api) -> BrokerRole | None:
    """Return the node as a broker, or None.  Raises CannotStart if the disk fails."""
    if config.brokers is None or BROKER not in config.brokers.roles:
        return None
    incarnation = UUID(int=ports.random(f"incarnation/{quorum.incarnation}").getrandbits(128), version=4)
    try:
        return BrokerRole(quorum, (config.host, config.port), incarnation, config.brokers, api.ask_controller, ports)
    except OSError as problem:
        raise CannotStart(f"the disk failed at start: {problem}") from None


def _finalized(quorum: QuorumNode) -> Finalized:
    levels = quorum.committed_image().features
    if quorum.kraft_version > 0:
        levels = {**levels, KRAFT_VERSION: quorum.kraft_version}
    return Finalized(quorum.applied_offset - 1, levels)


def _duties(config: Config) -> DutySettings | None:
    brokers = config.brokers
    if brokers is None:
        return None
    return DutySettings(
        balance_interval_s=brokers.balance_interval_s,
        no_op_interval_s=brokers.no_op_interval_s,
        session_timeout_s=brokers.session_timeout_s,
        features=brokers.features,
    )


def assemble_quorum(
    config: Config,
    ports: Ports,
    timing: Timing | None = None,
    *,
    transport: Transport | None = None,
    calls: Calls | None = None,
    trace: Trace | None = None,
) -> QuorumNode:
    """Return a node without its listening socket and its clients.  Raises CannotStart.

    calls: carries the requests to other voters instead of a transport
    trace: replaces the trace of `ports`
    """
    bugs = frozenset() if config.bug is None else frozenset({config.bug})
    try:
        properties = small_files.read_properties(ports.disk, config.cluster_id, config.node_id)
        disk = with_bugs(ports.disk, bugs)
        records = open_log(
            disk,
            segment_max_bytes=config.segment_bytes,
            cache_max_bytes=config.cached_bytes,
            checks_batches=must_check_batches(bugs),
        )
        state_file = QuorumStateFile(disk, FOLDER, config.cluster_id, None if config.dynamic else config.voters)
        state_file.load()
        trace = trace or continue_trace(ports.trace, ports.clock.now_ns)
    except (WrongDirectory, CorruptLog, UnreadableQuorumState, UnreadableTrace) as problem:
        raise CannotStart(str(problem)) from None
    except OSError as problem:
        raise CannotStart(f"the disk failed at start: {problem}") from None
    _check_directory(config, properties.directory_id)
    parts = NodeParts(
        identity=Identity(
            config.cluster_id,
            ReplicaKey(config.node_id, properties.directory_id),
            config.voters,
            timing or Timing(),
            bugs & of_raft.BUGS.keys(),
            config.directories,
            config.observer,
            config.dynamic,
            config.snapshots.part_max_bytes,
        ),
        log=records,
        state_file=state_file,
        clock=ports.clock,
        transport=transport,
        trace=trace,
        # A different sequence after each restart; otherwise nodes would split the same votes again.
        random=ports.random(f"timeouts/{trace.incarnation}"),
        names={peer.id: peer.name for peer in config.peers.values()},
        brokers={
            peer.id: (peer.host, peer.port)
            for peer in config.peers.values()
            if config.is_controller or peer.id != config.node_id
        },
        say=ports.say,
        apply_s=ports.apply_s,
        calls=calls,
        duties=_duties(config),
        controller_bugs=bugs & of_controller.BUGS.keys(),
        snapshots=config.snapshots,
        endpoints={peer.id: (VoterEndpoint(LISTENER, peer.host, peer.port),) for peer in config.peers.values()},
    )
    try:
        return QuorumNode(parts)
    except (CorruptSnapshot, CorruptRecord) as problem:
        raise CannotStart(f"the newest snapshot cannot be loaded: {problem}") from None


class ChannelTransport:
    """`ports.Transport` over one `wire.channel.Channel` per peer.  The peers are those of the configuration, and later
    also those that the log names.
    """

    def __init__(self, config: Config, network: Network) -> None:
        self._config = config
        self._network = network
        self._addresses: dict[int, tuple[str, int]] = {}
        self._channels: dict[int, Channel] = {}
        self._replaced: list[Channel] = []
        for peer in config.peers.values():
            self.reach(peer.id, peer.host, peer.port)

    def reach(self, peer: int, host: str, port: int) -> None:
        """Set the address at which a peer is reached."""
        if peer == self._config.node_id or self._addresses.get(peer) == (host, port):
            return
        if peer in self._channels:
            self._replaced.append(self._channels[peer])
        self._addresses[peer] = (host, port)
        self._channels[peer] = Channel(
            host,
            port,
            client_id=f"krucible-node-{self._config.node_id}",
            endpoint=(LISTENER, self._config.host, self._config.port),
            network=self._network,
        )

    async def request(self, peer: int, request: RaftRequest) -> RaftResponse | None:
        """Return the peer's response.  Also returns None if the peer's address is unknown."""
        channel = self._channels.get(peer)
        if channel is None:
            await asyncio.sleep(UNKNOWN_PEER_S)  # otherwise the core would retry at once
            return None
        return await channel.request(request)

    def send_at_once(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> bool:
        channel = self._channels.get(peer)
        return channel is not None and channel.send_at_once(request, answered)

    async def close(self) -> None:
        for channel in (*self._channels.values(), *self._replaced):
            await channel.close()


def taking_raft_requests(node: QuorumNode) -> TakeAtOnce:
    """Return a function that passes the consensus core its own RPCs.  All others go to the API."""

    def take(connection: int, header: RequestHeader, frame: bytes, at: int, reply: Reply) -> bool:
        if header.api_key not in translate.RAFT_APIS:
            return False
        try:
            request = translate.decode_request(header, frame, at)
        except translate.MalformedRpc as problem:
            log.warning("connection %d sent a request that no voter sends: %s", connection, problem)
            reply(partial(encode_response, header.correlation_id, translate.invalid_request(header.api_key)))
            return True
        knows_leader = isinstance(request, FetchRequest) and node.voters.entry(request.replica.id) is not None
        address_of = None if knows_leader else node.address_of
        encode = partial(translate.encode_response, request, header.correlation_id, address_of=address_of)
        node.take_raft_request(connection, request, lambda response: reply(partial(encode, response)))
        return True

    return take


def _check_directory(config: Config, found: UUID) -> None:
    """Raise CannotStart if the disk belongs to another replica.  If voters can change, any disk is accepted, and the
    node joins as a new replica.
    """
    if config.dynamic:
        return
    known = config.directories.get(config.node_id)
    if known is not None and known != found:
        raise CannotStart(
            f"{config.data_dir} was formatted anew: its directory id is {kafka_uuid(found)}, "
            f"but {config.name} votes with {kafka_uuid(known)}; its votes and its log are lost"
        )


def new_uuids(ports: Ports, incarnation: int) -> Callable[[], UUID]:
    """Return a function that returns topic ids, which follow from the seed and never repeat."""
    random = ports.random(f"topic ids/{incarnation}")
    return lambda: UUID(int=random.getrandbits(128), version=4)


EVERY_S = 2.0
"""Seconds between two checks of the own entry: the fetch timeout, as in Kafka."""
PATIENCE_S = 5.0

Send = Callable[[Entity, float], Awaitable[Entity]]
"""Function that sends a request to the active controller.  Raises NotQueued, TimeoutError or OSError if there is no
answer.
"""


def joining(me: VoterEntry, role: str, voters: VoterSet) -> AddVoter | RemoveVoter | None:
    """Return the change that makes this replica a voter, or the removal of its former entry, which must come first.
    None: no change now.

    voters: the voters that the replica's log names last
    """
    if role != Role.FOLLOWER or voters.holds(me.key):
        return None
    known = voters.entry(me.key.id)
    return AddVoter(me) if known is None else RemoveVoter(known.key)


def must_report(me: VoterEntry, role: str, voters: VoterSet, kraft_version: int, *, reported: bool) -> bool:
    """Return whether this voter must report its identity to its leader.

    reported: True if it has already reported to this leader
    """
    if role not in (Role.FOLLOWER, Role.LEADER) or not voters.holds(me.key):
        return False
    if kraft_version == 0:
        return role == Role.FOLLOWER and not reported
    return voters.entry(me.key.id) != me


class OwnVoter:
    """Reports and registers this node, and makes it a voter.

    at: address at which the other voters reach this node
    joins: True if this node may make itself a voter
    incarnation: id of its registration as a controller, new at each start; None for no registration
    """

    def __init__(
        self,
        quorum: QuorumNode,
        at: VoterEndpoint,
        send: Send,
        say: Callable[[str], None],
        *,
        joins: bool,
        incarnation: UUID | None,
    ) -> None:
        self._quorum = quorum
        key = ReplicaKey(quorum.node_id, quorum.directory)
        self._me = VoterEntry(key, (at,), (KRAFT_VERSIONS[0], KRAFT_VERSIONS[-1]))
        self._registration = None
        if incarnation is not None:
            self._registration = RegisterControllerRecord(
                quorum.node_id, incarnation, endpoints=(Endpoint(*at),), features=supported_ranges()
            )
        self._send = send
        self._say = say
        self._joins = joins
        self._reported_epoch = -1

    def start(self) -> None:
        self._quorum.spawn(self._look(), "own voter")

    async def _look(self) -> None:
        quorum = self._quorum
        while not quorum.ended.done():
            await asyncio.sleep(EVERY_S)
            epoch, role, voters = quorum.epoch, quorum.role, quorum.voters
            if self._registration is not None and must_register(self._registration, quorum.committed_image()):
                await self._succeeds(self._registration)
            reported = epoch == self._reported_epoch
            if must_report(self._me, role, voters, quorum.kraft_version, reported=reported):
                if await self._succeeds(UpdateVoter(self._me)):
                    self._reported_epoch = epoch
                continue
            change = joining(self._me, role, voters) if self._joins else None
            if change is not None and await self._succeeds(change):
                what = "added this node" if isinstance(change, AddVoter) else "removed the voter of the old disk"
                self._say(f"auto-join: {what}")

    async def _succeeds(self, change: AddVoter | RemoveVoter | UpdateVoter | RegisterControllerRecord) -> bool:
        try:
            answer = await self._send(_request(change, self._quorum.epoch), PATIENCE_S)
        except (NotQueued, MalformedFrame, OSError):  # also TimeoutError, which is an OSError
            return False  # the log shows later whether the change was applied
        return bool(answer.error_code == 0)


def must_register(registration: RegisterControllerRecord, image: Image) -> bool:
    """Return whether a controller must still register.  Always False while `metadata.version` has no registrations of
    controllers.
    """
    held = image.table(RegisterControllerRecord).get(registration.controller_id)
    return (image.metadata_version or 0) >= CONTROLLERS_REGISTER_SINCE and held != registration


def _request(change: AddVoter | RemoveVoter | UpdateVoter | RegisterControllerRecord, epoch: int) -> Entity:
    if isinstance(change, RegisterControllerRecord):
        return requested(versions.CONTROLLER_REGISTRATION, 0, filled(change, listeners=change.endpoints))
    key = change.key if isinstance(change, RemoveVoter) else change.entry.key
    given: dict[str, object] = {"cluster_id": None, "voter_id": key.id, "voter_directory_id": key.directory}
    if isinstance(change, RemoveVoter):
        return requested(versions.REMOVE_RAFT_VOTER, 0, given)
    given["listeners"] = [{"name": at.listener, "host": at.host, "port": at.port} for at in change.entry.endpoints]
    if isinstance(change, AddVoter):
        return requested(versions.ADD_RAFT_VOTER, 1, {**given, "timeout": timedelta(seconds=PATIENCE_S)})
    least, most = change.entry.kraft_versions
    supported = {"min_supported_version": least, "max_supported_version": most}
    given |= {"current_leader_epoch": epoch, "k_raft_version_feature": supported}
    return requested(versions.UPDATE_RAFT_VOTER, 0, given)
