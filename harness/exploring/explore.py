"""Breadth first through every order of steps, so that the first violation has a shortest trace.

A step is one of

    rpc       a request arrives, is handled and answered, and the answer arrives
    request   only the first half of it; `reply` is the second   (splits)
    lose      the sender gives up; the request may still arrive   (losses)
    late      a request arrives whose sender has given up
    timeout   a voter waits no longer: for a leader, an election, or a majority   (timeouts, resigns)
    crash     a voter loses power; `boot` starts it again   (crashes)
    cut       nothing from or to one voter arrives; `heal` ends it   (cuts)
    write, read   a client asks a voter that believes to lead   (writes, reads)

Those with a budget happen at most so often, and no epoch beyond the last is entered.  Time is abstracted: every timer
may ring at any moment, which is more than clocks of any rate would allow.  An effect list is carried out as a whole:
what a crash inside of one does is left to the swarm.

What is exhausted within its budgets proves that no order of those steps breaks a rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from harness.exploring.state import LEFT, Call, Lane, Naming, Node, ShortLog, World, key, namings
from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import durable_state, must_fsync
from system_under_test.kraft.raft.messages import (
    Batch,
    Identity,
    QuorumState,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
)
from system_under_test.kraft.raft.quorum import majority
from system_under_test.kraft.raft.states import Follower, Leader, Prospective, Resigned
from system_under_test.kraft.raft.timing import Timing

Step = tuple[str, Lane | int]

FOREVER_S = 9.0


class Broken(Exception):
    """A rule does not hold; the message says which, and how."""


class _Middle(Random):
    """Chance that is none: the same in every order."""

    def random(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Budgets:
    """How often each kind of step may happen; epochs: the last one that may be entered."""

    epochs: int = 2
    timeouts: int = 3
    crashes: int = 0
    losses: int = 0
    cuts: int = 0
    splits: int = 0
    writes: int = 0
    reads: int = 0
    resigns: int = 0

    def words(self) -> str:
        used = [f"{getattr(self, name)} {name}" for name in LEFT if getattr(self, name)]
        return f"{self.epochs} epochs, {', '.join(used)}"


@dataclass(slots=True)
class Explored:
    """levels: (depth, states so far, transitions so far, CPU seconds).  broken: the first rule that did not hold.
    trace: the steps to it.  exhausted: nothing is left to explore within the budgets."""

    states: int = 0
    transitions: int = 0
    cpu_s: float = 0.0
    levels: list[tuple[int, int, int, float]] = field(default_factory=list)
    broken: str = ""
    trace: list[Step] = field(default_factory=list)
    exhausted: bool = False


class Explorer:
    """symmetric: whether states that differ by names alone count as one."""

    def __init__(self, voters: int, budgets: Budgets, bug: str = "", *, symmetric: bool = True) -> None:
        self._ids = tuple(range(1, voters + 1))
        self._budgets = budgets
        self._bugs = frozenset({bug}) if bug else frozenset()
        timing = Timing(fetch_max_wait_s=0.0, retry_backoff_s=0.0)
        self._identities = {id: Identity("explored", ReplicaKey(id), self._ids, timing, self._bugs) for id in self._ids}
        self._chance = _Middle()
        self._names: list[Naming] = namings(voters) if symmetric else namings(voters)[:1]

    # The search

    def search(
        self, cpu_s_max: float, states_max: int = 10**9, say: Callable[[str], None] = lambda line: None
    ) -> Explored:
        """Level by level, until a rule breaks, all is explored, or time or memory is used up."""
        began_s, done = time.process_time(), Explored()
        first = self.first()
        root = key(first, self._names)
        came: dict[int, tuple[int, Step] | None] = {root: None}
        level = [(root, first)]
        while level:
            following: list[tuple[int, World]] = []
            for parent, world in level:
                if time.process_time() - began_s > cpu_s_max or len(came) > states_max:
                    break
                for step in self.steps(world):
                    done.transitions += 1
                    try:
                        after = self.do(world, step)
                    except Broken as rule:
                        done.broken, done.trace = str(rule), [*_path(came, parent), step]
                        break
                    if after is None:
                        continue
                    found = key(after, self._names)
                    if found not in came:
                        came[found] = (parent, step)
                        following.append((found, after))
                if done.broken:
                    break
            else:
                done.exhausted = not following
                done.levels.append((len(done.levels), len(came), done.transitions, time.process_time() - began_s))
                say(_level(*done.levels[-1]))
                level = following
                continue
            break
        done.states, done.cpu_s = len(came), time.process_time() - began_s
        return done

    def first(self) -> World:
        nodes = tuple(Node(id, ShortLog(), QuorumState(), None) for id in self._ids)
        world = World(nodes, tuple(getattr(self._budgets, name) for name in LEFT))
        for id in self._ids:
            self._boot(world, id)
        return world

    # What may happen, and what then happens

    def steps(self, world: World) -> Iterator[Step]:
        for lane, call in world.calls.items():
            if world.has("losses") or world.cut in lane[:2]:
                yield "lose", lane
            if world.cut and world.cut in lane[:2]:
                continue
            if call.reply is not None:
                yield "reply", lane
                continue
            yield "rpc", lane
            if world.has("splits"):
                yield "request", lane
        for number, call in enumerate(world.late):
            if world.cut not in call.lane[:2]:
                yield "late", number
        for node in world.nodes:
            yield from self._steps_of(world, node)
        if world.cut:
            yield "heal", 0
        elif world.has("cuts"):
            for id in self._ids:
                yield "cut", id

    def _steps_of(self, world: World, node: Node) -> Iterator[Step]:
        if node.core is None:
            yield "boot", node.id
            return
        state = node.core._voter.state
        if isinstance(state, Leader):
            if world.has("writes"):
                yield "write", node.id
            if world.has("reads"):
                yield "read", node.id
            if world.has("resigns"):
                yield "resign", node.id
        elif world.has("timeouts") and not (
            isinstance(state, (Prospective, Resigned)) and state.epoch >= self._budgets.epochs
        ):
            yield "timeout", node.id
        if world.has("crashes"):
            yield "crash", node.id

    def do(self, before: World, step: Step) -> World | None:
        """The world after a step; None beyond the last epoch.  Raises Broken."""
        world = before.copy()
        name, what = step
        if isinstance(what, tuple):
            self._message(world, name, what)
        elif name == "late":
            call = world.late[what]
            world.late = (*world.late[:what], *world.late[what + 1 :])
            self._ask(world, call)
        else:
            self._at(world, name, what)
        past = any(node.core is not None and node.core.epoch > self._budgets.epochs for node in world.nodes)
        return None if past else world

    def _message(self, world: World, name: str, lane: Lane) -> None:
        call = world.calls[lane]
        match name:
            case "lose":
                if world.cut not in lane[:2] or not world.cut:
                    world.use("losses")
                del world.calls[lane]
                world.generation += 1
                if call.reply is None:
                    world.late = (*world.late, call)
                self._answer(world, call, None)
            case "reply":
                del world.calls[lane]
                self._answer(world, call, call.reply)
            case _:
                if name == "request":
                    world.use("splits")
                if world.node(lane[1]).core is None:  # the connection is refused
                    del world.calls[lane]
                    self._answer(world, call, None)
                    return
                reply = self._ask(world, call)
                if name == "request":
                    world.calls[lane] = Call(lane, call.request, call.connection, reply)
                else:
                    del world.calls[lane]
                    self._answer(world, call, reply)

    def _at(self, world: World, name: str, id: int) -> None:
        match name:
            case "cut":
                world.use("cuts")
                world.cut = id
            case "heal":
                world.cut = 0
            case "boot":
                self._boot(world, id)
            case "crash":
                world.use("crashes")
                self._crash(world, id)
            case "timeout" | "resign":
                self._timeout(world, id, name)
            case "write" | "read":
                node, token = world.touch(id), 1000 + world.has(f"{name}s")
                world.use(f"{name}s")
                assert node.core is not None
                if name == "write":
                    self._carry_out(world, node, node.core.propose(0.0, token, [(f"w{token}", 1)]))
                else:
                    world.reads[token] = _end(world.committed)
                    self._carry_out(world, node, node.core.read(0.0, token))

    def _boot(self, world: World, id: int) -> None:
        node = world.touch(id)
        node.core = Core(self._identities[id], node.log, node.file, self._chance, 0.0)
        node.mark = 0
        self._carry_out(world, node, node.core.start(0.0))

    def _crash(self, world: World, id: int) -> None:
        node = world.touch(id)
        if node.core is not None and isinstance(node.core._voter.state, Leader):
            for token in node.core._voter.state.reads.unanswered():
                world.reads.pop(token, None)
        node.core = None
        node.log.batches = node.log.batches[: node.log.durable]
        for lane, call in list(world.calls.items()):
            if lane[0] == id:
                del world.calls[lane]
                if call.reply is None:
                    world.late = (*world.late, call)
            elif lane[1] == id and call.reply is not None:
                world.calls[lane] = Call(lane, call.request, call.connection)  # the answer died with its connection
        world.generation += 1

    def _timeout(self, world: World, id: int, name: str) -> None:
        world.use(f"{name}s")
        node = world.touch(id)
        assert node.core is not None
        state = node.core._voter.state
        if isinstance(state, Leader):
            state.quorum_deadline, state.heard = 0.0, set()
        elif isinstance(state, Follower):
            state.fetch_deadline = 0.0
        else:
            state.election_deadline = 0.0
        self._carry_out(world, node, node.core.tick(0.0))

    def _ask(self, world: World, call: Call) -> RaftResponse | None:
        """Hand a request over; the answer, None if the voter is down."""
        if world.node(call.lane[1]).core is None:
            return None
        node = world.touch(call.lane[1])
        assert node.core is not None
        replies: list[RaftResponse] = []
        self._carry_out(world, node, node.core.on_request(0.0, 1, call.connection, call.request), replies)
        return replies[0] if replies else None

    def _answer(self, world: World, call: Call, reply: RaftResponse | None) -> None:
        if world.node(call.lane[0]).core is None:
            return
        node = world.touch(call.lane[0])
        assert node.core is not None
        self._carry_out(world, node, node.core.on_response(0.0, call.lane[1], call.request, reply))

    # Effects, and what must hold after each

    def _carry_out(
        self, world: World, node: Node, effects: list[fx.Effect], replies: list[RaftResponse] | None = None
    ) -> None:
        log = node.log
        for effect in effects:
            match effect:
                case fx.Persist(state=state):
                    self._check_vote(world, node, state)
                    node.file = durable_state(state, self._bugs)
                case fx.Append(batches=batches):
                    log.batches = (*log.batches, *batches)
                case fx.Flush():
                    if must_fsync(self._bugs):
                        log.durable = len(log.batches)
                case fx.Truncate(end_offset=end):
                    kept = log.upto(end) or ()
                    if world.committed[len(kept) :] and log.batches[: len(world.committed)] == world.committed:
                        raise Broken(f"committed entry lost: voter {node.id} cuts its log to {end}")
                    log.batches, log.durable = kept, min(log.durable, len(kept))
                case fx.Send(peer=peer, request=request):
                    self._send(world, node.id, peer, request)
                case fx.Reply(response=response):
                    if replies is not None:
                        replies.append(response)
                case fx.RoleChanged(role=role, epoch=epoch):
                    if role == "leader":
                        self._check_leader(world, node, epoch)
                case fx.HighWatermark(offset=offset):
                    self._check_mark(world, node, offset)
                case fx.ReadReady(token=token, high_watermark=mark):
                    if mark < world.reads.pop(token, 0):
                        raise Broken(f"stale read: voter {node.id} answers from below {mark}")
                case fx.Refused(token=token):
                    world.reads.pop(token, None)
                case fx.Fatal(reason=reason):
                    raise Broken(f"a voter stops: voter {node.id}: {reason}")
                case fx.Accepted():
                    pass
        if node.core is not None:
            _stop_time(node.core)

    def _send(self, world: World, client: int, server: int, request: RaftRequest) -> None:
        lane = (client, server, type(request).__name__)
        world.calls[lane] = Call(lane, request, world.generation * 100 + client * 10 + server)

    def _check_vote(self, world: World, node: Node, state: QuorumState) -> None:
        known = world.votes.get((node.id, state.epoch))
        if state.voted is None:
            if known is not None:
                raise Broken(f"vote not kept: voter {node.id} forgets its vote of epoch {state.epoch}")
            return
        if known is not None and known != state.voted.id:
            raise Broken(f"voted twice in one epoch: voter {node.id} in epoch {state.epoch}")
        world.votes[node.id, state.epoch] = state.voted.id

    def _check_leader(self, world: World, node: Node, epoch: int) -> None:
        if world.leaders.setdefault(epoch, node.id) != node.id:
            raise Broken(f"two leaders in one epoch: voters {world.leaders[epoch]} and {node.id} lead epoch {epoch}")
        if node.log.batches[: len(world.committed)] != world.committed:
            raise Broken(f"committed entry lost: voter {node.id} leads epoch {epoch} without it")

    def _check_mark(self, world: World, node: Node, offset: int) -> None:
        prefix = node.log.upto(offset)
        if prefix is None:
            raise Broken(f"a mark where no entry ends: voter {node.id} at {offset}")
        if offset < node.mark:
            raise Broken(f"a mark goes back: voter {node.id} from {node.mark} to {offset}")
        node.mark = offset
        shorter, longer = sorted((prefix, world.committed), key=len)
        if longer[: len(shorter)] != shorter:
            raise Broken(f"committed prefixes differ: voter {node.id} commits up to {offset}")
        if node.core is not None and node.core.role == "leader":
            holders = sum(each.log.batches[: len(prefix)] == prefix for each in world.nodes)
            if holders < majority(len(self._ids)):
                raise Broken(f"a mark without a majority: voter {node.id} commits up to {offset}")
        if len(prefix) > len(world.committed):
            world.committed = prefix


def _stop_time(core: Core) -> None:
    """No time has passed: what was due in the future is still there, and nothing is to be waited for."""
    voter = core._voter
    voter.retry_at.clear()
    state = voter.state
    if isinstance(state, Leader):
        state.quorum_deadline = FOREVER_S
        for progress in state.followers.values():
            progress.begin_due, progress.fetched_at = (FOREVER_S if progress.begin_due > 0 else 0.0), 0.0
    elif isinstance(state, Follower):
        state.fetch_deadline = FOREVER_S
    else:
        state.election_deadline = FOREVER_S


def _end(batches: tuple[Batch, ...]) -> int:
    return batches[-1].end_offset if batches else 0


def _path(came: dict[int, tuple[int, Step] | None], at: int) -> list[Step]:
    steps: list[Step] = []
    while (link := came[at]) is not None:
        at, step = link
        steps.append(step)
    return steps[::-1]


def _level(depth: int, states: int, transitions: int, cpu_s: float) -> str:
    return f"  {depth:>3} steps: {states:>9,} states, {transitions:>10,} transitions, {cpu_s:>7.1f} CPU s"
