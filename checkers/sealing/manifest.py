"""The manifest: the name, the size and the hash of every primary file of a run.

Primary is what was recorded while the run lasted: the history, the small JSON files, what nodes traced and logged, and
the copies of their data directories.  The harness writes the manifest once everything is collected, before anything is
judged.  Sealing replaces the stream by `history.parquet`, and only if the stream is the one the manifest names.  So no
later step can vouch for a file that was changed in between.

Derived is what judging makes: `buckets/` names the hash of the history it was made of, and `tables/` are made again
each time.  Results and reports are derived too, and no verdict rests on them.

A manifest binds; it does not authenticate.  The ledger (`base/ledger.py`) repeats what it says of all files but the
history, so a fresh manifest hides nothing.  A forger who rewrites the history's ledger as well is met by the evidence
itself: histories, logs and traces have to agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkers.base.json_file import BrokenFile, mapping, read_object, write_json_whole

MANIFEST = "manifest.json"
STREAM, SEALED = "history.arrows", "history.parquet"

_PRIMARY_FILES = ("test.json", "outcome.json", "faults.json", "copies.json", "schedule.json", STREAM, SEALED)
_PRIMARY_FOLDERS = ("trace", "nodes", "system")
_PIECE_BYTES = 1 << 22


def primary_files(root: Path) -> Iterator[Path]:
    """Every primary file that is there, in order of name; symbolic links are no files of a run."""
    found = [root / name for name in _PRIMARY_FILES]
    for folder in _PRIMARY_FOLDERS:
        found += (root / folder).rglob("*")
    yield from sorted(path for path in found if path.is_file() and not path.is_symlink())


def hash_of(path: Path) -> str:
    """BLAKE2b-256 of a file, in hexadecimal; about 1 s per gigabyte."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def entry_of(path: Path) -> dict[str, Any]:
    """Size and hash of a file, as a manifest holds them."""
    return {"size_bytes": path.stat().st_size, "blake2b": hash_of(path)}


def write_manifest(root: Path) -> None:
    """Bind all primary files that are there now.  Called once, when the run is over."""
    _write(root, entries_of(root))


def entries_of(root: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of every primary file that is there now, by its path."""
    return {str(path.relative_to(root)): entry_of(path) for path in primary_files(root)}


def bound_files(root: Path) -> dict[str, dict[str, Any]] | None:
    """What the manifest names: path -> {"size_bytes", "blake2b"}; None if there is no manifest.  Raises BrokenFile."""
    path = root / MANIFEST
    if not path.exists():
        return None
    files = read_object(path).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise BrokenFile(f"{MANIFEST} does not name the files of the run")
    return files


def is_bound(root: Path, name: str) -> bool:
    """Whether a file is there and is the one that the manifest names.  Raises BrokenFile."""
    entry = mapping(bound_files(root)).get(name)
    return entry is not None and (root / name).is_file() and not _difference(root / name, entry)


def sealed(root: Path) -> None:
    """Let the manifest name `history.parquet` in place of the stream, if it names a stream."""
    files = bound_files(root)
    if files is not None and files.pop(STREAM, None) is not None:
        _write(root, files | {SEALED: entry_of(root / SEALED)})


def broken_bonds(root: Path) -> list[str]:
    """What the manifest does not find as it names it, one clause per file; empty if all is as it was bound."""
    try:
        if bound_files(root) is None:
            return [f"there is no {MANIFEST}: the harness did not come to the end of the run, or the file was removed"]
        return [f"{name} {what}" for name, what in broken_files(root).items()]
    except BrokenFile as problem:
        return [str(problem)]


def broken_files(root: Path, folder: str = "") -> dict[str, str]:
    """Files that are not as the manifest names them, by path: "is missing", or what else became of them.

    folder: look only below this folder of the run.  Without a manifest there are none.  Raises BrokenFile.
    """
    files = bound_files(root)
    if files is None:
        return {}
    there = {str(path.relative_to(root)): path for path in primary_files(root)}
    broken = dict.fromkeys(files.keys() - there.keys(), "is missing")
    broken |= dict.fromkeys(there.keys() - files.keys(), "was added after the run")
    for name in files.keys() & there.keys():
        if name.startswith(folder) and (difference := _difference(there[name], files[name])):
            broken[name] = f"was changed after the run ({difference})"
    return {name: broken[name] for name in sorted(broken) if name.startswith(folder)}


def _difference(path: Path, entry: Mapping[str, Any]) -> str:
    """How a file differs from its entry; "" if it does not.  The hash is taken only where the sizes agree."""
    size_bytes = path.stat().st_size
    if size_bytes != entry.get("size_bytes"):
        return f"{size_bytes} bytes, not {entry.get('size_bytes')}"
    return "" if hash_of(path) == entry.get("blake2b") else "its hash differs"


def _write(root: Path, files: Mapping[str, Any]) -> None:
    write_json_whole(root / MANIFEST, {"files": dict(sorted(files.items()))})
