"""Marks kernels: pure functions over arrays that are compiled, or run as Python if that is cheaper.

Loading the compiler and the kernels of a check takes half a second.  So a small history is judged by the same kernels
as Python functions (`python_alone`), with the same results (`plain.py`).  Otherwise the first call of a kernel loads
the compiler and the machine code (`machine_code.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cached_property, update_wrapper
from types import CellType, CodeType, FunctionType, MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

SMALL_BYTES = 100_000
"""Total size of histories judged without the compiler while it is not loaded: this takes about as long as loading
it.
"""

BEFORE_COMPILING: list[Callable[[], None]] = []
"""Called when a kernel without machine code is about to be compiled, which takes seconds."""


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function over NumPy arrays; it keeps its Python signature for the type checker."""
    return cast(Callable[P, R], Kernel(function))


def bare_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Act like `kernel`, for functions that neither make nor return arrays, and call only such functions.

    Their arguments outlive the call, so references need no counting.  Counting is atomic: the readers of text take four
    times as long with it.
    """
    return cast(Callable[P, R], Kernel(function, _nrt=False))


def inner_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Act like `bare_kernel`, for innermost functions; they are inlined into their callers, and only kernels may call
    them: without an entry for Python, all kernels are compiled in four fifths of the time.

    A function that reads ten arrays out of tuples would spend most of its time on passing a hundred numbers on the
    stack.
    """
    return cast(Callable[P, R], Kernel(function, _nrt=False, forceinline=True, no_cpython_wrapper=True))


def spliced_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Act like `kernel`, for a function with one caller that calls a large kernel; it is never compiled on its own.

    The compiler compiles a kernel together with everything it calls.  So each layer above a large kernel would cost
    that kernel's compile time again.
    """
    return cast(Callable[P, R], Kernel(function, inline="always"))


def instruction(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile calls of a function to one instruction of the processor, `cttz` or `ctpop`.  Only kernels may call it."""

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        return cast(Callable[P, R], Kernel(function, name))

    return marked


class Kernel:
    """A kernel: its function, and how it is compiled. instruction: the processor instruction that replaces it in
    machine code.
    """

    def __init__(self, function: Callable[..., Any], instruction: str = "", **options: Any) -> None:
        update_wrapper(self, function)
        self.function = cast(FunctionType, function)
        self.instruction, self.options = instruction, MappingProxyType(options)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = _CALL.get()
        if call is not None:
            return call(self, *arguments, **named)
        if "no_cpython_wrapper" in self.options:
            raise TypeError(f"{self.function.__name__} is an inner kernel: only kernels may call it")
        return self.compiled(*arguments, **named)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """Return the kernel as the compiler calls it; its first use loads the compiler."""
        from checkers.kernels.machine_code import compiled

        return compiled(self)


_CALL: ContextVar[Callable[..., Any] | None] = ContextVar("how kernels are called", default=None)


class NeedsCompiler(Exception):
    """Kernels as Python functions cannot judge this, or would take longer than loading the compiler."""


def compiler_is_loaded() -> bool:
    """Return True if this process has loaded the compiler."""
    return "numba" in sys.modules


def python_alone(work: Callable[[], R], size_bytes: int) -> R:
    """Run work that calls kernels; without the compiler if it is small, else, or if that fails, with it.

    The work may run twice, so it must have no side effects. size_bytes: of the judged data.
    """
    if size_bytes <= SMALL_BYTES and not compiler_is_loaded():
        from checkers.kernels.plain import call, may_go_on

        if may_go_on():
            token = _CALL.set(call)
            try:
                return work()
            except NeedsCompiler:
                pass
            finally:
                _CALL.reset(token)
    return work()


def load_compiler_for(size_bytes: int) -> None:
    """Load the compiler if histories of this total size, judged one by one, would take longer without it."""
    if size_bytes > SMALL_BYTES:
        import checkers.kernels.machine_code  # noqa: F401


class KernelCopies:
    """Copies of kernels' functions with other globals: each kernel that they call is a copy, too.

    finish: makes the result of a copy. constant: returns the replacement of any other global of a kernel.
    """

    def __init__(self, finish: Callable[[Kernel, FunctionType], Any], constant: Callable[[Any], Any]) -> None:
        self._finish, self._constant = finish, constant
        self._made: dict[Kernel, Any] = {}
        self._globals: dict[int, dict[str, Any]] = {}

    def of(self, kernel: Kernel) -> Any:
        """Return the copy of a kernel."""
        if kernel not in self._made:
            function = kernel.function
            known, code = function.__globals__, function.__code__
            names = self._globals.setdefault(id(known), {n: known[n] for n in ("__name__", "__builtins__")})
            cells = tuple(CellType() for _ in function.__closure__ or ())
            copy = FunctionType(code, names, function.__name__, function.__defaults__, cells or None)
            self._made[kernel] = self._finish(kernel, copy)  # a function may be recursive
            for name in _names_in(code):
                if name in known and name not in names:
                    names[name] = self._instead(known[name])
            for cell, original in zip(cells, function.__closure__ or (), strict=True):
                cell.cell_contents = self._instead(original.cell_contents)
        return self._made[kernel]

    def _instead(self, value: Any) -> Any:
        if isinstance(value, tuple) and any(isinstance(item, Kernel) for item in value):
            items = map(self._instead, value)
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return self.of(value) if isinstance(value, Kernel) else self._constant(value)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
