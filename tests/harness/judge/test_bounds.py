"""What stands in the place of a file of a run is looked at before it is opened: pipes, devices, links, holes, sizes."""

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_runs import unpacked

from checkers.record.files import BrokenFile, demand_plain, regular
from checkers.record.run_record import read_json
from checkers.sealing.seal import seal

MEMORY_BYTES = 4_000_000_000


def pipe(path: Path) -> None:
    os.mkfifo(path)


def made_of_holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 30)


def link_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("this user may make no device")


def folder(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket must be short
        made.bind(path.name)
        os.chdir(here)


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (pipe, "is a pipe; a run folder contains only regular files"),
    "socket": (listener, "is a socket; a run folder contains only regular files"),
    "device": (device, "is a device; a run folder contains only regular files"),
    "holes": (made_of_holes, "bytes"),
    "link": (link_out, "is a symbolic link, which a run folder must not contain"),
}
PIECES = (
    "test.json",
    "manifest.json",
    "history.arrows",
    "trace/n2.jsonl",
    "nodes/n3/copies/1/__cluster_metadata-0/00000000000000000000.log",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = unpacked("kraft-partition", tmp_path_factory.mktemp("whole") / "run")
    seal(run)
    return run


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_a_run_that_holds_something_else_than_files_is_refused_before_it_is_read(
    whole: Path, make: Callable[[Path], None], words: str, piece: str, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / piece).unlink(missing_ok=True)
    make(run / piece)
    with pytest.raises(BrokenFile, match=rf"^{piece} .*{words}"):
        demand_plain(run)


@pytest.mark.parametrize("make", [pipe, made_of_holes, folder, device], ids=lambda make: make.__name__)
def test_a_small_file_is_looked_at_before_it_is_opened(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "test.json")
    with pytest.raises(BrokenFile, match=r"^test.json "):
        read_json(tmp_path / "test.json")


def test_a_file_that_is_larger_than_its_kind_may_be_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "faults.json").write_bytes(b"[]" + b" " * 99)
    assert regular(path, 101) == path
    with pytest.raises(BrokenFile, match=r"faults.json has 101 bytes; the limit is 100"):
        regular(path, 100)
    with pytest.raises(FileNotFoundError):
        regular(tmp_path / "none")


def test_a_whole_run_and_its_derived_folders_are_plain(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "replays").mkdir()
    (run / "replays" / "latest").symlink_to("elsewhere")  # judging must not enter it
    demand_plain(run)


def commands(run: Path) -> list[list[str]]:
    return [["analyze", "--in-process", str(run)], ["check-logs", str(run)]]


@pytest.mark.parametrize("number", [0, 1], ids=["analyze", "check-logs"])
@pytest.mark.parametrize(("name", "make"), [("test.json", pipe), ("trace/n2.jsonl", made_of_holes)])
def test_no_command_hangs_or_eats_memory(
    whole: Path, name: str, make: Callable[[Path], None], number: int, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / name).unlink()
    make(run / name)
    code, said = limited(commands(run)[number])
    assert code == 3 and f"{name} " in said and "Traceback" not in said


def test_a_line_of_200_mb_makes_a_trace_unreadable_in_bounded_memory(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    with (run / "trace" / "n2.jsonl").open("ab") as file:
        file.write(b'{"seq": 1, "detail": "')
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n')
    code, said = limited(commands(run)[1])
    assert code == 2 and "longer than 1000000 bytes" in said, said


def limited(words: list[str]) -> tuple[int, str]:
    """Exit code and words of a command that may take MEMORY_BYTES of address space."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))

    argv = [sys.executable, "-m", "harness", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1000, check=False, preexec_fn=limit)
    return done.returncode, " ".join((done.stdout + done.stderr).split())
