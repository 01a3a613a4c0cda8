"""The line with the reason of a program's end is found above notes and above later output of other threads."""

from __future__ import annotations

import pytest

from checkers.base.cause_of_end import cause_of_end, is_note

RUST = """
2026-01-01 INFO listening
thread 'tokio-runtime-worker' panicked at src/main.rs:41:10:
called `Result::unwrap()` on an `Err` value: Corrupt("length 0")
stack backtrace:
   0: rust_begin_unwind
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
2026-01-01 WARN shutting down
"""
OLD_RUST = """
thread 'main' panicked at 'no quorum', src/main.rs:3:5
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""
PYTHON = """
Traceback (most recent call last):
  File "server.py", line 3, in <module>
    main()
ValueError: no such disk
closing connections
"""
BOOT_FAILED = """
[info] starting
[error] <0.208.0> BOOT FAILED
[error] <0.208.0> ===========
[error] <0.208.0> Exception during startup:
[info] stopping
[info] stopped
"""
TWICE = PYTHON + PYTHON.replace("no such disk", "no memory")


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        (
            RUST,
            [
                "thread 'tokio-runtime-worker' panicked at src/main.rs:41:10:",
                'called `Result::unwrap()` on an `Err` value: Corrupt("length 0")',
            ],
        ),
        (OLD_RUST, ["thread 'main' panicked at 'no quorum', src/main.rs:3:5"]),
        (PYTHON, ["ValueError: no such disk"]),
        (TWICE, ["ValueError: no memory"]),
        ("starting\npanic: runtime error: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n", None),
        ("starting\nready\nbye\n", []),
        (BOOT_FAILED, ["[error] <0.208.0> BOOT FAILED", "[error] <0.208.0> Exception during startup:"]),
        ('{"level":"error","msg":"no quorum"}\n' + "{}\n" * 99, ['{"level":"error","msg":"no quorum"}']),
        ("ERROR lost a peer\nFATAL no disk\nERROR closing\nINFO bye\n", ["FATAL no disk"]),
        ("", []),
        ("Traceback (most recent call last):\n", []),
    ],
)
def test_the_cause_is_found(printed: str, cause: list[str] | None) -> None:
    expected = ["panic: runtime error: index out of range"] if cause is None else cause
    assert cause_of_end(printed.splitlines()) == expected


def test_notes_say_only_how_to_see_more() -> None:
    assert is_note("note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace")
    assert not is_note("note: this is what happened")
