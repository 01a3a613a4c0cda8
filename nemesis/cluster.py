"""Interface between faults and a backend: `Cluster`, the Protocol that every backend implements.

A link is a *directed* pair of node names (source, destination).  Servers and client nodes are both nodes.  Control
messages use a network of their own, so no fault ever cuts the connection that is needed to heal the fault.

A *capability* is an ability that only some backends have.  A kind of fault names the capabilities that it needs.
`Cluster.lacks` returns why a capability is missing and how to grant it.

*Beacons* are datagrams that the harness sends on every directed link.  Their arrival shows whether the link is cut or
open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from checkers.record.faults import Link as Link
from system_under_test.subject import Node, ProcessState, ServerVersions

LINKS = "links"
"""Capability: directed links can be cut, and beacons measure them."""
REJECT = "reject"
"""Capability: a cut link can answer TCP with a reset instead of losing packets silently."""
PROCESSES = "processes"
"""Capability: server processes can be paused, resumed, killed and started."""
CLIENT_PROCESSES = "client processes"
"""Capability: the clients of a client node can be paused and resumed."""

Marks = Mapping[Link, int]
"""Directed link -> sequence number of the last beacon that was sent."""


DISK = "disk"
"""Capability: the servers' disks can be made to fail and to lose power."""
PACKETS = "packets"
"""Capability: packets of a directed link can be lost, duplicated, corrupted, reordered, delayed and slowed down."""
CLOCK = "clock"
"""Capability: the wall clock of a server can be shifted."""
MEMBERS = "members"
"""Capability: servers can be removed from the system's cluster, and added to the cluster, while the system runs."""
VERSIONS = "versions"
"""Capability: the system under test names versions, and servers can change between them one by one."""
DAMAGES = {f"damage: {how}": how for how in ("flip", "truncate", "wipe")}
"""Capabilities: a file of a dead server can be corrupted in this way, and the server detects the corruption at its next
start.
"""


_NAMED_PROCESS = "process: "


def named_process(process: str) -> str:
    """Return the capability to stop, continue, kill and start this named process of a server."""
    return f"{_NAMED_PROCESS}{process}"


def process_in(capability: str) -> str:
    """Return the process of a `named_process` capability; "" for any other capability."""
    return capability.removeprefix(_NAMED_PROCESS) if capability.startswith(_NAMED_PROCESS) else ""


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """State of one named process of a server, which may consist of several operating-system processes.

    lives: True if at least one operating-system process of it runs
    stopped: True if all of them are paused
    held: True if the harness keeps the process down until RELEASE
    ended: True if all operating-system processes that existed at the last KILL or TERM have ended
    """

    lives: bool = False
    stopped: bool = False
    held: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Beacons:
    """Number of UDP beacons sent and received on one directed link within one window.  A window is a range of sequence
    numbers, so no clocks are compared.
    """

    sent: int
    received: int


class CannotInject(RuntimeError):
    """This backend cannot inject this fault.  The card is recorded as `skipped`, with this error as the reason."""


class CannotReach(CannotInject):
    """No fault of this kind can have any effect on this system on this backend."""


