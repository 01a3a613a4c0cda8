"""SQL over the lake: one query over the lake's tables, on DuckDB in this process or on Spark.

An allow-list restricts statements.  The engine that answers a statement also parses it.  The parsed statement must be
one query, and may contain only tables of the lake, names that the query defines in WITH, and the nodes and functions in
allowed.toml.  On Spark the analysed plan is checked too, because analysis resolves names.  DuckDB gets the tables as
rows in memory; it may not open files, load extensions or change settings.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from harness.lake.lake import Lake
from harness.lake.tables import DATE, OLD_NAMES, RUNS, SYSTEM, TABLES, TYPES

if TYPE_CHECKING:
    from checkers.spark.session import SparkJudge


class NamedQuestion(NamedTuple):
    """A predefined question.

    words: the question in one line
    sql: the statement that answers it"""

    words: str
    sql: str


_HEAD = re.compile(r"^-- (\w+): (.+)$", re.MULTILINE)
_, *_PARTS = _HEAD.split(Path(__file__).with_name("questions.sql").read_text(encoding="utf-8"))
QUESTIONS: Mapping[str, NamedQuestion] = {
    name: NamedQuestion(words, sql.strip().removesuffix(";"))
    for name, words, sql in zip(_PARTS[::3], _PARTS[1::3], _PARTS[2::3], strict=True)
}
"""Name -> predefined question."""

Answer = tuple[Sequence[str], list[Mapping[str, Any]]]
"""(Names of columns, rows).  Times are in UTC, without a zone."""

_ALLOWED = tomllib.loads(Path(__file__).with_name("allowed.toml").read_text(encoding="utf-8"))
FUNCTIONS, _DUCKDB_NODES, _SPARK_NODES, _SPARK_EXPRESSIONS = (
    frozenset(" ".join(_ALLOWED[name].values()).split())
    for name in ("functions", "duckdb_nodes", "spark_nodes", "spark_expressions")
)
"""Names of functions that a query may call on both engines, and names of other allowed parts of a parsed query."""


class WrongQuery(ValueError):
    """The engine refuses a statement, or the statement is not one query over the lake.  The message is one line."""

    @staticmethod
    def beyond(what: str) -> WrongQuery:
        """Return the exception for a statement with a part that is not allowed.

        what: the part, in words"""
        return WrongQuery(
            f"a question must be one query that reads the lake's tables, such as SELECT … FROM runs; {what} is not "
            "allowed (`krucible query` lists the tables)"
        )


def ask(lake: Lake, statement: str, spark: SparkJudge | None = None) -> Answer:
    """Answer a query on DuckDB in this process, or on `spark`.

    Raises WrongQuery, LookupError if the lake has no runs, and SparkUnavailable.
    """
    if not lake.files(RUNS):
        raise LookupError(f"there is no run in the lake {lake.folder}")
    return _on_duckdb(lake, statement) if spark is None else _on_spark(lake, statement, spark)


def _reason(problem: Exception) -> str:
    return " ".join(str(problem).split(";")[0].split())[:300]


# DuckDB

_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lambda_syntax": "ENABLE_SINGLE_ARROW",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_LOCK = ("SET TimeZone = 'UTC'", "SET enable_external_access = false", "SET lock_configuration = true")
_MACROS = (
    "CREATE MACRO array_join(list, separator) AS array_to_string(list, separator)",
    "CREATE MACRO percentile(value, share) AS quantile_cont(value, share)",
)
"""Definitions, for DuckDB, of functions that have these names only in Spark."""


def _on_duckdb(lake: Lake, statement: str) -> Answer:
    import duckdb

    try:
        with duckdb.connect(":memory:", config=dict(_SETTINGS)) as engine:
            parsed = engine.extract_statements(statement)
            if len(parsed) != 1:
                raise WrongQuery.beyond(f"a text of {len(parsed)} statements")
            [form] = engine.execute("SELECT json_serialize_sql(?)", [parsed[0].query]).fetchone() or [""]
            tables = _tables_of(json.loads(form))
            for sentence in _MACROS:
                engine.execute(sentence)
            for table in tables:
                engine.register("rows_of_lake", _without_zones(lake.read(table)))
                engine.execute(f"CREATE TABLE {table} AS SELECT * FROM rows_of_lake")
                engine.unregister("rows_of_lake")
            for sentence in _LOCK:
                engine.execute(sentence)
            answer = engine.execute(parsed[0])
            columns = [each[0] for each in answer.description or ()]
            return columns, [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]
    except duckdb.Error as problem:
        raise WrongQuery(_reason(problem)) from None


def _without_zones(rows: pa.Table) -> pa.Table:
    """Return the rows with the types that Spark returns: dates, and times in UTC without a zone."""
    fields = [
        pa.field(field.name, pa.timestamp("ms")) if pa.types.is_timestamp(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema([field.with_type(pa.date32()) if field.name == DATE else field for field in fields]))


def _tables_of(form: Mapping[str, Any]) -> list[str]:
    """Return the tables of the lake that a parsed statement reads.  Raises WrongQuery if it contains a part that is not
    allowed."""
    if form.get("error"):
        raise WrongQuery.beyond("a statement of another kind")
    return sorted({*_allowed(form["statements"], frozenset())})


_QUALIFIERS = ("catalog", "schema", "catalog_name", "schema_name")


def _allowed(part: Any, given: frozenset[str]) -> Iterator[str]:
    """Verify a part of a parsed statement, and yield the tables of the lake that it reads.

    given: names that WITH defines in the queries around this part
    """
    if isinstance(part, list):
        for each in part:
            yield from _allowed(each, given)
    if not isinstance(part, dict):
        return
    kind = part.get("class") or part.get("type")
    if isinstance(kind, str) and kind not in _DUCKDB_NODES:
        raise WrongQuery.beyond(kind)
    if kind in ("BASE_TABLE", "FUNCTION", "WINDOW"):
        name = str(part["table_name" if kind == "BASE_TABLE" else "function_name"])
        path = [str(part[each]) for each in _QUALIFIERS if part.get(each)]
        yield from _named(name, [*path, name], kind == "BASE_TABLE", given)
    given |= {each["key"].lower() for each in part.get("cte_map", {}).get("map", ())}
    given |= {str(part["cte_name"]).lower()} if "cte_name" in part else set()
    for each in part.values():
        yield from _allowed(each, given)


def _named(name: str, path: Sequence[str], table: bool, given: frozenset[str]) -> Iterable[str]:
    """Verify the name of a table or function in a statement.  Return the table of the lake that it names, if any."""
    lower = name.lower()
    if len(path) == 1 and (lower in FUNCTIONS if not table else lower in given or lower in TABLES):
        return [lower] if table and lower not in given else []
    raise WrongQuery.beyond(f"the {'table' if table else 'function'} {'.'.join(path)}")


# Spark

_TYPES = {of: name for name, of in TYPES.items()}
_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",  # small tables: 200 tasks would cost over a second
    "spark.sql.variable.substitute": "false",  # otherwise Spark would replace ${env:HOME} before it parses the text
    "spark.sql.runSQLOnFiles": "false",
}


def columns_of(table: str) -> str:
    """Return the columns of a table's files in Spark's notation of a schema.  A renamed column is there under both
    names."""
    own = [f"`{field.name}` {_TYPES[field.type]}" for field in TABLES[table]]
    own += [f"`{OLD_NAMES[field.name]}` {_TYPES[field.type]}" for field in TABLES[table] if field.name in OLD_NAMES]
    return ", ".join([*own, f"`{DATE}` DATE", f"`{SYSTEM}` STRING"])


def _on_spark(lake: Lake, statement: str, spark: SparkJudge) -> Answer:
    session = spark.sql_session().newSession()
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import DataFrame
    from pyspark.sql.functions import coalesce

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints every refusal, with Java's stack
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
        session._jsparkSession
    )  # needed to construct its parser
    for name, value in _CONF.items():
        session.conf.set(name, value)
    with lake.reading():  # no writer merges files while Spark reads them
        try:
            plan = session._jsparkSession.sessionState().sqlParser().parsePlan(statement)
            for table in sorted({*_allowed_plan(plan, frozenset())}):  # each table costs one listing of its files
                rows = session.read.schema(columns_of(table)).parquet((lake.folder / table).as_uri())
                for name, old in OLD_NAMES.items():
                    if old in rows.columns:
                        rows = rows.withColumn(name, coalesce(name, old)).drop(old)
                rows.createOrReplaceTempView(table)
            frame = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
            for _ in _allowed_plan(frame.queryExecution().analyzed(), frozenset()):
                pass  # an analysed plan no longer names tables
            answer = DataFrame(frame, session)
            return answer.columns, [row.asDict(recursive=True) for row in answer.collect()]
        except PySparkException as problem:
            raise WrongQuery(_reason(problem)) from None


def _items(sequence: Any) -> Iterator[Any]:
    """Iterate over a Seq of Scala."""
    return (sequence.apply(place) for place in range(sequence.size()))


def _allowed_plan(plan: Any, given: frozenset[str]) -> Iterator[str]:
    """Verify a parsed or analysed logical plan, and yield the tables of the lake that it names.

    given: names that WITH defines in the queries around this plan
    Raises WrongQuery for a node or function that is not allowed.
    """
    kind = plan.getClass().getSimpleName()
    if kind not in _SPARK_NODES:
        raise WrongQuery.beyond(kind)
    if kind in ("View", "LogicalRelation"):
        return  # a table of the lake, because the parsed plan could name no other
    if kind == "UnresolvedRelation":
        path = [*_items(plan.multipartIdentifier())]
        yield from _named(path[-1], path, True, given)
    if kind == "UnresolvedTableValuedFunction":
        path = [*_items(plan.name())]
        yield from _named(path[-1], path, False, given)
    if kind == "UnresolvedWith":
        given |= {str(pair._1()).lower() for pair in _items(plan.cteRelations())}
    for expression in _items(plan.expressions()):
        _demand_allowed(expression)
    for part in (*_items(plan.children()), *_items(plan.innerChildren())):
        yield from _allowed_plan(part, given)


def _demand_allowed(expression: Any) -> None:
    """Raise WrongQuery for an expression that is neither an operator nor an allowed function."""
    kind = expression.getClass().getSimpleName()
    if kind == "UnresolvedFunction":
        path = [*_items(expression.nameParts())]
        [*_named(path[-1], path, False, frozenset())]
    elif kind not in _SPARK_EXPRESSIONS and str(expression.prettyName()).lower() not in FUNCTIONS:
        raise WrongQuery.beyond(f"the function {expression.prettyName()}")
    elif hasattr(expression, "replacement") and kind not in _SPARK_EXPRESSIONS:
        return  # Spark's internal form of an allowed function; its arguments were checked in the parsed plan
    for part in _items(expression.children()):
        _demand_allowed(part)
