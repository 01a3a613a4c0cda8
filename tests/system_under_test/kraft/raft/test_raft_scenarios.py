"""Scenarios: what happens to a quorum, told as a script; and for every planted bug the story that exposes it.

The world is kind unless the script says otherwise: messages take 1-5 ms.  Which voter is elected is drawn, so the
scripts give the voters their names as they go.  Everything the invariants of `raft_invariants` forbid is watched.
"""

import pytest
from raft_invariants import (
    COMMITTED_LOST,
    ELECTION_SAFETY,
    LOG_MATCHING,
    NO_FATAL,
    ON_A_MAJORITY,
    READS,
    VOTE_ONCE,
)
from raft_world import World

from system_under_test.kraft.raft import commitment, election, replication
from system_under_test.kraft.raft.messages import (
    FetchRequest,
    LeaderChange,
    QuorumState,
    ReplicaKey,
    Timing,
    VoteRequest,
)
from system_under_test.kraft.raft.reads import Reads

SEEDS = range(5)


def others(world, *ids):
    return [id for id in world.nodes if id not in ids]


def violated(world):
    return {violation.invariant for violation in world.watch.violations}


# Peace


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5, 7])
def test_a_quorum_elects_commits_and_reads(voters):
    world = World(voters, seed=voters)
    leader = world.elect()
    proposal = world.propose(leader, "hello")
    assert world.wait_for(lambda: proposal.outcome == "acknowledged", 0.1), "two round trips"
    read = world.read(leader)
    assert world.wait_for(lambda: read.outcome == "answered", 0.1), "a read does not wait for a parked fetch to expire"
    assert read.mark >= proposal.end_offset
    world.elapse(1.0)
    assert all(world.bodies(id) == ["hello"] for id in world.nodes)
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_is_stable_without_faults(seed):
    world = World(5, seed=seed)
    leader = world.elect()
    epoch = world.core(leader).epoch
    world.elapse(60.0)
    assert world.leader() == leader
    assert {world.core(id).epoch for id in world.nodes} == {epoch}


def test_many_reads_share_the_rounds_of_confirmation():
    world = World(3)
    leader = world.elect()
    world.elapse(1.0)
    sent = world.effects
    reads = [world.read(leader) for _ in range(100)]
    assert world.wait_for(lambda: all(read.outcome == "answered" for read in reads), 0.1)
    assert world.effects - sent < 100 + 30


# Losing the leader


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("voters", [3, 5])
def test_an_isolated_leader_steps_down_by_check_quorum_and_the_others_elect(voters, seed):
    world = World(voters, seed=seed)
    old = world.elect()
    world.cut(others(world, old))
    assert world.wait_for(lambda: world.role(old) == "resigned", 3.0 + 0.1), "1.5 fetch timeouts"
    assert world.wait_for(lambda: world.leader() not in (None, old), 5.0)
    new = world.leader()
    assert world.core(new).epoch > 1
    world.heal()
    assert world.wait_for(lambda: world.core(old).leader_id == new, 5.0)
    assert world.leader() == new, "the old leader comes back as a follower"
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healed_voter_does_not_unseat_the_leader(seed):
    """KIP-996: who was cut off asks first, and raises nobody's epoch."""
    world = World(5, seed=seed)
    leader = world.elect()
    epoch = world.core(leader).epoch
    lonely = others(world, leader)[0]
    world.cut(others(world, lonely))
    world.elapse(20.0)
    assert world.role(lonely) in ("prospective", "follower")
    assert world.core(lonely).epoch == epoch
    world.heal()
    world.elapse(10.0)
    assert world.leader() == leader
    assert world.core(leader).epoch == epoch
    assert world.role(lonely) == "follower"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_voter_that_hears_nothing_but_is_heard_does_not_unseat_the_leader(seed):
    world = World(3, seed=seed)
    leader = world.elect()
    deaf = others(world, leader)[0]
    world.blocked = {(id, deaf) for id in others(world, deaf)}
    world.elapse(20.0)
    assert world.leader() == leader


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_shuts_down_hands_over_at_once(seed):
    world = World(3, seed=seed)
    old = world.elect()
    world.elapse(1.0)
    world.shut_down(old)
    assert world.wait_for(lambda: world.leader() is not None, 0.3), "nobody waits for a timeout"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_leader_that_returns_leads_a_later_epoch_or_none(seed):
    world = World(3, seed=seed)
    old = world.elect()
    epoch = world.core(old).epoch
    world.crash(old)
    world.restart(old)
    assert world.role(old) == "resigned"
    new = world.elect()
    assert world.core(new).epoch > epoch
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_loss_of_everybody_loses_nothing_acknowledged(seed):
    world = World(3, seed=seed)
    leader = world.elect()
    proposals = [world.propose(leader, f"w{number}") for number in range(10)]
    assert world.wait_for(lambda: all(proposal.outcome == "acknowledged" for proposal in proposals))
    for id in world.nodes:
        world.crash(id, power_loss=True)
    for id in world.nodes:
        world.restart(id)
    leader = world.elect()
    read = world.read(leader)
    assert world.wait_for(lambda: read.outcome == "answered")
    assert world.bodies(leader) == [f"w{number}" for number in range(10)]
    assert not world.watch.violations


