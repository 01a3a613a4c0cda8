"""Files for nodes that cannot read them: the driver sends the bytes with the tasks.

On a cluster a part's paths are meant to be readable under the same name everywhere (a shared disk).  The driver marks
every file it can read itself; a worker that finds no such file, or another one of that name, answers `Unreadable`, and
the task is sent again with the bytes.  They are laid out under a folder of the worker's own, gone after the task.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkers.checker import Part
from checkers.tasks import Judged, Task, judge_task, named

IN_ALL_BYTES_MAX = 256 << 20
"""What is sent for one judging, in all.  A larger run has to lie on a disk that the nodes share."""

PART_BYTES_MAX = 64 << 20
"""What is sent for one part: a virtual machine holds it several times over."""

WAVE_BYTES_MAX = 64 << 20
"""What is sent in one job."""

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Mark:
    """Tells a file from another of the same name: its size, and a hash of its end, where Parquet has its footer with
    sizes and extremes of every column."""

    size_bytes: int
    tail: bytes


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task as it is sent to a cluster.  contents: bytes of its files, where they have to be sent."""

    task: Task
    marks: Mapping[str, Mark]
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(mark.size_bytes for mark in self.marks.values())


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A worker's answer: it has no such file."""

    path: str


Progress = Callable[[int], None]
Run = Callable[[Sequence[RemoteTask], Progress], Sequence[Judged | Unreadable]]


def judge_on_nodes(tasks: Sequence[Task], run: Run, progress: Progress) -> tuple[list[Judged], int]:
    """Judge by path, and the tasks that no path led to once more with the bytes of their files; and how many were sent.

    run: does so on the cluster, calling its second argument with the number of tasks done.  What is too large to be
    sent is a failure of its task.
    """
    marks: dict[str, Mark | None] = {}
    by_path = [_marked(task, marks) for task in tasks]
    answers = list(run(by_path, progress))
    away = [n for n, answer in enumerate(answers) if isinstance(answer, Unreadable)]
    small = _that_fit(away, by_path)
    done = len(tasks) - len(away)
    for wave in _waves(small, by_path):
        filled = [_with_contents(by_path[n]) for n in wave]
        for n, answer in zip(wave, run(filled, _beginning_at(done, progress)), strict=True):
            answers[n] = answer
        done += len(wave)
    judged = [a if isinstance(a, Judged) else _too_large(task) for a, task in zip(answers, by_path, strict=True)]
    return judged, sum(by_path[n].size_bytes for n in small)


def _beginning_at(done: int, progress: Progress) -> Progress:
    return lambda more: progress(done + more)


def _that_fit(numbers: Sequence[int], tasks: Sequence[RemoteTask]) -> list[int]:
    """Those of some tasks that may be sent, the first first."""
    small: list[int] = []
    left = IN_ALL_BYTES_MAX
    for n in numbers:
        if tasks[n].size_bytes <= min(left, PART_BYTES_MAX):
            left -= tasks[n].size_bytes
            small.append(n)
    return small


def _waves(numbers: Sequence[int], tasks: Sequence[RemoteTask]) -> Iterator[list[int]]:
    """Some tasks in jobs of at most WAVE_BYTES_MAX."""
    wave: list[int] = []
    size_bytes = 0
    for n in numbers:
        if wave and size_bytes + tasks[n].size_bytes > WAVE_BYTES_MAX:
            yield wave
            wave, size_bytes = [], 0
        wave.append(n)
        size_bytes += tasks[n].size_bytes
    if wave:
        yield wave


def _too_large(task: RemoteTask) -> Judged:
    limits = f"at most {PART_BYTES_MAX >> 20} MiB for one part and {IN_ALL_BYTES_MAX >> 20} MiB in all"
    words = f"its files are too large to be sent ({task.size_bytes / 2**20:.0f} MiB; {limits})"
    where = "the nodes cannot read the run folder: put it on a disk they share"
    return Judged(None, f"{named(task.task.part)}: {words}, and {where}", 0.0)


def _marked(task: Task, marks: dict[str, Mark | None]) -> RemoteTask:
    paths = files_of(task.part)
    for path in paths:
        if path not in marks:
            marks[path] = mark_of(path)
    return RemoteTask(task, {path: mark for path in paths if (mark := marks[path]) is not None})


def _with_contents(task: RemoteTask) -> RemoteTask:
    return replace(task, contents={path: Path(path).read_bytes() for path in task.marks})


def mark_of(path: str) -> Mark | None:
    """None if the file cannot be read here."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return Mark(size, hashlib.blake2b(file.read(), digest_size=16).digest())
    except OSError:
        return None


def files_of(part: Part) -> list[str]:
    """The files a part names: its paths, and the Parquet files among its parameters."""
    return list(dict.fromkeys([*part.paths, *_parquet_in(part.params)]))


def judge_remote(remote: RemoteTask) -> Judged | Unreadable:
    """Judge where this is called, in a worker of a cluster.  Never raises."""
    if remote.contents:
        return _judge_contents(remote)
    for path, mark in remote.marks.items():
        if mark_of(path) != mark:
            return Unreadable(path)
    return judge_task(remote.task)


def _judge_contents(remote: RemoteTask) -> Judged:
    try:
        with tempfile.TemporaryDirectory(prefix="krucible-shipped-", dir=_spark_folder()) as folder:
            moved = {path: _under(folder, path) for path in files_of(remote.task.part)}
            for path, content in remote.contents.items():
                Path(moved[path]).parent.mkdir(parents=True, exist_ok=True)
                Path(moved[path]).write_bytes(content)
            judged = judge_task(replace(remote.task, part=_moved(remote.task.part, moved)))
            for path, there in moved.items():
                judged = replace(judged, failure=judged.failure.replace(there, path))
            return judged
    except OSError as problem:
        return Judged(None, f"the files sent to a worker could not be laid out there: {problem}", 0.0)


def _under(folder: str, path: str) -> str:
    return str(Path(folder, *Path(path).absolute().parts[1:]))


def _spark_folder() -> str | None:
    """The folder of this executor that Spark removes even if the worker is killed; None: the temporary folder."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return folder
    return None


def _moved(part: Part, moved: Mapping[str, str]) -> Part:
    return Part(tuple(moved[path] for path in part.paths), _replaced(part.params, moved))


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


def _replaced(value: Any, moved: Mapping[str, str]) -> Any:
    match value:
        case str():
            return moved.get(value, value)
        case dict():
            return {key: _replaced(inner, moved) for key, inner in value.items()}
        case list():
            return [_replaced(inner, moved) for inner in value]
        case tuple():
            return tuple(_replaced(inner, moved) for inner in value)
    return value
