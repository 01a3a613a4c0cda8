"""Start a node:  python -m system_under_test.kraft --config FILE   (--format makes its data directory first)."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from system_under_test.kraft.config import BadConfig, load
from system_under_test.kraft.process import CannotStart, format_directory, run

CANNOT_START = 1


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m system_under_test.kraft",
        description="Run one node of the bundled KRaft: voter, controller and metadata-serving broker in one.",
        epilog="Exit status: 0 after SIGTERM; 1 if it cannot start or refuses to go on; 70 for an unexpected error.",
    )
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the node's JSON configuration")
    parser.add_argument(
        "--format",
        action="store_true",
        help="instead of running, empty the data directory and write its meta.properties (erases an earlier log!)",
    )
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = load(arguments.config)
        if arguments.format:
            format_directory(config)
            return 0
        return asyncio.run(run(config))
    except (BadConfig, CannotStart, OSError) as problem:
        print(f"cannot start: {problem}", file=sys.stderr)
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
