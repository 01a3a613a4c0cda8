"""Runs kernels as Python functions, with the results of machine code.

In machine code an item of an integer array becomes a 64-bit integer.  NumPy's own scalars keep the smaller size of
their array.  So arrays are wrapped in `Numbers`, whose items are Python's numbers, and so are NumPy's casts.  Unsigned
words (uint64) stay NumPy's, because their arithmetic wraps around in machine code.

Errors that machine code ignores raise here: a number that does not fit into its array, or an index outside.  Then, and
if all work without the compiler takes long, the compiler is needed (`NeedsCompiler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from checkers.kernels.jit import Kernel, KernelCopies, NeedsCompiler

READS_MAX = 500_000
"""Maximum number of items that kernels read in one process: about as much time as loading the compiler takes."""

_left = [READS_MAX]
_UINT64 = np.dtype(np.uint64).char


def may_go_on() -> bool:
    """Return True if kernels may still run as Python functions."""
    return _left[0] > 0


def call(kernel: Kernel, *arguments: Any, **named: Any) -> Any:
    """Call a kernel as a Python function.  Raises NeedsCompiler, possibly after it has changed its arrays."""
    function = _COPIES.of(kernel)
    try:
        with np.errstate(all="ignore"):
            return _outside(function(*map(_inside, arguments), **{n: _inside(v) for n, v in named.items()}))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise NeedsCompiler(str(problem)) from problem


class Numbers(np.ndarray[Any, Any]):
    """An array whose items are Python's numbers; those of uint64 are NumPy's."""

    def __getitem__(self, at: Any) -> Any:
        _left[0] -= 1
        if _left[0] < 0:
            raise NeedsCompiler("it takes long")
        # indexed without a NumPy scalar, which takes 1/3 of the time
        if type(at) is int and self.ndim == 1 and self.dtype.char != _UINT64:
            return self.item(at)
        found = super().__getitem__(at)
        return found if isinstance(found, np.ndarray) or type(found) is np.uint64 else found.item()

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


class _Cast:
    """A type of NumPy: as a function it wraps around, and it names the type of an array."""

    def __init__(self, type_: type[np.generic]) -> None:
        self.dtype = np.dtype(type_)

    def __call__(self, value: Any) -> Any:
        kind, bits = self.dtype.kind, 8 * self.dtype.itemsize
        if kind not in "iu" or isinstance(value, np.ndarray):
            return _of_kernel(self.dtype.type(value))
        wrapped = int(value) & ((1 << bits) - 1)
        if kind == "u":
            return np.uint64(wrapped) if bits == 64 else wrapped
        return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped


class _Numpy:
    """The module `numpy` as kernels see it."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type) and issubclass(found, np.generic):
            found = _Cast(found)
        elif isinstance(found, np.ufunc) or not callable(found) or isinstance(found, type):
            return found
        else:
            found = _wrapped(found)
        setattr(self, name, found)
        return found


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        return _of_kernel(function(*map(_type_of, arguments), **{name: _type_of(v) for name, v in named.items()}))

    return called


def _type_of(value: Any) -> Any:
    return value.dtype if isinstance(value, _Cast) else value


def _of_kernel(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.view(Numbers)
    if isinstance(value, tuple):
        return _same_tuple(value, _of_kernel)
    return value.item() if isinstance(value, np.generic) and type(value) is not np.uint64 else value


def _inside(value: Any) -> Any:
    return _COPIES.of(value) if isinstance(value, Kernel) else _of_kernel(value)


def _outside(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if isinstance(value, tuple):
        return _same_tuple(value, _outside)
    return value.item() if isinstance(value, np.generic) else value


def _same_tuple(value: tuple[Any, ...], each: Callable[[Any], Any]) -> Any:
    items = map(each, value)
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _constant(value: Any) -> Any:
    return _NUMPY if value is np else _of_kernel(value) if isinstance(value, np.ndarray) else value


def _as_it_is(_: Kernel, function: FunctionType) -> FunctionType:
    return function


_NUMPY = _Numpy()
_COPIES = KernelCopies(_as_it_is, _constant)
