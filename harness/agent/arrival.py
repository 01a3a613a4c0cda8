"""The first program of a run on a user's own host: it admits one run at a time, and unpacks the files that the harness
sends.

    python3 -c "<this file>" '{"folder": ..., "size_bytes": ..., "silence_s": ..., "patience_s": ..., "stay": true}'

It uses the standard library only, because nothing of this project is on the host yet.  It reads a tar of `size_bytes`
from stdin into `folder`, which is `<base>/<run>`, and then becomes the guard (`harness.agent.guard`) over the same
streams.

A run that has just ended may still be cleaning up.  So if another run occupies the host, this program waits up to
`patience_s`, then writes {"refused": "..."} as a line of JSON to stdout, and exits.  The lock is the name of a socket
in the abstract namespace.  The kernel removes the name when the last process with the socket ends for any reason.  A
name belongs to one network namespace, as do firewall rules and ports, which two runs cannot share.
"""

import io
import json
import os
import shutil
import socket
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

LOCK = "\0krucible-node"


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    lock = take_lock(given["patience_s"])
    if lock is None:
        runs = sorted(path.parent.parent.name for path in folder.parent.glob("*/code/harness"))
        words = "another run is using this host" + (f" ({', '.join(runs)})" if runs else "")
        os.write(1, json.dumps({"refused": words}).encode() + b"\n")
        sys.exit(3)
    try:
        folder.mkdir(parents=True, mode=0o755)
        unpack(read(given["size_bytes"]), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    lock.set_inheritable(True)
    os.environ["PYTHONPATH"] = f"{folder}/code:{folder}/site"
    guarded = json.dumps({**given, "lock": lock.fileno()})
    os.execv(sys.executable, [sys.executable, "-P", "-m", "harness.agent.guard", guarded])


def take_lock(patience_s: float) -> socket.socket | None:
    """Return the socket whose name excludes other runs; None if another run has the name for all of `patience_s`."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            held.bind(LOCK)
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        else:
            return held


def read(size_bytes: int) -> bytes:
    """Read exactly `size_bytes` from stdin.  All later bytes are for the agent."""
    data = bytearray()
    while len(data) < size_bytes:
        piece = os.read(0, min(1 << 20, size_bytes - len(data)))
        if not piece:
            sys.exit("the connection ended before all of the code had arrived")
        data += piece
    return bytes(data)


def unpack(packed: bytes, folder: Path) -> None:
    """Unpack without checks: the sender is the harness, which logged in here as root."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
