"""`python -m harness.backends.docker build`: make the node image now, so that the first test need not.

A set-up begins with it as soon as the `docker` package is there, beside the installation of everything else.  So this
module and all that it imports need no other package.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import Interrupted
from harness.backends.docker.image import ensure_image


def main(arguments: list[str]) -> int:
    if arguments != ["build"]:
        print("usage: python -m harness.backends.docker build", file=sys.stderr)
        return 3
    started = time.monotonic()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        tag = ensure_image(lambda words: print(f"  set-up: {words}", flush=True), stop)
    except (BackendUnavailable, Interrupted) as problem:
        print(problem, file=sys.stderr)
        return 3
    print(f"  set-up: {tag} is ready ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
