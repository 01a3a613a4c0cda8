"""Misbehaviour of the disk on order: which operations fail, with which error, and how long others take.

A behaviour is a list of rules.  A rule names operations, may name files by a pattern, and says what happens: an error,
a delay, or both.  The first rule that fits decides.  All random choices come from the seed of the order.
"""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

OPERATIONS = ("open", "read", "write", "fsync")
"""What a rule may name.  write: also truncations and new names.  fsync: of a file or a folder."""
ERRORS = ("EIO", "ENOSPC", "EROFS", "EDQUOT")
SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk reports, and only for operations that take space."""
DELAY_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Rule:
    """operations: which, of OPERATIONS.  files: a pattern (fnmatch) that the name must match.

    error: of ERRORS, or "" for none.  share: how often it happens, from 0 to 1.  delay_s: before anything else.
    tail_share, tail_s: in that share of the operations the delay is tail_s instead.
    """

    operations: tuple[str, ...]
    error: str = ""
    files: str = "*"
    share: float = 1.0
    delay_s: float = 0.0
    tail_share: float = 0.0
    tail_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field."""
        if not self.operations or not set(self.operations) <= set(OPERATIONS):
            raise ValueError(f"operations must be some of {', '.join(OPERATIONS)}, not {list(self.operations)}")
        if self.error not in ("", *ERRORS):
            raise ValueError(f"error must be one of {', '.join(ERRORS)} or empty, not {self.error!r}")
        for name in ("share", "tail_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        for name in ("delay_s", "tail_s"):
            if not 0.0 <= getattr(self, name) <= DELAY_S_MAX:
                raise ValueError(f"{name} must be from 0 to {DELAY_S_MAX:g}, not {getattr(self, name)}")

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Rule:
        """Raises ValueError for unknown or wrong fields."""
        known = {field.name for field in fields(Rule)}
        if unknown := set(given) - known:
            raise ValueError(f"a rule has no field {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
        if "operations" not in given:
            raise ValueError("a rule must name its operations")
        return Rule(**{**given, "operations": tuple(given["operations"])})


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect on one operation: first the delay, then the error (0 for none)."""

    delay_s: float = 0.0
    number: int = 0


class Behaviour:
    """The rules in force.  Thread-safe as far as one assignment is."""

    def __init__(self) -> None:
        self._rules: Sequence[Rule] = ()
        self._rng = Random(0)

    def order(self, rules: Sequence[Rule], seed: int) -> None:
        """From now on exactly these rules hold; none means a healthy disk."""
        self._rng = Random(seed)
        self._rules = tuple(rules)

    def effect(self, operation: str, name: str) -> Effect:
        """Return what happens to an operation on a file of this name."""
        for rule in self._rules:
            if operation in rule.operations and fnmatch.fnmatch(name, rule.files):
                slow = rule.tail_share > 0 and self._rng.random() < rule.tail_share
                fails = rule.error != "" and (rule.share >= 1 or self._rng.random() < rule.share)
                number = getattr(errno, rule.error) if fails else 0
                return Effect(rule.tail_s if slow else rule.delay_s, number)
        return Effect()


def failing(effect: Effect) -> OSError:
    """The error of an effect."""
    return OSError(effect.number, os.strerror(effect.number))
