"""Watches the compiler: kernels without machine code that were compiled while a block of code ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from numba.core import event


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
