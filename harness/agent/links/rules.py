"""Firewall tables of our own: changed one transaction at a time, deleted when the agent ends, however it ends."""

from __future__ import annotations

import asyncio
import errno
import subprocess
from collections.abc import Sequence

from harness.agent.programs.children import Children
from harness.agent.programs.commands import run

Table = tuple[str, str]
"""Family and name, e.g. ("bridge", "krucible_x")."""


class FirewallTables:
    def __init__(self, children: Children) -> None:
        self._children = children
        self._owned: set[Table] = set()
        self._in_order = asyncio.Lock()

    async def apply(self, text: str, owned: Sequence[Table]) -> None:
        """One nft transaction: all of `text` or nothing.  owned: tables to delete when the agent ends.

        Raises OSError with nft's own words."""
        self._owned.update((family, name) for family, name in owned)
        async with self._in_order:  # the last change ordered must be the last one made
            status, _, words = await run(self._children, ["nft", "-f", "-"], 10.0, text.encode())
        if status != 0:
            raise OSError(errno.EINVAL, f"nft refused: {words.decode(errors='replace').strip()[:500]}")

    def delete_owned(self) -> None:
        """Blocks until they are gone; used when the agent ends, so it must not need the loop."""
        if self._owned:
            text = "".join(without(table) for table in self._owned)
            subprocess.run(["nft", "-f", "-"], input=text.encode(), check=False, timeout=5.0, capture_output=True)
            self._owned.clear()


def without(table: Table) -> str:
    """nft text that deletes a table whether or not it exists (`destroy` needs a newer kernel)."""
    family, name = table
    return f"add table {family} {name}\ndelete table {family} {name}\n"
