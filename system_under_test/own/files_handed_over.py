"""The files that a system provides to its nodes and to the folder of each of its runs.

Runs with the same large file share it, by hard links to one file in the cache.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from checkers.record.files import regular
from system_under_test.subject import Needs

FOLDER = "subject"
"""Name of the folder in a run folder that contains the files of the system."""
_MAIN = "main.json"
_GO = b"\xff Go buildinf:"
"""Bytes that Go's linker writes near the beginning of the data of each program."""
LINKED_FROM_BYTES = 1 << 20
"""Minimum size in bytes of a file that is linked.  A smaller file is copied, because a user may want to edit the copy
of a run.
"""


def files_under(beside: Path, wanted: Mapping[str, str | Path]) -> dict[str, str]:
    """Return path on the node -> file, with each folder replaced by its files.

    beside: folder to which relative paths refer
    """
    found: dict[str, str] = {}
    for there, here in wanted.items():
        folder = beside / here
        inside = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder.is_dir() else []
        found |= {f"{there}/{path.relative_to(folder)}": f"{here}/{path.relative_to(folder)}" for path in inside}
        if not folder.is_dir():
            found[there] = str(here)
    return found


def keep(run_folder: Path, main: Path, which: str, texts: Mapping[str, str], needs: Needs) -> None:
    """Store the files of a system with a run, so that the run is judged and repeated with the same files.

    A file that nodes need from outside the folder of the main file is not stored.

    which: name of the class, as in `own.subject.Subject`
    texts: its Python files, as in `own.subject.Subject`; a system without Python files is bundled, and nothing is
        stored
    """
    if not texts:
        return
    for name, text in texts.items():
        path = run_folder / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    handed_over = (*files_under(main.parent, needs.files).values(), *_sources(main, needs))
    names = {os.path.normpath(here) for here in handed_over}
    within = {name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts}
    for here in sorted(within - {*texts}):
        path = run_folder / FOLDER / here
        path.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(main.parent / here, path)
    (run_folder / FOLDER / _MAIN).write_text(json.dumps({"main": main.name, "which": which}))


def _sources(main: Path, needs: Needs) -> list[str]:
    """Return the files of the crates, from which cargo can build the programs again."""
    found = [path for crate in needs.crates.values() for path in (main.parent / crate.folder).rglob("*")]
    return [str(path.relative_to(main.parent)) for path in found if path.is_file() and "target" not in path.parts]


def kept(run_folder: Path) -> str | None:
    """Return the name of the system whose files were stored with a run; None if no files were stored.

    Raises ValueError if the index of these files is invalid.
    """
    index = run_folder / FOLDER / _MAIN
    if not index.is_file():
        return None
    try:
        main, which = _named_by(index)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{FOLDER}/{_MAIN} does not name the system of the run") from problem
    return str(index.parent / main) + (f":{which}" if which else "")


def _named_by(index: Path) -> tuple[str, str]:
    """Return the main file and the class that an index names.  Raises ValueError, KeyError, TypeError or
    AttributeError.
    """
    stored = json.loads(regular(index).read_text())
    return stored["main"], stored.get("which", "")


def is_kept(main: Path) -> bool:
    """Return True if this main file is a copy in a run folder.

    Files that nodes need from outside the folder of the main file are not stored with a run.
    """
    try:
        return main.parent.name == FOLDER and _named_by(main.with_name(_MAIN))[0] == main.name
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def is_go(program: Path) -> bool:
    """Return True if a file is a program that Go's linker has written."""
    if not program.is_file():
        return False
    with program.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return False
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as whole:
            return whole.find(_GO) >= 0


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.  Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_or_copy(source: Path, target: Path) -> None:
    """Give `target` the content of `source`.  Raises OSError.

    The file in the cache is read-only, and is created again if its content no longer matches the hash in its name.  If
    the cache is on another file system, the target is a copy.
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
    """Copy a file to the cache atomically, because another run may write the same file."""
    with tempfile.NamedTemporaryFile(dir=shared.parent, delete=False) as unfinished:
        with source.open("rb") as file:
            shutil.copyfileobj(file, unfinished)
        os.fchmod(unfinished.fileno(), 0o555 if os.access(source, os.X_OK) else 0o444)
    Path(unfinished.name).replace(shared)
