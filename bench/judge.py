"""How long a verdict takes: Spark's cold start, a small run, and ten million events.

    python bench/judge.py [--rows 10000000] [--keys 100000]

Prints one line per figure; each is a single measurement on the machine as it is, so say how busy it was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from checkers.checker import RunFiles
from checkers.columns import HISTORY
from checkers.kernels.jit import kernel
from checkers.kernels.operations import Int8, Int32, Int64
from checkers.linearizability import LINEARIZABILITY
from checkers.pipeline import judge_run
from checkers.seal import seal
from checkers.spark.session import SparkJudge
from checkers.verdict import Validity

COLD = """
import time
began = time.perf_counter()
from pathlib import Path
from checkers.checker import RunFiles
from checkers.linearizability import LINEARIZABILITY
from checkers.pipeline import judge_run
from checkers.spark.session import SparkJudge
spark = SparkJudge()
assert judge_run(RunFiles(Path({folder!r})), [LINEARIZABILITY], spark).judged_by.startswith("Spark")
print(time.perf_counter() - began)
spark.stop()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=50)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="krucible-bench-") as name:
        small, large = Path(name) / "small", Path(name) / "large"
        small.mkdir()
        large.mkdir()
        write_history(small, 24_000, 10, 10)
        seal(small)
        tell("cold start to the first verdict, s", lambda: cold(small))
        tell("the same without the class-data archive, s", lambda: cold(small, archive=False))
        write_history(large, chosen.rows, chosen.keys, chosen.processes)
        spark = SparkJudge()
        spark.start_in_background()
        tell(f"seal {chosen.rows} events of {chosen.keys} keys, s", lambda: timed(lambda: seal(large)))
        spark.wait_until_started()
        for where, judge in (("on Spark", spark), ("in process", None)):
            for folder, what in ((small, "24000 events"), (large, f"{chosen.rows} events")):
                for attempt in ("first", "again"):
                    tell(f"{what} {where}, {attempt}, s", lambda f=folder, j=judge: timed(lambda: hold(f, j)))
        spark.stop()


def tell(what: str, measure: Callable[[], float]) -> None:
    print(f"{what:<60} {measure():8.2f}", flush=True)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def hold(folder: Path, spark: SparkJudge | None) -> None:
    verdict = judge_run(RunFiles(folder), [LINEARIZABILITY], spark)["linearizability"]
    assert verdict.validity is Validity.VALID, verdict.reason


def cold(folder: Path, archive: bool = True) -> float:
    """Seconds from the start of the imports to the first verdict, in a process of its own."""
    code = COLD.format(folder=str(folder))
    if not archive:
        code = (
            "from checkers.spark.java import Java\nJava.archive = lambda *_: __import__('pathlib').Path('/none')\n"
            + code
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout)


def write_history(folder: Path, rows: int, keys: int, processes: int) -> None:
    """An unsealed history of correct registers, half reads, half writes, with several operations of a key at once."""
    process, type_, f, key, value = _simulate(rows, keys, processes, 1)
    names = pa.array([f"k{k}" for k in range(keys)])
    text = HISTORY.field("f").type
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        for start in range(0, rows, 100_000):
            part = slice(start, min(rows, start + 100_000))
            size = part.stop - part.start
            columns = {
                "index": pa.array(np.arange(part.start, part.stop)),
                "time_ns": pa.array(np.arange(part.start, part.stop) * 1000),
                "process": pa.array(process[part]),
                "type": pa.array(type_[part]),
                "f": pa.DictionaryArray.from_arrays(pa.array(f[part]), pa.array(["read", "write"])),
                "key": names.take(pa.array(key[part])),
                "value": pa.array(value[part], mask=value[part] < 0),
                "value2": pa.nulls(size, pa.int64()),
                "payload": pa.nulls(size, pa.string()),
                "error": pa.nulls(size, text),
                "node": pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array(["n1"])),
            }
            stream.write_batch(pa.record_batch([columns[name] for name in HISTORY.names], schema=HISTORY))


@kernel
def _simulate(rows: int, keys: int, processes: int, seed: int) -> tuple[Int32, Int8, Int32, Int32, Int64]:
    """Each operation takes effect when it completes: process, type, f, key and value (-1 is null) of every event."""
    np.random.seed(seed)
    process, type_, f = np.empty(rows, np.int32), np.empty(rows, np.int8), np.empty(rows, np.int32)
    key, value = np.empty(rows, np.int32), np.full(rows, -1, np.int64)
    state, fresh = np.full(keys, -1, np.int64), np.zeros(keys, np.int64)
    open_row = np.full(processes, -1, np.int64)
    for row in range(rows):
        p = np.random.randint(processes)
        process[row] = p
        asked = open_row[p]
        if asked < 0:
            type_[row], f[row], key[row] = 0, np.random.randint(2), np.random.randint(keys)
            if f[row] == 1:
                value[row] = fresh[key[row]]
                fresh[key[row]] += 1
            open_row[p] = row
            continue
        type_[row], f[row], key[row] = 1, f[asked], key[asked]
        if f[row] == 1:
            state[key[row]] = value[asked]
        value[row] = state[key[row]]
        open_row[p] = -1
    return process, type_, f, key, value


if __name__ == "__main__":
    main()
