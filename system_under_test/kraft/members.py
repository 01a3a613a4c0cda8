"""The voters of a bundled KRaft, as members that change while it runs (KIP-853): through its own API, on the nodes.

A server that is removed goes on as an observer, with its disk.  It comes back with that disk: it is started, follows
the log, and is added as a voter once it has caught up.  Or it comes back with an empty disk, which has a directory id
of its own: it is another replica then, and bound to nothing that the old disk held (KIP-853).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from system_under_test.kraft.collected.hearsay import Hearsay
from system_under_test.kraft.log.meta_properties import NAME as META_PROPERTIES
from system_under_test.kraft.log.meta_properties import kafka_uuid, parse_properties
from system_under_test.subject import Node

CHANGE_S_MAX = 12.0
"""How long the quorum may take to agree, once everything that takes part runs."""
_PROGRAM_S_MAX = 8.0
"""Further seconds for an interpreter to start and end on a loaded machine: the tool's, or a joining server's."""


class KraftMembers:
    """Implements `subject.Members`.

    hear: node -> what its trace has reported.  Raises OSError.
    argv: node -> the command of its server, whose last word is its configuration.  output: file of its `log_dir`.
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
        """Return what the log of the leader names last, by its trace.  Raises OSError while no server leads."""
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
        """Raises OSError with the tool's own words."""
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
