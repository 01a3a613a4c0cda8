"""Targets of faults: the Protocol every backend implements.

A link is a *directed* pair of node names (source, destination); servers and client nodes are both nodes.  Control
travels outside the data network.  No fault ever cuts the connection that must heal it.

A *capability* is something that not every backend can do.  A kind of fault names the capabilities it needs, and
`Cluster.lacks` answers in words why one is missing and how to grant it.

*Beacons.*  The datagrams on every directed link that show whether it is cut or open.
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
"""Capability: server processes can be stopped, continued, killed and started."""
CLIENT_PROCESSES = "client processes"
"""Capability: the clients of a client node can be stopped and continued."""

Marks = Mapping[Link, int]
"""Per directed link, the number of the last beacon that was sent."""


DISK = "disk"
"""Capability: the servers' data lies on a disk that fails, and loses its power, on order."""
PACKETS = "packets"
"""Capability: packets of a directed link can be lost, repeated, damaged, reordered, delayed and slowed down."""
CLOCK = "clock"
"""Capability: the wall clock of a server can be shifted."""
MEMBERS = "members"
"""Capability: servers can be removed from the system's cluster, and added to it, while it runs."""
VERSIONS = "versions"
"""Capability: the system under test names versions between which a server may change while others keep theirs."""
DAMAGES = {f"damage: {how}": how for how in ("flip", "truncate", "wipe")}
"""Capabilities: a file of a dead server can be damaged in this way, and the system notices it when it starts."""


_NAMED_PROCESS = "process: "


def named_process(process: str) -> str:
    """Capability: this one of the named processes of a server can be stopped, continued, killed and started."""
    return f"{_NAMED_PROCESS}{process}"


def process_in(capability: str) -> str:
    """The process that a capability names, "" for any other capability."""
    return capability.removeprefix(_NAMED_PROCESS) if capability.startswith(_NAMED_PROCESS) else ""


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """One named process of a server.  lives: any part of it.  stopped: all of it.  held: it stays down until it is
    released.  ended: everything that the last order to end it met has ended."""

    lives: bool = False
    stopped: bool = False
    held: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Beacons:
    """UDP beacons of one directed link within one window, counted by sequence number, so no clock is compared."""

    sent: int
    received: int


class CannotInject(RuntimeError):
    """This backend cannot do this fault; the fault is `skipped` for that reason."""


class CannotReach(CannotInject):
    """No fault of this kind can ever do anything to this system here."""


