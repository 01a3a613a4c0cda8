"""Damages what a disk keeps while its server is down, and shows later that the damage is still there.

The place that was damaged has a *fingerprint*: a hash of the size of its file and of the block around the damaged byte.
It is taken before and after the damage, and again with every measurement.  A wiped folder has the fingerprint of its
list of names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

FLIP, TRUNCATE, WIPE = "flip", "truncate", "wipe"
CONTENT_SHARE = 0.75
"""Of the flips that hit a letter or a digit of a word.  Any reader notices a flip in the structure of a file, such as
the length of an entry; only a checksum notices one in its content."""
_WORD = re.compile(rb"[0-9A-Za-z._-]{4,}")
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done.  file: relative to the data folder, "" if all of it was wiped.  offset: of the first byte that is
    damaged, or how many names were removed.  before, after: fingerprints of the place."""

    how: str
    file: str
    offset: int
    before: str
    after: str

    def to_json(self, data: Path) -> dict[str, Any]:
        """now: the fingerprint of the same place at this moment."""
        now = _fingerprint(data, self.file, self.offset)
        return {
            "how": self.how,
            "file": self.file,
            "offset": self.offset,
            "before": self.before,
            "after": self.after,
            "now": now,
        }


def damage(data: Path, pattern: str, how: str, seed: int) -> Damage:
    """Damage one file below `data` that matches a pattern, at a byte drawn with the seed; durable on return.

    how: FLIP one bit, mostly of a word in the file; TRUNCATE at any byte; WIPE everything (the pattern does not count).
    Zeros at the end of a file are space that was only reserved: they are not drawn.  Raises OSError if no file with
    content matches.
    """
    rng = Random(seed)
    if how == WIPE:
        before = _fingerprint(data, "", 0)
        removed = _wipe(data)
        return Damage(how, "", removed, before, _fingerprint(data, "", 0))
    files = sorted(path for path in data.rglob(pattern) if path.is_file() and _used_bytes(path) > 0)
    if not files:
        raise OSError(errno.ENOENT, f"no file with content matches {pattern}")
    path = rng.choice(files)
    name, offset, bit = str(path.relative_to(data)), rng.randrange(_used_bytes(path)), rng.randrange(8)
    if how == FLIP and rng.random() < CONTENT_SHARE and (words := _words(path)):
        offset, bit = rng.choice(rng.choice(words)), 0
    before = _fingerprint(data, name, offset)
    descriptor = os.open(path, os.O_RDWR)
    try:
        if how == TRUNCATE:
            os.ftruncate(descriptor, offset)
        elif how == FLIP:
            byte = os.pread(descriptor, 1, offset)[0] ^ (1 << bit)
            os.pwrite(descriptor, bytes([byte]), offset)
        else:
            raise OSError(errno.EINVAL, f"damage is {FLIP}, {TRUNCATE} or {WIPE}, not {how!r}")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Damage(how, name, offset, before, _fingerprint(data, name, offset))


def _words(path: Path) -> list[range]:
    """The places of the words in a file: runs of letters and digits."""
    return [range(*found.span()) for found in _WORD.finditer(path.read_bytes())]


def _used_bytes(path: Path) -> int:
    """The size of a file without the zeros at its end."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0:
            begin = max(0, at - (1 << 20))
            file.seek(begin)
            content = file.read(at - begin).rstrip(b"\0")
            if content:
                return begin + len(content)
            at = begin
    return 0


def _fingerprint(data: Path, name: str, offset: int) -> str:
    """Of the place `offset` of a file, or of all names below `data` if there is no file's name."""
    if not name:
        held = "\n".join(sorted(str(path.relative_to(data)) for path in data.rglob("*"))).encode()
        return hashlib.sha256(held).hexdigest()
    path = data / name
    if not path.exists():
        return "gone"
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(offset - offset % _BLOCK_BYTES)
        return hashlib.sha256(size_bytes.to_bytes(8, "big") + file.read(_BLOCK_BYTES)).hexdigest()


def _wipe(folder: Path) -> int:
    """Remove everything in a folder, durably.  Returns how many names were removed."""
    removed = 0
    for path in sorted(folder.rglob("*"), key=lambda p: len(p.parts), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
        removed += 1
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return removed
