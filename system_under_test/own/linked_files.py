"""Large files of runs: runs that hold the same content share it, by hard links to one file in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from checkers.base.cache_folder import cache_folder

LINKED_FROM_BYTES = 1 << 20
"""A smaller file is copied: somebody may want to edit the copy of a run."""


def sha256_of(path: Path) -> str:
    """In hexadecimal digits.  Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_or_copy(source: Path, target: Path) -> None:
    """Give `target` the content of `source`.  Raises OSError.

    The file in the cache is read-only, and it is made again where its content is no longer that of its name.  Where
    the cache lies on another file system, the target is a copy.
    """
    if source.stat().st_size < LINKED_FROM_BYTES:
        shutil.copy(source, target)
        return
    folder = cache_folder() / "files"
    folder.mkdir(exist_ok=True)
    shared = folder / sha256_of(source)
    if not shared.is_file() or sha256_of(shared) != shared.name:
        _put(source, shared)
    try:
        os.link(shared, target)
    except OSError:
        shutil.copy(source, target)


def _put(source: Path, shared: Path) -> None:
    """In one step, because another run may place the same file."""
    with tempfile.NamedTemporaryFile(dir=shared.parent, delete=False) as unfinished:
        with source.open("rb") as file:
            shutil.copyfileobj(file, unfinished)
        os.fchmod(unfinished.fileno(), 0o555 if os.access(source, os.X_OK) else 0o444)
    Path(unfinished.name).replace(shared)
