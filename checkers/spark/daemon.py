"""The process from which Spark forks its Python workers: `python -m checkers.spark.daemon`.

On a cluster, `bundle` starts this daemon.

The daemon does four things that Spark's own daemon does not:

  * it imports pyspark from its installed folder, and before the first fork (`import_unzipped`);
  * it loads the kernels before the first fork, so that no worker has to (0.5 s per worker);
  * it disables garbage collection meanwhile, and then calls gc.freeze(), so that the collection after every task has
    few objects to visit (it saves 56 ms per task);
  * it limits the memory of a worker.  A kernel that needs too much memory then gets a MemoryError, and its part is
    unknown.  Without the limit the worker would be killed, and its part would have no verdict.

If the kernels cannot be loaded, the workers are forked nevertheless.  Before judging, the driver asks each node for its
`WorkerHost` (`ask`), which contains the reason.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MEMORY_VARIABLE = "KRUCIBLE_WORKER_MEMORY_BYTES"

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class WorkerHost:
    """A daemon that forks Python workers.

    host: host name of its machine
    pid: its process id
    python: its version of Python
    problem: reason, in one sentence, why its workers cannot judge, or ""
    ready_s: duration of unpacking and loading in seconds
    compiled: number of kernels that were compiled here, because their machine code did not fit the processor or the
    versions
    compile_s: duration of these compilations in seconds; included in ready_s
    worker_memory_bytes: maximum address space of a worker
    """

    host: str
    pid: int
    python: str
    problem: str = ""
    ready_s: float = 0.0
    compiled: int = 0
    compile_s: float = 0.0
    worker_memory_bytes: int = 0


_described: WorkerHost | None = None


def ask(_: object) -> WorkerHost:
    """Return the `WorkerHost` of the daemon that forked this worker; to be run as a task."""
    unprepared = "its workers were not forked from Krucible's daemon (is spark.python.daemon.module set elsewhere?)"
    return _described or WorkerHost(socket.gethostname(), os.getppid(), platform.python_version(), problem=unprepared)


def worker_memory_bytes() -> int:
    """Return the maximum address space of a worker in bytes: KRUCIBLE_WORKER_MEMORY_BYTES if this variable is set.

    Otherwise half of the memory of the machine or container, but at least 4 GiB, because a worker uses only a small
    part of its address space.
    """
    named = os.environ.get(MEMORY_VARIABLE, "")
    if named.isdigit():
        return int(named)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _CGROUP_LIMIT.exists() and (limit := _CGROUP_LIMIT.read_text().strip()).isdigit():
        memory = min(memory, int(limit))
    return max(4 << 30, memory // 2)


def import_unzipped() -> None:
    """Make Python import pyspark and py4j from the folder in which pip installed them, not from Spark's zip files.

    Spark puts its zip files first in sys.path.  They contain no bytecode, so Python would compile pyspark in each
    daemon and each worker, which takes one second of CPU time.
    """
    for zipped in [Path(entry) for entry in sys.path if entry.endswith(".zip") and len(Path(entry).parents) > 3]:
        installed = zipped.parents[3]  # the folder that contains pyspark/python/lib
        both = all((installed / name / "__init__.py").exists() for name in ("pyspark", "py4j"))
        if zipped.name.startswith(("pyspark", "py4j")) and both and str(installed) in sys.path:
            sys.path.remove(str(zipped))


@dataclass
class Compilations:
    """Record of compilations.

    names: names of the compiled functions, in order, one entry for each combination of types
    seconds: total duration in seconds
    """

    names: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def watch_compiler() -> Iterator[Compilations]:
    """Record the compilations inside the block; the record is complete when the block ends.

    Loading machine code from the cache does not count as a compilation.
    """
    from numba.core import event

    seen = Compilations()
    with event.install_recorder("numba:compile") as recorder:
        yield seen
    depth, began = 0, 0.0
    for at, reported in recorder.buffer:
        if reported.is_start:
            function = reported.data["dispatcher"].py_func
            seen.names.append(f"{function.__module__}.{function.__qualname__}")
            began = at if depth == 0 else began
            depth += 1
        else:
            depth -= 1
            seen.seconds += at - began if depth == 0 else 0.0


def main(began: float | None = None) -> None:
    """Load the kernels, and fork workers until Spark closes standard input.

    began: `time.monotonic()` when the process began; None for now
    """
    global _described
    gc.disable()
    import_unzipped()
    import pyspark.worker  # noqa: F401 - each worker would import it after its fork
    from pyspark.daemon import manager

    _described = _ready(time.monotonic() if began is None else began)
    gc.freeze()
    gc.enable()
    manager()


def _ready(began: float) -> WorkerHost:
    limit = worker_memory_bytes()
    problem, compiled, compile_s = "", 0, 0.0
    try:
        from checkers.few_rows import load_kernels_of_parts

        with watch_compiler() as compiler:
            load_kernels_of_parts()
        compiled, compile_s = len(compiler.names), compiler.seconds
    except Exception as wrong:  # noqa: BLE001 - the driver has to learn of any failure
        problem = f"{type(wrong).__name__}: {wrong}"
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    return WorkerHost(
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        problem=problem,
        ready_s=round(time.monotonic() - began, 3),
        compiled=compiled,
        compile_s=round(compile_s, 3),
        worker_memory_bytes=limit,
    )


if __name__ == "__main__":
    from checkers.spark import daemon  # tasks read the description in the module of this name

    daemon.main()