class Cluster(Protocol):
    servers: Sequence[str]
    clients: Sequence[str]
    versions: ServerVersions | None
    """Version that each server runs at its next start (capability VERSIONS); None without the capability."""

    def node(self, name: str) -> Node: ...

    def lacks(self, capability: str) -> str:
        """Return why this backend lacks the capability and how to grant it; "" if it has it."""
        ...

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """Cut exactly these links, so that they lose every packet, and restore all others, in one atomic transaction.

        reject: subset of `links` that answers TCP with a reset (capability REJECT)
        """
        ...

    async def beat(self, interval_ms: float) -> None:
        """Send beacons on every directed link every `interval_ms` from now on."""
        ...

    async def mark(self) -> Marks:
        """Return the number of the last beacon sent on every link.  Links of a node whose agent does not answer are
        left out.
        """
        ...

    async def arrived(self, first: Marks, last: Marks) -> Mapping[Link, Beacons]:
        """Count the beacons with numbers above `first` and up to `last`, on every link that both marks name.  Waits a
        moment for beacons that are still in flight.  A link whose receiver does not answer is left out.
        """
        ...

    async def state(self, server: str) -> ProcessState:
        """Return the state of a server's process, or of the clients of a client node (capability CLIENT_PROCESSES)."""
        ...

    async def pause(self, server: str) -> None: ...

    async def resume(self, server: str) -> None: ...

    async def kill(self, server: str) -> None: ...

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        """Kill the server as soon as it writes to one of its data files.  Returns False, without a kill, if it writes
        to no data file within `within_s` seconds.
        """
        ...

    async def await_line(self, server: str, pattern: str, nth: int, within_s: float, freeze: bool = False) -> str:
        """Return the n-th matching line that the server prints from now on, as soon as the server prints it; "" if it
        does not do so within `within_s` seconds.

        pattern: regular expression to search for in each line; "" matches an unusual line (`harness.agent.files`)
        freeze: pause the server at the line until `thaw` or the next signal, for two seconds at most

        Raises CannotInject if the backend does not follow the servers' output.
        """
        ...

    async def thaw(self, server: str) -> None:
        """Resume a server that `await_line` has paused, and disarm each `await_line` that would pause it later."""
        ...

    async def stop(self, server: str) -> None:
        """Order the server to shut down (SIGTERM) and wait until its process has ended.  A server that does not shut
        down in time is killed, as by systemd.
        """
        ...

    async def restart(self, server: str) -> None: ...

    # Capability: faults on a named process.

    async def signal_process(self, server: str, process: str, name: Literal["STOP", "KILL", "TERM", "RELEASE"]) -> None:
        """Signal one named process of a server, and return when the signal has taken effect.  RELEASE resumes the
        process, or starts it again.  Raises OSError if there is no such process or if the signal has no effect.
        """
        ...

    async def process_now(self, server: str, process: str) -> ProcessNow: ...

    async def mend(self) -> None:
        """Release every named process, and restore every disk, clock and link.

        Does nothing if no fault is in force.  Raises OSError if a node does not answer.
        """
        ...

    # Capability DISK. Every method raises CannotInject if the node's disk cannot be made to fail.

    async def behave_disk(self, server: str, /, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """Apply exactly these rules to the disk from now on (`harness.agent.disk_changes.Rule`).  Without rules the
        disk is healthy.
        """
        ...

    async def arm_disk(self, server: str, /, operation: str, nth: int) -> None:
        """Block the n-th operation of one type ("open", "read", "write", "fsync") from now on, and all later operations
        of that type.

        nth: 0 blocks no operation, and releases the blocked operations
        """
        ...

    async def disk_reached(self, server: str, /) -> bool:
        """Return True if the operation that `arm_disk` blocks has occurred."""
        ...

    async def lose_power(self, server: str, /, kept: str, seed: int) -> None:
        """Kill the server and discard writes that were not fsynced.

        kept: "lose" discards all of these writes; "tear" keeps only a part of the last one; "reorder" keeps each with
            probability one half; "recent" discards only those of the last 5 s
        """
        ...

    async def power_loss(self, server: str, /) -> Mapping[str, int]:
        """Return the effects of the last power loss; empty before the first one.

        The keys are: seed (as passed to `lose_power`), undone, redone, torn_bytes, used (as in `probe_disk`), oldest_ms
        (age of the oldest lost write), LOST_OF followed by the name of a file (bytes that the file lost), and the
        proofs fsynced_kept and not_fsynced_kept (0 or 1).
        """
        ...

    async def probe_disk(self, server: str, /) -> Mapping[str, Any]:
        """Try one open, write, fsync and read on the disk.

        Returns, by the name of each operation, "" or the name of its error; fsync_s: seconds that the fsync took; used:
        1 if any process other than the agent ever wrote to the disk, else 0.
        """
        ...

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """Corrupt one file of a dead server: a file whose corruption the system detects (capabilities DAMAGES).

        how: "flip" one bit, "truncate" at any byte, or "wipe" all data

        Raises OSError while the server runs.
        """
        ...

    async def disk_damage(self, server: str, /) -> Mapping[str, Any]:
        """Return the last corruption; empty before the first one.

        The keys are: seed and how (as passed to `damage_disk`), file, offset, and fingerprints of the corrupted place:
        before, after, now.
        """
        ...

    # Capability PACKETS.

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """Impair exactly these links from now on.

        The keys of an impairment are: loss, duplicate, corrupt, reorder (fractions), delay_s, jitter_s,
        rate_bytes_per_s, and hold (1: all packets wait until a later order no longer names the link, and then arrive in
        order). Raises CannotInject without the capability, ValueError for an impossible impairment.
        """
        ...

    async def try_link(self, link: Link, datagrams: int, interval_s: float, wait_s: float) -> Mapping[str, float]:
        """Send a burst of datagrams and measure: sent, received (distinct ones), repeated, reordered, delay_ms (the
        median) and least_delay_ms (of the second half).

        wait_s: seconds to wait for the last datagram
        """
        ...

    # Capability MEMBERS. The system itself must agree to a change: a method raises OSError if this takes too long.

    async def members(self) -> frozenset[str]:
        """Return the current members that were started as members, as the leader reports."""
        ...

    async def remove_member(self, server: str) -> None:
        """Remove a server from the system's cluster.  The process of the server may continue or end."""
        ...

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        """Add a dead server as a new member.  The server joins at once, or when it is started (`subject.Members.add`).

        wiped: True if the server returns with an empty disk
        """
        ...

    # Capability CLOCK. Every method raises CannotInject where the wall clock cannot be shifted.

    async def set_clock(self, server: str, /, offset_s: float, rate: float) -> None:
        """Set the server's wall clock ahead by this offset, and let it run at this rate."""
        ...

    async def read_clock(self, server: str, /) -> Mapping[str, Any]:
        """Read the wall clock of a server.  The keys of the result are:

        ahead_s: seconds by which the clock is ahead
        age_s: seconds since the clock was last set
        heeded: True if every process of the running server reads this clock
        unheeded: reason why a process does not read it, as a phrase that follows "the server"; "" if all do or none
            runs
        """
        ...


DENSE_INTERVAL_MS = 2.0
"""Milliseconds between beacons around inject and heal.  A window then holds 150 beacons per link, three times the
number needed, in case the sender gets little CPU.
"""
CALM_INTERVAL_MS = 15.0
"""Milliseconds between beacons at all other times.  Proof of a cut needs 50 lost beacons in every three seconds of the
fault.  This interval suffices even if the sender gets only half of its CPU.
"""
