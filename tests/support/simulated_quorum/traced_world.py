"""A shuffled world in which every voter also writes the trace of a real node.

Rows are written as `kraft.node.node` does: directly after their effect.  A kill may come between an effect and its row;
so, if nothing was sent since, the rows of the last effect are sometimes taken back when a voter crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from checkers.raft.trace_row import TraceRow
from simulated_quorum.network import Node
from simulated_quorum.world import World
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import (
    Append,
    Effect,
    Fatal,
    Flush,
    HighWatermark,
    Persist,
    Reply,
    RoleChanged,
    Send,
    Truncate,
)
from system_under_test.kraft.raft.messages import QuorumState


class TracedWorld(World):
    """traces: node name -> its rows so far."""

    def __init__(self, voters: int = 3, **options: Any) -> None:
        names = {id: f"n{id}" for id in range(1, voters + 1)}
        self.traces: dict[str, list[TraceRow]] = {name: [] for name in names.values()}
        self._names = names
        self._epoch = dict.fromkeys(names, 0)
        self._applied = dict.fromkeys(names, 0)
        self._starting: set[int] = set()
        self._unsent = dict.fromkeys(names, 0)  # number of rows on which no message can depend yet
        self._lives = dict.fromkeys(names, -1)
        super().__init__(voters, **options)

    def rows(self) -> dict[str, Iterator[TraceRow]]:
        return {name: iter(rows) for name, rows in self.traces.items()}

    def restart(self, id: int) -> None:
        node = self.nodes[id]
        if node.core is None and node.died_of is None:
            self._starting.add(id)
        super().restart(id)

    def crash(self, id: int, *, power_loss: bool = False) -> None:
        if (unsent := self._unsent[id]) and self.random.random() < 0.5:
            del self.traces[self._names[id]][-self.random.randint(1, unsent) :]
        self._unsent[id] = 0
        super().crash(id, power_loss=power_loss)

    def _enter(self, node: Node, call: Callable[[Core], list[Effect]], incarnation: int | None = None) -> None:
        if node.id in self._starting:
            self._starting.discard(node.id)
            disk, id = node.disk, node.id
            self._epoch[id], self._applied[id] = max(disk.quorum_state.epoch, disk.last_epoch), 0
            self._lives[id] += 1
            self._say(id, "start", offset=disk.end_offset, hash=disk.prefix(disk.end_offset))
            self._say_vote(id, "quorum-state", disk.quorum_state)
            self._unsent[id] = 0
        super()._enter(node, call, incarnation)

    def _carry_out(self, node: Node, effect: Effect) -> None:
        id, disk = node.id, node.disk
        if isinstance(effect, Send | Reply):
            self._unsent[id] = 0
        super()._carry_out(node, effect)
        rows = len(self.traces[self._names[id]])
        match effect:
            case Persist(state=state, voted_now=voted_now):
                self._epoch[id] = state.epoch
                self._say_vote(id, "vote" if voted_now else "quorum-state", state)
            case Append():
                self._say(id, "append", epoch=disk.last_epoch, offset=disk.end_offset)
            case Flush():
                self._say(id, "flush", offset=disk.flushed_end)
            case Truncate():
                disk.flush()  # a node's log makes a truncation durable before it returns
                self._say(id, "truncate", offset=disk.end_offset)
            case RoleChanged(role=role, epoch=epoch, leader_id=leader, epoch_start_offset=start):
                self._epoch[id] = epoch
                peer = None if leader is None else self._names[leader]
                self._say(id, "role", role=str(role), peer=peer, offset=start)
            case HighWatermark(offset=mark):
                self._say(id, "high-watermark", offset=mark, hash=disk.prefix(mark))
                for end in [end for end in disk.ends if self._applied[id] < end <= mark]:
                    self._say(id, "applied", offset=end, hash=(disk.prefix(end) or 0) ^ 1)
                    self._applied[id] = end
            case Fatal():
                self._say(id, "fatal")
        written = len(self.traces[self._names[id]]) - rows
        self._unsent[id] = written if written > 0 and node.core is not None else 0

    def _flushed(self, node: Node, core: Core, log_end: int) -> list[Effect]:
        self._say(node.id, "flush", offset=node.disk.flushed_end)
        self._unsent[node.id] = 1
        return super()._flushed(node, core, log_end)

    def _say_vote(self, id: int, event: str, state: QuorumState) -> None:
        self._say(id, event, epoch=state.epoch, peer=None if state.voted is None else self._names[state.voted.id])

    def _say(self, id: int, event: str, epoch: int | None = None, **columns: Any) -> None:
        rows = self.traces[self._names[id]]
        known = {"offset": None, "hash": None, "peer": None, "role": None} | columns
        epoch = self._epoch[id] if epoch is None else epoch
        rows.append(TraceRow(len(rows), self._lives[id], event, epoch, **known))
