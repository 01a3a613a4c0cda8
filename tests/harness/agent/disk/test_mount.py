"""A folder under the daemon serves programs as a disk does, fails on order, and loses what was not fsynced."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from harness.agent import files
from harness.agent.disk.verbs import Mounted


def why_no_fuse() -> str:
    """Why FUSE cannot be used here; "" if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    return "" if os.geteuid() == 0 else "needs the right to mount"


pytestmark = pytest.mark.skipif(why_no_fuse() != "", reason=why_no_fuse())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    mounted = Mounted(tmp_path / "disk", tmp_path / "root")
    mounted.mount()
    yield mounted
    mounted.unmount()


def append(path: Path, data: bytes, sync: bool) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


@pytest.mark.parametrize(("synchronous", "survives"), [("extra", True), ("full", False)])
def test_a_database_loses_only_what_it_documents(disk: Mounted, synchronous: str, survives: bool) -> None:
    """SQLite commits by removing its journal.  Only `extra` makes the removal durable at once, says its manual."""
    with sqlite3.connect(disk.path / "db") as database:
        database.execute(f"pragma synchronous = {synchronous}")
        database.execute("create table t (n integer)")
        database.execute("insert into t values (7)")
    database.close()
    disk.lose_power("lose", 1)
    assert sqlite3.connect(disk.path / "db").execute("select n from t").fetchall() == ([(7,)] if survives else [])


@pytest.mark.parametrize("kept", ["lose", "tear", "reorder"])
def test_a_configuration_that_the_agent_wrote_survives_a_power_loss(disk: Mounted, kept: str) -> None:
    files.Files().write(str(disk.path / "made" / "server.json"), b"{}")
    files.Files().write(str(disk.path / "made" / "server.json"), b"{\n}")
    disk.lose_power(kept, 1)
    assert {path.name: path.read_bytes() for path in (disk.path / "made").iterdir()} == {"server.json": b"{\n}"}


def test_a_server_can_listen_on_a_socket_file(disk: Mounted) -> None:
    path = str(disk.path / "control")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen()
        client.connect(path)
        accepted, _ = listener.accept()
        with accepted:
            client.sendall(b"status")
            assert accepted.recv(6) == b"status"
    disk.lose_power("lose", 1)
    assert not (disk.path / "control").exists()


def test_a_folder_is_empty_once_its_open_files_are_removed(disk: Mounted) -> None:
    """etcd looks into a folder that it has just emptied, and ends if anything is there."""
    folder = disk.path / "wal.tmp"
    folder.mkdir()
    with (folder / "touched").open("w+b") as file:
        (folder / "touched").unlink()
        assert list(folder.iterdir()) == []
        file.write(b"still mine")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        assert file.read() == b"still mine"
        folder.rmdir()
        assert not folder.exists()
        assert file.tell() == 10
    folder.mkdir()
    folder.rename(disk.path / "wal")
    assert [path.name for path in disk.path.iterdir()] == ["wal"]


def test_the_power_takes_back_the_removal_of_an_open_file(disk: Mounted) -> None:
    append(disk.path / "kept", b"fsynced", True)
    descriptor = os.open(disk.path / "kept", os.O_RDONLY)
    (disk.path / "kept").unlink()
    disk.lose_power("lose", 1)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.close(descriptor)  # the descriptor belongs to the mount before the loss
    assert [path.name for path in disk.path.iterdir()] == ["kept"]
    assert (disk.path / "kept").read_bytes() == b"fsynced"


def test_a_file_can_be_mapped(disk: Mounted) -> None:
    append(disk.path / "file", b"abc", sync=True)
    with (disk.path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:] == b"abc"


@pytest.mark.parametrize("kept", ["lose", "tear", "reorder"])
def test_power_loss_keeps_what_was_fsynced(disk: Mounted, kept: str) -> None:
    log = disk.path / "log"
    append(log, b"kept", sync=True)
    append(log, b" lost", sync=False)
    assert log.read_bytes() == b"kept lost"
    assert disk.pending() > 0
    loss = disk.lose_power(kept, 7)
    assert log.read_bytes().startswith(b"kept")
    assert kept == "reorder" or log.read_bytes() == b"kept lost"[: 4 + max(loss["torn_bytes"], 0)]


def test_without_a_loss_everything_is_there_after_the_daemon_ended(disk: Mounted) -> None:
    append(disk.path / "log", b"not fsynced", sync=False)
    disk.unmount()
    disk.mount()
    assert (disk.path / "log").read_bytes() == b"not fsynced"


@pytest.mark.parametrize(("operation", "error"), [("write", "ENOSPC"), ("fsync", "EIO"), ("open", "EIO")])
def test_operations_fail_on_order_and_work_again_after_it(disk: Mounted, operation: str, error: str) -> None:
    append(disk.path / "log", b"x", sync=True)
    disk.behave([{"operations": [operation], "error": error}], seed=1)
    with pytest.raises(OSError) as refused:
        append(disk.path / "log", b"y", sync=True)
    assert refused.value.errno == getattr(errno, error)
    disk.behave([], seed=1)
    append(disk.path / "log", b"z", sync=True)
    assert (disk.path / "log").read_bytes().endswith(b"z")


