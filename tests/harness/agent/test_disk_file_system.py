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
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import local_agent
from waiting import eventually, is_alive

from harness.agent import files
from harness.agent.disk_verbs import DATA, DiskVerbs


def why_no_fuse() -> str:
    """Why FUSE cannot be used here; "" if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    return "" if os.geteuid() == 0 else "needs the right to mount"


pytestmark = pytest.mark.skipif(why_no_fuse() != "", reason=why_no_fuse())


class Disk(DiskVerbs):
    """A disk whose server cannot be killed. path: of its data."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda wait: None)
        self.path = folder / "disk" / DATA
        self.mount(str(folder / "disk"), str(folder / "root"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    mounted = Disk(tmp_path)
    yield mounted
    mounted.unmount()


def append(path: Path, data: bytes, sync: bool) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


@pytest.mark.parametrize(("synchronous", "survives"), [("extra", True), ("full", False)])
def test_a_database_loses_only_what_it_documents(disk: Disk, synchronous: str, survives: bool) -> None:
    """SQLite commits by removing its journal.  Only `extra` makes the removal durable at once, says its manual."""
    with sqlite3.connect(disk.path / "db") as database:
        database.execute(f"pragma synchronous = {synchronous}")
        database.execute("create table t (n integer)")
        database.execute("insert into t values (7)")
    database.close()
    disk.lose_power("lose", 1)
    assert sqlite3.connect(disk.path / "db").execute("select n from t").fetchall() == ([(7,)] if survives else [])


@pytest.mark.parametrize("kept", ["lose", "tear", "reorder"])
def test_a_configuration_that_the_agent_wrote_survives_a_power_loss(disk: Disk, kept: str) -> None:
    files.Files().write(str(disk.path / "made" / "server.json"), b"{}")
    files.Files().write(str(disk.path / "made" / "server.json"), b"{\n}")
    disk.lose_power(kept, 1)
    assert {path.name: path.read_bytes() for path in (disk.path / "made").iterdir()} == {"server.json": b"{\n}"}


def test_a_server_can_listen_on_a_socket_file(disk: Disk) -> None:
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


def test_a_folder_is_empty_once_its_open_files_are_removed(disk: Disk) -> None:
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


def test_the_power_takes_back_the_removal_of_an_open_file(disk: Disk) -> None:
    append(disk.path / "kept", b"fsynced", True)
    descriptor = os.open(disk.path / "kept", os.O_RDONLY)
    (disk.path / "kept").unlink()
    disk.lose_power("lose", 1)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.close(descriptor)  # the descriptor belongs to the mount before the loss
    assert [path.name for path in disk.path.iterdir()] == ["kept"]
    assert (disk.path / "kept").read_bytes() == b"fsynced"


def test_a_file_that_is_no_program_may_be_read_and_not_run(disk: Disk) -> None:
    file = disk.path / "page"
    file.write_bytes(b"1")
    assert os.access(file, os.R_OK | os.W_OK) and not os.access(file, os.X_OK)


def test_a_file_can_be_mapped(disk: Disk) -> None:
    append(disk.path / "file", b"abc", sync=True)
    with (disk.path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:] == b"abc"


def test_without_a_loss_everything_is_there_after_the_daemon_ended(disk: Disk) -> None:
    append(disk.path / "log", b"not fsynced", sync=False)
    disk.unmount()
    disk.mount(str(disk.path.parent), str(disk.path.parents[1] / "root"))
    assert (disk.path / "log").read_bytes() == b"not fsynced"


def test_a_second_fsync_does_not_save_what_the_first_one_failed_to_write(disk: Disk) -> None:
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


def test_a_rule_may_name_files(disk: Disk) -> None:
    disk.behave([{"operations": ["write"], "error": "EIO", "files": "*.log"}], seed=1)
    append(disk.path / "other", b"x", sync=True)
    with pytest.raises(OSError):
        append(disk.path / "a.log", b"x", sync=True)


def test_an_order_that_makes_no_sense_is_refused(disk: Disk) -> None:
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
        disk = Disk(Path(folder))
        try:
            os.chown(disk.path, nobody, nobody)
            done = subprocess.run(
                ["sh", "-c", script],
                cwd=disk.path,
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
            kept = disk.path / "made" / "kept"
            assert (kept.stat().st_uid, kept.read_text()) == (nobody, "1\n")
        finally:
            disk.unmount()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up the right to mount")
def test_a_machine_without_the_right_to_mount_says_so(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        "import sys; from harness.agent.disk_verbs import DiskVerbs\nDiskVerbs(lambda wait: None).mount(*sys.argv[1:])",
        str(tmp_path / "disk"),
        str(tmp_path / "root"),
    ]
    done = subprocess.run(["setpriv", "--bounding-set=-sys_admin", *argv], capture_output=True, text=True)
    assert "cannot be put under FUSE" in done.stderr
    assert "unmounted" not in done.stderr


FSYNCS = "import os, sys; file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.write(file, b'x'); os.fsync(file)"


async def test_a_kill_waits_for_the_children_of_the_server(tmp_path: Path) -> None:
    async with local_agent(tmp_path) as agent:
        disk, output = tmp_path / "disk", tmp_path / "server.log"
        await agent.link.ask(DiskVerbs.mount, str(disk), str(tmp_path / "root"))
        slow = [{"operations": ["fsync"], "delay_s": 1.0}]
        await agent.link.ask(DiskVerbs.behave, slow, 1)
        parent = f'"$1" -c "{FSYNCS}" "$2" & echo $!; wait'
        await agent.node.start(["sh", "-c", parent, "sh", sys.executable, str(disk / "file")], output=str(output))
        await eventually(lambda: (disk / "file").exists() and (disk / "file").read_bytes() == b"x")
        await eventually(lambda: output.read_text().endswith("\n"))
        child = int(output.read_text())
        await agent.node.signal("KILL")
        assert not is_alive(child)
