"""Every order of a few steps: planted bugs show in few, a clean core in none, and no saving leaves out a state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice, pairwise

import pytest
from click.testing import CliRunner

from checkers.raft.rules import LEADER_AGAIN
from harness.cli.main import cli
from harness.exploring import explore as exploring
from harness.exploring.explore import Explored, Explorer, covers, grow, rounds
from harness.exploring.parts import Broken, CallUnderWay, Part, Parts
from harness.exploring.steps import Budgets, ClusterSteps, ExploredState, Step
from harness.exploring.voter import ExploredVoter, Sent, ShortLog, VoterEvent, happen
from harness.spec import WrongSpec
from system_under_test.kraft.raft import changes, replication
from system_under_test.kraft.raft.changes import UpdateVoter, VoterChange
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import CoreEffect
from system_under_test.kraft.raft.election import become_leader
from system_under_test.kraft.raft.messages import Error, Identity, QuorumState, ReplicaKey, Timing
from system_under_test.kraft.raft.states import Candidate, Leader, Votes
from system_under_test.kraft.raft.voter_memory import Voter
from system_under_test.kraft.raft.voters import VoterSet

CPU_S = 120.0


def explored(budgets: Budgets, bug: str = "", voters: int = 3) -> Explored:
    return Explorer(voters, budgets, bug).search(CPU_S)


SHORTEST = [
    ("minority-commit", Budgets(epochs=1, timeouts=1), 3, "high watermark without a majority"),
    ("lone-vote", Budgets(epochs=1, timeouts=2), 6, "two leaders in one epoch"),
    ("double-vote", Budgets(epochs=1, timeouts=3), 6, "voted twice in one epoch"),
    ("vote-not-persisted", Budgets(epochs=1, timeouts=1, crashes=1), 7, "vote not kept"),
    ("no-fsync", Budgets(epochs=1, timeouts=1, crashes=1), 7, "high watermark without a majority"),
    ("divergence-by-offset", Budgets(timeouts=2), 8, "high watermark without a majority"),
    ("stale-read", Budgets(timeouts=2, reads=1), 13, "stale read"),
]


@pytest.mark.parametrize(("bug", "budgets", "steps_max", "rule"), SHORTEST, ids=[row[0] for row in SHORTEST])
def test_a_planted_bug_shows_in_few_steps(bug: str, budgets: Budgets, steps_max: int, rule: str) -> None:
    found = explored(budgets, bug)
    assert found.broken.startswith(rule)
    assert len(found.trace) <= steps_max


def test_the_trace_of_a_bug_breaks_the_same_rule_again_and_not_without_the_bug() -> None:
    budgets = Budgets(epochs=1, timeouts=2)
    trace = explored(budgets, "lone-vote").trace
    with pytest.raises(Broken, match="two leaders"):
        follow(ClusterSteps(3, budgets, "lone-vote"), trace)
    follow(ClusterSteps(3, budgets), trace[:2])


def follow(steps: ClusterSteps, trace: Sequence[Step]) -> ExploredState:
    world = steps.first()
    for step in trace:
        after = one_step(steps, world, step)
        assert after is not None
        world = after
    return world


# Explored one state at a time, without arrays


def one_step(steps: ClusterSteps, before: ExploredState, step: Step) -> ExploredState | None:
    """Return the state after a step; None beyond the last epoch.  Raises Broken."""
    change, parts = steps.look(before, step), steps.parts
    changes = [change]
    if change.heard is not None:
        changes.append(steps.heard(*change.heard, before.voters[parts.call(change.take).lane[0] - 1]))
    voters, promises = list(before.voters), before.promises
    for each in changes:
        promises = each.promised_after(promises, [parts.node(number).log.batches for number in voters])
        for id, voter, _ in each.events:
            voters[id - 1] = voter
    calls = [*(each for each in before.calls if each != change.take), *chain.from_iterable(c.adds for c in changes)]
    late = list(before.late)
    if change.take in late:
        late.remove(change.take)
    late += [change.adds_late] if change.adds_late else []
    if change.disconnects:
        asked = [each for each in calls if parts.call(each).lane[0] == change.disconnects]
        late += [steps.late(each) for each in asked if parts.call(each).reply is None]
        answering = {each for each in calls if parts.call(each).lane[1] == change.disconnects}
        calls = [steps.replied(each, None) if each in answering else each for each in calls if each not in asked]
    rest = steps.rest_after(before.rest, change.uses, change.cuts)
    after = ExploredState(tuple(voters), tuple(calls), tuple(late), promises, rest)
    return None if any(each.past for each in changes) else after


def steps_of(steps: ClusterSteps, world: ExploredState) -> list[Step]:
    found = [
        step for number in (*world.calls, *dict.fromkeys(world.late)) for step in steps.steps_of_call(world, number)
    ]
    found += [step for id in steps.ids for step in steps.steps_of_voter(world, id)]
    return found + steps.steps_of_links(world.rest)


def key_of(parts: Parts, world: ExploredState) -> int:
    return min(sum(each) % 2**64 for each in zip(*(parts.sums[number] for number in parts_of(world)), strict=True))


def test_a_clean_core_breaks_no_rule_within_a_bound_that_is_exhausted() -> None:
    """One election of two voters, a write, a read and a power loss, in every order."""
    found = explored(Budgets(epochs=1, timeouts=1, writes=1, reads=1, crashes=1), voters=2)
    assert (found.broken, found.exhausted) == ("", True)
    assert found.states > 100
    assert all(before[1] <= after[1] for before, after in pairwise(found.levels))


# Voters that change

EARLY = "voters changed before the"
OF_VOTERS = [
    ("two-voter-changes-at-once", 3, 0, Budgets(1, 1, changes=2), f"{EARLY} last change was committed"),
    ("change-before-epoch-commits", 3, 0, Budgets(timeouts=2, changes=1), f"{EARLY} epoch had committed"),
    ("voters-at-commit", 1, 1, Budgets(1, 1, changes=1, looks=1), "high watermark without a majority"),
    ("voters-not-truncated", 3, 0, Budgets(timeouts=2, changes=1), "voters outlive their record"),
    ("removed-leader-counts-itself", 3, 0, Budgets(1, 1, changes=1), "high watermark without a majority"),
    ("observer-counts", 2, 1, Budgets(1, 1, changes=1, looks=1), "high watermark without a majority"),
]


@pytest.mark.parametrize(("bug", "voters", "spares", "budgets", "rule"), OF_VOTERS, ids=[row[0] for row in OF_VOTERS])
def test_a_planted_bug_of_changing_voters_shows(
    bug: str, voters: int, spares: int, budgets: Budgets, rule: str
) -> None:
    found = Explorer(voters, budgets, bug, spares=spares).search(CPU_S)
    assert found.broken.startswith(rule)
    assert len(found.trace) <= 10


def sets_met(voters: int, spares: int, budgets: Budgets) -> list[VoterSet]:
    """All sets of voters in logs of a clean core, which breaks no rule within these budgets."""
    explorer = Explorer(voters, budgets, spares=spares)
    found = explorer.search(CPU_S)
    assert (found.broken, found.exhausted) == ("", True)
    nodes = [part for part in explorer.steps.parts.values.values() if isinstance(part, ExploredVoter)]
    return [batch.body for node in nodes for batch in node.log.batches if isinstance(batch.body, VoterSet)]


@pytest.mark.parametrize(("voters", "spares"), [(2, 0), (2, 1), (1, 1)])
def test_voters_of_a_clean_core_change_without_breaking_a_rule(voters: int, spares: int) -> None:
    sets = {each.ids for each in sets_met(voters, spares, Budgets(1, 1, changes=1, looks=1, resigns=1))}
    assert len(sets) == 1 + voters * (voters > 1) + spares, "the first one, one without each voter, one with each spare"


@pytest.mark.parametrize(("voters", "spares"), [(2, 0), (1, 1)])
def test_endpoints_of_a_clean_core_are_updated_without_breaking_a_rule(voters: int, spares: int) -> None:
    sets = sets_met(voters, spares, Budgets(1, 1, changes=1, updates=1, looks=1))
    updated = {entry.key.id for voters_named in sets for entry in voters_named if entry.endpoints}
    assert updated == set(range(1, voters + spares + 1)), "a spare server once it is a voter"


def test_an_update_that_is_not_held_back_as_other_changes_are_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the ids of the voters as they are, and still a set may not follow one that is not committed."""
    too_early = changes._too_early

    def never_for_updates(voter: Voter, leader: Leader, change: VoterChange) -> tuple[Error, str] | None:
        return None if isinstance(change, UpdateVoter) else too_early(voter, leader, change)

    monkeypatch.setattr(changes, "_too_early", never_for_updates)
    assert Explorer(3, Budgets(epochs=1, timeouts=1, changes=1)).search(CPU_S).broken == ""
    explorer = Explorer(3, Budgets(epochs=1, timeouts=1, updates=1))
    assert explorer.search(CPU_S).broken.startswith("voters changed before the epoch had committed")


