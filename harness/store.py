"""Runs on an object store: `s3://bucket/prefix`, or any other address that Arrow's file systems know.

    PREFIX/runs/<test>/<run>/…                       every file of a run; manifest.json is written last
    PREFIX/lake/<table>/date=…/system=…/<run>.parquet    its facts (`harness/lake`), after the manifest

A run is in the store once its manifest is there, so an interrupted upload is no run.  Files that judging can recreate
(buckets, tables, plots) are not uploaded.  Readers use a local mirror of the store, which contains the whole lake, and
each run once it is needed.  So all readers work on folders, and no file is fetched twice.

Names in a store are not trusted: a mirror writes nothing outside its own folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from checkers.base.cache_folder import cache_folder
from checkers.record.run_record import TEST
from checkers.sealing.manifest import MANIFEST
from checkers.spark.shipping import FileDigest, StoredFile
from harness.lake.lake import Lake, partition_of
from harness.lake.tables import TABLES

RUNS, LAKE, JUDGING = "runs", "lake", "_judging"
MADE_ANEW = frozenset({"buckets", "tables", "plots"})
JUDGED = ("results.json", "report.html", "junit.xml")
"""Files with results that judging writes into a run folder."""


class StoreUnavailable(OSError):
    """The store cannot be reached or used.  The message gives the reason in one sentence."""


@contextlib.contextmanager
def _reached(words: str) -> Iterator[None]:
    """Convert errors of a store inside the context to StoreUnavailable, with a message that begins with `words`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise StoreUnavailable(f"{words}: {_reason(problem)}") from problem


def is_store(place: str | Path) -> bool:
    """Return True if this is the address of a store, and not the path of a folder."""
    return "://" in str(place)


@dataclass(frozen=True, slots=True)
class Store:
    """An object store.

    address: address without the part after "?"
    files, prefix: Arrow's file system, and the path of the store in it"""

    address: str
    files: fs.FileSystem
    prefix: str
    uri: str = ""
    """Full address, with the part after "?", by which other processes open the same store."""

    @staticmethod
    def at(address: str) -> Store:
        """Return the store at an address.  Raises StoreUnavailable for an address that names no store."""
        with _reached(f"{address.partition('?')[0]} is no store"):
            files, prefix = fs.FileSystem.from_uri(address)
        if isinstance(files, fs.S3FileSystem) and not prefix.strip("/"):
            raise StoreUnavailable(f"{address.partition('?')[0]} names no bucket: write s3://bucket/prefix")
        return Store(address.partition("?")[0].rstrip("/"), files, prefix.rstrip("/"), address)

    def check(self) -> None:
        """Raise StoreUnavailable if the store does not answer, or denies access."""
        with _reached(f"{self.address} does not answer"):
            bucket = self.files.get_file_info(self.prefix.partition("/")[0])
        if isinstance(self.files, fs.S3FileSystem) and bucket.type is fs.FileType.NotFound:
            raise StoreUnavailable(f"{self.address} has no bucket {bucket.path}: create it first")

    def upload(self, root: Path, only: Collection[str] = ()) -> str:
        """Upload the run in `root` and its facts, and return the run's address.

        only: paths of the files to upload, relative to `root`; empty for all files
        Raises StoreUnavailable and BrokenFile.
        """
        from harness.lake.facts import facts_of

        path = f"{RUNS}/{root.parent.name}/{root.name}"
        facts = facts_of(root, path)
        names = [file for file in _files_of(root) if not only or file.relative_to(root).as_posix() in only]
        names.sort(key=lambda file: file == root / MANIFEST)
        with _reached(f"the run could not be uploaded to {self.address}"):
            for file in names:
                self._put(file, f"{path}/{file.relative_to(root).as_posix()}")
            for table, rows in facts.rows.items():
                folder = partition_of(PurePosixPath(LAKE, table), facts.date, facts.system)
                self._write(rows, f"{folder}/{facts.run}.parquet")
        return f"{self.address}/{path}"

    def mirror(self) -> Mirror:
        name = hashlib.blake2b(self.address.encode(), digest_size=8).hexdigest()
        return Mirror(self, cache_folder() / "stores" / name)

    def list(self, folder: str) -> list[fs.FileInfo]:
        """Return all files below a folder of the store, at any depth.  Raises StoreUnavailable."""
        with _reached(f"{self.address} cannot be read"):
            selector = fs.FileSelector(f"{self.prefix}/{folder}", recursive=True, allow_not_found=True)
            return [info for info in self.files.get_file_info(selector) if info.type is fs.FileType.File]

    def name_of(self, info: fs.FileInfo) -> PurePosixPath:
        """Return the name of a file, relative to the prefix."""
        return PurePosixPath(info.path[len(self.prefix) :].lstrip("/"))

    def get(self, info: fs.FileInfo, into: Path) -> None:
        """Download a file atomically.  Raises StoreUnavailable."""
        into.parent.mkdir(parents=True, exist_ok=True)
        part = into.with_name(f".{into.name}.part")
        reached = _reached(f"{info.path} cannot be read")
        with reached, self.files.open_input_stream(info.path) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        part.replace(into)

    def _put(self, path: Path, name: str) -> None:
        with path.open("rb") as source, self.files.open_output_stream(f"{self.prefix}/{name}") as target:
            shutil.copyfileobj(source, target)

    def _write(self, rows: pa.Table, name: str) -> None:
        with self.files.open_output_stream(f"{self.prefix}/{name}") as target:
            pq.write_table(rows, target, compression="zstd")


