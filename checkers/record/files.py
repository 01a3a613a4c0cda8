"""Files that a run folder may hold: regular files of bounded size.

A run folder may come from a stranger.  A pipe in the place of a file hangs its reader, a device may never end, a
link may lead anywhere, and a file with holes may claim more bytes than the machine has.  So a file is looked at before
it is opened (`regular`), and a whole folder before anything in it is read (`demand_plain`).

The small files of a run have one writer, which leaves no file half written.
"""

from __future__ import annotations

import json
import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

JSON_SIZE_BYTES_MAX = 128_000_000
"""Limit of a small file.  A run of a day with a fault always in force writes about 100 MB of measurements."""
LINE_SIZE_BYTES_MAX = 1_000_000
"""Limit of a line in a file of JSON lines."""

_SIZES_BYTES_MAX: tuple[tuple[str, int], ...] = (
    ("*/quorum-state", 1_000_000),
    ("*/meta.properties", 1_000_000),
    ("nodes/*/copies/*.log", 1 << 31),  # a segment, read as a whole; Kafka's own are smaller
    ("*.json", JSON_SIZE_BYTES_MAX),
    ("journal.jsonl", JSON_SIZE_BYTES_MAX),
    ("*", 1 << 40),
)
"""Pattern of a path in the run -> the largest size; the first pattern that fits counts."""

_HOLES_FROM_BYTES, _HOLES_SHARE = 64_000_000, 100
"""A file of this size must have a hundredth of its bytes on disk.  File systems that compress need no less."""

_READ = ("trace", "nodes", "subject", "workload", "tables", "buckets", "plots")
"""Folders that judging reads or writes.  Others, such as replays, are none of its business."""


class BrokenFile(ValueError):
    """A file of a run cannot be used.  The message names the file, and the field or the reason."""


def regular(path: Path, size_bytes_max: int = JSON_SIZE_BYTES_MAX, named: str = "") -> Path:
    """Return the path, if what stands there is a regular file of at most this size and without huge holes.

    named: the name in messages, by default that of the file.  Raises BrokenFile, and FileNotFoundError without a file.
    """
    found, words = path.stat(), ""
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        words = f"is {kinds.get(stat.S_IFMT(found.st_mode), 'a device')}, and a run holds only files"
    elif found.st_size > size_bytes_max:
        words = f"has {found.st_size} bytes, and at most {size_bytes_max} are read"
    elif found.st_size >= _HOLES_FROM_BYTES and found.st_blocks * 512 * _HOLES_SHARE < found.st_size:
        words = f"claims {found.st_size} bytes, and {found.st_blocks * 512} are on disk: it is made of holes"
    if words:
        raise BrokenFile(f"{named or path.name} {words}")
    return path


def demand_plain(root: Path) -> None:
    """Raise BrokenFile if a run folder holds something else than folders and regular files of bounded size."""
    _demand_plain(root, root, deep=False)
    for name in _READ:
        if (root / name).is_dir():
            _demand_plain(root, root / name, deep=True)


def _demand_plain(root: Path, folder: Path, deep: bool) -> None:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        name = str(Path(entry.path).relative_to(root))
        if entry.is_symlink():
            raise BrokenFile(f"{name} is a symbolic link, and a run holds none: nothing is read or written through it")
        if entry.is_dir(follow_symlinks=False):
            if deep:
                _demand_plain(root, Path(entry.path), deep)
            continue
        most = next(most for pattern, most in _SIZES_BYTES_MAX if fnmatchcase(name, pattern))
        regular(Path(entry.path), most, name)


def as_json(value: object) -> Any:
    """Return a value of the record as JSON holds it: objects, arrays, text, numbers and null."""
    return msgspec.to_builtins(value)


def write_json_whole(path: Path, content: object) -> None:
    """Write a JSON file and flush it to disk.  A kill leaves the old file or the whole new file, and no half of it.

    Text that is no Unicode, such as a node's broken log line, is written with question marks.
    """
    write_text_whole(path, json.dumps(as_json(content), indent=1, ensure_ascii=False) + "\n")


def write_text_whole(path: Path, text: str) -> None:
    """Write a text file as `write_json_whole` does."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
