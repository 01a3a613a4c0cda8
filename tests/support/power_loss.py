"""How a test ends a node at one point of its work on the disk."""

from __future__ import annotations


class PowerLoss(BaseException):
    """Raised by `before_change` of a `VolatileDisk` to end everything at this very point; nothing may catch it."""
