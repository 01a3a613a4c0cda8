"""The ssh backend: every node is a Linux host of one's own, and gets back as it was.

    harness ── ssh ──► guard (root) ── starts ──► agent        one of each on every host, over one channel

Nothing is expected on a host but sshd, Python and nft.  The harness sends the code.  The guard lets one run at a time
in, and removes everything of the run when the agent ends.  The agent ends when the harness is done or dead, or when
nothing came from it for a while.  So a host needs no reaper; what a killed guard leaves is removed when the next run
begins.

The hosts' monotonic clocks are not the harness' own.  `clocks` says how far each is ahead, with a bound of the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkers.base.clocks import NodesClock
from checkers.record.header import ClockOffset
from harness.agent.links.rules import Table
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.node_code import wheel_requirements
from harness.backends.ssh import rules
from harness.backends.ssh.clocks import ClockReading, NodeClock
from harness.backends.ssh.inventory import BadInventory, Host, assign, read_inventory
from harness.backends.ssh.visit import PATIENCE_S, SILENCE_S, Visit, in_thread, packed_code, reach
from harness.backends.wheels import fetch_wheels
from harness.backends.with_agents.cluster import BEACON_PORT, AgentCluster
from harness.backends.with_agents.link import AgentLink, AgentNode
from nemesis.cluster import REJECT, CannotInject, Link
from system_under_test.subject import NodeGone

BEAT_S = 3.0
"""How often every agent hears from the harness, and its clock is read."""
_HELLO_S = 60.0
_SSH_PORT = 22
_FIRST_READINGS = 8


class SshBackend(AgentCluster):
    """See `harness.backends.backend.Backend`."""

    name = "ssh"
    nodes_clock: NodesClock = "own"

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self.silence_s = SILENCE_S
        self.patience_s = PATIENCE_S
        self._visits: dict[str, Visit] = {}
        self._address_of: dict[str, str] = {}
        self._clocks: dict[str, NodeClock] = {}
        self._table: Table = rules.table_of(spec.run_id)
        self._dropped: dict[str, rules.HostCut] = {}
        """Node -> what its host does to packets; no entry where an order may not have arrived."""
        self._no_reject = ""
        self._cutting = asyncio.Lock()
        self._stop = threading.Event()
        self._beating: list[asyncio.Task[None]] = []

    @property
    def notes(self) -> Sequence[str]:
        words = ["hosts reached by ssh; links are cut by one nft set on every host, where packets arrive"]
        if self._visits:
            words.append("nodes: " + ", ".join(f"{name} is {visit.host}" for name, visit in self._visits.items()))
        if offsets := self.clocks():
            worst_ms = max(offset.error_ns for offset in offsets.values()) / 1e6
            words.append(
                "every host has a monotonic clock of its own; rows of nodes are shown at the harness' time, give or "
                f"take {worst_ms:.1f} ms, and no verdict compares two clocks"
            )
        return words

    async def create(self, progress: Callable[[str], None]) -> None:
        """See Backend.create.  Cancelling it is safe, and its caller calls `destroy` in the end."""
        began = time.monotonic()
        try:
            await self._log_in(self._assigned(), progress)
            packed = await self._pack(progress)
            await _all(self._start(name, packed[_kind(visit)], progress) for name, visit in self._visits.items())
            await self.start_beacons()
            await self.wait_until_open(
                f"does a firewall drop UDP port {BEACON_PORT} between the hosts?  Let the hosts reach each other."
            )
        except BadInventory as problem:
            raise BackendUnavailable(str(problem)) from problem
        except (NodeGone, TimeoutError) as problem:
            raise BackendUnavailable(f"The nodes did not come up: {problem or 'no answer in time'}.") from problem
        progress(f"{len(self._visits)} nodes answer after {time.monotonic() - began:.1f} s")

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """See Cluster.cut; one transaction on each host that is concerned.

        Raises KeyError for an unknown node, CannotInject where a host cannot reject, OSError if one refuses, NodeGone
        if one does not answer: the others have carried the order out."""
        if reject and self._no_reject:
            raise CannotInject(self._no_reject)
        wanted = rules.cuts_of(links, reject, self._address_of)
        async with self._cutting:
            changed = [name for name, cut in wanted.items() if self._dropped.get(name) != cut]
            orders = [self._drop(name, wanted[name]) for name in changed]
            done = await asyncio.gather(*orders, return_exceptions=True)
        for failure in done:
            if isinstance(failure, BaseException):
                raise failure

    def command_on(self, name: str, words: Sequence[str]) -> str:
        host = self._visits[name].host
        options = ["-i", host.key] if host.key else []
        options += ["-o", f'UserKnownHostsFile="{host.known_hosts}" ~/.ssh/known_hosts'] if host.known_hosts else []
        options += ["-p", str(host.port)] if host.port != _SSH_PORT else []
        folder = f"{host.folder}/{self.spec.run_id}"
        within = [*self._visits[name].facts.prefix, "env", f"PYTHONPATH={folder}/code:{folder}/site", *words]
        return shlex.join(["ssh", "-t", *options, f"{host.user}@{host.address}", shlex.join(within)])

    def lacks(self, capability: str) -> str:
        """See Cluster.lacks."""
        return self._no_reject if capability == REJECT else super().lacks(capability)

    def clocks(self) -> Mapping[str, ClockOffset]:
        """See Backend.clocks."""
        return {name: clock.offset() for name, clock in self._clocks.items()}

    def heard(self, node: str, event: Mapping[str, Any]) -> None:
        """Times of nodes become the harness' own."""
        if "monotonic_ns" in event and node in self._clocks:
            event = {**event, "monotonic_ns": event["monotonic_ns"] - self._clocks[node].offset().ahead_ns}
        super().heard(node, event)

    async def destroy(self) -> None:
        self._stop.set()
        beating, self._beating = self._beating, []
        for task in beating:
            task.cancel()
        await asyncio.gather(*beating, return_exceptions=True)
        for visit in self._visits.values():
            if visit.attached is not None:  # one that has not come to be a link yet as well
                visit.attached.writer.close()
        await self.close_links()
        visits, self._visits = self._visits, {}
        left = await asyncio.gather(*(visit.leave() for visit in visits.values()))
        self.leftovers += [words for words in left if words]

    # ---- creating ----------------------------------------------------------------------------------------------

    def _assigned(self) -> Mapping[str, Host]:
        path = self.spec.inventory
        if not path:
            raise BackendUnavailable("The backend ssh needs hosts: name the file that lists them with --inventory.")
        return assign(read_inventory(Path(path)), self.spec.servers, self.spec.clients, path)

    async def _log_in(self, hosts: Mapping[str, Host], progress: Callable[[str], None]) -> None:
        """Log in everywhere and look what is there; every host that cannot be used is named at once."""
        progress(f"logging in to {len(hosts)} hosts")
        reached = [in_thread(reach, host, self.spec.needs) for host in hosts.values()]
        refusals = []
        for name, visit in zip(hosts, await asyncio.gather(*reached, return_exceptions=True), strict=True):
            if isinstance(visit, Visit):
                self._visits[name] = visit
            elif isinstance(visit, BackendUnavailable):
                refusals.append(str(visit))
            else:
                raise visit
        if refusals:
            raise BackendUnavailable("\n".join(refusals))
        self._address_of = {name: _data_address(visit) for name, visit in self._visits.items()}
        _refuse_twins(self._address_of)

    async def _pack(self, progress: Callable[[str], None]) -> Mapping[tuple[str, str], bytes]:
        """(Python, machine) -> what a host of that kind is sent."""
        wheels = [*wheel_requirements(), *self.spec.needs.wheels]
        packed = {}
        for version, machine in {_kind(visit) for visit in self._visits.values()}:
            site = await in_thread(fetch_wheels, wheels, version, machine, progress, self._stop)
            packed[version, machine] = await in_thread(packed_code, site)
        return packed

    async def _start(self, name: str, packed: bytes, progress: Callable[[str], None]) -> None:
        visit = self._visits[name]
        for run in await visit.enter(self.spec.run_id, packed, self.silence_s, self.patience_s):
            progress(f"removed from {visit.host} what the dead run {run} had left")
        assert visit.attached is not None
        reader, writer, words = visit.attached.reader, visit.attached.writer, visit.attached.words
        link = AgentLink(name, reader, writer, lambda event: self.heard(name, event), words)
        await link.call("hello", timeout_s=_HELLO_S)
        clock = NodeClock()
        for _ in range(_FIRST_READINGS):
            clock.add(await _read_clock(link))
        self._clocks[name] = clock
        await self._make_table(link, visit)
        folder = f"{visit.host.folder}/{self.spec.run_id}/node"
        node = AgentNode(
            link,
            address=self._address_of[name],
            data_dir=await self.data_folder(link, folder),
            trace_dir=f"{folder}/trace",
            log_dir=f"{folder}/log",
            python=(visit.facts.python,),
        )
        await self.add(link, node)
        self._beating.append(asyncio.create_task(self._beat(name)))
        await node.run(["mkdir", "-p", node.data_dir, node.trace_dir, node.log_dir])

    async def _make_table(self, link: AgentLink, visit: Visit) -> None:
        try:
            text = rules.make_table(self._table, visit.facts.control)
            await link.call("nft", {"owned": [self._table]}, text.encode())
        except NodeGone:
            raise
        except OSError as refusal:
            raise BackendUnavailable(
                f"{visit.host}: links cannot be cut there: {refusal.strerror}.  It needs CAP_NET_ADMIN and nf_tables."
            ) from refusal
        try:
            await link.call("nft", {"owned": []}, rules.make_rejecting(self._table).encode())
        except NodeGone:
            raise
        except OSError as refusal:
            self._no_reject = (
                f"{visit.host} cannot reset TCP on a cut link ({refusal.strerror}): it needs Linux 5.9 or later with "
                "nft_reject_ipv4 (`modprobe nft_reject_ipv4` there)"
            )

    # ---- while it lives ----------------------------------------------------------------------------------------

    async def _drop(self, name: str, wanted: rules.HostCut) -> None:
        self._dropped.pop(name, None)
        text = rules.replace_cut(self._table, wanted)
        await self._link(name).call("nft", {"owned": [self._table]}, text.encode())
        self._dropped[name] = wanted

    async def _beat(self, name: str) -> None:
        """Let one agent hear from the harness, and read its clock, until the end.  Every host has a task of its own,
        so that a silent host holds up no other one."""
        while True:
            with contextlib.suppress(OSError):  # every verb says so
                self._clocks[name].add(await _read_clock(self._link(name)))
            await asyncio.sleep(BEAT_S)


async def _all(jobs: Iterable[Any]) -> None:
    """All at once; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except ExceptionGroup as failed:  # one reason is enough for a sentence; the others are mostly the same
        raise failed.exceptions[0] from failed


async def _read_clock(link: AgentLink) -> ClockReading:
    sent_ns = time.monotonic_ns()
    hello, _ = await link.call("hello")
    return ClockReading(sent_ns, int(hello["monotonic_ns"]), time.monotonic_ns())


def _kind(visit: Visit) -> tuple[str, str]:
    return visit.facts.version, visit.facts.machine


def _data_address(visit: Visit) -> str:
    """The address by which other nodes reach this one.  Raises BackendUnavailable where that is not known."""
    address = visit.host.data_address or visit.connection.address
    try:
        if not ipaddress.IPv4Address(address).is_loopback:
            return address
        why = "leads nowhere on another host"
    except ValueError:
        why = "is no IPv4 address"
    raise BackendUnavailable(f"{visit.host}: {address} {why}: set `data_address` in the inventory.")


def _refuse_twins(address_of: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, address in address_of.items():
        if address in first:
            raise BackendUnavailable(
                f"{first[address]} and {name} are one host, {address}: every node needs a host of its own."
            )
        first[address] = name