class Cluster(Protocol):
    servers: Sequence[str]
    clients: Sequence[str]
    versions: ServerVersions | None
    """Capability VERSIONS: what the next start of a server runs; None without it."""

    def node(self, name: str) -> Node: ...

    def lacks(self, capability: str) -> str:
        """Return why this backend has not got the capability and how to grant it; "" if it has it."""
        ...

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """From now on exactly these links lose every packet; all others are whole.  One atomic transaction.

        reject: those of `links` on which TCP is answered with a reset (capability REJECT)."""
        ...

    async def beat(self, interval_ms: float) -> None:
        """From now on send beacons on every directed link every `interval_ms`."""
        ...

    async def mark(self) -> Marks:
        """The last beacon sent on every link.  Links of a node whose agent does not answer are left out."""
        ...

    async def arrived(self, first: Marks, last: Marks) -> Mapping[Link, Beacons]:
        """Count the beacons after `first` up to `last` on every link that both marks name.  Waits a moment for those
        that are still under way.  A link whose receiver does not answer is left out."""
        ...

    async def state(self, server: str) -> ProcessState:
        """The state of a server's process, or of the clients of a client node (capability CLIENT_PROCESSES)."""
        ...

    async def pause(self, server: str) -> None: ...

    async def resume(self, server: str) -> None: ...

    async def kill(self, server: str) -> None: ...

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        """Kill the server as soon as one of its data files is written.  False, and it runs on, if none is in time."""
        ...

    async def await_line(self, server: str, pattern: str, nth: int, within_s: float, freeze: bool = False) -> str:
        """Return the n-th line that the server prints from now on and that matches, at once; "" if none is in time.

        pattern: a regular expression, searched in each line; "" for an unusual line (`harness.agent.files`).
        freeze: the server stands still from the line on, until `thaw` or the next signal, for two seconds at most.
        Raises CannotInject where the backend does not follow what servers print."""
        ...

    async def thaw(self, server: str) -> None:
        """Resume a server that `await_line` has frozen, and disarm each `await_line` that still waits to freeze it."""
        ...

    async def stop(self, server: str) -> None:
        """Order the server to end (SIGTERM) and wait until it has.  Raises OSError if it does not end in time."""
        ...

    async def restart(self, server: str) -> None: ...

    # Capability: faults on a named process.

    async def signal_process(self, server: str, process: str, name: Literal["STOP", "KILL", "TERM", "RELEASE"]) -> None:
        """Signal one named process of a server; returns when it has obeyed.  RELEASE: let it go on, or start it again.
        Raises OSError if there is no such process or if it does not obey."""
        ...

    async def process_now(self, server: str, process: str) -> ProcessNow: ...

    async def mend(self) -> None:
        """Release every named process, make every disk healthy, set every clock right and impair no link.

        A no-op where there is nothing to mend.  Raises OSError if a node does not answer."""
        ...

    # Capability DISK. Every verb raises CannotInject if the node's disk cannot be made to fail.

    async def behave_disk(self, server: str, /, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """From now on exactly these rules hold (`harness.agent.disk.changes.Rule`); none is a healthy disk."""
        ...

    async def arm_disk(self, server: str, /, operation: str, nth: int) -> None:
        """Hold the n-th of the next operations of a sort ("open", "read", "write", "fsync"), and all later ones.

        0 holds none: what is held goes on."""
        ...

    async def disk_reached(self, server: str, /) -> bool:
        """Return whether the armed operation has come."""
        ...

    async def lose_power(self, server: str, /, kept: str, seed: int) -> None:
        """Kill the server and take back what was not fsynced.  kept: "lose" nothing more, "tear" the last write at
        any byte, "reorder": each write is kept with probability one half, or "recent": what is older than 5 s."""
        ...

    async def power_loss(self, server: str, /) -> Mapping[str, int]:
        """Return what the last power loss did: the seed of its order, undone, redone, torn_bytes, used (as of
        `probe_disk`), oldest_ms (age of the oldest write that was lost), LOST_OF and the name of a file (bytes that it
        lost), and the proofs fsynced_kept, not_fsynced_kept (0 or 1).  Empty before the first."""
        ...

    async def probe_disk(self, server: str, /) -> Mapping[str, Any]:
        """Try the disk: "" or an error's name for open, write, fsync and read, and fsync_s.  used: 1 if any process but
        the agent ever wrote to it, else 0."""
        ...

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """Damage one file of a dead server, of those whose damage the system notices (capabilities DAMAGES).

        how: "flip" one bit, "truncate" at any byte, or "wipe" all data.  Raises OSError while the server runs."""
        ...

    async def disk_damage(self, server: str, /) -> Mapping[str, Any]:
        """Return what the last damage was: the seed of its order, how, file, offset; fingerprints of its place: before,
        after, now.  Empty before the first."""
        ...

    # Capability PACKETS.

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """From now on exactly these links are impaired: loss, duplicate, corrupt, reorder (shares), delay_s, jitter_s,
        rate_bytes_per_s, hold (1: all packets wait until a later order no longer names it, and then arrive in order).
        Raises CannotInject without the capability, ValueError for an impossible impairment."""
        ...

    async def try_link(self, link: Link, datagrams: int, interval_s: float, wait_s: float) -> Mapping[str, float]:
        """Send a burst of datagrams and measure: sent, received (different ones), repeated, reordered, delay_ms
        (the median) and least_delay_ms (of the second half).  wait_s: how long the last one may be under way."""
        ...

    # Capability MEMBERS. The system itself must agree to a change: each verb raises OSError if it does not do so in
    # time.

    async def members(self) -> frozenset[str]:
        """The servers that are members now and have been started as such, by what the leader reports."""
        ...

    async def remove_member(self, server: str) -> None:
        """Remove a server from the system's cluster.  Its process may go on, or end itself."""
        ...

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        """Add a dead server as a new member, wiped: with an empty disk.  It joins here, or when it is started
        (`subject.Members.add`)."""
        ...

    # Capability CLOCK.  Every verb raises CannotInject where the wall clock cannot be shifted.

    async def set_clock(self, server: str, /, offset_s: float, rate: float) -> None:
        """From now on the server's wall clock is that far ahead, and runs that many times as fast."""
        ...

    async def read_clock(self, server: str, /) -> Mapping[str, Any]:
        """Read the clock that a server sees.

        ahead_s: by how much it is ahead.  age_s: seconds since its last order.  heeded: whether every process of the
        running server reads it.  unheeded: the reason if not, to follow "the server"; "" if they do or none runs."""
        ...


DENSE_INTERVAL_MS = 2.0
"""Around inject and heal: 150 beacons a link, three times what is needed, for a sender that is starved of CPU."""
CALM_INTERVAL_MS = 15.0
"""At all other times.  A cut needs 50 silent beacons for each proof, and a proof in every three seconds of a hold: a
sender that gets half of its CPU still gives that."""
