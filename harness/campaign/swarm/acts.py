"""Effects of cards on links, processes, disks, clocks and files.

*Damage.*  All kinds of damage to a node's files, and the bytes whose damage a node has to detect.

    refused  the node detects the damage: it refuses to start, or to return what it read
    mended   the node does not need the file: its content follows from other files, or only promises what may be missing

A bit is flipped where a reader can detect it.  Kafka's formats have no checksum for some bytes: the base offset and the
epoch of a batch, and the values in quorum-state and meta.properties.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from random import Random
from typing import TYPE_CHECKING

from harness.campaign.swarm.operators import ask_as_stranger
from harness.campaign.swarm.scenario import CLIENTS, StormCard
from simulation.disk import VolatileDisk
from simulation.network import LOST_AGAIN_S_MAX, Impairment, Link
from system_under_test.kraft.log import batch as codec

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter
    from harness.campaign.swarm.world import StormWorld

LOG, IN_LAST_BATCH, LAST_BATCH_GONE = "", "last", "gone"
"""Damage of a log: any bit of its newest segment is flipped, a bit of its last batch is flipped, or that batch is lost.

Damage to the last batch looks like a torn append; only the recovery point distinguishes them."""
SNAPSHOT, SERVED_SNAPSHOT = "snapshot", "served snapshot"
"""Damage of the newest snapshot: of a server that is down, or of one that runs and sends the snapshot to others."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file. pattern: of the file's name. places: returns the bytes in which a flip can be detected."""

    pattern: str
    refused: bool
    places: Callable[[bytes], Sequence[int]]


def last_batch(data: bytes) -> int:
    """Return the start of the last complete batch of a log; 0 if there is none."""
    return max(_batches(data), default=0)


CRC_COVERS_FROM = 21


def _batches(data: bytes) -> dict[int, int]:
    """Return {start: end} of the complete batches at the beginning of a log."""
    found: dict[int, int] = {}
    position = 0
    while position < len(data):
        try:
            end = position + codec.read_header(data, position).size_bytes
        except codec.CorruptBatch:
            break
        found[position] = position = end
    return found


def covered(data: bytes) -> list[int]:
    """Return the bytes of a log that the CRC of a batch covers, and all bytes after the last complete batch."""
    batches = _batches(data)
    whole = max(batches.values(), default=0)
    places = [place for begin, end in batches.items() for place in range(begin + CRC_COVERS_FROM, end)]
    return [*places, *range(whole, len(data))]


def _in_last_batch(data: bytes) -> list[int]:
    return [place for place in covered(data) if place >= last_batch(data)]


_JSON_VALUE = re.compile(rb'(?<=:)(-?\d+|"[^"]*")')
_DIRECTORY = re.compile(rb"(?<=directory\.id=).*")


def _outside(values: re.Pattern[bytes]) -> Callable[[bytes], list[int]]:
    def places(data: bytes) -> list[int]:
        inside = {place for found in values.finditer(data) for place in range(*found.span())}
        return [place for place in range(len(data)) if place not in inside]

    return places


def _anywhere(data: bytes) -> range:
    return range(len(data))


FILE_KINDS: Mapping[str, FileKind] = {
    LOG: FileKind("*.log", True, covered),
    IN_LAST_BATCH: FileKind("*.log", True, _in_last_batch),
    LAST_BATCH_GONE: FileKind("*.log", True, _anywhere),
    SNAPSHOT: FileKind("*.checkpoint", True, _anywhere),
    SERVED_SNAPSHOT: FileKind("*.checkpoint", True, _anywhere),
    "quorum-state": FileKind("quorum-state", True, _outside(_JSON_VALUE)),
    "meta.properties": FileKind("meta.properties", True, _outside(_DIRECTORY)),
    "recovery-point": FileKind("recovery-point", False, _anywhere),
    "epochs": FileKind("leader-epoch-checkpoint", False, _anywhere),
    "partition.metadata": FileKind("partition.metadata", False, _anywhere),
}
FLIPS = (*FILE_KINDS, IN_LAST_BATCH, SNAPSHOT, SERVED_SNAPSHOT)
"""Flips that storms draw from; repeated ones are more likely."""
MENDED = tuple(name for name, kind in FILE_KINDS.items() if not kind.refused)