def test_a_minority_commits_nothing():
    world = World(5)
    leader = world.elect()
    friend, *majority = others(world, leader)
    world.cut([leader, friend], majority)
    proposal, read = world.propose(leader, "alone"), world.read(leader)
    world.elapse(2.0)
    assert proposal.outcome == "accepted"
    assert read.outcome == "pending"
    world.elapse(3.0)
    assert (proposal.outcome, read.outcome) == ("unknown", "refused"), "the leader gave up"


# Logs that part


def part(seed, bugs=(), voters=5):
    """An isolated leader appends what nobody fetches; the others elect another and go on.

    Returns the world after the heal, the old leader and the new one.
    """
    world = World(voters, seed=seed, bugs=bugs)
    old = world.elect()
    world.propose(old, "common")
    world.elapse(1.0)
    world.cut(others(world, old))
    for number in range(8):
        world.propose(old, f"orphan{number}")
    assert world.wait_for(lambda: world.leader() not in (None, old), 8.0)
    new = world.leader()
    for number in range(3):
        world.propose(new, f"kept{number}")
    world.elapse(3.0)
    world.heal()
    world.wait_for(lambda: world.nodes[old].core is None or world.core(old).leader_id == world.leader(), 5.0)
    world.elapse(1.0)
    world.propose(world.leader(), "afterwards")
    world.elapse(3.0)
    return world, old, new


@pytest.mark.parametrize("seed", SEEDS)
def test_a_divergent_tail_is_cut_and_replaced(seed):
    world, old, _ = part(seed)
    assert world.bodies(old) == ["common", "kept0", "kept1", "kept2", "afterwards"]
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_divergence_by_offset_leaves_a_wrong_tail_below_right_entries(seed):
    world, old, _ = part(seed, ["divergence-by-offset"])
    assert LOG_MATCHING in violated(world)
    tail = world.bodies(old)
    assert "orphan0" in tail, "the wrong tail is still there"
    assert tail[-1] == "afterwards", "and right entries stand behind it"


@pytest.mark.parametrize("seed", SEEDS)
def test_minority_commit_acknowledges_what_the_others_never_saw(seed):
    world, old, _ = part(seed, ["minority-commit"])
    assert {ON_A_MAJORITY, COMMITTED_LOST, NO_FATAL} <= violated(world)
    assert "below the high watermark" in world.nodes[old].died_of, "it dies rather than forget what it acknowledged"


