"""A quorum of one process for tests: the real Image and the real Api, with switches for everything that can go wrong.

`FakeQuorum` implements wire.quorum_service.QuorumService; `FakeNode` puts it behind the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

from kraft_server import serve

from system_under_test.kraft.controller.brokers import Sessions
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import Duties
from system_under_test.kraft.records.metadata import Record, encode
from system_under_test.kraft.wire.api import Api
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, QuorumInfo, VoterState
from system_under_test.kraft.wire.server import Server, WireCall

T = TypeVar("T")


@dataclass
class FakeQuorum:
    """refuse, lose: the next writes and reads raise NotQueued(refuse), or LostLeadership after queueing.
    delay_s: how long a queued write or read takes.  duties: of a controller whose brokers register."""

    node_id: int = 1
    cluster_id: str = "fake"
    epoch: int = 1
    leader_id: int | None = 1
    brokers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    image: Image = field(default_factory=Image)
    refuse: str | None = None
    lose: bool = False
    delay_s: float = 0.0
    log: list[bytes] = field(default_factory=list)
    queued: int = 0
    duties: Duties | None = None
    time_s: float = 1000.0
    bugs: frozenset[str] = frozenset()

    kraft_version: int = 0

    def is_active(self) -> bool:
        return self.leader_id == self.node_id

    @property
    def registers_brokers(self) -> bool:
        return self.duties is not None

    @property
    def sessions(self) -> Sessions:
        if self.duties is None:
            raise NotQueued("brokers do not register here")
        return self.duties.sessions

    @property
    def next_offset(self) -> int:
        return len(self.log)

    def now_s(self) -> float:
        return self.time_s

    def submit(
        self,
        decide: Callable[[Image], tuple[list[Record], T]],
        settled: Callable[[T, Exception | None], None],
        *,
        at_once: bool = False,
    ) -> None:
        self._admit()
        records, result = decide(self.image)
        self.queued += 1

        def settle() -> None:
            if self.lose:
                settled(result, LostLeadership())
                return
            for record in records:
                self.image.apply(record)
                self.log.append(encode(record))
            settled(result, None)

        asyncio.get_running_loop().call_later(self.delay_s, settle)

    async def read(self) -> Image:
        self._admit()
        await asyncio.sleep(self.delay_s)
        if self.lose:
            raise LostLeadership
        return self.image

    def address_of(self, voter: int) -> tuple[str, int] | None:
        return self.brokers.get(voter)

    def committed_image(self) -> Image:
        return self.image

    def describe(self) -> QuorumInfo:
        voters = tuple(VoterState(node_id, log_end_offset=len(self.log)) for node_id in sorted(self.brokers))
        return QuorumInfo(self.leader_id, self.epoch, len(self.log), voters)

    def _admit(self) -> None:
        if self.refuse is not None:
            raise NotQueued(self.refuse)
        if not self.is_active():
            raise NotQueued("not the active controller")


class FakeNode:
    """A FakeQuorum behind a real server.  calls: every call it got.

    swallow: how many of the next calls (but those of the finder) get no answer: the connection is closed instead.
    """

    def __init__(self, quorum: FakeQuorum) -> None:
        self.quorum = quorum
        self.calls: list[WireCall] = []
        self.swallow = 0
        self._api = Api(quorum, new_uuid=uuid4)
        self._server: Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = await serve("127.0.0.1", port, self._handle)
        return self._server.port

    async def stop(self) -> None:
        self._api.close()
        if self._server is not None:
            await self._server.close()

    async def _handle(self, call: WireCall) -> object:
        self.calls.append(call)
        if self.swallow > 0 and "finder" not in (call.client_id or ""):
            self.swallow -= 1
            return None
        return await self._api.handle(call)


async def start_nodes(count: int) -> dict[int, FakeNode]:
    """Nodes 1..count on free ports of loopback; node 1 leads; all share one image."""
    nodes = {node_id: FakeNode(FakeQuorum(node_id=node_id)) for node_id in range(1, count + 1)}
    ports = {node_id: await node.start() for node_id, node in nodes.items()}
    image = Image()
    for node in nodes.values():
        node.quorum.brokers = {node_id: ("127.0.0.1", port) for node_id, port in ports.items()}
        node.quorum.image = image
    return nodes
