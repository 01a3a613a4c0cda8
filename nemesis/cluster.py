"""Targets of faults: the Protocol that every backend implements.

A link is a *directed* pair of node names (source, destination).  Servers and client nodes are both nodes.  Control
messages use another network than the data.  No fault ever cuts the connection that is needed to heal it.

A *capability* is an ability that only some backends have.  A kind of fault names the capabilities that it needs.
`Cluster.lacks` says why one is missing and how to grant it.

*Beacons* are datagrams on every directed link.  They show whether it is cut or open.
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
"""Per directed link, the number of the last beacon that was sent."""


DISK = "disk"
"""Capability: the servers' disks can be made to fail and to lose power."""
PACKETS = "packets"
"""Capability: packets of a directed link can be lost, duplicated, corrupted, reordered, delayed and slowed down."""
CLOCK = "clock"
"""Capability: the wall clock of a server can be shifted."""
MEMBERS = "members"
"""Capability: servers can be removed from the system's cluster, and added to it, while it runs."""
VERSIONS = "versions"
"""Capability: the system under test names versions, and servers can change between them one by one."""
DAMAGES = {f"damage: {how}": how for how in ("flip", "truncate", "wipe")}
"""Capabilities: a file of a dead server can be damaged in this way, and the system detects that at its next start."""


_NAMED_PROCESS = "process: "


def named_process(process: str) -> str:
    """Capability: this one of the named processes of a server can be stopped, continued, killed and started."""
    return f"{_NAMED_PROCESS}{process}"


def process_in(capability: str) -> str:
    """Return the name of the process that a capability names, "" for any other capability."""
    return capability.removeprefix(_NAMED_PROCESS) if capability.startswith(_NAMED_PROCESS) else ""


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """State of one named process of a server. lives: some part of it runs. stopped: all of it is paused. held: it stays
    down until it is released. ended: everything that the last order to end it found has ended.
    """

    lives: bool = False
    stopped: bool = False
    held: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Beacons:
    """UDP beacons of one directed link within one window, counted by sequence number without comparing clocks."""

    sent: int
    received: int


class CannotInject(RuntimeError):
    """This backend cannot inject this fault, which is `skipped` for that reason."""


class CannotReach(CannotInject):
    """No fault of this kind can have any effect on this system here."""


