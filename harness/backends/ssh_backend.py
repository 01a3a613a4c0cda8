"""The ssh backend: every node is a Linux host of the user, which is restored at the end of the run.

    harness ── ssh ──► guard (root) ── starts ──► agent        one of each on every host, over one channel

A host needs only sshd, Python and nft.  The harness sends the code.  The guard admits one run at a time, and removes
everything of the run when the agent ends.  The agent ends when the harness ends, or when the agent has received nothing
for a while.  So a host needs no reaper; if a guard was killed, the next run removes its remains.

*Clocks.*  `clocks` returns the lead of each host's monotonic clock over the harness' clock, and a bound on the error.

For one reading the harness reads its own clock, requests the time of the agent, and reads its own clock again.  The
agent reads its clock between these two times, so the error of a reading is at most half of the round trip, regardless
of the network delay.  Clocks drift (some 10 ppm, at most 500 ppm while they are slewed), so readings are repeated
during the run.  The estimate is the middle between the lowest and the highest of the best readings.  The bound covers
all best readings, their own errors, and the drift between two of them.

No verdict depends on the estimate.  It places rows of nodes on the time axis of the history, and it widens the windows
in which slow processors excuse a symptom (`health.py`).

*Rules.*  Each host has an nft table of this run, which drops packets that arrive from some of the other nodes.

A link is cut at its receiving end: a rule at the sender would make `sendto` fail, which no real partition does.  Every
change replaces the whole set of addresses in one transaction of nft.  To cut several links, the harness sends one
transaction to each receiving host at the same time; the hosts apply them within some milliseconds of each other.

On a rejected link, the receiving host answers TCP with a reset.  The reset must reach the sender even if the reverse
link is cut.  So the sender still accepts resets, but no other packets, from that host.

Rules match the IPv4 address of the sender, so they also drop its multicast and broadcast.  They do not drop IPv6, or
packets that a host sends from another address.  Rules cannot match hardware addresses, because routers between hosts
hide them.

A rule exempts the connection of the harness to the host, by its addresses and ports.  So the machine of the harness may
also be a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkers.record.header_and_outcome import ClockOffset, NodesClock
from harness.agent.guard import TABLE_PREFIX
from harness.agent.network import FirewallTables, Table, replace_set
from harness.agent.process import NodeVerbs
from harness.backends.agent_cluster import BEACON_PORT, AgentCluster, all_of
from harness.backends.agent_link import AgentLink
from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.builds import fetch_wheels, wheel_requirements
from harness.backends.ssh_inventory import BadInventory, Host, assign, read_inventory
from harness.backends.ssh_visit import PATIENCE_S, SILENCE_S, Visit, in_thread, packed_code, reach
from nemesis.cluster import REJECT, CannotInject, Link
from system_under_test.subject import Jars, NodeGone

BEAT_S = 3.0
"""Seconds between two heartbeats to an agent.  Each heartbeat also reads the clock of the agent's host."""
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
        self._table: Table = table_of(spec.run_id)
        self._dropped: dict[str, HostCut] = {}
        """Node -> cut that its host has confirmed; no entry if it is unknown whether the last order arrived."""
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
        """See Backend.create.  Cancelling it is safe; the caller must call `destroy` afterwards."""
        began = time.monotonic()
        try:
            await self._log_in(self._assigned(), progress)
            packed = await self._pack(progress)
            await all_of(self._start(name, packed[_kind(visit)], progress) for name, visit in self._visits.items())
            await self.open_links(
                f"does a firewall drop UDP port {BEACON_PORT} between the hosts?  Let the hosts reach each other."
            )
        except BadInventory as problem:
            raise BackendUnavailable(str(problem)) from problem
        except (NodeGone, TimeoutError) as problem:
            raise BackendUnavailable(f"The nodes did not come up: {problem or 'no answer in time'}.") from problem
        progress(f"{len(self._visits)} nodes answer after {time.monotonic() - began:.1f} s")

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """See Cluster.cut.  Applies one transaction on each affected host.

        Raises KeyError for an unknown node, CannotInject if a host cannot reset TCP, OSError if a host refuses its
        transaction, NodeGone if a host does not answer.  In the last two cases the other hosts have applied theirs.
        """
        if reject and self._no_reject:
            raise CannotInject(self._no_reject)
        wanted = cuts_of(links, reject, self._address_of)
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
        """See AgentCluster.heard.  Converts times by a node's clock to times by the harness' clock."""
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
            if visit.attached is not None:  # also a visit whose link is not established yet
                visit.attached.close()
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
        """Log in to all hosts and examine them.  Raises BackendUnavailable that names every unusable host."""
        if self.spec.needs.jars != Jars():
            raise BackendUnavailable("The backend ssh cannot provide Java archives: choose another --backend.")
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
        """Return (Python version, architecture) -> packed files for hosts with that Python and architecture."""
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
        reader, words = visit.attached.reader, visit.attached.words
        link = AgentLink(name, reader, visit.attached, lambda event: self.heard(name, event), words)
        await link.ask(NodeVerbs.hello)
        clock = NodeClock()
        for _ in range(_FIRST_READINGS):
            clock.add(await _read_clock(link))
        self._clocks[name] = clock
        await self._make_table(link, visit)
        folder = f"{visit.host.folder}/{self.spec.run_id}/node"
        await self.add(link, self._address_of[name], folder, (visit.facts.python,))
        self._beating.append(asyncio.create_task(self._beat(name)))

    async def _make_table(self, link: AgentLink, visit: Visit) -> None:
        if why := await _refusal(link, make_table(self._table, visit.facts.control), self._table):
            words = f"links cannot be cut there: {why}.  It needs CAP_NET_ADMIN and nf_tables."
            raise BackendUnavailable(f"{visit.host}: {words}")
        if why := await _refusal(link, make_rejecting(self._table)):
            self._no_reject = (
                f"{visit.host} cannot reset TCP on a cut link ({why}): it needs Linux 5.9 or later with "
                "nft_reject_ipv4 (`modprobe nft_reject_ipv4` there)"
            )

    # ---- while the run lasts -----------------------------------------------------------------------------------

    async def _drop(self, name: str, wanted: HostCut) -> None:
        self._dropped.pop(name, None)
        text = replace_cut(self._table, wanted)
        await self._link(name).ask(FirewallTables.apply, text, [self._table])
        self._dropped[name] = wanted

    async def _beat(self, name: str) -> None:
        """Send heartbeats to one agent and read its clock until the end of the run.  Each host has a task of its own,
        so that a silent host does not delay the heartbeats to others.
        """
        while True:
            with contextlib.suppress(OSError):  # the next verb that uses this host reports it
                self._clocks[name].add(await _read_clock(self._link(name)))
            await asyncio.sleep(BEAT_S)


