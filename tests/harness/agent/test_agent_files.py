"""Files of a node, and the lines that appear in them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from harness.agent import files
from harness.agent.files import Lines, form

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


PATIENCE_S = 20.0


async def printed_after(log: Path, pattern: str, nth: int, lines: list[bytes], verbs: Lines | None = None) -> str:
    waiting = asyncio.ensure_future((verbs or Lines()).await_line(str(log.parent), pattern, nth, PATIENCE_S))
    await asyncio.sleep(0)
    for line in lines:
        with log.open("ab", buffering=0) as file:
            file.write(line)
        await asyncio.sleep(0)
    line, seen_ns = await waiting
    assert seen_ns > 0
    return line


async def test_the_nth_line_from_now_on_is_awaited_even_if_it_is_written_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"leader 1\n")
    assert await printed_after(log, r"leader \d", 2, [b"lead", b"er 2\nx\nlea", b"der 3\nleader 4\n"]) == "leader 3"


async def test_a_log_that_appears_meanwhile_is_read_from_its_beginning(tmp_path: Path) -> None:
    assert await printed_after(tmp_path / "other.log", "up", 1, [b"up\n"]) == "up"


async def test_a_line_that_never_comes_ends_the_wait(tmp_path: Path) -> None:
    assert await Lines().await_line(str(tmp_path), "x", 1, 0.01) == ("", 0)


async def test_lines_are_unusual_that_were_seldom_before_the_first_wait(tmp_path: Path) -> None:
    log, verbs = tmp_path / "server.log", Lines()
    log.write_bytes(b"started\n" + b"".join(b"%d applied in %d ms\n" % (n, n) for n in range(9)))
    assert await printed_after(log, "", 1, [b"12 applied in 1 ms\nterm 7\n"], verbs) == "term 7"
    log.write_bytes(log.read_bytes() * 9)  # the first wait has learnt the usual length
    assert await printed_after(log, "", 2, [b"started\nterm 8\n"], verbs) == "term 8"


async def test_of_a_log_that_was_flooded_only_the_beginning_is_learned(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"applied\n" * 9 + b"x" * files.LEARNED_BYTES + b"\n" + b"retrying\n" * 9)
    assert await printed_after(log, "", 1, [b"applied\nretrying\n"]) == "retrying"


def test_lines_that_differ_in_numbers_and_identities_have_one_form() -> None:
    assert form(b"2026-01-02T03:04 8e9e05c52164694d at term 5") == form(b"2027-11-12T13:14 0x12 at term 12")
    assert form(b"became leader") != form(b"became follower")