def damage_file(disk: VolatileDisk, how: str, at: int) -> bool:
    """Damage the newest file of a kind, durably; return False if there is none with content.

    how: of FILE_KINDS
    at: determines the damaged byte
    """
    kind = FILE_KINDS[how]
    found = [path for path, data in disk.files().items() if data and fnmatch(path.rpartition("/")[2], kind.pattern)]
    if not found:
        return False
    with disk.for_observer():
        file = disk.open(max(found))
        data = file.read_at(0, file.size())
        if how == LAST_BATCH_GONE:
            file.truncate(last_batch(data))
        else:
            places = kind.places(data)
            place = places[at % len(places)]
            file.write_at(place, bytes([data[place] ^ (1 << at % 8)]))
        file.fsync()
    return True


STOP_S, STOP_OF_BROKER_S = 1.5, 8.0
"""Seconds for a graceful stop of a server that is no broker, and of a broker."""


@dataclass(slots=True)
class ArmedCard:
    """Actions that wait for the nth occurrence of an event. met: number of occurrences so far."""

    moment: str
    act: Callable[[NodeVoter], object]
    nth: int = 1
    delay_s: float = 0.0
    met: int = 0


def _lay(world: StormWorld, card: StormCard, links: Mapping[Link, Impairment | None], for_s: float) -> bool:
    if not links:
        return False
    number = world.network.lay(links)
    world.later(for_s, world.network.lift, number)
    if card.until:
        world.armed.append(ArmedCard(card.until, lambda it: world.network.lift(number)))
    return True


def _names(world: StormWorld) -> list[str]:
    connected = world.servers if world.scenario.brokers else world.voters
    return [*(voter.name for voter in connected), *CLIENTS]


def _cut(world: StormWorld, card: StormCard, victim: NodeVoter) -> bool:
    side = {victim.name}
    for other in card.with_:
        found = None if other in CLIENTS else world.who(other, None)
        side.add(found.name if found is not None else other if other in CLIENTS else victim.name)
    rest = [name for name in _names(world) if name not in side]
    out = [(a, b) for a in sorted(side) for b in rest]
    into = [(b, a) for a in sorted(side) for b in rest]
    among = [link for link in [*out, *into] if not set(link) & set(CLIENTS)]
    links = {"in": into, "out": out, "one link": into[:1], "voters": among}.get(card.how, [*out, *into])
    return _lay(world, card, dict.fromkeys(links), card.for_s)


