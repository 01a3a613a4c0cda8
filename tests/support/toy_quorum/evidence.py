"""A run folder's content as plain rows, which a test may tamper with before it writes them out and judges them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fault_records import whole
from journals import write_header, write_journal

from checkers.base.columns import COPIES, HISTORY, LOG, TRACE
from checkers.base.history import Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Verdict
from checkers.catalog import CATALOG
from checkers.judging import judge_run

Row = dict[str, Any]

OF_LOGS_AND_TRACES = (
    "history-against-log",
    "committed-never-lost",
    "high-watermark-majority",
    "commit-own-epoch",
    "leader-completeness",
    "log-matching",
    "election-safety",
    "vote-once",
    "vote-up-to-date",
    "monotonicity",
    "state-machine-safety",
    "snapshot-equals-prefix",
    "nodes-stay-up",
    "recovery",
    "vacuity",
)


@dataclass
class Evidence:
    """What a run folder holds, as rows that may be tampered with."""

    history: list[Row]
    logs: dict[str, list[Row]]
    traces: dict[str, list[Row]]
    copies: list[Row]
    faults: list[Row]
    outcome: Row
    test: Row
    demands: Demands = field(default_factory=Demands)
    rows: int = -1
    """How many rows the journal counts."""

    def answer(self, node: str, time_ns: int, type_: Type = Type.OK) -> None:
        """Add one more read of a client, which this node answers."""
        last = max(self.history, key=lambda row: row["index"])
        read = last | {"f": "read", "value": None, "node": "", "type": int(Type.INVOKE), "process": 90}
        for row in (read, read | {"node": node, "type": int(type_)}):
            self.history.append(row | {"index": last["index"] + 1, "time_ns": time_ns})
            last = self.history[-1]

    def ended(self) -> Evidence:
        """Set the journal's row count to that of the history, so that the run is whole."""
        self.rows = len(self.history)
        return self

    def write(self, folder: Path) -> StoredRun:
        """Write the evidence as a run folder.  Faults without measurements get those of a fault as ordered."""
        count = self.test.get("spec", {}).get("nodes", len(self.logs))
        servers = [f"n{i}" for i in range(1, count + 1)]
        files = StoredRun(folder, self.demands)
        for path in (files.log, files.trace):
            path.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self.history, HISTORY), files.history)
        for node, rows in self.logs.items():
            pq.write_table(pa.Table.from_pylist(rows, LOG), files.log / f"{node}.parquet")
        for node, rows in self.traces.items():
            pq.write_table(pa.Table.from_pylist(rows, TRACE), files.trace / f"{node}.parquet")
        pq.write_table(pa.Table.from_pylist(self.copies, COPIES), files.copies_table)
        faults = [whole(fault if "measured" in fault else measured(fault, servers)) for fault in self.faults]
        write_header(folder, **self.test)
        write_journal(folder, outcome=self.outcome or None, faults=faults, rows=max(self.rows, 0))
        return files

    def judge(self, folder: Path, *names: str) -> dict[str, Verdict]:
        """Verdicts of some checkers (all that judge logs, traces and runs, if none is named), judged in process."""
        return judge_run(self.write(folder), [CATALOG[name] for name in names or OF_LOGS_AND_TRACES])


def measured(fault: Row, servers: list[str]) -> Row:
    """The fault with measurements that show it as ordered, from inject to heal and after the heal.

    A fault on nodes stops their processes."""
    cut = {(a, b) for a, b in fault["cut"]}
    links = {f"{a}>{b}": [60, 0 if (a, b) in cut else 60] for a in servers for b in servers if a != b}
    healed = {pair: [sent, sent] for pair, (sent, _) in links.items()}
    held, running = dict.fromkeys(fault["nodes"], "stopped"), dict.fromkeys(fault["nodes"], "running")
    begin, end = fault["injected_ns"], fault["heal_ordered_ns"]
    return fault | {
        "ordered": {"held": {"states": held}, "healed": {"states": running}},
        "measured": [
            {"phase": "inject", "from_ns": begin, "to_ns": begin, "links": links, "states": held},
            {"phase": "before heal", "from_ns": end, "to_ns": end, "links": links, "states": held},
            {"phase": "heal", "from_ns": end, "to_ns": end, "links": healed, "states": running},
        ],
    }
