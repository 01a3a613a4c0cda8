"""A small harness for the tests to kill: takes three hosts, says so, and holds them.

    python ssh_owner.py <inventory> <run id> [wanted capabilities]

Prints "creating" when it begins, "up" when everything answers (a server runs, a link is cut).  SIGINT ends it in order.
"""

from __future__ import annotations

import asyncio
import sys

from harness.backends.backend import ClusterSpec
from harness.backends.ssh.backend import SshBackend


async def main(inventory: str, run_id: str, *wanted: str) -> None:
    spec = ClusterSpec(run_id, ("n1", "n2"), ("c1",), seed=1, wanted=frozenset(wanted), inventory=inventory)
    backend = SshBackend(spec)
    try:
        print("creating", flush=True)
        await backend.create(lambda words: None)
        await backend.node("n1").start(["sleep", "1000"])
        await backend.cut({("n1", "n2")})
        print("up", flush=True)
        await asyncio.sleep(1000)
    finally:
        await asyncio.shield(backend.destroy())


asyncio.run(main(*sys.argv[1:]))
