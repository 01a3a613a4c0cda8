"""Explains why time puts one version of a register before another: which transactions met them, and when.

`version_orders.py` orders versions by time under the required model.  The witness must show the two transactions that
met the versions one after the other.  These transactions need not be on the cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from checkers.kernels.transactions.columns import NIL_VALUE, OK, READ, WRITE, element_bases
from checkers.kernels.transactions.dependencies import RW, WW
from checkers.transactions.anomalies import PROCESS, parts_of
from checkers.transactions.cycles import Step
from checkers.transactions.read import Transcript


def version_through(transcript: Transcript, step: Step) -> tuple[int, int] | None:
    """Return (key, value) of the version whose group an edge goes through, or None.

    The value of the initial version is NIL_VALUE.
    """
    if step.through < 0:
        return None
    txns = transcript.txns
    base = element_bases(txns, int(txns.key.max()) + 1)
    version = step.through - len(txns.status)
    if version >= base[-1]:
        return int(version - base[-1]), NIL_VALUE
    key = int(np.searchsorted(base, version, side="right")) - 1
    return key, int(version - base[key])


class InTime:
    """The edges of one cycle that follow from time.  assumes: the model under which they follow, or ""."""

    def __init__(self, transcript: Transcript, assumes: str) -> None:
        self._transcript = transcript
        self._assumes = assumes
        self._by_process = bool(assumes) and parts_of(assumes)[1] == PROCESS

    def met(self, step: Step) -> tuple[int, ...]:
        """Return the two transactions that met the versions of an edge in turn; () if time gives no order."""
        found = self._meeting(step)
        return () if found is None else found[:2]

    def explained(self, edge: dict[str, Any], names: Mapping[int, str] | Any, step: Step) -> dict[str, Any]:
        """Return the edge, with the two transactions added to its reason."""
        found = self._meeting(step)
        if found is None:
            return edge
        one, other, old, new = found
        name = self._transcript.key_name(self._key_of(step))
        after = "in the same process" if self._by_process else "after it had completed"
        words = f"{names[one]} met {name} as {old}, and {names[other]} met it as {new} {after}"
        return edge | {"why": f"{edge['why']} ({words})"}

    def _key_of(self, step: Step) -> int:
        through = version_through(self._transcript, step)
        return -1 if through is None else through[0]

    def _meeting(self, step: Step) -> tuple[int, int, Any, Any] | None:
        """Return (two transactions, the values they met) that order the version before that of the step's target."""
        if not self._assumes or step.kind not in (WW, RW):
            return None
        through = version_through(self._transcript, step)
        if through is None or through[1] == NIL_VALUE:
            return None
        key, old = through
        txns = self._transcript.txns
        mine = range(int(txns.first[step.target]), int(txns.first[step.target + 1]))
        rows = [r for r in mine if txns.key[r] == key]
        if txns.kind[rows[0]] == READ and int(txns.value[rows[0]]) == old:
            return None  # the transaction read the version itself and then wrote, so time is not needed
        new = max(r for r in rows if txns.kind[r] == WRITE)
        before, after = self._who_met(key, old), self._who_met(key, int(txns.value[new]))
        for one in before:
            for other in after:
                same = txns.process[one] == txns.process[other]
                in_order = txns.status[one] == OK and txns.completed[one] < txns.invoked[other]
                if in_order and (same or not self._by_process):
                    names = (
                        self._transcript.value_name(key, old),
                        self._transcript.value_name(key, int(txns.value[new])),
                    )
                    return one, other, *names
        return None

    def _who_met(self, key: int, value: int) -> list[int]:
        txns = self._transcript.txns
        rows = np.flatnonzero((txns.key == key) & (txns.value == value))
        owners = np.searchsorted(txns.first, rows, side="right") - 1
        return [int(t) for t, row in zip(owners, rows, strict=True) if txns.kind[row] == WRITE or txns.status[t] == OK]