def test_a_removed_leader_whose_vote_is_needed_must_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone holds its removal, so no other voter can win: no voter leads again unless it campaigns itself."""
    budgets = Budgets(epochs=1, timeouts=1, changes=1, resigns=1)
    assert Explorer(2, budgets).search(CPU_S).broken == ""
    monkeypatch.setattr(Voter, "may_be_needed", False)
    explorer = Explorer(2, budgets)
    found = explorer.search(CPU_S)
    assert found.broken == "no leader can be elected any more"
    assert [explorer.steps.words(step) for step in found.trace[-2:]] == ["remove   n1 > n1  voter", "resign   n1"]


def test_every_state_is_met_where_voters_change() -> None:
    explorer = Explorer(2, Budgets(epochs=1, timeouts=1, changes=1, looks=1), spares=1)
    assert explorer.search(CPU_S).exhausted
    assert set(explorer.keys()) == {key_of(explorer.steps.parts, world) for world in all_states(explorer)}


# A saved state is complete

BOUNDS = [
    Budgets(epochs=1, timeouts=1, cuts=1),
    Budgets(epochs=1, timeouts=1, splits=1),
    Budgets(epochs=1, timeouts=1, losses=1),
    Budgets(epochs=1, timeouts=1, insides=1),
]


@pytest.mark.parametrize("budgets", BOUNDS, ids=Budgets.words)
def test_states_that_differ_by_names_alone_count_as_one(budgets: Budgets) -> None:
    """The classes are those of the states that are met if all names count, and each holds six states at most."""
    whole, classes = (Explorer(3, budgets, symmetric=symmetric) for symmetric in (False, True))
    totals = all_states(whole)
    symmetric = classes.search(CPU_S)
    assert symmetric.exhausted
    keyed = ClusterSteps(3, budgets).parts
    for world in totals:
        for number in parts_of(world):
            keyed.number(whole.steps.parts.values[number])
    keys = {key_of(keyed, world) for world in totals}
    assert keys == set(classes.keys())
    assert len(keys) < len(totals) <= math.factorial(3) * len(keys)


def parts_of(world: ExploredState) -> tuple[int, ...]:
    return (*world.voters, *world.calls, *world.late, world.promises, world.rest)


def all_states(explorer: Explorer) -> list[ExploredState]:
    """Every state, by a search that saves nothing and shares no code with the one that is tested."""
    steps = explorer.steps
    first = steps.first()
    known = {key_of(steps.parts, first): first}
    level = [first]
    while level:
        afters = [one_step(steps, world, step) for world in level for step in steps_of(steps, world)]
        level = []
        for after in afters:
            if after is not None and (key := key_of(steps.parts, after)) not in known:
                known[key] = after
                level.append(after)
    return list(known.values())


def test_the_number_of_workers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "CHUNK", 40)
    budgets = Budgets(epochs=1, timeouts=1, crashes=1)
    alone, pair = Explorer(3, budgets), Explorer(3, budgets)
    found = [alone.search(CPU_S, workers=1), pair.search(CPU_S, workers=2)]
    assert found[0].exhausted and found[1].exhausted
    assert alone.keys() == pair.keys()
    assert found[0].states == found[1].states
    broken = [Explorer(3, budgets, "vote-not-persisted").search(CPU_S, workers=workers) for workers in (1, 2)]
    assert broken[0].trace == broken[1].trace != []


NO_PART = frozenset({"deadline", "log", "identity", "timing", "bugs", "random", "effects", "records", "others"})
"""Of a core: what is the same in every state of one exploration, or kept beside it."""


def whole(value: object) -> object:
    """All that decides what a voter will ever do, field by field, without any knowledge of the core."""
    match value:
        case Enum() | type() | str() | None:
            return value
        case dict():
            return frozenset((whole(name), whole(each)) for name, each in value.items())
        case set() | frozenset():
            return frozenset(map(whole, value))
        case list() | tuple() | deque():
            return tuple(map(whole, value))
        case _ if is_dataclass(value):
            return (type(value), *(whole(getattr(value, each.name)) for each in fields(value)))
        case _ if hasattr(value, "__dict__"):
            return tuple((name, whole(each)) for name, each in sorted(vars(value).items()) if name not in NO_PART)
    return value


@pytest.mark.parametrize(
    ("budgets", "spares"), [(Budgets(epochs=2, timeouts=2, reads=1), 0), (Budgets(epochs=1, timeouts=1, changes=1), 1)]
)
def test_two_voters_with_one_key_differ_in_nothing(
    budgets: Budgets, spares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[int, object] = {}
    number_of = Parts.number

    def number(parts: Parts, part: Part) -> int:
        found = number_of(parts, part)
        if isinstance(part, ExploredVoter):
            memory = None if part.core is None else whole(part.core)
            content = (part.id, part.log.batches, part.log.durable, part.file, part.mark, part.connections, memory)
            assert known.setdefault(found, content) == content
        return found

    monkeypatch.setattr(Parts, "number", number)
    assert Explorer(3, budgets, spares=spares).search(CPU_S, states_max=1_500).states > 1_000
    assert len(known) > 100


@pytest.mark.parametrize("error", [KeyError(7), RuntimeError("no such state")])
def test_an_error_of_the_core_is_a_violation_and_ends_no_search(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*of: object) -> None:
        raise error

    monkeypatch.setattr(replication, "fetch_request", fails)
    assert explored(Budgets(epochs=1, timeouts=1)).broken.startswith("a voter stops: voter")


def test_a_leader_that_leads_its_epoch_again_after_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Core.start

    def leads_again(core: Core, now: float) -> list[CoreEffect]:
        voter = core
        if voter.persisted.leader_id != voter.me:
            return start(core, now)
        voter.state = Candidate(voter.persisted.epoch, 0.0, Votes({voter.me}))
        return core._step(now, partial(become_leader, voter, now))

    monkeypatch.setattr(Core, "start", leads_again)
    found = explored(Budgets(epochs=1, timeouts=1, crashes=1))
    assert found.broken.startswith(LEADER_AGAIN)


# Power losses within a step


def test_a_voter_may_die_between_any_two_effects_of_a_campaign() -> None:
    """It writes the epoch and its vote, and then asks the others: each of them may hear of it, or not."""
    identity = Identity("explored", ReplicaKey(1), (1, 2, 3), Timing(fetch_max_wait_s=0.0, retry_backoff_s=0.0))
    boot = happen(ExploredVoter(1, ShortLog(), QuorumState(), None), VoterEvent("boot"), identity).node
    prospective = happen(boot, VoterEvent("timeout"), identity)
    asked = [{act.peer for act in death.acts if isinstance(act, Sent)} for death in prospective.deaths]
    assert asked == [{2}, {3}]
    request = next(act.request for act in prospective.acts if isinstance(act, Sent) and act.peer == 2)
    pre_vote = VoterEvent("ask", connection=12, request=request)
    second = Identity("explored", ReplicaKey(2), (1, 2, 3), identity.timing)
    other = happen(ExploredVoter(2, ShortLog(), QuorumState(), None), VoterEvent("boot"), second).node
    reply = happen(other, pre_vote, second).acts[-1]
    candidate = happen(prospective.node, VoterEvent("answer", peer=2, request=request, response=reply[0]), identity)  # type: ignore[arg-type]
    files = [death.down.file for death in candidate.deaths]
    assert files and all(file.epoch == 1 and file.voted == ReplicaKey(1) for file in files)
    assert all(death.down.core is None for death in candidate.deaths)


def test_what_a_dying_voter_has_sent_arrives_late() -> None:
    steps = ClusterSteps(3, Budgets(epochs=1, timeouts=1, insides=1))
    world = steps.first()
    dying = [step for step in steps_of(steps, world) if step[0] == "inside"]
    after = one_step(steps, world, dying[0])
    assert after is not None
    late = steps.parts.call(after.late[0])
    assert isinstance(late, CallUnderWay) and late.late and not after.calls
    assert ("late", after.late[0]) in set(steps_of(steps, after))


def test_a_step_leaves_the_world_before_it_as_it_was() -> None:
    steps = ClusterSteps(3, Budgets(timeouts=2, crashes=1, losses=1, splits=1, insides=1))
    world = steps.first()
    for _ in range(6):
        numbers = [steps.parts.number(steps.parts.values[number]) for number in parts_of(world)]
        assert numbers == list(parts_of(world))
        world = next(after for step in steps_of(steps, world) if (after := one_step(steps, world, step)) is not None)


def test_the_command_shows_the_trace_and_refuses_an_unknown_bug() -> None:
    answer = CliRunner().invoke(cli, ["explore", "--bug", "minority-commit", "--epochs", "1", "--timeouts", "1"])
    assert answer.exit_code == 1
    assert "broken after 3 steps" in answer.output
    assert "timeout  n1" in answer.output
    refused = CliRunner().invoke(cli, ["explore", "--bug", "lone-wolf"])
    assert isinstance(refused.exception, WrongSpec)
    done = CliRunner().invoke(cli, ["explore", "--voters", "2", "--epochs", "1", "--timeouts", "1"])
    assert done.exit_code == 0
    assert "exhausted" in done.output


# Bounds that grow


def test_bounds_grow_until_any_sum_of_steps_is_covered() -> None:
    wanted = [Budgets(3, 4), Budgets(2, 2, reads=2), Budgets(2, 2, crashes=1, writes=1), Budgets(1, 1, insides=2)]
    wanted += [Budgets(1, 1, changes=1, resigns=1), Budgets(2, 2, changes=2, looks=1), Budgets(3, 3, changes=2)]
    found = list(islice(chain.from_iterable(rounds()), 300))
    assert len(set(found)) > 250
    for each in wanted:
        assert any(covers(budgets, each) for budgets in found), each
    assert not covers(Budgets(2, 2, reads=1), Budgets(2, 2, writes=1))
    assert covers(Budgets(2, 2, changes=1), Budgets(1, 1, changes=1))
    assert not covers(Budgets(2, 2, changes=1), Budgets(1, 1)), "other voters: these stand in the log"


def test_bounds_grow_until_a_bug_of_changing_voters_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to name a spare server or a change.  Bounds without a change cannot show it, and are left out here."""
    monkeypatch.setattr(exploring, "rounds", lambda: ([each for each in one if each.dynamic] for one in rounds()))
    grown = grow(1, "voters-at-commit", CPU_S, 10_000_000, lambda line: None)
    budgets, last = grown.last
    assert budgets.changes == 1 and last.broken.startswith("high watermark without a majority")
    assert Budgets(1, 1, changes=1) in {done for done, _ in grown.exhausted}


