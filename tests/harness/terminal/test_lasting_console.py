"""A run goes on when the reader of its output has gone."""

from __future__ import annotations

import os
from pathlib import Path

from harness.terminal.progress import LastingConsole


def test_what_is_printed_after_the_reader_has_gone_goes_nowhere() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        console = LastingConsole(file=stream)
        console.print("first")
        stream.flush()
        assert os.read(reading, 100) == b"first\n"
        os.close(reading)
        console.print("second")
        stream.flush()
        console.print("third")
        print("of another writer", file=stream, flush=True)
        assert os.fstat(stream.fileno()).st_rdev == Path(os.devnull).stat().st_rdev
