"""The docker backend: a container per node on a bridge of the run's own, and a helper that keeps the rules.

    harness ── attached stdin ──► agent (PID 1) in krucible-<run>-<node>      one per server and client node
            ── attached stdin ──► agent in krucible-<run>-helper              host's network, NET_ADMIN
            ── pipe ────────────► reaper

The harness itself needs no root: rules go through the helper, always.  Everything carries the run's labels from its
very creation on.

*Switch.*  In the helper container it impairs packets and resets rejected connections.

Kernels may lack netem, and bridges cannot reject with a reset everywhere.  So both are done by the userspace switch,
which needs neither.  It listens at the host's ends of the containers' veth pairs, in one of two ways.

    beside the bridge    the bridge carries and cuts; the switch only sends resets, while links are rejected
    instead of it        the switch takes the veth pairs over when the nodes are made, and carries every frame

The second way costs CPU time for every frame, so a run gets it only if its faults impair packets.  If the switch dies,
everything is cut.  In both ways the engine removes a container's veth pair together with the container.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from docker.errors import ImageNotFound

from checkers.base.clocks import NodesClock
from harness.agent.children import Commands
from harness.agent.network import FirewallTables, Table, without
from harness.agent.process import NodeVerbs
from harness.backends.agent_cluster import AgentCluster, HostSwitch, addresses, all_of
from harness.backends.agent_link import AgentLink, AgentNode
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.docker import engine, image
from harness.backends.leftovers import Reaper, current_owner, is_dead
from nemesis.cluster import DISK, PACKETS, REJECT, CannotInject, Link
from system_under_test.subject import NodeGone

HELPER = "helper"
_ENGINE_S = 2.0 * engine.REQUEST_TIMEOUT_S
"""Seconds that the end of a run waits for what the engine is still making."""
_LINGER_S = 5.0
"""Seconds that the agents of a killed harness stay, so that the reaper removes them one by one (see `cleanup`)."""
_LINGER_APART_S = 0.5
"""Without a reaper each agent ends so much later than the one before it."""

T = TypeVar("T")


class DockerBackend(AgentCluster):
    """See `harness.backends.backend.Backend`.  Raises ValueError for a run id that cannot be part of a name."""

    name = "docker"
    nodes_clock: NodesClock = "same machine"

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", spec.run_id):
            raise ValueError(f"run id {spec.run_id!r} cannot stand in a container's name")
        self._carried = PACKETS in spec.wanted
        """True if a switch in userspace carries the frames, instead of the bridge."""
        self.notes: Sequence[str] = (
            "containers whose frames a switch in userspace carries, because packets are impaired"
            if self._carried
            else "containers on one bridge; links are cut by one nft set on its forward hook",
        )
        self._labels = engine.labels(spec.run_id, current_owner())
        self._table: Table = engine.table_of(spec.run_id)
        self._address_of: dict[str, str] = {}
        self._port_of: dict[str, int] = {}
        self._client: Any = None
        self._helper: AgentLink | None = None
        self._switch: HostSwitch | None = None
        self._no_switch = "" if self._carried else "the run was made without a switch that impairs packets"
        self._rejected: frozenset[Link] = frozenset()
        self._cutting = asyncio.Lock()
        self._reaper: Reaper | None = None
        self._pool = ThreadPoolExecutor(10, thread_name_prefix="docker")
        self._under_way: set[asyncio.Future[Any]] = set()
        self._stop = threading.Event()

    async def create(self, progress: Callable[[str], None]) -> None:
        """See Backend.create.  May take minutes where the image must be built first; cancelling it is safe, and
        its caller calls `destroy` in the end."""
        try:
            await self._create(progress)
        except (*engine.ENGINE_FAILURES, NodeGone) as error:
            words = engine.engine_words(error)
            raise BackendUnavailable(f"Docker could not bring the nodes up: {words}") from error

    def lacks(self, capability: str) -> str:
        """See Cluster.lacks."""
        if capability == REJECT:
            return ""
        return self._no_switch if capability == PACKETS else super().lacks(capability)

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """See Cluster.cut.  Raises KeyError for an unknown node, OSError if nft or the switch refuses, NodeGone without
        a helper."""
        if self._helper is None or self._switch is None:
            raise NodeGone(f"{HELPER}: there is no such node (yet)")
        text = engine.replace_cut(self._table, links, self._port_of)
        async with self._cutting:
            if self._carried and not self._no_switch:
                await self._switch.cut(links, reject)
                return
            await self._answer_with_resets(self._rejected & frozenset(reject))  # no reset on a link made whole
            await self._helper.ask(FirewallTables.apply, text, [self._table])
            await self._answer_with_resets(reject)
            self._rejected = frozenset(reject)

    async def _answer_with_resets(self, links: Collection[Link]) -> None:
        """Answer TCP on exactly these links with a reset, by a switch beside the bridge, which cuts them."""
        assert self._switch is not None
        if links and not self._switch.running:
            await self._switch.start(await self._ports(), carries=False)
        if self._switch.running:
            await self._switch.cut((), links)

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """See Cluster.impair.  Raises KeyError for an unknown node, OSError if the switch refuses."""
        if self._no_switch or self._switch is None:
            if links:
                raise CannotInject(self._no_switch or "there are no nodes yet")
            return
        await self._switch.impair(links, seed)

    def command_on(self, name: str, words: Sequence[str]) -> str:
        return shlex.join(["docker", "exec", "-it", f"krucible-{self.spec.run_id}-{name}", *words])

    async def destroy(self) -> None:
        self._stop.set()
        if self._under_way:  # what the engine is still making must not appear after the last look
            await asyncio.wait(self._under_way, timeout=_ENGINE_S)
        await self._delete_table()
        left = ""
        if self._client is not None:
            left = await self._in_thread(engine.remove_run, self._client, self.spec.run_id)
            self._client.close()
            self._client = None
        await self.close_links()
        if left:
            self.leftovers.append(left)
        if self._reaper is not None:
            await self._in_thread(self._reaper.dismiss if not left else self._reaper.take_over)
            self._reaper = None
        self._pool.shutdown(wait=False)

    # ---- creating ----------------------------------------------------------------------------------------------

    async def _create(self, progress: Callable[[str], None]) -> None:
        began = time.monotonic()
        client = await self._in_thread(engine.connect)
        self._reaper = Reaper("harness.backends.docker.engine:reap", {"run_id": self.spec.run_id})
        self._client = client
        tags = await self._in_thread(self._images, progress)
        swept = self._in_thread(engine.sweep_dead, client)
        subnet = await self._in_thread(engine.create_network, client, self._network, self._labels)
        progress(f"network {subnet}")
        self._address_of = addresses(subnet, self.servers, self.clients)
        try:
            await self._start_all(*tags)
        except ImageNotFound:  # a newer build of another run has just removed it
            await self._in_thread(engine.remove_containers, client, self.spec.run_id)
            await self._start_all(*await self._in_thread(self._images, progress))
        await self._start_switch()
        found = await swept
        for run_id in found.removed:
            progress(f"removed what the dead run {run_id} had left")
        self.leftovers += found.left
        await self.open_links(
            "does a firewall here drop packets between containers?  Allow them, or choose --backend namespaces."
        )
        progress(f"{len(self._address_of)} nodes answer after {time.monotonic() - began:.1f} s")

    def _images(self, progress: Callable[[str], None]) -> tuple[str, str]:
        """The image of client nodes and of the helper, and that of the servers.  Blocks."""
        needs = self.spec.needs
        if not needs.image:
            tag = image.ensure_image(progress, self._stop, self._client, needs)
            return tag, tag
        tag = image.ensure_image(progress, self._stop, self._client, replace(needs, user=""))
        return tag, image.ensure_own_image(self._client, tag, needs, progress, self._stop)

    async def _start_all(self, tag: str, of_servers: str) -> None:
        nodes = (self._start_node(of_servers if name in self.servers else tag, name) for name in self._address_of)
        await all_of((self._start_helper(tag), *nodes))

    async def _start_switch(self) -> None:
        """Without it the run goes on over the bridge; faults of packets are then refused for the reason noted here."""
        assert self._helper is not None
        self._switch = HostSwitch(self._helper, self._address_of)
        try:
            ports = await self._ports()
        except NodeGone:
            raise
        except OSError as problem:
            raise BackendUnavailable(f"The ports of the containers' bridge are not known: {problem}.") from problem
        self._port_of = {name: number for name, number, *_ in ports}
        if self._carried:
            try:
                await self._switch.start(ports, release=True)
            except NodeGone:
                raise
            except OSError as problem:
                self._no_switch = (
                    f"no switch can carry the containers' frames here ({problem.strerror or problem}): the engine must "
                    "grant CAP_NET_ADMIN and CAP_NET_RAW in the host's network"
                )

    async def _ports(self) -> list[list[Any]]:
        """Return what the switch must know of each node.  Raises OSError."""
        return await asyncio.gather(*(_port(name, node) for name, node in self._nodes.items()))

    async def _start_node(self, tag: str, name: str) -> None:
        is_server = name in self.servers
        own = is_server and bool(self.spec.needs.image)
        plan = engine.ContainerPlan(
            name=f"krucible-{self.spec.run_id}-{name}",
            hostname=name,
            image=tag,
            network=self._network,
            address=self._address_of[name],
            labels=self._labels,
            needs=self.spec.needs if is_server or not self.spec.needs.image else replace(self.spec.needs, user=""),
            disk=DISK in self.spec.wanted and is_server,
            command=image.AGENT if own else engine.AGENT,
            linger_s=_LINGER_S + _LINGER_APART_S * [*self._address_of].index(name),
        )
        link = await self._start(plan, name)
        await self.add(link, plan.address, engine.NODE_FOLDER, (image.PYTHON if own else "python3",))

    async def _start_helper(self, tag: str) -> None:
        plan = engine.ContainerPlan(
            name=f"krucible-{self.spec.run_id}-{HELPER}",
            hostname=HELPER,
            image=tag,
            network="host",
            address="",
            labels=self._labels,
            capabilities=("NET_ADMIN", "NET_RAW"),
            with_volume=False,
        )
        self._tag = tag
        helper = self._helper = await self._start(plan, HELPER)
        try:
            text = engine.make_table(self._table, current_owner())
            await helper.ask(FirewallTables.apply, text, [self._table])
        except NodeGone:
            raise
        except OSError as error:
            raise BackendUnavailable(
                f"This kernel cannot filter on bridges ({error.strerror}): choose --backend namespaces."
            ) from error
        await self._delete_dead_tables(helper)

    async def _start(self, plan: engine.ContainerPlan, name: str) -> AgentLink:
        container = await self._in_thread(engine.create, self._client, plan)
        attached = await engine.stream(await self._in_thread(engine.open_socket, self._client, container))
        link = AgentLink(name, attached.reader, attached.writer, lambda event: self.heard(name, event), attached.words)
        await self._in_thread(self._client.api.start, container)
        await link.ask(NodeVerbs.hello)
        return link

    # ---- removing ----------------------------------------------------------------------------------------------

    async def _delete_dead_tables(self, helper: AgentLink) -> None:
        """A table outlives its helper only if that was killed alone; it names its owner itself."""
        for family, name in engine.tables_in(await _output(helper, "list", "tables", "bridge")):
            owner = engine.owner_in(await _output(helper, "list", "table", family, name))
            if owner and is_dead(owner):
                try:
                    await helper.ask(FirewallTables.apply, without((family, name)), [])
                except OSError as refusal:
                    self.leftovers.append(f"the rules {family} {name} of a dead run could not be deleted: {refusal}")

    async def _delete_table(self) -> None:
        if self._helper is None:
            return
        try:
            if self._helper.gone:  # it was killed, and another one does what it would have done
                await self._start_helper(self._tag)
            await self._helper.ask(FirewallTables.apply, without(self._table), [])
        except (*engine.ENGINE_FAILURES, BackendUnavailable) as problem:
            words = f"may be left ({engine.engine_words(problem)}): the next run deletes them"
            self.leftovers.append(f"the rules {' '.join(self._table)} {words}")
        await self._helper.close()
        self._helper = None

    # ---- helpers -----------------------------------------------------------------------------------------------

    @property
    def _network(self) -> str:
        return f"krucible-{self.spec.run_id}"

    def _in_thread(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """The engine's client blocks.  Cancelling the caller does not stop the work; `destroy` waits for it."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return asyncio.shield(future)


async def _output(helper: AgentLink, *words: str) -> str:
    """Return what nft prints; "" if it fails (a table may go while it is being listed)."""
    (status, size), output = await helper.ask(Commands.run, ["nft", *words], 5.0)
    return output[:size].decode() if status == 0 else ""


_END = "/sys/class/net/eth0"


async def _port(name: str, node: AgentNode) -> list[Any]:
    """Return what the switch must know of a node: the number of the host's end of its veth pair, and its addresses."""
    done = await node.run(["cat", f"{_END}/iflink", f"{_END}/address"])
    if done.status != 0:
        raise OSError(f"{name} shows no interface: {done.stderr.decode(errors='replace').strip()}")
    number, mac = done.stdout.decode().split()
    return [name, int(number), mac, node.address]
