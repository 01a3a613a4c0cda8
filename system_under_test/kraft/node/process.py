"""One node as an operating-system process: real clock, real disk, real sockets, signals."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import logging
import os
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from system_under_test.kraft.log import meta_properties
from system_under_test.kraft.log.log import FOLDER, CorruptLog, open_log
from system_under_test.kraft.log.meta_properties import WrongDirectory, kafka_uuid
from system_under_test.kraft.log.quorum_state import QuorumStateFile, UnreadableQuorumState
from system_under_test.kraft.node.clock import LoopClock
from system_under_test.kraft.node.config import Config
from system_under_test.kraft.node.disks.disk import RealDisk
from system_under_test.kraft.node.disks.planted_disk import with_bugs
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import NodeParts
from system_under_test.kraft.node.trace import FILE_NAME, UnreadableTrace, open_trace
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.decisions import must_check_batches
from system_under_test.kraft.raft.messages import Identity, RaftRequest, RaftResponse, ReplicaKey
from system_under_test.kraft.wire import translate
from system_under_test.kraft.wire.api import Api
from system_under_test.kraft.wire.channel import Channel
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.server import Handler, WireCall, serve

log = logging.getLogger(__name__)

LISTENER = "CONTROLLER"

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class CannotStart(RuntimeError):
    """One sentence: what stands in the way, and what to do about it."""


async def run(config: Config) -> int:
    """Run the node until it ends; its exit status (see `node`).  Raises CannotStart before it has begun."""
    _allow_many_files()
    lock = _lock(config.data_dir)
    try:
        return await _run(config)
    finally:
        os.close(lock)


def _allow_many_files() -> None:
    """A log of many small segments keeps each of their files open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run(config: Config) -> int:
    transport = ChannelTransport(config)
    node = QuorumNode(_parts(config, transport))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _unhandled(node, context))
    api = Api(node, new_uuid=_uuids(config, node.incarnation))
    node.start()
    try:
        server = await serve(config.host, config.port, answering(node, api), node.on_disconnect)
    except OSError as problem:
        raise CannotStart(f"cannot listen on {config.host}:{config.port}: {problem.strerror}") from None
    stopping: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stopping.add(loop.create_task(node.stop())))
    gc.collect()
    gc.freeze()  # what start-up made lives as long as the process: no later collection need look at it
    status = await node.ended
    await server.close()
    await transport.close()
    api.close()
    return status


def _parts(config: Config, transport: ChannelTransport) -> NodeParts:
    disk: Disk = RealDisk(config.data_dir)
    clock = LoopClock()
    try:
        properties = meta_properties.read(disk, config.cluster_id, config.node_id)
        bugs = frozenset() if config.bug is None else frozenset({config.bug})
        disk = with_bugs(RealDisk(config.data_dir), bugs)
        log = open_log(
            disk,
            segment_max_bytes=config.segment_bytes,
            cache_max_bytes=config.cached_bytes,
            checks_batches=must_check_batches(bugs),
        )
        state_file = QuorumStateFile(disk, FOLDER, config.cluster_id, tuple(config.peers))
        state_file.load()
        config.trace_dir.mkdir(parents=True, exist_ok=True)
        trace = open_trace(config.trace_dir / FILE_NAME, clock.now_ns)
    except (WrongDirectory, CorruptLog, UnreadableQuorumState, UnreadableTrace) as problem:
        raise CannotStart(str(problem)) from None
    except OSError as problem:
        raise CannotStart(f"the disk failed at start: {problem}") from None
    known = config.directories.get(config.node_id)
    if known is not None and known != properties.directory_id:
        raise CannotStart(
            f"{config.data_dir} was formatted anew: its directory id is {kafka_uuid(properties.directory_id)}, "
            f"but {config.name} votes with {kafka_uuid(known)}; its votes and its log are lost"
        )
    return NodeParts(
        identity=Identity(
            config.cluster_id,
            ReplicaKey(config.node_id, properties.directory_id),
            tuple(config.peers),
            bugs=bugs,
            directories=config.directories,
        ),
        log=log,
        state_file=state_file,
        clock=clock,
        transport=transport,
        trace=trace,
        # Another sequence after each restart, or nodes would split the same votes again and again.
        random=Random(f"{config.seed}/{config.node_id}/{trace.incarnation}"),
        names={peer.id: peer.name for peer in config.peers.values()},
        brokers={peer.id: (peer.host, peer.port) for peer in config.peers.values()},
    )


class ChannelTransport:
    """`ports.Transport` over one `wire.channel.Channel` per peer."""

    def __init__(self, config: Config) -> None:
        self._channels: Mapping[int, Channel] = {
            peer.id: Channel(
                peer.host,
                peer.port,
                client_id=f"krucible-node-{config.node_id}",
                endpoint=(LISTENER, config.host, config.port),
            )
            for peer in config.peers.values()
            if peer.id != config.node_id
        }

    async def request(self, peer: int, request: RaftRequest) -> RaftResponse | None:
        return await self._channels[peer].request(request)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


def answering(node: QuorumNode, api: Api) -> Handler:
    """Answers what arrives on the listening socket: the consensus core its own RPCs, the API all else."""

    async def handle(call: WireCall) -> Entity | None:
        if call.api_key not in translate.RAFT_APIS:
            return await api.handle(call)
        try:
            request = translate.request_from_wire(call.api_key, call.body)
        except translate.MalformedRpc as problem:
            log.warning("connection %d asks for what no voter asks: %s", call.connection, problem)
            return translate.invalid_request(call.api_key)
        response = await node.on_raft_request(call.connection, request)
        return None if response is None else translate.response_to_wire(request, response)

    return handle


def _uuids(config: Config, incarnation: int) -> Any:
    """Topic ids that follow from the seed and are never given twice."""
    random = Random(f"topic ids/{config.seed}/{config.node_id}/{incarnation}")
    return lambda: UUID(int=random.getrandbits(128), version=4)


def _lock(data_dir: Path) -> int:
    """Held until the process ends, however it ends: two nodes on one directory would destroy it."""
    try:
        lock = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise CannotStart(f"cannot use the data directory {data_dir}: {problem.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise CannotStart(f"another node is running on {data_dir}; stop it first") from None
    return lock


def _unhandled(node: QuorumNode, context: dict[str, Any]) -> None:
    """Something was raised where no task waits for it."""
    problem = context.get("exception")
    if isinstance(problem, OSError) and problem.errno in _OUT_OF_RESOURCES and "accept" in context.get("message", ""):
        log.warning("a connection could not be accepted: %s", problem.strerror)  # asyncio tries again in a second
        return
    node.collapse(context.get("exception") or RuntimeError(context.get("message", "unknown")))
