"""Watching the compiler: which kernels had no machine code and were compiled while something ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from numba.core import event


@dataclass
class Compilations:
    """names: of the functions compiled, in order, one entry per combination of types.  seconds: it took, in all."""

    names: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def watch_compiler() -> Iterator[Compilations]:
    """What is compiled inside the block; complete when it ends.  Loading kept machine code is no compilation."""
    seen = Compilations()
    with event.install_recorder("numba:compile") as recorder:
        yield seen
    depth, began = 0, 0.0
    for at, said in recorder.buffer:
        if said.is_start:
            function = said.data["dispatcher"].py_func
            seen.names.append(f"{function.__module__}.{function.__qualname__}")
            began = at if depth == 0 else began
            depth += 1
        else:
            depth -= 1
            seen.seconds += at - began if depth == 0 else 0.0
