"""How long registers take where values repeat: the recorded etcd histories, big single keys, and a grid of hard ones.

    python bench/registers.py [--operations 5000000] [--grid] [--limit-s 5]

Kernels are compiled before anything is measured.  CPU time of this process, best of some runs for what takes little;
where the same history can be judged two ways in one run, their ratio is given, for it says more than either figure.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from checkers.formats import read_any
from checkers.history import Event
from checkers.kernels import antichain, register
from checkers.kernels.jit import kernel
from checkers.kernels.operations import (
    CAS,
    KINDS,
    NIL,
    OPEN,
    OTHER,
    READ,
    WRITE,
    Events,
    Int8,
    Int32,
    Int64,
    Operations,
    pair_events,
)
from checkers.kernels.register import Key

SHARED = Path(__file__).parents[2] / "shared" / "data" / "histories"
START = np.array([NIL], np.int64)
STEPS, SIZE_BYTES = 10**11, 2 * 10**9


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--operations", type=int, default=5_000_000)
    options.add_argument("--grid", action="store_true", help="the grid of hard histories (minutes)")
    options.add_argument("--limit-s", type=float, default=5.0, help="what a cell of the grid may take")
    given = options.parse_args()
    etcd()
    big_keys(given.operations)
    if given.grid:
        grid(given.limit_s)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def etcd() -> None:
    """The recorded histories, from operations to verdicts in one call."""
    files = sorted((SHARED / "etcd").glob("*.log"))
    if not files:
        print("etcd: the recorded histories are not here (../shared/data)")
        return
    operations = as_one([read_any(path) for path in files])
    chosen = np.arange(len(files), dtype=np.int32)
    shares = np.full(len(files), STEPS, np.int64)

    def judge() -> Int8:
        return antichain.judge_keys(operations, chosen, START, shares, SIZE_BYTES)[0]

    right = int((judge() == antichain.LINEARIZABLE).sum())
    seconds = best(judge, 200)
    print(f"etcd: {len(files)} histories, {right} linearizable, {seconds * 1e3:.3f} ms in all (goal 0.5 ms)")


def big_keys(operations: int) -> None:
    """One key: unique values by zones and by search, then a small domain."""
    for clients in (5, 10):
        size = operations // 10
        key, positions = correct_key(size, clients, 0, 0, 1)
        scratch = register.new_scratch(size, positions)
        zones = best(lambda k=key, p=positions, s=scratch: register.judge_key(k, p, s), 3)  # type: ignore[misc]
        search = best(lambda k=key, p=positions: judge(k, p), 3)  # type: ignore[misc]
        print(
            f"one key, {size} operations, {clients} clients, unique values: "
            f"zones {zones:.3f} s, search {search:.3f} s, "
            f"{search / zones:.1f} times as long"
        )
    for clients, open_ in ((5, 0), (5, 10), (10, 0), (30, 0)):
        size = operations if clients == 5 and not open_ else operations // 10
        key, positions = correct_key(size, clients, 5, open_, 2)
        code, seconds = timed(key, positions)
        goal = " (goal 3 s)" if size == 5_000_000 else ""
        print(f"one key, {size} operations, {clients} clients, values 0-4, {open_} open: {code} {seconds:.2f} s{goal}")


def grid(limit_s: float) -> None:
    """Operations x clients x open x valid or one late violation; five seeds a cell, the worst counts."""
    for operations in (100, 1000, 10_000):
        for clients in (5, 10, 30, 100):
            for open_ in (0, 10, 30):
                for late in (False, True):
                    worst, codes = 0.0, set()
                    for seed in range(5):
                        key, positions = correct_key(operations, clients, 5, min(open_, operations // 10), seed)
                        if late:
                            spoil(key, seed)
                        code, seconds = timed(key, positions, 20_000_000)
                        worst, codes = max(worst, seconds), codes | {code}
                    said = "" if worst <= limit_s and "no verdict" not in codes else "   <- not decided in time"
                    kind = "one late violation" if late else "valid"
                    print(f"{operations:>6} {clients:>4} {open_:>3} {kind:<18} {worst:8.3f} s {sorted(codes)}{said}")


def judge(key: Key, positions: int, steps: int = STEPS) -> int:
    return int(antichain.judge_key(key, positions, START, steps, SIZE_BYTES)[0])


def timed(key: Key, positions: int, steps: int = STEPS) -> tuple[str, float]:
    began = time.process_time()
    code = judge(key, positions, steps)
    names = {antichain.LINEARIZABLE: "valid", antichain.NO_ORDER: "invalid"}
    return names.get(code, "no verdict"), time.process_time() - began


def best(work: Callable[[], object], times: int) -> float:
    work()
    seconds = []
    for _ in range(times):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def as_one(histories: list[list[Event]]) -> Operations:
    """Histories of one object each, as the keys of one."""
    rows = [(k, e) for k, events in enumerate(histories) for e in events if e.process >= 0]
    highest = max(e.process for _, e in rows) + 1

    def column(values: list[int], dtype: type) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(values, dtype)

    events = Events(
        column([k for k, _ in rows], np.int32),
        column([k * highest + e.process for k, e in rows], np.int32),
        column([e.type for _, e in rows], np.int8),
        column([KINDS.get(e.f, OTHER) for _, e in rows], np.int8),
        column([NIL if e.value is None else e.value for _, e in rows], np.int64),
        column([NIL if e.value2 is None else e.value2 for _, e in rows], np.int64),
        np.zeros(len(rows), np.int8),
    )
    return pair_events(events, len(histories), highest * len(histories))


def correct_key(operations: int, clients: int, domain: int, open_: int, seed: int) -> tuple[Key, int]:
    """A register's history correct by construction; domain 0: unique values, and then a cas expects what it finds."""
    kind, a, b, call, ret, positions = _simulated(operations, clients, domain, open_, seed)
    kept = kind >= 0
    return Key(kind[kept], a[kept], b[kept], call[kept], ret[kept]), positions


