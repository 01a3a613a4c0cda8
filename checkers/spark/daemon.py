"""The process from which Spark forks its Python workers: `python -m checkers.spark.daemon`.

On a cluster, `bundle` starts it.

It does four things that the stock daemon does not:

  * it imports pyspark from where it is installed, and before the first fork (`import_unzipped`);
  * it loads the kernels before the first fork, so that no worker has to (0.5 s each);
  * it collects no garbage meanwhile, and calls gc.freeze() after that, so that the collection after every task finds
    nothing to walk (56 ms each);
  * it limits the memory of a worker.  A kernel that runs wild then gets a MemoryError, which is a verdict (unknown).
    Without the limit it would be killed, which is no verdict.

If the kernels cannot be loaded, the workers are forked nevertheless.  The driver asks each node for its description
before judging (`ask`), and so learns the reason.
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
    """A place where Python workers are forked.

    problem: why no worker here can judge, in one sentence, or "".  ready_s: duration of unpacking and loading.
    compiled: kernels whose machine code did not fit this processor or these versions, so they were compiled here.
    compile_s: the part of ready_s for this.
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
    """Run as a task: returns the description that the daemon of this worker remembered."""
    unprepared = "its workers were not forked from Krucible's daemon (is spark.python.daemon.module set elsewhere?)"
    return _described or WorkerHost(socket.gethostname(), os.getppid(), platform.python_version(), problem=unprepared)


def worker_memory_bytes() -> int:
    """Return the address space that a worker may take: KRUCIBLE_WORKER_MEMORY_BYTES, else half of the machine's memory.

    If a container has less memory than the machine, half of that.  Without the variable never less than 4 GiB: a worker
    touches only a small part of its address space.
    """
    named = os.environ.get(MEMORY_VARIABLE, "")
    if named.isdigit():
        return int(named)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _CGROUP_LIMIT.exists() and (limit := _CGROUP_LIMIT.read_text().strip()).isdigit():
        memory = min(memory, int(limit))
    return max(4 << 30, memory // 2)


def import_unzipped() -> None:
    """Make Python import pyspark and py4j from the folder in which pip installed them, in place of Spark's zips.

    Spark puts its zips first.  They hold no bytecode, so Python compiles pyspark anew in each daemon and each worker,
    which takes a second of a processor.
    """
    for zipped in [Path(entry) for entry in sys.path if entry.endswith(".zip") and len(Path(entry).parents) > 3]:
        installed = zipped.parents[3]  # the folder that contains pyspark/python/lib
        both = all((installed / name / "__init__.py").exists() for name in ("pyspark", "py4j"))
        if zipped.name.startswith(("pyspark", "py4j")) and both and str(installed) in sys.path:
            sys.path.remove(str(zipped))


@dataclass
class Compilations:
    """Record of the compiler's work.

    names: the functions it compiled, in order, one entry for each combination of types.  seconds: the time it took.
    """

    names: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def watch_compiler() -> Iterator[Compilations]:
    """Record what is compiled inside the block; the record is complete when the block ends.

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
    """Make ready and fork workers until Spark closes standard input.  began: `time.monotonic()` of the first step."""
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
