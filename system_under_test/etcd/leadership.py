"""Who leads etcd, as one client node sees it: it requests the status of every member a few times a second.

etcd redirects no client, so one that wants to follow the leader has to look for it.  The view is shared by all clients
of one node, starts with the first request and ends with the last client.  A member answers its status from its own
memory.  So a deposed leader that has not noticed goes on claiming its old term.  The highest term ever seen wins, and
a view that is cut off from the new leader rightly keeps the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from system_under_test.etcd.gateway import Gateway, NotSent, NoUsableAnswer, Rejected

STATUS_PATH = "/v3/maintenance/status"
REFRESH_S = 0.25
PATIENCE_S = 0.5
"""How long a member may take to report its status, and a first request waits for a first view."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a member last reported of itself; leader_id is "" if it knows none."""

    member_id: str
    term: int
    leader_id: str


class Leadership:
    """peers: member name -> "host:port".  `retain` and `release` count the clients that look at it."""

    def __init__(self, peers: Mapping[str, str]) -> None:
        self._gateways = {name: Gateway(address) for name, address in peers.items()}
        self._reported: dict[str, MemberStatus] = {}
        self._names: dict[str, str] = {}  # member id -> name
        self._term = -1
        self._leader: str | None = None
        self._users = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._seen = asyncio.Event()

    @property
    def leader(self) -> str | None:
        """The leader of the highest term seen, None while no leader was seen."""
        return self._leader

    def deposed(self, member: str) -> bool:
        """Whether the member itself last named another leader."""
        status = self._reported.get(member)
        return status is not None and status.leader_id not in ("", status.member_id)

    async def first_view(self) -> None:
        """Begin to look, if no client has begun; wait for the first round of answers, for at most PATIENCE_S."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
        if not self._seen.is_set():
            await asyncio.wait_for(self._seen.wait(), 2 * PATIENCE_S)

    def retain(self) -> None:
        self._users += 1

    async def release(self) -> None:
        """The last one to release ends the refreshing."""
        self._users -= 1
        if self._users > 0 or self._refreshing is None:
            return
        task, self._refreshing = self._refreshing, None
        task.cancel()
        await asyncio.wait([task])
        for gateway in self._gateways.values():
            gateway.close()

    async def _refresh(self) -> None:
        while True:
            await asyncio.gather(*(self._ask(name) for name in self._gateways))
            self._seen.set()
            await asyncio.sleep(REFRESH_S)

    async def _ask(self, name: str) -> None:
        gateway = self._gateways[name]
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await gateway.post(STATUS_PATH, {})
            status = read_status(answer)
        except (TimeoutError, NotSent, NoUsableAnswer, Rejected, ValueError):
            gateway.close()  # it does not answer now; its last report stands
            return
        self._reported[name] = status
        self._names[status.member_id] = name
        leader = self._names.get(status.leader_id)
        if leader is not None and status.term >= self._term:
            self._term, self._leader = status.term, leader


def read_status(answer: Mapping[str, object]) -> MemberStatus:
    """What an answer of STATUS_PATH says.  Raises ValueError if it is none."""
    header = answer.get("header")
    if not isinstance(header, dict) or "member_id" not in header:
        raise ValueError("a status without a member's id")
    leader_id = str(answer.get("leader") or "")
    return MemberStatus(
        str(header["member_id"]), int(str(answer.get("raftTerm", 0))), "" if leader_id == "0" else leader_id
    )
