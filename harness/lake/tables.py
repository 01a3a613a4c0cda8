"""The tables of the lake: what is known of every run, one schema each.

Every table has the column `run`, the name under which all tables know a run.  Times in ns are since the test began; -1
is *it did not happen*, null is *not known*.  `date` (UTC, of the start) and `system` are no columns of the files: they
stand in the names of the folders, so that a question about one week or one system reads no other files.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

RUNS, FAULTS, OPERATIONS, ELECTIONS = "runs", "faults", "operations", "elections"
VIOLATIONS, CRITERIA, COVERAGE, COSTS = "violations", "criteria", "coverage", "costs"

DATE, SYSTEM = "date", "system"
PARTITIONS = pa.schema([(DATE, pa.string()), (SYSTEM, pa.string())])

_NAMES = pa.list_(pa.string())
_RUN = pa.field("run", pa.string(), nullable=False)

OLD_NAMES: Mapping[str, str] = {"symptom": "signature"}
"""Column -> its name in lakes of older versions, which stay readable."""

TABLES: Mapping[str, pa.Schema] = {
    RUNS: pa.schema(
        [
            _RUN,
            ("path", pa.string()),  # of its folder, from the folder in which the lake lies; absolute if elsewhere
            ("test", pa.string()),
            ("started", pa.timestamp("ms", tz="UTC")),
            ("judged", pa.timestamp("ms", tz="UTC")),
            ("workload", pa.string()),
            ("kinds", _NAMES),  # of fault that were asked for, in alphabetical order
            ("backend", pa.string()),
            ("nodes", pa.int32()),
            ("rate_hz", pa.float64()),
            ("keys", pa.int32()),
            ("time_limit_s", pa.float64()),
            ("seed", pa.int64()),
            ("bug", pa.string()),  # that was planted, else null
            ("bug_found", pa.bool_()),  # null without a planted bug
            ("finding", pa.string()),  # the known finding that it shows, else null
            ("revision", pa.string()),  # of this repository, "" outside of one
            ("dirty", pa.bool_()),
            ("verdict", pa.string()),
            ("exit_code", pa.int32()),
            ("summary", pa.string()),
            ("symptom", pa.string()),  # id of the violation nearest to the cause, else null
            ("violations", pa.int64()),
            ("vacuous", pa.bool_()),  # null if vacuity was not judged
            ("operations", pa.int64()),  # that were invoked by clients
            ("ok", pa.int64()),
            ("fail", pa.int64()),
            ("info", pa.int64()),  # unknown outcome, those that never ended included
            ("p50_ms", pa.float64()),  # of ok operations
            ("p99_ms", pa.float64()),
            ("faults", pa.int32()),  # that were installed
            ("faults_dealt", pa.int32()),
            ("elections", pa.int32()),
            ("duration_s", pa.float64()),
            ("judging_s", pa.float64()),
            ("loop_late_p99_ms", pa.float64()),
        ]
    ),
    FAULTS: pa.schema(
        [
            _RUN,
            ("number", pa.int32()),
            ("kind", pa.string()),
            ("name", pa.string()),
            ("achieved", pa.string()),
            ("reason", pa.string()),
            ("words", pa.string()),
            ("nodes", _NAMES),
            ("leader", pa.string()),
            ("role", pa.string()),  # "leader" if it hit who led then, else "others"
            ("injected_ns", pa.int64()),
            ("healed_ns", pa.int64()),
            ("apply_ms", pa.float64()),
        ]
    ),
    OPERATIONS: pa.schema(
        [
            # One row per second, function and outcome.
            _RUN,
            ("second", pa.int32()),  # in which they were invoked
            ("f", pa.string()),
            ("outcome", pa.string()),  # ok, fail or info
            ("count", pa.int32()),
            ("p50_ms", pa.float64()),  # null for operations that never ended
            ("p99_ms", pa.float64()),
            ("max_ms", pa.float64()),
            ("faults", pa.string()),  # kinds in force in that second, joined by "+"; "none"
        ]
    ),
    ELECTIONS: pa.schema(
        [_RUN, ("time_ns", pa.int64()), ("node", pa.string()), ("epoch", pa.int64()), ("faults", pa.string())]
    ),
    VIOLATIONS: pa.schema(
        [
            _RUN,
            ("place", pa.int32()),  # 0 is the nearest to the cause
            ("symptom", pa.string()),
            ("words", pa.string()),  # of the symptom
            ("checker", pa.string()),
            ("kind", pa.string()),
            ("shape", pa.string()),
            ("faults", pa.string()),  # kinds that it showed under, joined by "+"; "none"
            ("roles", pa.string()),
            ("moment_ns", pa.int64()),
            ("preceding", pa.string()),  # what happened last before it: "partition injected", "election", "nothing"
            ("summary", pa.string()),
        ]
    ),
    CRITERIA: pa.schema(
        [
            _RUN,
            ("name", pa.string()),
            ("value", pa.float64()),
            ("least", pa.float64()),
            ("met", pa.bool_()),
            ("demanded", pa.bool_()),
        ]
    ),
    COVERAGE: pa.schema(
        [
            # What faults met: a kind, the role that it hit, and the phase of the system; or a named situation.
            _RUN,
            ("what", pa.string()),  # "cell" or "situation"
            ("name", pa.string()),  # "kind / role / phase", or the situation's name
            ("looks", pa.int64()),  # how often; 0: offered, and never met
        ]
    ),
    COSTS: pa.schema(
        [_RUN, ("checker", pa.string()), ("verdict", pa.string()), ("seconds", pa.float64())]
    ),
}  # fmt: skip
"""Name of a table -> its columns."""
