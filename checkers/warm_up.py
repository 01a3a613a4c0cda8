"""Loads every kernel by judging histories of a few rows.  The first time on a machine, this compiles the kernels.

Each history contains a violation, so a set-up also proves that the kernels compiled on this machine find violations.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker
from checkers.base.columns import LOG, TRACE, events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict
from checkers.by_hand import TRANSACTIONS, judge_events
from checkers.catalog import CATALOG, select
from checkers.few_rows import NODES, STALE_READ, in_turn_on_k, log_rows, sealed_run, trace_rows
from checkers.formats.read_once import Pieces
from checkers.formats.recognise import read_history
from checkers.judging import Verdicts, judge_run
from checkers.kafka_log.judge import judge_kafka_log
from checkers.kernels.jit import SMALL_BYTES, load_compiler_for
from checkers.kernels.kafka_files import chain, crc32c, find_configs, gather, resumes, scan
from checkers.kernels.transactions.order_problem import NO_EDGES, forced_order, problem_of_edges
from checkers.online import LIVE, NewEntries, OnlineKeys, OnlineLogs, OnlineMarks, OnlineTraces
from checkers.registers.judge_history import CAS_REGISTER, judge_registers
from checkers.registers.judge_keys import DID_NOT_HAPPEN, OBSERVED
from checkers.transactions.anomalies import MODELS
from checkers.transactions.checker import read_file
from checkers.transactions.groups import components_of
from checkers.transactions.judge import judge_transactions, judge_transcript
from checkers.transactions.tape import at_once, one_after_another

_VALUE_WRITTEN_TWICE = in_turn_on_k((0, "write", (1,), (1,)), (0, "write", (1,), (1,)), (0, "read", (), ()))

_OLD_VALUE_READ = (
    b"{:process 0 :type :invoke :f :write :value 1}{:process 0 :type :ok :f :write :value 1}"
    b"{:process 0 :type :invoke :f :write :value 2}{:process 0 :type :ok :f :write :value 2}"
    b"{:process 1 :type :invoke :f :read :value nil}{:process 1 :type :ok :f :read :value 1}",
    b"INFO  jepsen.util - 0\t:invoke\t:write\t1\nINFO  jepsen.util - 0\t:ok\t:write\t1\n"
    b"INFO  jepsen.util - 1\t:invoke\t:read\tnil\nINFO  jepsen.util - 1\t:ok\t:read\tnil\n",
)

_POPPED_BEFORE_A_NEWER_ONE = in_turn_on_k(
    (0, "push", (1,), (1,)), (0, "push", (2,), (2,)), (0, "pop", (), (1,)), (1, "pop", (), None)
)

_READ_OF_EACH = ("ax1 ry1", "ay1 rx1")
_LISTS_AT_ONCE: tuple[tuple[str, ...], ...] = (
    ("ax1 ay1", "ax2 ay2", "rx12 ry21"),
    ("ax1 ax2", "rx1", "rx12"),
    ("!ax1", "ax2", "rx12"),
    _READ_OF_EACH,
    tuple(text for p, q in zip("abcdefghij", "klmnopqrst", strict=True) for text in (f"a{p}1 r{q}1", f"a{q}1 r{p}1")),
    ("rx ay1", "ry ax1", "rx1 ry1"),
)
_LISTS_IN_TURN: tuple[tuple[str, ...], ...] = (("ax1", "ax2", "rx21"), ("ax1", "rx", "rx1"))
_REGISTERS_AT_ONCE: tuple[tuple[str, ...], ...] = (("!wx1", "=x1"), ("wx1 wy1", "=x1 =y"), ("wx1 =y1", "wy1 =x1"))
_REGISTERS_IN_TURN: tuple[tuple[str, ...], ...] = (("wx1", "=x", "=x1"), ("wx1", "wx2", "=x2 wy1", "=x1 =y1"))

_WRITE_SKEW = {
    "list-append": ("rx ay1", "ry ax1", "rx1 ry1"),
    "rw-register": ("=x wy1", "=y wx1", "=x1 =y1"),
}
_SERIAL = {"list-append": ("ax1", "rx1 ax2", "rx12"), "rw-register": ("wx1", "=x1 wx2", "=x2")}


def load_kernels(checkers: Sequence[Checker] | None = None) -> Verdicts:
    """Load the kernels that judge a sealed run, by judging a few rows, and return the verdicts.

    The caller checks the verdicts; the rows contain a stale read.
    checkers: checkers whose kernels are loaded; None for those of a run of registers, for which a user waits
    """
    with sealed_run() as files:
        return judge_run(files, list(_of_registers() if checkers is None else checkers))


def _of_registers() -> Sequence[Checker]:
    return select({"history", "logs", "traces", "nodes"}, ("linearizability",))


def load_online_kernels() -> None:
    """Load the kernels that judge a run while it is in progress.

    The run waits until they are loaded, because loading would delay everything else.
    """
    OnlineKeys().take(events_to_table(STALE_READ))
    traces = {node: pa.Table.from_pylist(trace_rows(node), TRACE) for node in NODES}
    OnlineTraces().take(list(traces.values()))
    OnlineMarks(NODES).take(traces)
    logs = OnlineLogs()
    for node in NODES:
        table = pa.Table.from_pylist(log_rows(node), LOG)
        logs.take(NewEntries(node, LIVE, *(table[name].to_numpy() for name in ("offset", "epoch", "checksum"))))


def load_reading_kernels() -> None:
    """Load the kernels that parse the bytes of logs."""
    nothing = np.empty(0, np.uint8)
    batches = scan(nothing, 0, 0)[0]
    chain(0, batches.base, batches.epoch, batches.crc)
    configs, _ = find_configs(
        nothing, batches, 0, np.frombuffer(b"number", np.uint8), np.frombuffer(b"pairs", np.uint8)
    )
    gather(nothing, configs.name_at, configs.name_size)
    resumes(nothing, 0)
    crc32c(nothing)


class WrongVerdict(RuntimeError):
    """A planted violation was not found: this installation cannot be trusted."""


def compile_group(name: str) -> float:
    """Compile or load the kernels of one of GROUPS.  Returns the duration in seconds.  Raises WrongVerdict."""
    began = time.monotonic()
    load_compiler_for(SMALL_BYTES + 1)  # otherwise the first small history would be read without the compiler
    for number, verdict in enumerate(GROUPS[name]()):
        if verdict.validity is not Validity.INVALID:
            raise WrongVerdict(f"{name}: history {number} contains a violation but was judged {verdict.validity}")
    return time.monotonic() - began


def _runs() -> Iterator[Verdict]:
    load_reading_kernels()
    load_online_kernels()
    yield load_kernels()["linearizability"]


def _other_runs() -> Iterator[Verdict]:
    yield load_kernels(list(CATALOG.values()))["linearizability"]


def _histories_of_jepsen() -> Iterator[Verdict]:
    for text in _OLD_VALUE_READ:
        yield judge_registers(read_history(Pieces([text])).columns, "cas-register", Budget(), DID_NOT_HAPPEN)


def _searches_of_registers() -> Iterator[Verdict]:
    for failed_cas in (DID_NOT_HAPPEN, OBSERVED):
        yield judge_events(_VALUE_WRITTEN_TWICE, "cas-register", failed_cas=failed_cas)


def _searches_of_objects() -> Iterator[Verdict]:
    yield judge_events(_VALUE_WRITTEN_TWICE, CAS_REGISTER)
    yield judge_events(_POPPED_BEFORE_A_NEWER_ONE, "stack")


def _transactions() -> Iterator[Verdict]:
    for texts in _LISTS_AT_ONCE:
        yield judge_transactions(at_once(*texts), "list-append")
    for texts in _LISTS_IN_TURN:
        yield judge_transactions(one_after_another(*texts), "list-append")
    for texts in _REGISTERS_AT_ONCE:
        yield judge_transactions(at_once(*texts), "rw-register")
    for texts in _REGISTERS_IN_TURN:
        yield judge_transactions(one_after_another(*texts), "rw-register")
    yield judge_transactions(at_once(*_READ_OF_EACH), "list-append", consistency="read-committed")
    yield judge_transactions(at_once(*_REGISTERS_AT_ONCE[-1]), "rw-register", consistency="read-committed")
    for number in ("1", "2000000000"):
        yield _from_a_file(
            [replace(e, payload=(e.payload or "").replace("1", number)) for e in at_once(*_READ_OF_EACH)]
        )
    yield from _at_every_level()
    forced_order(problem_of_edges(np.ones(1, bool), NO_EDGES), 1)  # only hard histories need this kernel
    yield judge_kafka_log(_poll_of_each_other())


def _at_every_level() -> Iterator[Verdict]:
    """Judge write skew at every consistency level.

    Levels that permit write skew search for an order of all transactions and replay this order.
    """
    for model in TRANSACTIONS:
        serial = judge_transactions(one_after_another(*_SERIAL[model]), model)
        judged = {level: judge_transactions(at_once(*_WRITE_SKEW[model]), model, consistency=level) for level in MODELS}
        valid = [serial, judged["snapshot-isolation"], judged["strong-session-causal"]]
        if wrong := [each for each in valid if each.validity is not Validity.VALID]:
            raise WrongVerdict(f"transactions: a correct {model} was judged {wrong[0].validity}: {wrong[0].reason}")
        yield judged["strict-serializable"]


def _from_a_file(events: Sequence[Event]) -> Verdict:
    """Judge transactions over lists that are read from a file, as in a run.

    The reader keeps small values, and replaces large values by numbers.
    """
    with tempfile.TemporaryDirectory(prefix="krucible-warm-") as folder:
        path = f"{folder}/history.parquet"
        pq.write_table(events_to_table(events), path)
        transcript = read_file(path, "list-append")
        components_of(transcript, "serializable")  # only large histories need this kernel
        return judge_transcript(transcript)


GROUPS: dict[str, Callable[[], Iterator[Verdict]]] = {
    "checkers of runs": _runs,
    "histories of Jepsen": _histories_of_jepsen,
    "searches of registers": _searches_of_registers,
    "checkers of other workloads": _other_runs,
    "transactions": _transactions,
    "searches of other objects": _searches_of_objects,
}
"""Name of a group of kernels that are compiled together -> verdicts that use them.  A run needs the first group."""


def _poll_of_each_other() -> list[Event]:
    """Return two transactions on one Kafka partition, each of which polled the message that the other one sent."""
    answered = [[["send", "k", [own, own]], ["poll", {"k": [[other, other]]}]] for own, other in ((1, 2), (2, 1))]
    invoked = [[["send", "k", 1], ["poll"]], [["send", "k", 2], ["poll"]]]
    order = ((0, Type.INVOKE, invoked), (1, Type.INVOKE, invoked), (0, Type.OK, answered), (1, Type.OK, answered))
    return [Event(n, n, p, type_, "txn", payload=json.dumps(words[p])) for n, (p, type_, words) in enumerate(order)]
