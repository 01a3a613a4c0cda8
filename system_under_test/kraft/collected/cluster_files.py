"""The records of brokers and partitions in a copied metadata log, from the bytes alone.

Like `log_files.py`, this reader shares nothing with the subject's own codec.  It follows Kafka's published record
layouts (KIP-631, KIP-866, KIP-966) and their flexible encoding (KIP-482):

    value     uvarint 1 (frame), uvarint type, uvarint version, fields in order, tagged fields
    string    uvarint length + 1, bytes; 0 for null          array   uvarint count + 1, elements; 0 for null
    tagged    uvarint count, then for each: uvarint tag, uvarint size, bytes

A record of any other type is not tabulated.  One that cannot be decoded ends the table of its copy with a row
"undecodable".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import CLUSTER
from checkers.kernels.kafka_files import CONTROL, HEADER_SIZE_BYTES
from system_under_test.kraft.collected.log_files import segments
from system_under_test.kraft.collected.state_model import Cursor, record_of_next

UNDECODABLE = "undecodable"

Row = tuple[int, int, int, str, str, str]
"""Offset, epoch, base offset of the batch, kind, about what, fields as JSON."""


def _int8(data: Cursor) -> int:
    return data.number(1)


def _int32(data: Cursor) -> int:
    return data.number(4)


def _ids(data: Cursor) -> list[int] | None:
    return data.array(_int32)


def _uuids(data: Cursor) -> list[str]:
    return data.array(Cursor.uuid) or []


def _endpoint(data: Cursor) -> None:
    data.text(), data.text(), data.take(4)
    data.skip_tags()


def _feature(data: Cursor) -> None:
    data.text(), data.take(4)
    data.skip_tags()


def _register_broker(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    broker = data.number(4)
    if version >= 2:
        data.take(1)
    fields: dict[str, Any] = {"incarnation": data.uuid(), "epoch": data.number(8)}
    data.array(_endpoint), data.array(_feature)
    fields["rack"], fields["fenced"] = data.text(), bool(data.number(1))
    fields["leaving"] = bool(data.number(1)) if version >= 1 else False
    return f"broker {broker}", fields | data.tags({0: ("directories", _uuids)})


def _broker_and_epoch(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    return f"broker {data.number(4)}", {"epoch": data.number(8)}


def _producer_ids(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    about, fields = _broker_and_epoch(data, version)
    return about, fields | {"next": data.number(8)}


def _change_broker(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    about, fields = _broker_and_epoch(data, version)
    return about, fields | data.tags({0: ("fenced", _int8), 1: ("leaving", _int8), 2: ("directories", _uuids)})


def _topic(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    name = data.text()
    return data.uuid(), {"name": name}


def _remove_topic(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    return data.uuid(), {}


def _partition(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    number, topic = data.number(4), data.uuid()
    fields: dict[str, Any] = {name: _ids(data) or [] for name in ("replicas", "isr", "removing", "adding")}
    fields |= {"leader": data.number(4), "leader_epoch": data.number(4), "partition_epoch": data.number(4)}
    if version >= 1:
        fields["directories"] = _uuids(data)
    fields |= data.tags({0: ("recovery", _int8), 1: ("elr", _ids), 2: ("last_elr", _ids)})
    return f"{topic}/{number}", fields


def _change_partition(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    number, topic = data.number(4), data.uuid()
    known: dict[int, tuple[str, Callable[[Cursor], Any]]] = {
        0: ("isr", _ids),
        1: ("leader", _int32),
        2: ("replicas", _ids),
        3: ("removing", _ids),
        4: ("adding", _ids),
        5: ("recovery", _int8),
        6: ("elr", _ids),
        7: ("last_elr", _ids),
        8: ("directories", _uuids),
    }
    return f"{topic}/{number}", data.tags(known)


def _config(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    kind, resource, name = data.number(1), data.text(), data.text()
    return f"{kind} {resource}", {"name": name, "value": data.text()}


def _feature_level(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    return str(data.text()), {"level": data.number(2)}


def _register_controller(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    about, incarnation = f"controller {data.number(4)}", data.uuid()
    data.take(1)
    data.array(_endpoint), data.array(_feature)
    return about, {"incarnation": incarnation}


def _unregister_controller(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    return f"controller {data.number(4)}", {}


def _clear_elr(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    return str(data.text()), {}


def _nothing(data: Cursor, version: int) -> tuple[str, dict[str, Any]]:
    return "", {}


_KINDS: Mapping[int, tuple[str, Callable[[Cursor, int], tuple[str, dict[str, Any]]]]] = {
    0: ("register broker", _register_broker),
    1: ("unregister broker", _broker_and_epoch),
    2: ("topic", _topic),
    3: ("partition", _partition),
    4: ("config", _config),
    5: ("change partition", _change_partition),
    7: ("fence broker", _broker_and_epoch),
    8: ("unfence broker", _broker_and_epoch),
    9: ("remove topic", _remove_topic),
    12: ("feature", _feature_level),
    15: ("producer ids", _producer_ids),
    17: ("change broker", _change_broker),
    20: ("no-op", _nothing),
    27: ("register controller", _register_controller),
    28: ("clear elr", _clear_elr),
    29: ("unregister controller", _unregister_controller),
}
_CONFIGS = ("min.insync.replicas", "unclean.leader.election.enable")
"""The configs of topics that decide about partitions; other config records are left out."""


def read_cluster(folder: Path) -> Iterator[Row]:
    """The rows of one copied log directory, in offset order."""
    for segment in segments(folder):
        data, batches = segment.data.tobytes(), segment.batches
        columns = (batches.base, batches.epoch, batches.records, batches.attributes, batches.start, batches.stop)
        for base, epoch, count, attributes, start, stop in zip(*(c.tolist() for c in columns), strict=True):
            if attributes & CONTROL:
                continue
            cursor, row = Cursor(data, start + HEADER_SIZE_BYTES, stop), 0
            try:
                for row in range(count):
                    found = row_of(record_of_next(cursor)[1], base + row, epoch, base)
                    if found is not None:
                        yield found
            except (ValueError, IndexError) as problem:
                yield base + row, epoch, base, UNDECODABLE, "", json.dumps({"why": str(problem)})
                return


def row_of(value: bytes, offset: int, epoch: int, base: int) -> Row | None:
    """The row of one record, None if its type is not tabulated.  Raises ValueError or IndexError."""
    found = _content(value)
    return None if found is None else (offset, epoch, base, *found)


@lru_cache(maxsize=1 << 14)  # every copy of every node holds the same records
def _content(value: bytes) -> tuple[str, str, str] | None:
    """Return (type, subject, fields as JSON) of one record, None if its type is not tabulated.  Raises as `row_of`."""
    data = Cursor(value)
    data.uvarint()
    kind, version = data.uvarint(), data.uvarint()
    if kind not in _KINDS:
        return None
    name, read = _KINDS[kind]
    about, fields = read(data, version)
    if read not in (_register_broker, _change_broker, _partition, _change_partition):  # these have read their tags
        data.skip_tags()
    if data.at != data.end:
        raise ValueError(f"{data.end - data.at} bytes follow a record of type {kind}, version {version}")
    if name == "config" and fields["name"] not in _CONFIGS:
        return None
    return name, about, json.dumps(fields)


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
