"""The process Spark forks its Python workers from, on this machine: `python -m checkers.spark.daemon`.

Three things the stock daemon does not do:

  * it loads the kernels before the first fork, so that no worker has to (0.5 s each);
  * it calls gc.freeze() after that, so that the collection a worker makes after every task finds nothing to walk
    (56 ms each);
  * it limits the memory a worker may ask for, so that a kernel that runs wild gets a MemoryError, which is a verdict
    (unknown), instead of being killed, which is none.
"""

from __future__ import annotations

import gc
import os
import resource

MEMORY_VARIABLE = "KRUCIBLE_WORKER_MEMORY_BYTES"


def worker_memory_bytes() -> int:
    """Address space a worker may take: KRUCIBLE_WORKER_MEMORY_BYTES, else half of the machine's memory."""
    named = os.environ.get(MEMORY_VARIABLE, "")
    if named.isdigit():
        return int(named)
    return max(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def main() -> None:
    from pyspark.daemon import manager

    from checkers.warm import load_kernels

    load_kernels()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = worker_memory_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