def _flap(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    rest = [name for name in _names(world) if name != victim.name]
    links = dict.fromkeys(link for other in rest for link in ((victim.name, other), (other, victim.name)))
    for turn in range(4):
        world.later(turn * card.for_s / 4, _lay, world, card, links, card.for_s / 8)


def _packets(world: StormWorld, card: StormCard, victim: NodeVoter) -> bool:
    random, names = Random(card.size), _names(world)
    links = [(a, b) for a in names for b in names if a != b and random.random() < 0.5]
    return _impair(world, card, links, Impairment(*map(float, card.how.split())))


def _lag(world: StormWorld, card: StormCard, victim: NodeVoter) -> bool:
    links = [(voter.name, victim.name) for voter in world.voters if voter is not victim]
    return _impair(world, card, links, Impairment(0.0, card.size, 0.1))


def _impair(world: StormWorld, card: StormCard, links: Sequence[Link], how: Impairment) -> bool:
    # A packet lost just before the end of the fault is sent again, and may arrive later by this time.
    world.act_for(card.for_s + how.delay_s + how.jitter_s + 2 * LOST_AGAIN_S_MAX)
    return _lay(world, card, dict.fromkeys(links, how), card.for_s)


def _kill(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    victim.machine.kill()
    world.later(card.for_s, world.again, victim)


def _power(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    world.crash_disk(victim, card.how, int(card.size))
    world.later(card.for_s, world.again, victim)


def _inside(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    victim.machine.kill_at_change(int(card.size))
    world.lost_power[victim.name] = card.how
    _ends_within(world, 1.0, card, victim)


def _stop(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    victim.machine.terminate()
    _ends_within(world, STOP_OF_BROKER_S if victim.number in world.scenario.broker_ids else STOP_S, card, victim)


def _ends_within(world: StormWorld, limit_s: float, card: StormCard, victim: NodeVoter) -> None:
    life = victim.lives
    world.later(limit_s, lambda: victim.machine.kill() if victim.lives == life else None)
    world.later(limit_s + card.for_s, world.again, victim)


def _pause(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    victim.machine.pause()
    world.later(card.for_s, victim.machine.resume)


def _busy(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    assert victim.machine.process is not None
    world.loop.occupy(victim.machine.process, card.for_s)
    world.act_for(card.for_s)


def _slow(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    victim.slow_down(card.size)
    world.later(card.for_s, victim.slow_down, 1.0)


def _disk(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    disk, slow = victim.machine.disk, card.how == "slow"
    victim.may_stop = victim.may_stop or not slow
    if slow:
        victim.machine.fsync_s = card.size
    elif card.how == "full":
        disk.capacity_bytes = sum(map(len, disk.files().values())) + int(card.size)
    else:
        disk.failing = {card.how: errno.EIO}
    world.later(card.for_s, mend, world, victim)


def mend(world: StormWorld, victim: NodeVoter) -> None:
    disk = victim.machine.disk
    disk.failing, disk.capacity_bytes = {}, None
    victim.machine.fsync_s = 0.0
    victim.may_stop = victim.name in world.damaged
    if victim.ends:
        victim.machine.kill()  # its disk has failed, so it would exit at the end of its busy time, and stay down
    world.again(victim)


def _wall_clock(world: StormWorld, card: StormCard, victim: NodeVoter) -> None:
    victim.machine.set_wall_clock(card.size, 1.0)
    world.later(card.for_s, victim.machine.set_wall_clock, 0.0, 1.0)


def _flip(world: StormWorld, card: StormCard, victim: NodeVoter) -> bool:
    most, refused = (world.scenario.nodes - 1) // 2, card.how not in MENDED
    if refused and len(world.damaged | {victim.name}) > most:
        return False
    if card.how != SERVED_SNAPSHOT:
        victim.machine.kill()
        world.later(card.for_s, world.again, victim)
    done = victim.flip(int(card.size), card.how)
    if done and refused:
        world.damaged.add(victim.name)
        victim.may_stop = True
    return done


def _wipe(world: StormWorld, card: StormCard, victim: NodeVoter) -> bool:
    if world.operators is None or not world.operators.wipe(card, victim):
        return False
    world.lost_power.pop(victim.name, None)
    world.later(card.for_s, world.again, victim)
    return True


DO: dict[str, Callable[[StormWorld, StormCard, NodeVoter], bool | None]] = {
    "cut": _cut,
    "flap": _flap,
    "packets": _packets,
    "lag": _lag,
    "kill": _kill,
    "power": _power,
    "inside": _inside,
    "pause": _pause,
    "busy": _busy,
    "slow": _slow,
    "disk": _disk,
    "wall-clock": _wall_clock,
    "flip": _flip,
    "stop": _stop,
    "voters": lambda world, card, victim: world.operators is not None and world.operators.change(card, victim),
    "wipe": _wipe,
    "topics": lambda world, card, _: world.administrators.topics(card),
    "registry": lambda world, card, victim: world.administrators.registry(card, victim),
    "stranger": lambda world, card, victim: ask_as_stranger(world.outside, card, victim, world.voters),
}
"""Fault -> function that carries out a card; it returns False if it changed nothing."""
OF_THE_LIVING = frozenset({"kill", "power", "inside", "stop", "pause", "busy", "slow", "disk", "flip", "stranger"})
