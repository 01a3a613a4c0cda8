"""Starts the virtual machine of Spark, and leaves no file of the start behind, even if the harness is killed.

While the virtual machine starts, pyspark keeps a folder under a name that does not show whose it is.  If the harness
were killed then, the folder would stay for ever.  So it is made in the cache folder, and this process holds its lock.
The next start removes the folders whose processes have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checkers.base.cache_folder import cache_folder

_ONE_AT_A_TIME = threading.Lock()


def launch(conf: Any, popen_options: Mapping[str, Any]) -> Any:
    """Start a virtual machine with a SparkConf.  Returns pyspark's gateway to it.

    Raises what pyspark raises if the virtual machine does not start.
    """
    from pyspark import java_gateway

    with _ONE_AT_A_TIME, _folder_of_this_start() as folder:
        temporary_files = java_gateway.tempfile
        java_gateway.tempfile = SimpleNamespace(
            mkdtemp=lambda: tempfile.mkdtemp(dir=folder), mkstemp=temporary_files.mkstemp
        )
        try:
            return java_gateway.launch_gateway(conf, dict(popen_options))
        finally:
            java_gateway.tempfile = temporary_files


@contextlib.contextmanager
def _folder_of_this_start() -> Iterator[Path]:
    starts = cache_folder() / "spark-starts"
    starts.mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        with _locked(starts):
            _remove_those_of_ended_processes(starts)
            folder = Path(tempfile.mkdtemp(dir=starts))
            held.enter_context(_locked(folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _remove_those_of_ended_processes(starts: Path) -> None:
    for folder in starts.iterdir():
        with contextlib.suppress(BlockingIOError), _locked(folder, fcntl.LOCK_NB):
            shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(folder: Path, options: int = 0) -> Iterator[None]:
    """Hold the lock of a folder; the kernel frees it when this process ends.

    Raises BlockingIOError if another process holds it and `options` is LOCK_NB.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | options)
        yield
    finally:
        os.close(descriptor)
