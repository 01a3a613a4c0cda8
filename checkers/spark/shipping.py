"""Sends the bytes of files to nodes that cannot read these files.

On a cluster, every node should be able to read a part's files under the same name (a shared disk).  The driver sends a
digest of every file that it can read itself.  A worker answers `Unreadable` if it finds no such file, or another file
of that name.  Then the task is judged again with the bytes of its files, which are sent to each node once, as a
broadcast.  The worker writes the bytes into a temporary folder, and removes this folder after the task.

A run that came from an object store has a `Shelf` there.  Then no bytes are sent, and no file is too large: workers
read the files from the store themselves, through Arrow's file systems.  The driver first uploads the files that judging
made.  A worker that cannot read from the store (it has no credentials) answers `Unreadable` again, and gets the bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from checkers.base.checker import Budget, Judged, Part, Task, judge_task, named, no_finding

T = TypeVar("T")

IN_ALL_BYTES_MAX = 256 << 20
"""Maximum number of bytes sent to each node for one judging.  For a larger run the nodes must share a disk."""

FILE_BYTES_MAX = 128 << 20
"""Maximum size in bytes of a file that is sent.  The Java virtual machines briefly have two copies of it in memory."""

_TAIL_BYTES = 1 << 16
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Distinguishes files of the same name by their size and a hash of their end.

    The end of a Parquet file is its footer, with sizes and extremes of every column.
    """

    size_bytes: int
    tail: bytes


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task as it is sent to a cluster.

    marks: path -> digest of each file that the task names and that the driver can read
    """

    task: Task
    marks: Mapping[str, FileDigest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A worker's answer: it cannot read this file, or has another file of that name.

    why: the error of the store if the worker tried to read the file there, or ""
    """

    path: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """Numbers of bytes that nodes got in one judging because they could not read the files themselves.

    sent_bytes: bytes sent to each node
    stored_bytes: bytes that nodes read from a store, each file counted once
    store_failure: reason why a node could not read from the store, in the first such case; "" if there was none
    """

    sent_bytes: int = 0
    stored_bytes: int = 0
    store_failure: str = ""


class FileContent(Protocol):
    """The bytes of a file, available on every node: a broadcast."""

    @property
    def value(self) -> bytes: ...


class Shelf(Protocol):
    """A place from which nodes read files themselves.

    name: the place in words
    """

    name: str

    def put(self, path: str, mark: FileDigest) -> StoredFile:
        """Upload a file of the driver unless the place already has the file.  Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store, which a worker reads itself.

    uri: URI of the store, for `pyarrow.fs.FileSystem.from_uri`
    path: path of the file in that file system
    mark: digest of the driver's file
    """

    uri: str
    path: str
    mark: FileDigest

    def copy_to(self, target: Path) -> None:
        """Download the file.  Raises OSError if the store does not answer, or has another file."""
        import pyarrow as pa
        from pyarrow import fs

        try:
            files, _ = fs.FileSystem.from_uri(self.uri)
            with files.open_input_stream(self.path) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, _COPY_BYTES)
        except (pa.ArrowException, ValueError) as problem:
            raise OSError(f"{self.path} cannot be read: {problem}") from problem
        if digest_of(str(target)) != self.mark:
            raise OSError(f"{self.path} in the store is another file than the driver's")


Progress = Callable[[int], None]
Contents = Mapping[str, FileContent | StoredFile]
"""Path of a file on the driver -> source of its bytes for a worker."""
Share = Callable[[bytes], FileContent]
"""Function that makes the bytes of a file available to all nodes."""
Run = Callable[[Sequence[RemoteTask], Contents, Progress], Sequence[Judged | Unreadable]]
"""Function that runs judge_remote(task, contents) for each task, and calls progress(number of finished tasks)."""


