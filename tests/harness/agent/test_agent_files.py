"""What the agent writes on a node belongs to whom the folder belongs, so that its server may change it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.agent import files

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to write for another user")
def test_a_file_in_the_folder_of_another_user_belongs_to_that_user(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    for path in (tmp_path / "server.conf", tmp_path / "conf" / "more" / "users.conf"):
        files.Files().write(str(path), b"port 1\n")
        files.Files().write(str(path), b"port 2\n")
        assert path.read_bytes() == b"port 2\n"
    made = {str(path.relative_to(tmp_path)): path.stat().st_uid for path in tmp_path.rglob("*")}
    assert made == dict.fromkeys(("server.conf", "conf", "conf/more", "conf/more/users.conf"), NOBODY)


def test_a_file_in_a_folder_of_ours_stays_ours(tmp_path: Path) -> None:
    files.Files().write(str(tmp_path / "conf" / "server.conf"), b"")
    assert (tmp_path / "conf" / "server.conf").stat().st_uid == os.geteuid()
