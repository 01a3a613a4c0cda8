"""The docker backend: a container per node, and a helper container whose switch forwards all frames between nodes.

    harness ── attached stdin ──► agent (PID 1) in krucible-<run>-<node>      one per server and client node
            ── attached stdin ──► agent in krucible-<run>-helper              host's network, NET_ADMIN, NET_RAW
            ── pipe ────────────► reaper

The harness itself needs no root, because the helper does everything that needs privileges.  All containers, networks
and volumes have the labels of the run from their creation on.

*Switch.*  Kernels may lack netem and bridge rules, so the userspace switch uses neither.  When the nodes have been
created, the switch detaches the host's ends of the containers' veth pairs from the bridge, and forwards every frame
itself.  If the switch dies, all links are cut.  The engine removes a container's veth pair with the container.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from docker.errors import ImageNotFound

from checkers.record.header_and_outcome import NodesClock
from harness.agent.process import NodeVerbs
from harness.backends import docker_engine as engine
from harness.backends import docker_image as image
from harness.backends.agent_cluster import SwitchedCluster, addresses, all_of
from harness.backends.agent_link import AgentLink, AgentNode
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.leftovers import Reaper, current_owner
from nemesis.cluster import DISK
from system_under_test.subject import NodeGone

HELPER = "helper"
_ENGINE_S = 2.0 * engine.REQUEST_TIMEOUT_S
"""Maximum seconds that the end of a run waits for requests that the engine is still executing."""
_LINGER_S = 5.0
"""Seconds that agents stay alive after the harness was killed, so that the reaper removes containers one by one (see
*Removal* in `docker_engine`)."""
_LINGER_APART_S = 0.5
"""Seconds between the exits of two agents after the harness was killed, so that containers end one by one even without
a reaper."""

T = TypeVar("T")


class DockerBackend(SwitchedCluster):
    """See `harness.backends.backend.Backend`.  Raises ValueError if the run id cannot be part of a container's name."""

    name = "docker"
    nodes_clock: NodesClock = "same machine"

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", spec.run_id):
            raise ValueError(f"run id {spec.run_id!r} cannot stand in a container's name")
        self.notes: Sequence[str] = ("containers; links are cut by a switch in userspace, no kernel bridge",)
        self._labels = engine.labels(spec.run_id, current_owner())
        self._client: Any = None
        self._of_helper: AgentLink | None = None
        self._reaper: Reaper | None = None
        self._pool = ThreadPoolExecutor(10, thread_name_prefix="docker")
        self._under_way: set[asyncio.Future[Any]] = set()
        self._stop = threading.Event()

    async def create(self, progress: Callable[[str], None]) -> None:
        """See Backend.create.  Takes minutes if the image must be built first.  Cancelling it is safe; the caller must
        call `destroy` afterwards."""
        try:
            await self._create(progress)
        except (*engine.ENGINE_FAILURES, NodeGone) as error:
            words = engine.engine_words(error)
            raise BackendUnavailable(f"Docker could not bring the nodes up: {words}") from error

    def command_on(self, name: str, words: Sequence[str]) -> str:
        return shlex.join(["docker", "exec", "-it", f"krucible-{self.spec.run_id}-{name}", *words])

    async def destroy(self) -> None:
        self._stop.set()
        if self._under_way:  # the engine may still create objects, and none may appear after the last check
            await asyncio.wait(self._under_way, timeout=_ENGINE_S)
        left = ""
        if self._client is not None:
            left = await self._in_thread(engine.remove_run, self._client, self.spec.run_id)
            self._client.close()
            self._client = None
        await self.close_links()
        if self._of_helper is not None:
            await self._of_helper.close()
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
        self._reaper = Reaper("harness.backends.docker_engine:reap", {"run_id": self.spec.run_id})
        self._client = client
        tags = await self._in_thread(self._images, progress)
        swept = self._in_thread(engine.sweep_dead, client)
        subnet = await self._in_thread(engine.create_network, client, self._network, self._labels)
        progress(f"network {subnet}")
        self._address_of = addresses(subnet, self.servers, self.clients)
        try:
            await self._start_all(*tags)
        except ImageNotFound:  # a newer build by another run has just removed it
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
        """Return two image tags: one for client nodes and the helper, one for servers.  Blocks."""
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
        assert self._of_helper is not None
        try:
            ports = await asyncio.gather(*(_port(name, node) for name, node in self._nodes.items()))
            await self.start_switch(self._of_helper, ports, release=True)
        except NodeGone:
            raise
        except OSError as problem:
            raise BackendUnavailable(
                f"No switch can forward the containers' frames here ({problem.strerror or problem}): the engine must "
                "grant CAP_NET_ADMIN and CAP_NET_RAW in the host's network, or choose --backend namespaces."
            ) from problem

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
        self._of_helper = await self._start(plan, HELPER)

    async def _start(self, plan: engine.ContainerPlan, name: str) -> AgentLink:
        container = await self._in_thread(engine.create, self._client, plan)
        attached = await engine.stream(await self._in_thread(engine.open_socket, self._client, container))
        link = AgentLink(name, attached.reader, attached.writer, lambda event: self.heard(name, event), attached.words)
        await self._in_thread(self._client.api.start, container)
        await link.ask(NodeVerbs.hello)
        return link

    # ---- helpers -----------------------------------------------------------------------------------------------

    @property
    def _network(self) -> str:
        return f"krucible-{self.spec.run_id}"

    def _in_thread(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a blocking call of the engine's client in a thread.  If the caller is cancelled, the call continues, and
        `destroy` waits for its end."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return asyncio.shield(future)


_END = "/sys/class/net/eth0"


async def _port(name: str, node: AgentNode) -> list[Any]:
    """Return the switch's port of a node: name, interface number of the host's end of its veth pair, MAC, address."""
    done = await node.run(["cat", f"{_END}/iflink", f"{_END}/address"])
    if done.status != 0:
        raise OSError(f"{name} shows no interface: {done.stderr.decode(errors='replace').strip()}")
    number, mac = done.stdout.decode().split()
    return [name, int(number), mac, node.address]