def judge_on_nodes(
    tasks: Sequence[Task], run: Run, share: Share, progress: Progress, shelf: Shelf | None = None
) -> tuple[list[Judged], Moved]:
    """Judge tasks on nodes, which read the files by path, else from the shelf, else from bytes that are sent.

    One node first tries one file of the shelf, because a store that does not answer would cost seconds for each task.
    If this node cannot read the file, the shelf is not used.  A task whose files are too large to be sent fails.
    """
    marks: dict[str, FileDigest | None] = {}
    marked = [_marked(task, marks) for task in tasks]
    answers: list[Judged | Unreadable] = list(run(marked, {}, progress))
    moved = Moved()

    def away() -> list[int]:
        return [n for n, answer in enumerate(answers) if isinstance(answer, Unreadable)]

    def judge(numbers: Sequence[int], contents: Contents) -> None:
        done = len(answers) - len(away())
        again = run([marked[n] for n in numbers], contents, lambda more: progress(done + more))
        for n, answer in zip(numbers, again, strict=True):
            answers[n] = answer

    if shelf is not None and (missed := away()):
        stored, failure = _on_shelf([marked[n] for n in missed], shelf, run)
        if not failure:
            judge(missed, stored)
            failure = next((answer.why for answer in answers if isinstance(answer, Unreadable)), "")
        read = {path: mark for n in missed if isinstance(answers[n], Judged) for path, mark in marked[n].marks.items()}
        moved = Moved(stored_bytes=sum(mark.size_bytes for mark in read.values()), store_failure=failure)
    sent, fitting = _that_fit(away(), marked)
    if fitting:
        judge(fitting, {path: share(Path(path).read_bytes()) for path in sent})
        moved = replace(moved, sent_bytes=sum(mark.size_bytes for mark in sent.values()))
    judged = [
        a if isinstance(a, Judged) else _too_large(task, moved.store_failure)
        for a, task in zip(answers, marked, strict=True)
    ]
    return judged, moved


def _on_shelf(tasks: Sequence[RemoteTask], shelf: Shelf, run: Run) -> tuple[Contents, str]:
    """Put all files of these tasks on the shelf.

    Returns (the files, reason why they cannot be put or read there, or "").  One node tries to read the smallest file
    of the first task.
    """
    try:
        files = {path: mark for task in tasks for path, mark in task.marks.items()}  # tasks share files
        stored = {path: shelf.put(path, mark) for path, mark in files.items()}
    except OSError as problem:
        return {}, str(problem)
    path, mark = min(tasks[0].marks.items(), key=lambda item: item[1].size_bytes)
    [answer] = run([RemoteTask(Task(no_finding, Part((path,)), Budget()), {path: mark})], stored, lambda _: None)
    return stored, answer.why if isinstance(answer, Unreadable) else ""


def judge_remote(remote: RemoteTask, contents: Contents) -> Judged | Unreadable:
    """Judge a task in this process, a worker of a cluster.  Never raises.

    contents: the files that were sent or stored; empty if the worker must read the files by path
    """
    if contents:
        return _judge_contents(remote, contents)
    for path, mark in remote.marks.items():
        if digest_of(path) != mark:
            return Unreadable(path)
    return judge_task(remote.task)


def files_of(part: Part) -> list[str]:
    """Return the files that a part names: its paths, and the Parquet files among its parameters."""
    return list(dict.fromkeys([*part.paths, *_parquet_in(part.params)]))


def _marked(task: Task, marks: dict[str, FileDigest | None]) -> RemoteTask:
    paths = files_of(task.part)
    for path in paths:
        if path not in marks:
            marks[path] = digest_of(path)
    return RemoteTask(task, {path: mark for path in paths if (mark := marks[path]) is not None})


def _that_fit(numbers: Sequence[int], tasks: Sequence[RemoteTask]) -> tuple[dict[str, FileDigest], list[int]]:
    """Return (path -> digest of the files to send, indices of the tasks whose files can all be sent).

    numbers: indices of the tasks that need files; earlier tasks have priority
    """
    sent: dict[str, FileDigest] = {}
    fitting: list[int] = []
    left = IN_ALL_BYTES_MAX
    for n in numbers:
        more = {path: mark for path, mark in tasks[n].marks.items() if path not in sent}
        size_bytes = sum(mark.size_bytes for mark in more.values())
        if size_bytes > left or any(mark.size_bytes > FILE_BYTES_MAX for mark in more.values()):
            continue
        sent |= more
        left -= size_bytes
        fitting.append(n)
    return sent, fitting


