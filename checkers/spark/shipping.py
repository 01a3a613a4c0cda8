"""Sends the bytes of files to nodes that cannot read them.

On a cluster, every node should be able to read a part's files under the same name (a shared disk).  The driver sends a
mark of every file that it can read itself.  A worker answers `Unreadable` if it finds no such file, or another file of
that name.  Then the task is judged again with the bytes of its files, which are sent to each node once, as a broadcast.
The worker writes them into a folder of its own, and removes it after the task.

A run that came from an object store has a `Shelf` there.  Then nothing is sent, and nothing is too large: workers read
the files from the store themselves, through Arrow's file systems.  Files that judging makes are uploaded first.  A
worker that cannot read from the store (it has no credentials) answers `Unreadable` again, and gets the bytes.
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
"""The most that is sent to each node for one judging.  The nodes must share a disk with a larger run."""

FILE_BYTES_MAX = 128 << 20
"""The largest file that is sent: virtual machines hold it twice for a moment."""

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
    """A task as it is sent to a cluster.  marks: one for each file that it names and that the driver can read."""

    task: Task
    marks: Mapping[str, FileDigest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A worker's answer: it cannot read this file, or has another file of that name.

    why: what the store said, if the file was to be read there.
    """

    path: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """Record of how the files of one judging came to the nodes, beside those that the nodes have themselves.

    sent_bytes: sent to each node.  stored_bytes: read by nodes from a store, each file counted once.
    store_failure: why a node could not read from the store, in the first such case; "" if all could.
    """

    sent_bytes: int = 0
    stored_bytes: int = 0
    store_failure: str = ""


class FileContent(Protocol):
    """The bytes of a file, available on every node: a broadcast."""

    @property
    def value(self) -> bytes: ...


class Shelf(Protocol):
    """A place from which nodes read files themselves.  name: for people."""

    name: str

    def put(self, path: str, mark: FileDigest) -> StoredFile:
        """Put a file of the driver there, unless it is there.  Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store, which a worker reads itself.

    uri: of the store, as `pyarrow.fs.FileSystem.from_uri` takes it.  path: in that file system.
    """

    uri: str
    path: str
    mark: FileDigest

    def copy_to(self, target: Path) -> None:
        """Raises OSError if the store does not answer, or holds another file."""
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
"""Path of a file on the driver -> where a worker gets its bytes from."""
Share = Callable[[bytes], FileContent]
"""Makes the bytes of a file available to all nodes."""
Run = Callable[[Sequence[RemoteTask], Contents, Progress], Sequence[Judged | Unreadable]]
"""Runs judge_remote(task, contents) for each task, and calls progress(number of tasks done)."""


def judge_on_nodes(
    tasks: Sequence[Task], run: Run, share: Share, progress: Progress, shelf: Shelf | None = None
) -> tuple[list[Judged], Moved]:
    """Judge tasks by path; where a node cannot read a file, from the shelf; where that fails, from bytes that are sent.

    A node first tries one file of the shelf: a store that does not answer costs seconds for each task.  If it cannot
    read it, the shelf is not used.  What is then left is a failure.
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
    """Put all files of these tasks on the shelf.  Returns them, and why they cannot be put or read there, or "".

    A node tries the smallest file of the first task.
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
    """Judge a task in this process, a worker of a cluster.  contents: the files that were sent.  Never raises."""
    if contents:
        return _judge_contents(remote, contents)
    for path, mark in remote.marks.items():
        if digest_of(path) != mark:
            return Unreadable(path)
    return judge_task(remote.task)


def files_of(part: Part) -> list[str]:
    """Return the files a part names: its paths, and the Parquet files among its parameters."""
    return list(dict.fromkeys([*part.paths, *_parquet_in(part.params)]))


def _marked(task: Task, marks: dict[str, FileDigest | None]) -> RemoteTask:
    paths = files_of(task.part)
    for path in paths:
        if path not in marks:
            marks[path] = digest_of(path)
    return RemoteTask(task, {path: mark for path in paths if (mark := marks[path]) is not None})


def _that_fit(numbers: Sequence[int], tasks: Sequence[RemoteTask]) -> tuple[dict[str, FileDigest], list[int]]:
    """Returns (the files to send, the tasks of which all files are sent).  Earlier tasks come first.

    numbers: places in `tasks` of those that need files.
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
    """Return the mark of a file; None if this process cannot read it."""
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
    """Write the bytes of a file.  Returns why it cannot be read from its store, or "".  Raises OSError."""
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
    """Return the folder of this executor that Spark removes even if the worker is killed; None: the temporary
    folder.
    """
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return folder
    return None


def _home(text: str, folder: str, there: Mapping[str, str]) -> str:
    """Return the text with the driver's names of files in place of the worker's."""
    if folder in text:
        for path, moved in there.items():
            text = text.replace(moved, path)
    return text


def _with_strings(value: T, changed: Callable[[str], str]) -> T:
    """Return a copy of anything that can be pickled, however it is nested, with its strings changed."""

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