def test_a_second_fsync_does_not_save_what_the_first_one_failed_to_write(disk: Mounted) -> None:
    log = disk.path / "log"
    append(log, b"kept", sync=True)
    disk.behave([{"operations": ["fsync"], "error": "EIO"}], seed=1)
    descriptor = os.open(log, os.O_RDWR | os.O_APPEND)
    os.write(descriptor, b" and lost")
    with pytest.raises(OSError):
        os.fsync(descriptor)
    disk.behave([], seed=1)
    os.fsync(descriptor)
    os.close(descriptor)
    assert log.read_bytes() == b"kept"
    append(log, b" and more", sync=True)
    assert log.read_bytes() == b"kept and more"


def test_a_rule_may_name_files(disk: Mounted) -> None:
    disk.behave([{"operations": ["write"], "error": "EIO", "files": "*.log"}], seed=1)
    append(disk.path / "other", b"x", sync=True)
    with pytest.raises(OSError):
        append(disk.path / "a.log", b"x", sync=True)


def test_a_slow_fsync_takes_at_least_as_long_as_ordered(disk: Mounted) -> None:
    disk.behave([{"operations": ["fsync"], "delay_s": 0.05}], seed=1)
    began = time.monotonic()
    append(disk.path / "log", b"x", sync=True)
    assert time.monotonic() - began >= 0.05


def test_the_power_can_be_lost_at_the_very_fsync(disk: Mounted) -> None:
    """The armed fsync never returns, so nothing it should have kept was acknowledged."""
    log = disk.path / "log"
    append(log, b"1", sync=True)
    disk.arm("fsync", 2)
    append(log, b"2", sync=True)
    assert not disk.has_reached()
    if (child := os.fork()) == 0:
        append(log, b"3", sync=True)
        os._exit(0)
    until(disk.has_reached)
    os.kill(child, 9)
    disk.lose_power("lose", 1)
    os.waitpid(child, 0)
    assert log.read_bytes() == b"12"


def test_a_power_loss_does_not_repair_a_failing_disk(disk: Mounted) -> None:
    append(disk.path / "log", b"x", sync=True)
    disk.behave([{"operations": ["fsync"], "error": "EIO"}], seed=1)
    disk.lose_power("lose", 1)
    with pytest.raises(OSError):
        append(disk.path / "log", b"y", sync=True)


def test_an_order_that_makes_no_sense_is_refused(disk: Mounted) -> None:
    with pytest.raises(OSError, match="operations must be some of"):
        disk.behave([{"operations": ["think"]}], seed=1)
    with pytest.raises(OSError, match="kept must be"):
        disk.lose_power("everything", 1)
    append(disk.path / "log", b"x", sync=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_a_server_of_another_user_owns_what_it_makes() -> None:
    """PostgreSQL, for one, changes the rights of its own folder, and refuses a folder that another user owns."""
    nobody = 65534
    script = (
        "umask 022; mkdir made && chmod 700 made && echo 1 > made/kept && chmod 600 made/kept && sync made/kept made"
        " && ln -s kept made/symlink && mkfifo made/pipe && stat -c '%u %g %a %n' made made/kept made/symlink made/pipe"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        disk = Mounted(Path(folder) / "disk", Path(folder) / "root")
        disk.mount()
        try:
            (disk.path / "data").mkdir()
            os.chown(disk.path / "data", nobody, nobody)
            done = subprocess.run(
                ["sh", "-c", script],
                cwd=disk.path / "data",
                user=nobody,
                group=nobody,
                extra_groups=[],
                capture_output=True,
            )
            assert done.stderr == b""
            assert done.stdout.decode().splitlines() == [
                f"{nobody} {nobody} 700 made",
                f"{nobody} {nobody} 600 made/kept",
                f"{nobody} {nobody} 777 made/symlink",
                f"{nobody} {nobody} 644 made/pipe",
            ]
            disk.lose_power("lose", 1)
            kept = disk.path / "data" / "made" / "kept"
            assert (kept.stat().st_uid, kept.read_text()) == (nobody, "1\n")
        finally:
            disk.unmount()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up the right to mount")
def test_a_machine_without_the_right_to_mount_says_so(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        "import sys; from pathlib import Path; from harness.agent.disk.verbs import Mounted\n"
        "Mounted(Path(sys.argv[1]) / 'disk', Path(sys.argv[1]) / 'root').mount()",
        str(tmp_path),
    ]
    done = subprocess.run(["setpriv", "--bounding-set=-sys_admin", *argv], capture_output=True, text=True)
    assert "cannot be put under FUSE" in done.stderr
    assert "unmounted" not in done.stderr
