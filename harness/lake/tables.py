"""The tables of the lake and their schemas (`tables.sql`).

Every table has the column `run`, which contains the name of the run.  `date` and `system` are not columns in the files
but part of the names of their folders, so that a query about one week or one system reads no other files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from checkers.base.columns import tables_in

RUNS, FAULTS, OPERATIONS, ELECTIONS = "runs", "faults", "operations", "elections"
VIOLATIONS, CRITERIA, COVERAGE, COSTS = "violations", "criteria", "coverage", "costs"

DATE, SYSTEM = "date", "system"
PARTITIONS = pa.schema([(DATE, pa.string()), (SYSTEM, pa.string())])

OLD_NAMES: Mapping[str, str] = {"symptom": "signature"}
"""Column -> name of the column in files of older versions, which can still be read."""

TYPES: Mapping[str, pa.DataType] = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("ms", tz="UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
}
"""Name of a type in Spark SQL and `tables.sql` -> Arrow type."""


TABLES: Mapping[str, pa.Schema] = tables_in(Path(__file__).with_name("tables.sql").read_text(encoding="utf-8"), TYPES)
"""Name of a table -> schema."""