@kernel
def _simulated(
    operations: int, clients: int, domain: int, open_: int, seed: int
) -> tuple[Int8, Int64, Int64, Int32, Int32, int]:
    """A third each of reads, writes and cas; a cas that does not match is left out (kind -1)."""
    np.random.seed(seed)
    kind = np.empty(operations, np.int8)
    a = np.empty(operations, np.int64)
    b = np.full(operations, NIL, np.int64)
    call = np.empty(operations, np.int32)
    ret = np.full(operations, OPEN, np.int32)
    current = np.full(clients, -1, np.int64)
    effective = np.zeros(clients, np.bool_)
    register_holds = np.int64(NIL)
    asked = done = position = left_open = 0
    while done < operations:
        c = np.random.randint(clients)
        op = current[c]
        if op < 0:
            if asked == operations:
                continue
            op = asked
            asked += 1
            kind[op] = np.random.randint(3)
            a[op] = np.random.randint(domain) if domain else op
            if kind[op] == CAS:
                b[op] = np.random.randint(domain) if domain else op
                if not domain:
                    a[op] = register_holds
            call[op] = position
            position += 1
            current[c] = op
            effective[c] = False
        elif not effective[c]:
            effective[c] = True
            if kind[op] == READ:
                a[op] = register_holds
            elif kind[op] == WRITE:
                register_holds = a[op]
            elif register_holds == a[op] and a[op] != b[op]:
                register_holds = b[op]
            elif register_holds == a[op]:
                kind[op] = READ
            else:
                kind[op] = -1
        else:
            crash = left_open < open_ and op > (left_open + 1) * operations // (open_ + 1)
            if crash and (kind[op] == WRITE or kind[op] == CAS):
                left_open += 1
            else:
                ret[op] = position
                position += 1
            current[c] = -1
            done += 1
    return kind, a, b, call, ret, position


def spoil(key: Key, seed: int) -> None:
    """One late read answers what nobody wrote: certainly wrong, and no order before it is ruled out by it."""
    rng = np.random.default_rng(seed)
    reads = np.flatnonzero((key.kind == READ) & (key.ret != OPEN))
    key.a[int(rng.choice(reads[int(len(reads) * 0.85) : int(len(reads) * 0.95) + 1]))] = 999


if __name__ == "__main__":
    main()
