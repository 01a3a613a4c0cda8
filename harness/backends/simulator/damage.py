"""Damages what a simulated disk keeps while its server is down, and shows later that the damage is still there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOENT
from fnmatch import fnmatch
from random import Random

from simulation.disk import VolatileDisk
from simulation.machine import Machine


@dataclass(frozen=True, slots=True)
class Damaged:
    """file: "" if all was wiped.  before, after: fingerprints of the file, or of all names if all was wiped."""

    seed: int
    how: str
    file: str
    before: str
    after: str

    def to_json(self, machine: Machine) -> Mapping[str, object]:
        """now: the fingerprint at this moment."""
        fields = {"seed": self.seed, "how": self.how, "file": self.file, "before": self.before, "after": self.after}
        return {**fields, "now": _fingerprint(machine.disk, self.file)}


def damage(machine: Machine, pattern: str, how: str, seed: int) -> Damaged:
    """Flip a bit of a file whose name matches the pattern, truncate it, or wipe the disk; durable on return.

    Raises FileNotFoundError if no file with content matches."""
    random = Random(seed)
    if how == "wipe":
        before = _fingerprint(machine.disk, "")
        machine.wipe()
        return Damaged(seed, how, "", before, _fingerprint(machine.disk, ""))
    found = sorted(path for path, data in machine.disk.files().items() if data and _matches(path, pattern))
    if not found:
        raise FileNotFoundError(ENOENT, f"no file with content matches {pattern}")
    path = random.choice(found)
    before, file = _fingerprint(machine.disk, path), machine.disk.open(path)
    offset = random.randrange(file.size())
    if how == "truncate":
        file.truncate(offset)
    else:
        file.write_at(offset, bytes([file.read_at(offset, 1)[0] ^ (1 << random.randrange(8))]))
    file.fsync()
    return Damaged(seed, how, path, before, _fingerprint(machine.disk, path))


def _matches(path: str, pattern: str) -> bool:
    return fnmatch(path.rpartition("/")[2], pattern)


def _fingerprint(disk: VolatileDisk, path: str) -> str:
    files = disk.files()
    held = "\n".join(sorted(files)).encode() if not path else files.get(path, b"")
    return hashlib.sha256(held).hexdigest()