def figure_8(seed):
    """Raft, figure 8: an entry of an old epoch, held by a majority, and still overwritten.

    With one batch to a fetch the new leader's old entries reach a majority before its LeaderChange does.
    """
    world = World(5, seed=seed, batches_per_read=1)
    a = world.elect()
    world.elapse(1.0)

    # a appends x, and b alone fetches it.
    b, *rest = others(world, a)
    world.cut([a, b], rest)
    world.propose(a, "x")
    assert world.wait_for(lambda: world.bodies(b) == ["x"], 1.0)
    world.crash(a)
    world.crash(b)

    # Somebody of the rest is elected, appends y, and falls before anybody fetches anything of its epoch.
    assert world.wait_for(lambda: world.leader() in rest, 15.0)
    e = world.leader()
    world.propose(e, "y")
    world.crash(e)
    c, d = (id for id in rest if id != e)
    assert "x" not in world.bodies(c) + world.bodies(d) + world.bodies(e)

    # a, b and c without d: a or b is elected.  It replicates x to c: now a majority holds x.  Then all three fall
    # before c has the LeaderChange that follows.
    world.crash(d)
    world.restart(a)
    world.restart(b)
    world.heal()

    def x_is_known_to_stand_on_a_majority():
        for id in (a, b):
            core = world.nodes[id].core
            if core is not None and core.role == "leader":
                ends = [progress.end_offset for progress in core._voter.state.followers.values()]
                x_end = next(batch.end_offset for batch in world.nodes[id].disk.batches if batch.body == "x")
                return sum(end >= x_end for end in ends) >= 2
        return False

    assert world.wait_for(x_is_known_to_stand_on_a_majority, 20.0)
    for id in (a, b, c):
        world.crash(id)

    # e returns; its y is of a later epoch than x, so that c and d elect it, and x is overwritten.
    assert world.nodes[c].disk.batches[-1].body == "x"
    for id in (c, d, e):
        world.restart(id)
    assert world.wait_for(lambda: world.leader() == e, 20.0)
    world.elapse(2.0)
    assert "x" not in world.bodies(c)
    assert "y" in world.bodies(c)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_figure_8_commits_nothing_of_an_older_epoch_by_counting(seed):
    world = figure_8(seed)
    assert not world.watch.violations


