"""Whole runs of the toy quorum: random ones that are correct, and ones in which a named rule was broken."""

from __future__ import annotations

from toy_quorum.quorum import Quorum


def random_run(seed: int, steps: int = 40) -> Quorum:
    """Elections, committed and uncommitted writes, stale tails, crashes, cuts and heals, in random order; at the end
    everybody has caught up."""
    quorum = Quorum(seed)
    quorum.elect("n1")
    quorum.replicate()
    shake(quorum, steps)
    quorum.write()
    quorum.read_all()
    return quorum


def shake(quorum: Quorum, steps: int) -> None:
    """Some steps in random order, from and to a state in which everybody hears the leader."""
    random = quorum.random
    cut: set[str] = set()
    for _ in range(steps):
        match random.randrange(8):
            case 0 | 1 | 2:
                quorum.write(f"k{random.randrange(3)}")
            case 3:
                some = set(random.sample(sorted(quorum.nodes), random.randrange(1, 5)))
                quorum.write(f"k{random.randrange(3)}", followers=some | {str(quorum.leader)})
            case 4:
                quorum.refuse()
            case 5 if not cut:
                cut = set(random.sample(sorted(quorum.nodes), random.randrange(1, 3)))
                old = str(quorum.leader)
                quorum.cut(cut)
                for _ in range(random.randrange(3)):
                    quorum.write(f"k{random.randrange(3)}")
                if old in cut:
                    elect_any(quorum, set(quorum.nodes) - cut)
            case 6 if cut:
                cut = set()
                quorum.heal()
            case 7 if not cut:
                name = random.choice(sorted(quorum.nodes))
                quorum.crash(name)
                elect_any(quorum, set(quorum.nodes))
    if cut:
        quorum.heal()


def minority_commit(seed: int, steps: int = 20) -> tuple[Quorum, int, int]:
    """A correct run but for one mark that a leader, cut off with at most one follower, makes without a majority; the
    others elect another.  (the run, the epoch of that mark, the mark)."""
    quorum = Quorum(seed)
    quorum.elect("n1")
    quorum.replicate()
    shake(quorum, steps)
    quorum.replicate()
    leader = str(quorum.leader)
    follower = quorum.random.choice(sorted(set(quorum.nodes) - {leader}))
    with_it = {follower} if quorum.random.random() < 0.5 else set()
    epoch = quorum.nodes[leader].epoch
    quorum.cut({leader, *with_it})
    for _ in range(quorum.random.randrange(1, 4)):
        mark = quorum.commit_alone(with_it)
    elect_any(quorum, set(quorum.nodes) - {leader, *with_it})
    for _ in range(quorum.random.randrange(4)):
        quorum.write()
    quorum.heal()
    shake(quorum, steps)
    quorum.write()
    quorum.read_all()
    return quorum, epoch, mark


def unfair_leader(seed: int, steps: int = 20) -> tuple[Quorum, int]:
    """A correct run but for one leader whose log is long enough and of an older epoch: it was cut off with a tail, and
    is elected all the same.  (the run, the epoch it then leads)."""
    quorum = Quorum(seed)
    quorum.elect("n1")
    quorum.replicate()
    shake(quorum, steps)
    quorum.replicate()
    old = str(quorum.leader)
    quorum.cut({old})
    for _ in range(quorum.random.randrange(3, 6)):
        quorum.write(replicate=False)
    others = set(quorum.nodes) - {old}
    elect_any(quorum, others)
    quorum.write()
    quorum.copy("before it leads again")
    quorum.faults[-1]["heal_ordered_ns"] = quorum.faults[-1]["healed_ns"] = quorum._tick()
    assert quorum.elect(old, fair=False)
    quorum.replicate()
    shake(quorum, steps)
    quorum.write()
    quorum.read_all()
    return quorum, max(int(e["epoch"]) for e in quorum.elected if e["node"] == old)


def elect_any(quorum: Quorum, voters: set[str]) -> None:
    """Elect one of `voters`, which are a majority.  One of them has the longest log, so one of them can win."""
    order = sorted(voters)
    quorum.random.shuffle(order)
    for name in order * len(order):
        if quorum.elect(name, voters):
            quorum.replicate()
            return
    raise AssertionError("no voter of a majority was elected")