def test_bounds_grow_around_what_is_too_large_and_skip_what_is_proved() -> None:
    lines: list[str] = []
    grown = grow(2, "", CPU_S, 60, lines.append)
    assert not grown.last[1].broken
    proved = [budgets for budgets, _ in grown.exhausted]
    assert len(proved) > 3
    assert not any(covers(before, after) for at, after in enumerate(proved) for before in proved[:at])
    assert any("too large" in line for line in lines)


def test_bounds_end_where_all_that_are_left_are_too_large() -> None:
    """With so few states the search ends long before its time, in place of naming ever larger bounds for ever."""
    grown = grow(2, "", CPU_S, 20, lambda line: None)
    assert not grown.last[1].late and not grown.last[1].broken
    answer = CliRunner().invoke(cli, ["explore", "--voters", "2", "--states", "1", "--workers", "1"])
    assert (answer.exit_code, "--states allows more" in answer.output) == (2, True), answer.output


def test_the_command_grows_the_bounds_unless_one_is_given() -> None:
    answer = CliRunner().invoke(cli, ["explore", "--voters", "2", "--minutes", "0.02", "--workers", "1"])
    assert (answer.exit_code, "proved absent within 2 epochs, 2 timeouts" in answer.output) == (0, True), answer.output
    assert "time is up within" in answer.output
    fixed = CliRunner().invoke(cli, ["explore", "--voters", "2", "--reads", "1", "--epochs", "1"])
    assert "exhausted" in fixed.output and "time is up" not in fixed.output
