"""Each start of a server marks its output, and each complaint belongs to the life that wrote it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE_S

from system_under_test.own import processes_as_one_server

PATTERN = re.compile(r"^(?:panic|corrupted).*", re.MULTILINE)


def found(text: str) -> list[tuple[str, int, int]]:
    complaints = processes_as_one_server.complaints_of("n1", text, PATTERN)
    return [(c.reason, c.facts["pid"], c.facts["lines_before_end"]) for c in complaints]


def test_every_different_complaint_of_every_life_is_found() -> None:
    first = "panic at 1\npanic at 2\n  a stack\n\ncorrupted: k1\nbye\n"
    text = processes_as_one_server.mark(7) + first + "torn" + processes_as_one_server.mark(8) + "corrupted: k2\n"
    assert found(text) == [("panic at 1", 7, 4), ("corrupted: k1", 7, 2), ("corrupted: k2", 8, 0)]


def test_a_log_without_marks_is_of_no_known_life() -> None:
    assert found("panic\n") == [("panic", processes_as_one_server.NO_LIFE, 0)]
    assert found("panic\n" + processes_as_one_server.mark(7) + "corrupted\n") == [
        ("panic", processes_as_one_server.NO_LIFE, 0),
        ("corrupted", 7, 0),
    ]
    assert not list(processes_as_one_server.lives("\n"))


def test_what_is_beyond_the_limit_is_counted() -> None:
    words = [f"panic {'x' * count}" for count in range(processes_as_one_server.COMPLAINTS_MAX + 3)]
    complaints = found(processes_as_one_server.mark(7) + "\n".join(words) + "\n")
    assert len(complaints) == processes_as_one_server.COMPLAINTS_MAX + 1
    assert complaints[-1] == ("3 more different lines match `complaints`", 7, 2)


def test_the_last_words_are_those_of_the_life_that_ended(tmp_path: Path) -> None:
    first = "up\n\x1b[31m\nno space\nrolled back\n\n"
    (tmp_path / "server.log").write_text(
        processes_as_one_server.mark(7) + first + processes_as_one_server.mark(8) + "up again\n"
    )
    assert processes_as_one_server.last_words(tmp_path, 7) == "[31m\nno space\nrolled back"
    assert processes_as_one_server.last_words(tmp_path, 8) == "up again"
    assert (
        processes_as_one_server.last_words(tmp_path, 9)
        == processes_as_one_server.last_words(tmp_path / "none", 7)
        == ""
    )


def test_of_a_long_line_the_beginning_stays_because_it_says_what_happened(tmp_path: Path) -> None:
    long = "Error: WAL(no such record), " + "x" * 1000 + ", file: 7"
    (tmp_path / "server.log").write_text(processes_as_one_server.mark(7) + f"up\n{long}\n")
    words = processes_as_one_server.last_words(tmp_path, 7)
    assert words.splitlines()[-1].startswith("Error: WAL(no such record), xxx")
    assert words.endswith("xxx, file: 7")
    assert len(words) < 300


def test_the_last_words_of_several_processes_are_those_of_the_one_that_ended_first(tmp_path: Path) -> None:
    ended = "db ended with status 1; the others are killed"
    (tmp_path / "server.log").write_text(processes_as_one_server.mark(7) + ended + "\n")
    (tmp_path / "db.log").write_text(
        processes_as_one_server.mark(7) + "disk full\n" + processes_as_one_server.mark(8) + "up again\n"
    )
    assert processes_as_one_server.last_words(tmp_path, 7) == f"disk full\n{ended}"


def test_a_shell_that_becomes_the_server_announces_its_own_id() -> None:
    own = [sys.executable, "-c", "import os; print(os.getpid())"]
    process = subprocess.Popen([*processes_as_one_server.ANNOUNCED, *own], stdout=subprocess.PIPE, text=True)
    (life,) = processes_as_one_server.lives(process.communicate()[0])
    assert life.pid == process.pid == int(life.text)


def test_several_processes_mark_each_of_their_logs(tmp_path: Path) -> None:
    named = json.dumps(
        {"a": ["sh", "-c", "echo panic a; sleep 0.2"], "b": ["sh", "-c", "echo panic b; exec sleep 1000"]}
    )
    argv = [sys.executable, "-m", "system_under_test.own.processes_as_one_server", named, str(tmp_path)]
    pids = []
    for _ in range(2):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        (life,) = processes_as_one_server.lives(process.communicate(timeout=PATIENCE_S)[0])
        assert life.pid == process.pid
        pids.append(process.pid)
    assert [life.pid for life in processes_as_one_server.lives((tmp_path / "a.log").read_text())] == pids
    assert found((tmp_path / "a.log").read_text()) == [("panic a", pid, 0) for pid in pids]


def test_the_last_words_of_a_life_are_its_panic_and_not_the_note_below_it(tmp_path: Path) -> None:
    log = "ready\nthread 'main' panicked at src/main.rs:3:5:\nno quorum\nnote: run with `RUST_BACKTRACE=1`\nlate line\n"
    (tmp_path / "server.log").write_text(
        processes_as_one_server.mark(7)
        + log
        + processes_as_one_server.mark(8)
        + "ready\nnote: run with `RUST_BACKTRACE=1`\n"
    )
    assert processes_as_one_server.last_words(tmp_path, 7) == "thread 'main' panicked at src/main.rs:3:5:\nno quorum"
    assert processes_as_one_server.last_words(tmp_path, 8) == "ready"
