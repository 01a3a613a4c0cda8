"""Start a node:    python -m system_under_test.kraft --config FILE   (--format prepares its data directory first)
Print its files:  python -m system_under_test.kraft dump [--batches] PATH...
Change voters:    python -m system_under_test.kraft voters list|add|remove|upgrade --servers HOST:PORT,...
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from system_under_test.kraft.log.small_files import kafka_uuid
from system_under_test.kraft.node.config import BadConfig, Config, format_directory, load

CANNOT_START = 1
USAGE = 3


def main() -> int:
    if sys.argv[1:2] == ["dump"]:
        return _dump(sys.argv[2:])
    if sys.argv[1:2] == ["voters"]:
        return _voters(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m system_under_test.kraft",
        description="Run one node of the bundled KRaft: voter, controller and metadata-serving broker in one.  "
        '"dump PATH..." prints the files of a node instead; see "dump --help".',
        epilog="Exit status: 0 after SIGTERM; 1 if it cannot start or refuses to go on; 70 for an unexpected error.",
    )
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="the node's JSON configuration")
    parser.add_argument(
        "--format",
        action="store_true",
        help="instead of running, write meta.properties into the data directory and print the new directory id",
    )
    parser.add_argument(
        "--force", action="store_true", help="with --format: erase a formatted directory, including its log"
    )
    parser.add_argument(
        "--replace-disk",
        action="store_true",
        help="with --format and --force: treat the directory as a new disk of the node, and continue the trace",
    )
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = load(arguments.config)
        if not arguments.format:
            return _run(config)
        print(kafka_uuid(format_directory(config, force=arguments.force, keeps_trace=arguments.replace_disk)))
    except (BadConfig, OSError) as problem:
        return _cannot_start(problem)
    return 0


def _run(config: Config) -> int:
    # The codec of the wire protocol imports Hypothesis wherever it is installed, for tests of its types: half a second.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # None: it counts as not installed
    # imported here, so that formatting does not load the wire protocol
    from system_under_test.kraft.node.assembly import CannotStart
    from system_under_test.kraft.node.process import run

    try:
        return asyncio.run(run(config))
    except (CannotStart, OSError) as problem:
        return _cannot_start(problem)


def _dump(argv: list[str]) -> int:
    """Return 0; 1 if a file is corrupt; 3 if a path is no file of a node."""
    # imported here, because a node that starts does not need it
    from system_under_test.kraft.dump import DAMAGED, lines_of

    parser = argparse.ArgumentParser(
        prog="python -m system_under_test.kraft dump",
        description="Print the files of a node: logs, snapshots, quorum-state.",
        epilog="Exit status: 0; 1 if a file is corrupt; 3 if a path is no file of a node.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files, or a data directory")
    parser.add_argument("--batches", action="store_true", help="print only batches, without their records")
    arguments = parser.parse_args(argv)
    status = 0
    try:
        for path in arguments.paths:
            for line in lines_of(path, records=not arguments.batches):
                print(line)
                status = max(status, line.startswith(DAMAGED))
    except BrokenPipeError:
        sys.stdout = None  # the reader has seen enough
    except (OSError, ValueError) as problem:
        print(f"cannot dump: {problem}", file=sys.stderr)
        return USAGE
    return status


def _voters(argv: list[str]) -> int:
    """Return 0; 1 if the quorum did not agree in time."""
    # imported here, because a node that starts does not need it
    from system_under_test.kraft.voters_tool import run

    try:
        print(asyncio.run(run(argv)).as_json())
    except OSError as problem:
        print(f"the voters did not change: {problem}", file=sys.stderr)
        return CANNOT_START
    return 0


def _cannot_start(problem: Exception) -> int:
    print(f"cannot start: {problem}", file=sys.stderr)
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