class RunShelf:
    """Shelf (`checkers.spark.shipping`) from which the nodes of a Spark cluster read the files of a run in a store.

    The nodes read the run's files from the store.  Files that judging recreated are uploaded to `_judging/` in the
    store, and removed by `clear`.  The nodes need access to the store, by the same environment variables or by their
    own role."""

    def __init__(self, store: Store, root: Path) -> None:
        """Read the names and sizes of the run's files.

        root: folder of the run in the store's mirror"""
        self.name = store.address
        self._store, self._root = store, root.resolve()
        self._run = f"{store.prefix}/{RUNS}/{root.parent.name}/{root.name}"
        self._aside = f"{store.prefix}/{JUDGING}/{root.name}-{uuid.uuid4().hex[:8]}"
        self._sizes = {info.path: info.size for info in store.list(f"{RUNS}/{root.parent.name}/{root.name}")}
        self._uploaded: list[str] = []

    def put(self, path: str, mark: FileDigest) -> StoredFile:
        """See Shelf.put."""
        relative = os.path.relpath(path, self._root).replace("..", "above")
        there = f"{self._run}/{relative}"
        if self._sizes.get(there) != mark.size_bytes:
            there = f"{self._aside}/{relative}"
            try:
                with Path(path).open("rb") as source, self._store.files.open_output_stream(there) as target:
                    shutil.copyfileobj(source, target)
            except pa.ArrowException as problem:
                raise OSError(f"{there} cannot be written: {problem}") from problem
            self._uploaded.append(there)
        return StoredFile(self._store.uri, there, mark)

    def clear(self) -> None:
        """Remove the uploaded files.  Raises StoreUnavailable."""
        with _reached(f"{self._aside} cannot be removed"):
            for path in self._uploaded:
                self._store.files.delete_file(path)
        self._uploaded.clear()


@dataclass(frozen=True, slots=True)
class Mirror:
    """Local copy of the fetched parts of a store.

    folder: folder of the copy, which has the form of a results folder"""

    store: Store
    folder: Path

    @property
    def lake(self) -> Lake:
        return Lake(self.folder / LAKE)

    def refresh(self) -> Lake:
        """Make the mirror's lake equal to the store's lake, by fetching changed and new files.  Raises
        StoreUnavailable."""
        wanted = {}
        for info in self.store.list(LAKE):
            name = self.store.name_of(info)
            if len(name.parts) == 5 and name.parts[1] in TABLES and name.suffix == ".parquet":
                wanted[self._inside(name)] = info
        for path in set(self.folder.glob(f"{LAKE}/*/*/*/*.parquet")) - wanted.keys():
            path.unlink()
        self._update(wanted)
        self.lake.make()
        return self.lake

    def fetch(self, name: str) -> Path:
        """Fetch missing and changed files of a run, and return the run's folder.

        name: RUNS/<test>/<run>, or an address that ends with it
        Raises LookupError if the store does not contain the complete run, and StoreUnavailable.
        """
        relative = PurePosixPath(name.removeprefix(self.store.address).strip("/"))
        if len(relative.parts) != 3 or relative.parts[0] != RUNS or ".." in relative.parts:
            raise LookupError(f"{name} names no run of {self.store.address}: it must end with {RUNS}/TEST/RUN")
        found = {self._inside(self.store.name_of(info)): info for info in self.store.list(str(relative))}
        root = self.folder / relative
        if root / TEST not in found or root / MANIFEST not in found:
            raise LookupError(f"{self.store.address} has no complete run {relative}: its manifest is missing")
        self._update(found)
        return root

    def _update(self, wanted: Mapping[Path, fs.FileInfo]) -> None:
        """Fetch changed and new files, and set their times to those in the store, so that later changes are
        detected."""
        for path, info in wanted.items():
            if not _is_same(path, info):
                self.store.get(info, path)
                os.utime(path, (_seconds(info), _seconds(info)))

    def _inside(self, name: PurePosixPath) -> Path:
        """Return the path in this mirror of a file of the store.  Raises StoreUnavailable for a name that leads out of
        the mirror's folder.
        """
        if name.is_absolute() or ".." in name.parts or not name.parts:
            raise StoreUnavailable(f"{self.store.address} holds a file named {name}, which leads out of its folder")
        return self.folder / name


def parted(address: str) -> tuple[str, str]:
    """Split the address of a run into (address of the store, name of the run in the store).  Raises LookupError."""
    parts = address.partition("?")
    store, found, name = parts[0].rstrip("/").rpartition(f"/{RUNS}/")
    if not found or name.count("/") != 1:
        raise LookupError(f"{address} names no run of a store: it must end with {RUNS}/TEST/RUN")
    return store + parts[1] + parts[2], f"{RUNS}/{name}"


def _files_of(root: Path) -> Iterator[Path]:
    """Yield the files of a run that are uploaded to a store, in order of names."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.relative_to(root).parts[0] not in MADE_ANEW:
            yield path


def _is_same(path: Path, info: fs.FileInfo) -> bool:
    if not path.is_file():
        return False
    known = path.stat()
    return known.st_size == info.size and known.st_mtime_ns // 10**9 == _seconds(info)


def _seconds(info: fs.FileInfo) -> int:
    return int(info.mtime_ns or 0) // 10**9


def _reason(problem: BaseException) -> str:
    found: Any = str(problem).strip().splitlines()
    return found[0][:300] if found else type(problem).__name__