def _too_large(remote: RemoteTask, store_failure: str) -> Judged:
    size_bytes = sum(mark.size_bytes for mark in remote.marks.values())
    limits = f"at most {FILE_BYTES_MAX >> 20} MiB for one file and {IN_ALL_BYTES_MAX >> 20} MiB in all"
    words = f"its files are too large to be sent ({size_bytes / 2**20:.0f} MiB; {limits})"
    where = "the nodes cannot read the run folder: put it on a disk they share"
    if store_failure:
        where = f"the nodes cannot read the store ({store_failure}): give them access to it"
    return Judged(None, f"{named(remote.task.part)}: {words}, and {where}", 0.0)


def digest_of(path: str) -> FileDigest | None:
    """Return the digest of a file; None if this process cannot read the file."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return FileDigest(size, hashlib.blake2b(file.read(), digest_size=16).digest())
    except OSError:
        return None


def _judge_contents(remote: RemoteTask, contents: Contents) -> Judged | Unreadable:
    try:
        with tempfile.TemporaryDirectory(prefix="krucible-sent-", dir=_spark_folder()) as folder:
            there = {path: _under(folder, path) for path in files_of(remote.task.part)}
            for path in remote.marks:
                Path(there[path]).parent.mkdir(parents=True, exist_ok=True)
                if problem := _lay_out(contents[path], Path(there[path])):
                    return Unreadable(path, problem)
            part = _with_strings(remote.task.part, lambda text: there.get(text, text))
            judged = judge_task(replace(remote.task, part=part))
            return _with_strings(judged, lambda text: _home(text, folder, there))
    except OSError as problem:
        return Judged(None, f"the files sent to a worker could not be laid out there: {problem}", 0.0)


def _lay_out(content: FileContent | StoredFile, target: Path) -> str:
    """Write the bytes of a file to `target`.

    Returns the reason if the file cannot be read from its store, or "".  Raises OSError.
    """
    if not isinstance(content, StoredFile):
        target.write_bytes(content.value)
        return ""
    try:
        content.copy_to(target)
    except OSError as problem:
        return str(problem)
    return ""


def _under(folder: str, path: str) -> str:
    return str(Path(folder, *Path(path).absolute().parts[1:]))


def _spark_folder() -> str | None:
    """Return a folder that Spark removes even if the worker is killed; None if there is none."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return folder
    return None


def _home(text: str, folder: str, there: Mapping[str, str]) -> str:
    """Replace the worker's paths of files in a text by the driver's paths."""
    if folder in text:
        for path, moved in there.items():
            text = text.replace(moved, path)
    return text


def _with_strings(value: T, changed: Callable[[str], str]) -> T:
    """Return a copy of a picklable value in which every string, at any depth, is replaced by `changed` of it."""

    class Changing(pickle.Pickler):
        def persistent_id(self, inner: object) -> str | None:
            if type(inner) is not str or (new := changed(inner)) == inner:
                return None
            return new

    class Changed(pickle.Unpickler):
        def persistent_load(self, new: str) -> str:
            return new

    written = io.BytesIO()
    Changing(written, pickle.HIGHEST_PROTOCOL).dump(value)
    copy: T = Changed(io.BytesIO(written.getvalue())).load()
    return copy


def _parquet_in(value: Any) -> Iterator[str]:
    match value:
        case str() if value.startswith("/") and value.endswith(".parquet"):
            yield value
        case dict():
            for inner in value.values():
                yield from _parquet_in(inner)
        case list() | tuple():
            for inner in value:
                yield from _parquet_in(inner)
