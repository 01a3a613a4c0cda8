"""A small harness for the tests to kill: makes a cluster, says so, and holds it.

    python cluster_owner.py <run id> [hold]

Prints "creating" when it begins, "up" when everything answers (a server runs, a link is cut).  SIGINT ends it in order.
"""

from __future__ import annotations

import asyncio
import sys

from harness.backends.backend import ClusterSpec
from harness.backends.docker.backend import DockerBackend


async def main(run_id: str) -> None:
    backend = DockerBackend(ClusterSpec(run_id, ("n1", "n2"), ("c1",), seed=1))
    try:
        print("creating", flush=True)
        await backend.create(lambda words: None)
        await backend.node("n1").start(["sleep", "1000"])
        await backend.cut({("n1", "n2")})
        print("up", flush=True)
        await asyncio.sleep(1000)
    finally:
        await asyncio.shield(backend.destroy())


asyncio.run(main(sys.argv[1]))
