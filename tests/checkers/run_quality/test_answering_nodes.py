"""Every answer of a run with nodes comes from one of its servers; any other name makes the evidence unknown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded_runs import unpacked

from checkers.base.demands import Demands
from checkers.base.history import Type
from checkers.base.stored_run import StoredRun
from checkers.run_quality import evidence
from checkers.sealing.seal import seal


@pytest.mark.parametrize(("node", "named"), [("n9", True), ("c1", True), ("n1", False)])
def test_an_answer_names_a_server_of_the_run(tmp_path: Path, node: str, named: bool) -> None:
    root = unpacked("kraft-partition", tmp_path / "run")
    seal(root)
    path = StoredRun(root).history
    history = pq.read_table(path)
    nodes, types, processes = (history[name].to_pylist() for name in ("node", "type", "process"))
    ok = [i for i, type_ in enumerate(types) if type_ == Type.OK and processes[i] >= 0]
    nodes[ok[-1]] = node
    place, field = history.column_names.index("node"), history.schema.field("node")
    column = pa.array(nodes).dictionary_encode().cast(field.type)
    pq.write_table(history.set_column(place, field, column), path)
    run = StoredRun(root, Demands(nodes=True, servers=("n1", "n2", "n3", "n4", "n5")))
    verdict = evidence.combine(run, [])
    words = f"the history names '{node}' as the node of an answer, and the run has no such server"
    assert (words in verdict.reason) is named, verdict.reason
