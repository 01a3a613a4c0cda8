"""The records of brokers and partitions in a copied metadata log, as rows of the table CLUSTER.

A record of any other type is not tabulated.  One that cannot be decoded ends the table of its copy with a row
"undecodable".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import CLUSTER
from checkers.kernels.kafka_files import CONTROL
from system_under_test.kraft.collected.log_files import batches_in
from system_under_test.kraft.collected.record_layouts import LAYOUTS, decode, type_and_version

UNDECODABLE = "undecodable"

Row = tuple[int, int, int, str, str, str]
"""Offset, epoch, base offset of the batch, kind, about what, fields as JSON."""

_ABOUT: Mapping[int, str] = {
    **dict.fromkeys((0, 1, 7, 8, 15, 17), "broker {broker}"),
    **dict.fromkeys((2, 9), "{topic}"),
    **dict.fromkeys((3, 5), "{topic}/{number}"),
    4: "{kind} {resource}",
    12: "{feature}",
    20: "",
    **dict.fromkeys((27, 29), "controller {controller}"),
    28: "{name}",
}
"""Type of a record that is tabulated -> what it is about, by its fields."""
_NOT_SHOWN = frozenset({"migrates", "endpoints", "features", "cordoned"})
_CONFIG = 4
_CONFIGS = ("min.insync.replicas", "unclean.leader.election.enable")
"""The configs of topics that decide about partitions; other config records are left out."""


def read_cluster(folder: Path) -> Iterator[Row]:
    """The rows of one copied log directory, in offset order."""
    for base, epoch, attributes, values in batches_in(folder):
        if attributes & CONTROL:
            continue
        offset = base
        try:
            for offset, value in enumerate(values, base):
                if (found := row_of(value, offset, epoch, base)) is not None:
                    yield found
        except (ValueError, IndexError) as problem:
            yield offset, epoch, base, UNDECODABLE, "", json.dumps({"why": str(problem)})
            return


def row_of(value: bytes, offset: int, epoch: int, base: int) -> Row | None:
    """The row of one record, None if its type is not tabulated.  Raises ValueError or IndexError."""
    found = _content(value)
    return None if found is None else (offset, epoch, base, *found)


@lru_cache(maxsize=1 << 14)
def _content(value: bytes) -> tuple[str, str, str] | None:
    """Return (kind, subject, fields as JSON) of one record, None if its type is not tabulated.  Raises as `row_of`."""
    kind, _ = type_and_version(value)
    if kind not in _ABOUT:
        return None
    fields, about = decode(value), _ABOUT[kind]
    if kind == _CONFIG and fields["name"] not in _CONFIGS:
        return None
    shown = {name: held for name, held in fields.items() if name not in _NOT_SHOWN and f"{{{name}}}" not in about}
    return LAYOUTS[kind].kind, about.format(**fields), json.dumps(shown)


def write_cluster(writer: pq.ParquetWriter, copy: int, node: str, rows: Iterator[Row]) -> None:
    """One copy of a node's log."""
    columns = list(zip(*rows, strict=True)) or [()] * 6
    size = len(columns[0])
    arrays = [
        pa.repeat(pa.scalar(copy, pa.int16()), size),
        pa.repeat(pa.scalar(node), size),
        *(pa.array(column, CLUSTER.field(number + 2).type) for number, column in enumerate(columns)),
    ]
    writer.write_table(pa.Table.from_arrays(arrays, schema=CLUSTER))
