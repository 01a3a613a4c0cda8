"""`python -m harness.backends.docker build`: make the node image now, so that the first test need not."""

from __future__ import annotations

import sys
import time

from harness.backends.backend import BackendUnavailable
from harness.backends.docker.image import ensure_image


def main(arguments: list[str]) -> int:
    if arguments != ["build"]:
        print("usage: python -m harness.backends.docker build", file=sys.stderr)
        return 3
    started = time.monotonic()
    try:
        tag = ensure_image(lambda line: print(line, flush=True))
    except BackendUnavailable as unavailable:
        print(unavailable, file=sys.stderr)
        return 3
    print(f"{tag} is ready ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
