"""The manifest: the name, the size and the hash of every primary file of a run.

Primary files were recorded during the run: the history, test.json and the journal, traces and logs of nodes, copies of
their data directories, and the files of a system or workload of the user's own, which decide how the run is judged.
The harness writes the manifest when everything is collected, and before anything is judged.  Later only sealing changes
it: the manifest then names `history.parquet` in place of the stream.  Sealing does so only if the stream is the one
that the manifest names.  So no later step can accept a file that was changed in between.

Derived files are made while a run is judged.  `buckets/` and `tables/` are made again each time.  Results and reports
are derived too, and no verdict rests on them.

The manifest is signed (`signature.py`).  Only who holds the key can write another one that this key signs.  Sealing
signs again what this machine had signed.  If another key signed, the manifest goes on naming the stream, and
`history.parquet` is derived from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkers.base.json_file import read_object
from checkers.record.files import BrokenFile
from checkers.record.journal import JOURNAL
from checkers.record.reading import TEST
from checkers.record.writing import write_json_whole
from checkers.sealing.signature import SignedBy, Signer, WrongKey, sign, signer_of

MANIFEST = "manifest.json"
STREAM, SEALED = "history.arrows", "history.parquet"

_PRIMARY_FILES = (TEST, JOURNAL, "schedule.json", STREAM, SEALED)
_PRIMARY_FOLDERS = ("trace", "nodes")
CODE_FOLDERS = ("subject", "workload")
"""Files of the user's own, kept with the run."""
_MADE_BY_PYTHON = "__pycache__"
"""Judging imports the kept files, and Python leaves its own copies beside them."""
_PIECE_BYTES = 1 << 22


def primary_files(root: Path) -> Iterator[Path]:
    """Every primary file that exists, in order of name.  Symbolic links do not count."""
    found = [root / name for name in _PRIMARY_FILES]
    for folder in _PRIMARY_FOLDERS:
        found += (root / folder).rglob("*")
    for folder in CODE_FOLDERS:
        found += (path for path in (root / folder).rglob("*") if _MADE_BY_PYTHON not in path.relative_to(root).parts)
    yield from sorted(path for path in found if path.is_file() and not path.is_symlink())


def hash_of(path: Path) -> str:
    """BLAKE2b-256 of a file, in hexadecimal.  Takes about 1 s per gigabyte."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def entry_of(path: Path) -> dict[str, Any]:
    """The manifest's entry for a file: its size and hash."""
    return {"size_bytes": path.stat().st_size, "blake2b": hash_of(path)}


def write_manifest(root: Path) -> None:
    """Write a manifest of all primary files that exist now, and sign it.  The harness calls this when a run is over.

    Without a usable key it is unsigned: runs with a wrong key are refused before they begin."""
    files = entries_of(root)
    try:
        _write(root, files, signed=True)
    except WrongKey:
        _write(root, files, signed=False)


def entries_of(root: Path) -> dict[str, dict[str, Any]]:
    """Path -> entry of every primary file that exists now."""
    return {str(path.relative_to(root)): entry_of(path) for path in primary_files(root)}


def bound_files(root: Path) -> dict[str, dict[str, Any]] | None:
    """The entries of the manifest: path -> {"size_bytes", "blake2b"}; None without a manifest.  Raises BrokenFile."""
    path = root / MANIFEST
    if not path.exists():
        return None
    files = read_object(path).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise BrokenFile(f"{MANIFEST} does not name the files of the run")
    return files


def is_bound(root: Path, name: str) -> bool:
    """Return whether a file exists and agrees with its entry in the manifest.  Raises BrokenFile."""
    entry = (bound_files(root) or {}).get(name)
    return entry is not None and (root / name).is_file() and not _difference(root / name, entry)


def signer(root: Path) -> Signer:
    """Who signed the manifest.  Raises BrokenFile."""
    return signer_of(_signed_content(bound_files(root) or {}), read_object(root / MANIFEST).get("signed"))


def sealed(root: Path) -> bool:
    """Name `history.parquet` in the manifest in place of a stream, which is then not needed any more.

    Returns False, and changes nothing, if the manifest was signed and not by this machine."""
    files = bound_files(root)
    if files is None or STREAM not in files:
        return True
    by = signer(root).by
    if by not in (SignedBy.THIS_MACHINE, SignedBy.NOBODY):
        return False
    del files[STREAM]
    _write(root, files | {SEALED: entry_of(root / SEALED)}, signed=by is SignedBy.THIS_MACHINE)
    return True


def broken_bonds(root: Path) -> list[str]:
    """Files that differ from the manifest, one clause per file; empty if none does."""
    try:
        if bound_files(root) is None:
            return [f"there is no {MANIFEST}: the harness did not come to the end of the run, or the file was removed"]
        changed = [f"{MANIFEST} is {signer(root).words}"] if signer(root).by is SignedBy.CHANGED else []
        return changed + [f"{name} {what}" for name, what in broken_files(root).items()]
    except BrokenFile as problem:
        return [str(problem)]


def broken_files(root: Path, folder: str = "") -> dict[str, str]:
    """Path -> difference of every file that differs from the manifest, e.g. "is missing".

    folder: look only below this folder of the run.  Returns an empty mapping if there is no manifest.
    Raises BrokenFile.
    """
    files = bound_files(root)
    if files is None:
        return {}
    there = {str(path.relative_to(root)): path for path in primary_files(root)}
    if STREAM in files and SEALED not in files:
        there.pop(SEALED, None)  # it was made of the stream, and is made again
    broken = dict.fromkeys(files.keys() - there.keys(), "is missing")
    broken |= dict.fromkeys(there.keys() - files.keys(), "was added after the run")
    for name in files.keys() & there.keys():
        if name.startswith(folder) and (difference := _difference(there[name], files[name])):
            broken[name] = f"was changed after the run ({difference})"
    return {name: broken[name] for name in sorted(broken) if name.startswith(folder)}


def _difference(path: Path, entry: Mapping[str, Any]) -> str:
    """Return how a file differs from its entry; "" if it does not.  The hash is computed only if the sizes agree."""
    size_bytes = path.stat().st_size
    if size_bytes != entry.get("size_bytes"):
        return f"{size_bytes} bytes, not {entry.get('size_bytes')}"
    return "" if hash_of(path) == entry.get("blake2b") else "its hash differs"


def _signed_content(files: Mapping[str, Any]) -> bytes:
    """Return what is signed: the entries, in a form that does not depend on spaces and order."""
    return json.dumps(files, sort_keys=True, separators=(",", ":")).encode()


def _write(root: Path, files: Mapping[str, Any], signed: bool) -> None:
    content: dict[str, Any] = {"files": dict(sorted(files.items()))}
    if signed:
        content["signed"] = sign(_signed_content(files))
    write_json_whole(root / MANIFEST, content)
