"""Files that a run folder may contain: regular files of bounded size.

A run folder may come from an unknown person.  A pipe hangs its reader, a device may never end, a link may lead
anywhere, and a sparse file may claim more bytes than the machine has.  So each file is examined before it is opened
(`regular`), and the folder before anything in it is read (`demand_plain`).

The small files of a run have one writer, which never leaves a file half written.
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
"""Maximum size of a small file.  A run of a day with a fault always in force writes about 100 MB of measurements."""
LINE_SIZE_BYTES_MAX = 1_000_000
"""Maximum size of a line in a file of JSON lines."""

_SIZES_BYTES_MAX: tuple[tuple[str, int], ...] = (
    ("*/quorum-state", 1_000_000),
    ("*/meta.properties", 1_000_000),
    ("nodes/*/copies/*.log", 1 << 31),  # a segment, which is read in one piece; Kafka's own are smaller
    ("*.json", JSON_SIZE_BYTES_MAX),
    ("journal.jsonl", JSON_SIZE_BYTES_MAX),
    ("*", 1 << 40),
)
"""(Pattern of a path in the run, maximum size of the file).  The first pattern that matches applies."""

_HOLES_FROM_BYTES, _HOLES_SHARE = 64_000_000, 100
"""A file of this size must have at least a hundredth of its bytes on disk.  A compressing file system still stores
more."""

_READ = ("trace", "nodes", "subject", "workload", "tables", "buckets", "plots")
"""Folders that judging reads or writes.  Judging does not touch other folders, such as replays."""


class BrokenFile(ValueError):
    """A file of a run cannot be used.  The message names the file, and the field or the reason."""


def regular(path: Path, size_bytes_max: int = JSON_SIZE_BYTES_MAX, named: str = "") -> Path:
    """Return the path if it leads to a regular file of at most this size that is not sparse.

    named: name of the file in messages, by default its file name

    Raises BrokenFile, or FileNotFoundError if there is no file.
    """
    found, words = path.stat(), ""
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        words = f"is {kinds.get(stat.S_IFMT(found.st_mode), 'a device')}; a run folder contains only regular files"
    elif found.st_size > size_bytes_max:
        words = f"has {found.st_size} bytes; the limit is {size_bytes_max}"
    elif found.st_size >= _HOLES_FROM_BYTES and found.st_blocks * 512 * _HOLES_SHARE < found.st_size:
        words = f"claims {found.st_size} bytes, but only {found.st_blocks * 512} are on disk: it is a sparse file"
    if words:
        raise BrokenFile(f"{named or path.name} {words}")
    return path


def demand_plain(root: Path) -> None:
    """Raise BrokenFile if a run folder contains anything but folders and regular files of bounded size."""
    _demand_plain(root, root, deep=False)
    for name in _READ:
        if (root / name).is_dir():
            _demand_plain(root, root / name, deep=True)


def _demand_plain(root: Path, folder: Path, deep: bool) -> None:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        name = str(Path(entry.path).relative_to(root))
        if entry.is_symlink():
            raise BrokenFile(f"{name} is a symbolic link, which a run folder must not contain: it is never followed")
        if entry.is_dir(follow_symlinks=False):
            if deep:
                _demand_plain(root, Path(entry.path), deep)
            continue
        most = next(most for pattern, most in _SIZES_BYTES_MAX if fnmatchcase(name, pattern))
        regular(Path(entry.path), most, name)


def as_json(value: object) -> Any:
    """Convert a value of the record to JSON types: objects, arrays, text, numbers and null."""
    return msgspec.to_builtins(value)


def write_json_whole(path: Path, content: object) -> None:
    """Write a JSON file atomically and flush it to disk.  A kill leaves the complete old file or the complete new file.

    Text that is not valid Unicode, such as a node's broken log line, is written with question marks.
    """
    write_text_whole(path, json.dumps(as_json(content), indent=1, ensure_ascii=False) + "\n")


def write_text_whole(path: Path, text: str) -> None:
    """Write a text file atomically, like `write_json_whole`."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
