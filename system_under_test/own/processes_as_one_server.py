"""Several processes that make up one server: they start together, and the end of one is the end of all.

    python -m system_under_test.own.processes_as_one_server '{"name": ["argv", ...], ...}' LOG_FOLDER

Output of each goes to LOG_FOLDER/<name>.log, behind a mark with the id of this program (`lives_in_logs.py`).
All are in the process group of this program, so that a signal to the server meets all of them; the exit status is that
of the process that ended first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from system_under_test.own.lives_in_logs import mark


def main() -> None:
    processes: dict[int, str] = {}
    print(mark(os.getpid()), end="", flush=True)
    for name, argv in json.loads(sys.argv[1]).items():
        with (Path(sys.argv[2]) / f"{name}.log").open("ab") as log:
            log.write(mark(os.getpid()).encode())
            log.flush()
            processes[subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid] = name
    while True:
        pid, raw = os.wait()
        if pid in processes:
            break
    status = os.waitstatus_to_exitcode(raw)
    print(f"{processes.pop(pid)} ended with status {status}; the others are killed", flush=True)
    for other in processes:
        os.kill(other, signal.SIGKILL)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
