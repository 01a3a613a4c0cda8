"""A node's configuration: one JSON file, written by the subject, the same for every start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system_under_test.kraft.log.meta_properties import MetaProperties, derived_uuid
from system_under_test.kraft.raft.decisions import BUGS


class BadConfig(ValueError):
    """One sentence: which file, what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A voter as the others reach it."""

    name: str
    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Config:
    """peers: every voter, this one included, by id.  seed: of timeouts and ids.  bug: a planted bug, or None."""

    name: str
    node_id: int
    cluster_id: str
    host: str
    port: int
    peers: dict[int, Peer]
    data_dir: Path
    trace_dir: Path
    seed: int
    bug: str | None = None

    @property
    def properties(self) -> MetaProperties:
        """What `meta.properties` of this node must say; the directory's id follows from the seed."""
        return MetaProperties(
            self.cluster_id, self.node_id, derived_uuid("directory", self.cluster_id, self.node_id, self.seed)
        )


def load(path: Path) -> Config:
    """Raises BadConfig."""
    try:
        return parse(json.loads(path.read_text()))
    except OSError as problem:
        raise BadConfig(f"cannot read the configuration {path}: {problem.strerror}") from None
    except ValueError as problem:
        raise BadConfig(f"the configuration {path} is no good: {problem}") from None


def parse(fields: dict[str, Any]) -> Config:
    """The JSON object {"node_id", "name", "cluster_id", "listen": "host:port", "peers": {name: [id, host, port]},
    "data_dir", "trace_dir", "seed", "bug"}.  Raises BadConfig."""
    try:
        host, _, port = fields["listen"].rpartition(":")
        peers = [Peer(name, int(i), str(h), int(p)) for name, (i, h, p) in fields["peers"].items()]
        me = Peer(str(fields["name"]), int(fields["node_id"]), host, int(port))
        by_id = {peer.id: peer for peer in [*peers, *([] if any(p.id == me.id for p in peers) else [me])]}
        config = Config(
            me.name,
            me.id,
            str(fields["cluster_id"]),
            host,
            me.port,
            dict(sorted(by_id.items())),
            Path(fields["data_dir"]),
            Path(fields["trace_dir"]),
            int(fields["seed"]),
            fields.get("bug"),
        )
    except KeyError as problem:
        raise BadConfig(f"{problem} is missing") from None
    except (TypeError, ValueError, AttributeError) as problem:
        raise BadConfig(str(problem)) from None
    if len({peer.name for peer in by_id.values()}) != len(peers) + (me.id not in {p.id for p in peers}):
        raise BadConfig("two peers share a name or an id")
    if by_id[me.id].name != me.name:
        raise BadConfig(f"id {me.id} is {me.name} here and {by_id[me.id].name} among the peers")
    if config.bug is not None and config.bug not in BUGS:
        raise BadConfig(f"there is no planted bug {config.bug!r}; known: {', '.join(BUGS)}")
    return config