def test_figure_8_without_the_epoch_rule_loses_a_committed_entry(monkeypatch):
    def commit_by_counting(voter, leader):
        mark = sorted([voter.end_offset, *(p.end_offset for p in leader.followers.values())])[len(voter.voters) // 2]
        if mark > 0:
            voter.advance(mark)

    for module in (commitment, election, replication):
        monkeypatch.setattr(module, "commit", commit_by_counting)
    world = figure_8(0)
    assert COMMITTED_LOST in violated(world)


# Reads


def deposed(seed, bugs=()):
    """Clients that stay with an isolated leader read there while its successor already acknowledges writes."""
    world = World(5, seed=seed, bugs=bugs)
    old = world.elect()
    world.elapse(1.0)
    world.cut(others(world, old))
    assert world.wait_for(lambda: world.leader() not in (None, old), 8.0)
    write = world.propose(world.leader(), "newer")
    assert world.wait_for(lambda: write.outcome == "acknowledged", 1.0)
    assert world.role(old) == "leader", "it does not know yet"
    read = world.read(old)
    world.elapse(5.0)
    return world, read


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_deposed_leader_answers_no_read(seed):
    world, read = deposed(seed)
    assert read.outcome == "refused"
    assert not world.watch.violations


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stale_read_answers_from_the_past(seed):
    world, read = deposed(seed, ["stale-read"])
    assert read.outcome == "answered"
    assert violated(world) == {READS}


def late_fetches():
    """Fetches that were sent before the leader was deposed reach it after a read has: they say nothing of now."""
    world = World(3, timing=Timing(check_quorum_factor=10.0))
    old = world.elect()
    world.elapse(1.0)
    followers = others(world, old)
    for id in followers:  # what they send takes 4 s from now on, among themselves nothing changes
        world.lag_s[id, old] = 4.0
    world.elapse(0.6)  # the fetches parked at the leader are answered; the next ones are on their long way
    world.blocked = {(old, id) for id in followers}
    assert world.wait_for(lambda: world.leader() in followers, 8.0)
    write = world.propose(world.leader(), "newer")
    assert world.wait_for(lambda: write.outcome == "acknowledged", 1.0)
    assert world.role(old) == "leader"
    assert world.core(old).epoch == 1
    read = world.read(old)
    world.elapse(3.0)
    return world, read


def test_a_fetch_sent_before_the_read_confirms_nothing():
    world, _ = late_fetches()
    assert not world.watch.violations


def test_if_every_fetch_confirmed_a_deposed_leader_would_answer(monkeypatch):
    def confirm(self, voter, connection):
        self._confirmed[voter] = self._clock

    monkeypatch.setattr(Reads, "fetched", confirm)
    world, read = late_fetches()
    assert read.outcome == "answered"
    assert violated(world) == {READS}


def test_a_new_leader_waits_for_its_own_leader_change_before_it_notes_the_mark():
    world = World(3)
    old = world.elect()
    write = world.propose(old, "w")
    assert world.wait_for(lambda: write.outcome == "acknowledged")
    world.crash(old)
    assert world.wait_for(lambda: world.leader() is not None, 8.0)
    new = world.leader()
    change = world.nodes[new].disk.batches[-1]
    assert isinstance(change.body, LeaderChange)
    assert (world.core(new).high_watermark or 0) < change.end_offset
    read = world.read(new)
    assert read.outcome == "pending"
    assert world.wait_for(lambda: read.outcome == "answered", 1.0)
    assert read.mark >= change.end_offset > write.end_offset


# Votes


def two_groups(seed, bugs=()):
    """The leader alone, and the others in two groups that cannot hear each other."""
    world = World(5, seed=seed, bugs=bugs)
    assert world.wait_for(lambda: world.leader() is not None)
    world.elapse(1.0)
    old = world.leader()
    a, b, c, d = others(world, old)
    world.cut([a, b], [c, d])
    world.elapse(8.0)
    return world, old, {a, b}, {c, d}


@pytest.mark.parametrize("seed", SEEDS)
def test_two_groups_without_a_majority_elect_nobody(seed):
    world, *_ = two_groups(seed)
    assert world.leader() is None
    assert not world.watch.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_lone_vote_elects_in_both_groups(seed):
    world, _, one, other = two_groups(seed, ["lone-vote"])
    assert ELECTION_SAFETY in violated(world)
    leading = set(world.leaders())
    assert leading & one
    assert leading & other


def torn_between_two(bugs=()):
    """Two candidates of one epoch each have their own vote; everything hangs on the third voter, which hears both."""
    world = World(3, bugs=bugs, timing=Timing(retry_backoff_s=0.2))
    a, b, c = world.nodes
    for id in (a, b):  # they gave themselves their votes, and crashed before they asked
        world.crash(id)
        world.nodes[id].disk.quorum_state = QuorumState(1, None, ReplicaKey(id))
    world.blocked = {(a, b), (b, a)}
    world.restart(a)
    world.restart(b)
    world.elapse(0.5)
    return world, (a, b, c)


def test_of_two_candidates_one_is_elected():
    world, (a, b, _) = torn_between_two()
    assert [world.role(a), world.role(b)].count("leader") == 1
    assert not world.watch.violations


def test_double_vote_elects_both():
    world, _ = torn_between_two(["double-vote"])
    assert {VOTE_ONCE, ELECTION_SAFETY} <= violated(world)


# Damage


def test_a_voter_whose_log_was_wiped_is_filled_again():
    """Its quorum-state survived, so that it cannot vote twice."""
    world = World(3)
    leader = world.elect()
    write = world.propose(leader, "w")
    assert world.wait_for(lambda: write.outcome == "acknowledged")
    world.elapse(1.0)
    wiped = others(world, leader)[0]
    world.crash(wiped)
    disk = world.nodes[wiped].disk
    disk.truncate(0)
    disk.flush()
    world.restart(wiped)
    world.elapse(3.0)
    assert world.bodies(wiped) == ["w"]


def test_requests_that_come_twice_change_nothing():
    """A connection breaks after the request was taken and before it is answered; the client asks again."""
    world = World(3)
    leader = world.elect()
    write = world.propose(leader, "once")
    for _ in range(20):
        for connection in world.connections():
            if connection.busy is not None and isinstance(connection.busy.request, FetchRequest | VoteRequest):
                world.break_connection(connection)
        world.elapse(0.03)
    world.elapse(1.0)
    assert write.outcome == "acknowledged"
    assert all(world.bodies(id) == ["once"] for id in world.nodes)
    assert not world.watch.violations