class Cluster(Protocol):
    servers: Sequence[str]
    clients: Sequence[str]
    versions: ServerVersions | None
    """Capability VERSIONS: the version that the next start of a server runs; None without the capability."""

    def node(self, name: str) -> Node: ...

    def lacks(self, capability: str) -> str:
        """Return why this backend lacks the capability and how to grant it; "" if it has it."""
        ...

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """Cut exactly these links, so that they lose every packet, and restore all others.  One atomic transaction.

        reject: those of `links` that answer TCP with a reset (capability REJECT).
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
        """Count the beacons after `first` up to `last` on every link that both marks name.  Waits a moment for beacons
        that are still in flight.  A link whose receiver does not answer is left out.
        """
        ...

    async def state(self, server: str) -> ProcessState:
        """Return the state of a server's process, or of the clients of a client node (capability CLIENT_PROCESSES)."""
        ...

    async def pause(self, server: str) -> None: ...

    async def resume(self, server: str) -> None: ...

    async def kill(self, server: str) -> None: ...

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        """Kill the server as soon as one of its data files is written.  Returns False, without a kill, if none is
        written in time.
        """
        ...

    async def await_line(self, server: str, pattern: str, nth: int, within_s: float, freeze: bool = False) -> str:
        """Return the n-th matching line that the server prints from now on, as soon as it is printed; "" if none is in
        time.

        pattern: a regular expression, searched in each line; "" for an unusual line (`harness.agent.files`).
        freeze: pause the server at the line until `thaw` or the next signal, for two seconds at most.  Raises
        CannotInject if the backend does not follow the servers' output.
        """
        ...

    async def thaw(self, server: str) -> None:
        """Resume a server that `await_line` has paused, and disarm each `await_line` that would pause it later."""
        ...

    async def stop(self, server: str) -> None:
        """Order the server to end (SIGTERM) and wait until it has.  One that does not end in time is killed, as by
        systemd.
        """
        ...

    async def restart(self, server: str) -> None: ...

    # Capability: faults on a named process.

    async def signal_process(self, server: str, process: str, name: Literal["STOP", "KILL", "TERM", "RELEASE"]) -> None:
        """Signal one named process of a server, and return when the signal has taken effect.  RELEASE: resume it, or
        start it again.  Raises OSError if there is no such process or if the signal has no effect.
        """
        ...

    async def process_now(self, server: str, process: str) -> ProcessNow: ...

    async def mend(self) -> None:
        """Release every named process, and restore every disk, clock and link.

        Does nothing if nothing is broken.  Raises OSError if a node does not answer.
        """
        ...

    # Capability DISK. Every verb raises CannotInject if the node's disk cannot be made to fail.

    async def behave_disk(self, server: str, /, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """Apply exactly these rules to the disk from now on (`harness.agent.disk_changes.Rule`).  Without rules the
        disk is healthy.
        """
        ...

    async def arm_disk(self, server: str, /, operation: str, nth: int) -> None:
        """Hold the n-th of the next operations of one type ("open", "read", "write", "fsync"), and all later ones.

        0 holds none, and releases the held ones.
        """
        ...

    async def disk_reached(self, server: str, /) -> bool:
        """Return whether the armed operation has occurred."""
        ...

    async def lose_power(self, server: str, /, kept: str, seed: int) -> None:
        """Kill the server and discard writes that were not fsynced. kept: "lose" all of them, "tear" the last write at
        any byte, "reorder": keep each write with probability one half, or "recent": discard only writes of the last 5
        s.
        """
        ...

    async def power_loss(self, server: str, /) -> Mapping[str, int]:
        """Return the effects of the last power loss: the seed of its order, undone, redone, torn_bytes, used (as of
        `probe_disk`), oldest_ms (age of the oldest lost write), LOST_OF and the name of a file (bytes that it lost),
        and the proofs fsynced_kept, not_fsynced_kept (0 or 1).  Empty before the first power loss.
        """
        ...

    async def probe_disk(self, server: str, /) -> Mapping[str, Any]:
        """Try the disk.  Returns "" or an error's name for open, write, fsync and read, and fsync_s. used: 1 if any
        process other than the agent ever wrote to it, else 0.
        """
        ...

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """Damage one file of a dead server, of those whose damage the system detects (capabilities DAMAGES).

        how: "flip" one bit, "truncate" at any byte, or "wipe" all data.  Raises OSError while the server runs."""
        ...

    async def disk_damage(self, server: str, /) -> Mapping[str, Any]:
        """Return the last damage: the seed of its order, how, file, offset; fingerprints of that place: before, after,
        now.  Empty before the first damage.
        """
        ...

    # Capability PACKETS.

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """Impair exactly these links from now on: loss, duplicate, corrupt, reorder (fractions), delay_s, jitter_s,
        rate_bytes_per_s, hold (1: all packets wait until a later order no longer names the link, and then arrive in
        order).  Raises CannotInject without the capability, ValueError for an impossible impairment.
        """
        ...

    async def try_link(self, link: Link, datagrams: int, interval_s: float, wait_s: float) -> Mapping[str, float]:
        """Send a burst of datagrams and measure: sent, received (distinct ones), repeated, reordered, delay_ms (the
        median) and least_delay_ms (of the second half). wait_s: maximum time that the last one may take.
        """
        ...

    # Capability MEMBERS. The system itself must agree to a change: each verb raises OSError if it does not do so in
    # time.

    async def members(self) -> frozenset[str]:
        """Return the servers that are members now and were started as such, as the leader reports."""
        ...

    async def remove_member(self, server: str) -> None:
        """Remove a server from the system's cluster.  Its process may continue or end."""
        ...

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        """Add a dead server as a new member, wiped: with an empty disk.  It joins at once, or when it is started
        (`subject.Members.add`).
        """
        ...

    # Capability CLOCK.  Every verb raises CannotInject where the wall clock cannot be shifted.

    async def set_clock(self, server: str, /, offset_s: float, rate: float) -> None:
        """Set the server's wall clock ahead by this offset, and let it run at this rate."""
        ...

    async def read_clock(self, server: str, /) -> Mapping[str, Any]:
        """Read the clock that a server sees.

        ahead_s: seconds by which it is ahead. age_s: seconds since it was last set. heeded: whether every process of
        the running server reads this clock. unheeded: the reason if not, which follows "the server"; "" if all do or
        none runs.
        """
        ...


DENSE_INTERVAL_MS = 2.0
"""Interval around inject and heal: 150 beacons a link, three times the number needed, in case the sender gets little
CPU.
"""
CALM_INTERVAL_MS = 15.0
"""Interval at all other times.  Proof of a cut needs 50 lost beacons, every three seconds while the fault holds.  This
interval suffices even if the sender gets only half of its CPU.
"""
