"""Files sent to nodes that cannot read them: the same verdict from bytes, from nothing stale, and within limits."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from wrong_run import run_that_is_wrong_everywhere

from checkers.base.checker import Budget, Judged, Part, Task
from checkers.base.stored_run import StoredRun
from checkers.catalog import CATALOG
from checkers.judging import Verdicts, judge_run
from checkers.spark import shipping
from checkers.spark.shipping import Moved, RemoteTask, StoredFile, Unreadable, digest_of, judge_remote

CHECKERS = list(CATALOG.values())


@dataclass(frozen=True)
class Sent:
    """The bytes of a file as a node has them."""

    value: bytes


class BlindNodes:
    """Nodes that find no file of the driver's; what is sent to them is judged from the bytes alone."""

    description = "blind nodes"

    def __init__(self, shelf: shipping.Shelf | None = None) -> None:
        self.shelf = shelf
        self.jobs: list[int] = []
        self.sent_bytes = 0
        self.moved = Moved()

    def judge(self, tasks: Sequence[Task], progress: Callable[[int, int], None] | None = None) -> list[Judged]:
        say = progress or (lambda done, total: None)
        judged, self.moved = shipping.judge_on_nodes(
            tasks, self.run, self.share, lambda done: say(done, len(tasks)), self.shelf
        )
        assert self.moved.sent_bytes == self.sent_bytes
        return judged

    def share(self, content: bytes) -> Sent:
        self.sent_bytes += len(content)
        return Sent(content)

    def run(
        self, tasks: Sequence[RemoteTask], contents: Mapping[str, Any], progress: Callable[[int], None]
    ) -> list[Judged | Unreadable]:
        self.jobs.append(len(tasks))
        answers: list[Judged | Unreadable] = []
        for task in tasks:
            there: RemoteTask = pickle.loads(pickle.dumps(task))
            blind = there.marks and not contents
            answers.append(Unreadable(next(iter(there.marks))) if blind else judge_remote(there, contents))
            progress(len(answers))
        return answers


class Whole(NamedTuple):
    """A run in which every checker finds something, what they say of it here, and the size of the files they read."""

    run: StoredRun
    verdicts: Verdicts
    size_bytes: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    run = run_that_is_wrong_everywhere(tmp_path_factory.mktemp("whole") / "run")
    files = {path for checker in CHECKERS for part in checker.split(run) for path in shipping.files_of(part)}
    return Whole(run, judge_run(run, CHECKERS), sum(Path(path).stat().st_size for path in files))


def test_every_checker_says_the_same_of_bytes_that_were_sent(whole: Whole) -> None:
    nodes = BlindNodes()
    reports: list[str] = []
    assert judge_run(whole.run, CHECKERS, nodes, reports.append) == whole.verdicts
    assert nodes.sent_bytes == whole.size_bytes, "each file once"
    assert int(reports[-1].split()[1]) == nodes.jobs[0] == nodes.jobs[1]


class FolderShelf:
    """A store that is a folder.

    fails_after: how many files the driver can put there.  closed_to_workers: files that no worker can read there.
    """

    name = "a folder"

    def __init__(self, folder: Path, fails_after: int = 1000, closed_to_workers: Collection[str] = ()) -> None:
        self._folder, self._left, self._closed = folder, fails_after, closed_to_workers
        self._paths: set[str] = set()

    def put(self, path: str, mark: shipping.FileDigest) -> StoredFile:
        assert path not in self._paths, "tasks share files: each is uploaded once"
        self._paths.add(path)
        self._left -= 1
        if self._left < 0:
            raise OSError("the store is full")
        there = self._folder / f"{self._left}"
        there.write_bytes(Path(path).read_bytes())
        if Path(path).name in self._closed:
            there.unlink()
        return StoredFile(self._folder.as_uri(), str(there), mark)


def test_every_checker_says_the_same_of_files_that_workers_read_from_a_store(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "IN_ALL_BYTES_MAX", 1)  # nothing in a store is too large
    nodes = BlindNodes(FolderShelf(tmp_path))
    assert judge_run(whole.run, CHECKERS, nodes) == whole.verdicts
    assert nodes.moved == Moved(stored_bytes=whole.size_bytes), "each file once"


