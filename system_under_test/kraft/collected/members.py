"""A node's reports in its trace so far, and the voters of a bundled KRaft, which change at run time.

Voters change through the quorum's own API, on the nodes (KIP-853).

A removed server continues as an observer, with its disk.  It may return with the same disk: it is started, follows the
log, and is added as a voter once it has caught up.  Or it may return with an empty disk, which has a new directory id:
it is then another replica, to which the promises of the old disk do not apply (KIP-853).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from system_under_test.kraft.log.small_files import META_PROPERTIES, kafka_uuid, parse_properties
from system_under_test.subject import Node, NodeStatus


@dataclass(slots=True)
class Hearsay:
    """A node's reports in its trace so far.

    largest_mark: largest high watermark over all its incarnations
    campaigned: True if the node has requested votes since the last `status`
    voted_epoch: epoch of its last vote; -1 before the first vote
    voters: names of the voters in its log; empty if the log names none
    disk: id of its disk; "" if no row names it
    unread: rows that the `LiveNode` of this node has not read yet; None if there is no `LiveNode`
    lost: True if the trace no longer continues at the last read position, so that earlier reports may be wrong
    """

    read_bytes: int = 0
    rows: int = 0
    epoch: int = 0
    role: str = "unattached"
    leader: str | None = None
    high_watermark: int | None = None
    log_end: int = 0
    largest_mark: int = -1
    campaigned: bool = False
    voted_epoch: int = -1
    voters: tuple[str, ...] = ()
    disk: str = ""
    unread: bytearray | None = None
    lost: bool = False

    @property
    def wanted_from(self) -> int:
        """Return the position from which `take_from` needs the trace: the last byte of the last row that was read."""
        return max(0, self.read_bytes - 1)

    def take_from(self, start: int, data: bytes) -> None:
        """Read the bytes of the trace from `start` on.  Bytes that another call has already read are ignored.

        A node only appends to its trace.  If the trace lacks rows that were read before, something else has truncated
        or removed it.
        """
        if start != self.wanted_from:
            return
        seen = self.read_bytes - start
        if data[:seen] != b"\n"[:seen]:
            self.lost = True
        if not self.lost:
            try:
                self.take(data[seen:])
            except (ValueError, KeyError, TypeError):  # not a row of a trace
                self.lost = True

    def take(self, data: bytes) -> None:
        """Read the bytes of the trace from `read_bytes` on; an incomplete row is left for the next call."""
        whole = data.rfind(b"\n") + 1
        self.read_bytes += whole
        if self.unread is not None:
            self.unread += data[:whole]
        for line in data[:whole].splitlines():
            self._row(json.loads(line))

    def status(self, node: str) -> NodeStatus:
        """Return the status of this node according to its trace.  `campaigned` refers to the time since the last
        status.
        """
        campaigned, self.campaigned = self.campaigned, False
        return NodeStatus(
            node,
            self.epoch,
            self.role,
            self.leader,
            self.high_watermark,
            self.log_end,
            campaigned,
            self.voted_epoch,
            self.disk,
        )

    def _row(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        event = row["event"]
        self.epoch = max(self.epoch, row["epoch"])
        if event == "disk":
            if self.disk not in ("", row["detail"]):  # the node is another replica now, with an empty disk
                self.epoch, self.voted_epoch, self.voters = row["epoch"], -1, ()
            self.disk = row["detail"]
        if event == "start":
            self.role, self.leader, self.high_watermark = "unattached", None, None
        if event == "role":
            self.role, self.leader = row["role"], row.get("peer")
            self.campaigned |= self.role in ("prospective", "candidate")
        if event == "voters":
            self.voters = tuple(str(row.get("detail", "")).split())
        if event == "vote":
            self.voted_epoch = row["epoch"]
        if event == "high-watermark":
            self.high_watermark = row["offset"]
            self.largest_mark = max(self.largest_mark, row["offset"])
        if event in ("start", "append", "truncate"):
            self.log_end = row["offset"]


CHANGE_S_MAX = 12.0
"""Maximum seconds until the quorum agrees, once all participants run."""
_PROGRAM_S_MAX = 8.0
"""Additional seconds in which an interpreter, of the tool or of a joining server, starts and ends on a loaded
machine.
"""


class KraftMembers:
    """The `subject.Members` of the bundled KRaft.

    hear: returns the reports in a node's trace. Raises OSError.
    argv: returns the command of a node's server, whose last word is the path of its configuration
    output: name of the server's output file in `log_dir`
    """

    def __init__(
        self,
        hear: Callable[[Node], Awaitable[Hearsay]],
        port: int,
        argv: Callable[[Node], list[str]],
        output: str,
    ) -> None:
        self._hear = hear
        self._port = port
        self._argv = argv
        self._output = output

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Return the latest voters in the leader's log, according to its trace.  Raises OSError while no server
        leads.
        """
        heard = await asyncio.gather(*(self._heard(node) for node in nodes))
        leading = [each for each in heard if each is not None and each.role == "leader"]
        if not leading:
            raise OSError("no server leads")
        return frozenset(max(leading, key=lambda each: each.epoch).voters)

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        await self._change(nodes, ["remove", "--id", await self._id(leaving)])

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        if wiped:
            await self._replace_disk(joining)
        within_s = CHANGE_S_MAX
        if await joining.state() == "dead":
            await joining.start(self._argv(joining), output=f"{joining.log_dir}/{self._output}")
            within_s += _PROGRAM_S_MAX
        properties = parse_properties(await joining.read(f"{joining.data_dir}/{META_PROPERTIES}"))
        where = f"{joining.address}:{self._port}"
        directory = kafka_uuid(properties.directory_id)
        verb = ["add", "--id", str(properties.node_id), "--directory", directory, "--at", where]
        await self._change(nodes, verb, within_s)

    async def _replace_disk(self, node: Node) -> None:
        done = await node.run([*self._argv(node), "--format", "--force", "--replace-disk"], timeout_s=_PROGRAM_S_MAX)
        done.succeeded(f"{node.name}: no new disk")

    async def _id(self, node: Node) -> str:
        config = json.loads(await node.read(self._argv(node)[-1]))
        return str(config["node_id"])

    async def _change(self, nodes: Sequence[Node], verb: Sequence[str], within_s: float = CHANGE_S_MAX) -> None:
        """Run the voters tool.  Raises OSError with the tool's own message."""
        states = await asyncio.gather(*(node.state() for node in nodes))
        live = [node for node, state in zip(nodes, states, strict=True) if state == "running"]
        if not live:
            raise OSError("no server runs")
        servers = ",".join(f"{node.address}:{self._port}" for node in live)
        tool = [*self._argv(live[0])[:-2], "voters", *verb, "--servers", servers, "--within", str(within_s)]
        done = await live[0].run(tool, timeout_s=within_s + _PROGRAM_S_MAX)
        if done.status != 0:
            raise OSError(done.stderr.decode(errors="replace").strip()[-300:])

    async def _heard(self, node: Node) -> Hearsay | None:
        try:
            return await self._hear(node) if await node.state() == "running" else None
        except OSError:
            return None
