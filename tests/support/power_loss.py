"""How a test ends a node at one point of its work on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TypeVar

from simulation.disk import VolatileDisk

T = TypeVar("T")


class PowerLoss(BaseException):
    """Raised by `before_change` of a `VolatileDisk` to end everything at this very point; nothing may catch it."""


def at_every_moment(
    prepare: Callable[[VolatileDisk], T], act: Callable[[T], object]
) -> Iterator[tuple[VolatileDisk, bool]]:
    """Act on what is prepared on a new disk, with a power loss before the first change of the disk, the second, and so
    on.  Yield each disk, and whether `act` returned, as it does in the end."""
    for moment in count():
        changes, disk = count(), VolatileDisk()
        subject = prepare(disk)

        def before_change(changes: Iterator[int] = changes, moment: int = moment) -> None:
            if next(changes) == moment:
                raise PowerLoss

        disk.before_change = before_change
        returned = False
        with suppress(PowerLoss):
            act(subject)
            returned = True
        yield disk, returned
        if returned:
            assert moment > 3
            return