async def _refusal(link: AgentLink, text: str, *owned: Table) -> str:
    """Apply a transaction of nft.  Return why the host refuses it, or "".  Raises NodeGone."""
    try:
        await link.ask(FirewallTables.apply, text, owned)
    except NodeGone:
        raise
    except OSError as refusal:
        return str(refusal.strerror)
    return ""


async def _read_clock(link: AgentLink) -> ClockReading:
    sent_ns = time.monotonic_ns()
    hello = await link.ask(NodeVerbs.hello)
    return ClockReading(sent_ns, int(hello["monotonic_ns"]), time.monotonic_ns())


def _kind(visit: Visit) -> tuple[str, str]:
    return visit.facts.version, visit.facts.machine


def _data_address(visit: Visit) -> str:
    """Return the address by which other nodes reach this host.  Raises BackendUnavailable if it is unknown."""
    address = visit.host.data_address or visit.connection.address
    try:
        if not ipaddress.IPv4Address(address).is_loopback:
            return address
        why = "is a loopback address, which other hosts cannot reach"
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


KEPT_EVERY_NS = 10_000_000_000
"""Length in nanoseconds of the windows of which only the best reading is kept.  So two successive kept readings are at
most twice this far apart."""
DRIFT_SHARE_MAX = 500e-6


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One reading of a node's clock.

    sent_ns, received_ns: times of the request and of the answer by the harness' clock
    node_ns: time by the node's clock"""

    sent_ns: int
    node_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        return self.received_ns - self.sent_ns

    @property
    def ahead_ns(self) -> int:
        return self.node_ns - (self.sent_ns + self.received_ns) // 2

    @property
    def error_ns(self) -> int:
        return self.round_trip_ns // 2 + 1


