"""Spark SQL over the lake: each table is a view of its own name, read by Spark's own Parquet reader.

Spark skips the partitions that a question does not ask for (`date`, `system`).  The lake is not merged meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from checkers.spark.session import SparkJudge
from harness.lake.lake import Lake
from harness.lake.tables import DATE, OLD_NAMES, SYSTEM, TABLES

_TYPES = {
    pa.string(): "STRING",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("ms", tz="UTC"): "TIMESTAMP",
    pa.list_(pa.string()): "ARRAY<STRING>",
}


class WrongQuery(ValueError):
    """A statement that Spark refuses, or that does not only read.  The message is the reason, in one line."""


def columns_of(table: str) -> str:
    """The columns of the files of a table, as Spark writes a schema; a file has a renamed column under one name."""
    own = [f"`{field.name}` {_TYPES[field.type]}" for field in TABLES[table]]
    own += [f"`{OLD_NAMES[field.name]}` {_TYPES[field.type]}" for field in TABLES[table] if field.name in OLD_NAMES]
    return ", ".join([*own, f"`{DATE}` DATE", f"`{SYSTEM}` STRING"])


def ask(lake: Lake, statement: str, spark: SparkJudge) -> tuple[Sequence[str], list[Mapping[str, Any]]]:
    """The columns and rows that a statement of Spark SQL answers; times are UTC.

    Raises WrongQuery, LookupError if there is no lake yet, and SparkUnavailable.
    """
    if not lake.files("runs"):
        raise LookupError(f"there is no run in the lake {lake.folder}")
    session = spark.sql_session()
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql.functions import coalesce

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints every refusal, with Java's stack
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "8")  # small tables: 200 tasks would cost a second and more
    with lake.reading():
        try:
            for table in filter(statement.__contains__, TABLES):  # each costs a listing of its files
                rows = session.read.schema(columns_of(table)).parquet((lake.folder / table).as_uri())
                for name, old in OLD_NAMES.items():
                    if old in rows.columns:
                        rows = rows.withColumn(name, coalesce(name, old)).drop(old)
                rows.createOrReplaceTempView(table)
            _demand_reading(session, statement)
            answer = session.sql(statement)
            return answer.columns, [row.asDict(recursive=True) for row in answer.collect()]
        except PySparkException as problem:
            raise WrongQuery(" ".join(str(problem).split(";")[0].split())[:300]) from None


_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_READS = ("Describe", "Explain", "Show")
_WRITES = ("Insert", "SaveIntoDataSource")


def _demand_reading(session: Any, statement: str) -> None:
    """Raises WrongQuery where the statement would write files, or change what the session knows or is set to."""
    command = session._jvm.java.lang.Class.forName(_COMMAND)
    plans = [session._jsparkSession.sessionState().sqlParser().parsePlan(statement)]
    while plans:
        plan = plans.pop()
        name = plan.getClass().getSimpleName()
        if name.startswith(_WRITES) or (command.isInstance(plan) and not name.startswith(_READS)):
            raise WrongQuery(f"a question of the lake reads, as SELECT … does, and this statement does not ({name})")
        children = plan.children()
        plans += [children.apply(number) for number in range(children.size())]