def test_files_are_sent_where_the_store_fails(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    nodes = BlindNodes(FolderShelf(tmp_path, fails_after=1))
    [judged] = nodes.judge([Task(reads_all, part, Budget())])
    assert judged.finding == reads_all(part, Budget())
    assert nodes.moved == Moved(sent_bytes=18, store_failure="the store is full")


def test_only_tasks_whose_files_a_worker_cannot_read_in_the_store_get_the_bytes(tmp_path: Path) -> None:
    sizes = [1, 20, 300]
    paths = [tmp_path / f"{n}.parquet" for n in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"x" * size)
    (tmp_path / "store").mkdir()
    nodes = BlindNodes(FolderShelf(tmp_path / "store", closed_to_workers={"1.parquet"}))
    parts = [(0,), (1,), (2, 1), (2,)]
    judged = nodes.judge([Task(sizes_of, Part(tuple(str(paths[n]) for n in part)), Budget()) for part in parts])
    assert [j.finding for j in judged] == [[1], [20], [300, 20], [300]]
    assert nodes.jobs == [4, 1, 4, 2], "all by path, a trial of the store, all from there, and two from bytes"
    assert (nodes.moved.stored_bytes, nodes.moved.sent_bytes) == (1 + 300, 20 + 300)
    assert "No such file" in nodes.moved.store_failure


def test_what_no_worker_can_read_in_the_store_and_is_too_large_to_send_is_unknown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "IN_ALL_BYTES_MAX", 1)
    nodes = BlindNodes(FolderShelf(tmp_path, closed_to_workers={"file-1.parquet"}))
    [judged] = nodes.judge([Task(reads_all, part_of(tmp_path), Budget())])
    assert judged.finding is None
    assert "too large to be sent" in judged.failure and "the nodes cannot read the store (" in judged.failure
    assert "No such file" in judged.failure


def test_another_file_in_the_store_is_not_taken_for_the_drivers(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    task = RemoteTask(Task(reads_all, part, Budget()), {p: m for p in shipping.files_of(part) if (m := digest_of(p))})
    (tmp_path / "other").write_text("other")
    wrong = {path: StoredFile(tmp_path.as_uri(), str(tmp_path / "other"), mark) for path, mark in task.marks.items()}
    answer = judge_remote(task, wrong)
    assert isinstance(answer, Unreadable) and "is another file than the driver's" in answer.why


class Slices(NamedTuple):
    path: str
    first: int


def reads_all(part: Part, budget: Budget) -> list[Any]:
    """What stands in every file a part names, wherever it names it; and under which path."""
    named: list[Slices] = part.params["slices"]
    paths = [*part.paths, part.params["nested"]["log"], *(one.path for one in named)]
    return [(path, f"read from {path}", Path(path).read_text()) for path in paths] + [one.first for one in named]


def part_of(folder: Path, text: str = "text", count: int = 3) -> Part:
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"file-{n}.parquet") for n in range(count)]
    for n, path in enumerate(paths):
        Path(path).write_text(f"{text} {n}")
    return Part((paths[0],), {"nested": {"log": paths[1]}, "slices": [Slices(paths[2], 7)]})


def test_paths_among_the_parameters_are_sent_too(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    [judged] = BlindNodes().judge([Task(reads_all, part, Budget())])
    assert judged.finding == reads_all(part, Budget())


def test_a_file_of_the_same_name_and_size_on_a_node_is_not_taken_for_the_drivers(tmp_path: Path) -> None:
    part = part_of(tmp_path, "right")
    task = RemoteTask(Task(reads_all, part, Budget()), {p: m for p in shipping.files_of(part) if (m := digest_of(p))})
    assert isinstance(judge_remote(task, {}), Judged)
    part_of(tmp_path, "wrong")
    assert judge_remote(task, {}) == Unreadable(str(tmp_path / "file-0.parquet"))


def test_a_file_that_no_node_has_is_missing_as_it_is_in_process(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    (tmp_path / "file-1.parquet").unlink()
    [judged] = BlindNodes().judge([Task(reads_all, part, Budget())])
    assert judged.failure == f"file-0.parquet: {tmp_path / 'file-1.parquet'} is missing"


def test_more_than_the_limit_is_not_sent_and_its_parts_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    monkeypatch.setattr(shipping, "FILE_BYTES_MAX", 2 * mib)
    monkeypatch.setattr(shipping, "IN_ALL_BYTES_MAX", 5 * mib)
    sizes = [1, 3, 2, 2, 1]  # the second is too large; the last exceeds the count
    paths = [tmp_path / f"{n}.parquet" for n in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"x" * (size * mib))
    parts = [(0,), (1,), (2,), (3, 0), (4,), (0, 2)]
    nodes = BlindNodes()
    judged = nodes.judge([Task(sizes_of, Part(tuple(str(paths[n]) for n in part)), Budget()) for part in parts])
    assert [j.finding for j in judged] == [[mib], None, [2 * mib], [2 * mib, mib], None, [mib, 2 * mib]]
    assert nodes.jobs == [6, 4]
    assert nodes.sent_bytes == 5 * mib
    assert judged[1].failure == (
        "1.parquet: its files are too large to be sent (3 MiB; at most 2 MiB for one file and 5 MiB in all), and the "
        "nodes cannot read the run folder: put it on a disk they share"
    )


def sizes_of(part: Part, budget: Budget) -> list[int]:
    return [Path(path).stat().st_size for path in part.paths]
