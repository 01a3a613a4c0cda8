"""The command line, called in this process: a process of its own would import for seconds what is loaded here."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from harness.backends.leftovers import KeptCluster, kept_clusters
from harness.cli.main import run_command_line

NO_SPARK = ("--spark-master", "spark://127.0.0.1:9")
"""No master answers there, so a run is judged in its own process, and no Java is started for it."""


def kept_in(run_folder: Path) -> KeptCluster | None:
    """The cluster of the run in this folder, if it was left up."""
    return next((kept for kept in kept_clusters() if kept.folder == str(run_folder.resolve())), None)


def krucible(*words: str) -> CompletedProcess[str]:
    """What `krucible WORDS` prints, and its exit code."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: object = None
    with patch.object(sys, "argv", ["krucible", *words]), redirect_stdout(out), redirect_stderr(err):
        try:
            run_command_line()
        except SystemExit as end:
            code = end.code
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
    assert isinstance(code, int)
    return CompletedProcess(words, code, out.read(), err.read())