class NodeClock:
    """Readings of one node's clock.  At least one reading is needed in every KEPT_EVERY_NS."""

    def __init__(self) -> None:
        self._kept: list[ClockReading] = []

    def add(self, reading: ClockReading) -> None:
        last = self._kept[-1] if self._kept else None
        if last is None or reading.sent_ns // KEPT_EVERY_NS != last.sent_ns // KEPT_EVERY_NS:
            self._kept.append(reading)
        elif reading.round_trip_ns < last.round_trip_ns:
            self._kept[-1] = reading

    def offset(self) -> ClockOffset:
        """Return the estimated lead of the node's clock and its error.  Raises ValueError before the first reading."""
        if not self._kept:
            raise ValueError("the clock was never read")
        least = min(reading.ahead_ns for reading in self._kept)
        most = max(reading.ahead_ns for reading in self._kept)
        middle = (least + most) // 2
        bound = max(abs(reading.ahead_ns - middle) + reading.error_ns for reading in self._kept)
        return ClockOffset(middle, bound + int(2 * KEPT_EVERY_NS * DRIFT_SHARE_MAX))


@dataclass(frozen=True, slots=True)
class HostCut:
    """Addresses of nodes from which one host does not accept all packets.

    cut: the host drops packets from these addresses
    reject: the host answers TCP from these addresses with a reset
    resets: the host accepts TCP resets from these addresses, because they reject its packets
    """

    cut: frozenset[str] = frozenset()
    reject: frozenset[str] = frozenset()
    resets: frozenset[str] = frozenset()


def table_of(run_id: str) -> Table:
    return "ip", TABLE_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", run_id)


def make_table(table: Table, control: tuple[str, str, str, str] | None) -> str:
    """Return nft text that creates the table without any cut.

    control: see `ssh_visit.HostFacts`"""
    family, name = table
    keep = ""
    if control is not None and ":" not in control[0]:
        harness, harness_port, host, host_port = control
        keep = f"ip saddr {harness} tcp sport {harness_port} ip daddr {host} tcp dport {host_port} accept"
    return f"""\
table {family} {name} {{
  set cut {{ type ipv4_addr; }}
  set rejected {{ type ipv4_addr; }}
  set resets {{ type ipv4_addr; }}
  chain arriving {{
    type filter hook prerouting priority -300; policy accept;
    {keep}
    ip saddr @resets tcp flags & rst == rst accept
    jump rejecting
    ip saddr @cut drop
  }}
  chain rejecting {{ }}
}}
"""


def make_rejecting(table: Table) -> str:
    """Return nft text that adds the rule for rejected links: a reset as the answer to TCP.  Kernels before 5.9 refuse
    the rule at this hook.
    """
    family, name = table
    return f"add rule {family} {name} rejecting ip saddr @rejected meta l4proto tcp reject with tcp reset\n"


def replace_cut(table: Table, wanted: HostCut) -> str:
    """Return nft text that replaces the three sets of addresses with those of `wanted`."""
    sets = {"cut": wanted.cut, "rejected": wanted.reject, "resets": wanted.resets}
    return "".join(replace_set(table, name, sources) for name, sources in sets.items())


def cuts_of(links: Collection[Link], reject: Collection[Link], address_of: Mapping[str, str]) -> Mapping[str, HostCut]:
    """Return node -> cut that its host must apply.  Raises KeyError for a node that is not in the cluster."""
    made: dict[str, tuple[set[str], set[str], set[str]]] = {node: (set(), set(), set()) for node in address_of}
    for source, to in links:
        made[to][0].add(address_of[source])
    for source, to in reject:
        made[to][1].add(address_of[source])
        made[source][2].add(address_of[to])
    return {node: HostCut(*map(frozenset, sets)) for node, sets in made.items()}
