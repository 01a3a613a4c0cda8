"""Every transcript in this folder is what the voters do.  `pytest tests/scenarios --rewrite` writes them anew.

The narrator plays a scenario and writes down what every voter does, one event a line.

A scenario is a text.  Lines that begin with "#" explain; lines that begin with ">" are commands; what stands between
two commands is what the voters did, and it is compared or rewritten.  Commands (voters are numbers):

    voters N [seed S] [bug NAME] [one batch a fetch]     begins; all voters start unless `log` lines follow
    log V = 1 1 2 [epoch E]      voter V is down and holds records of these epochs, one a batch; it knows epoch E
    start V ...    crash V    crash V, power lost    shut down V
    campaign V                   its timeout passes now
    elect                        until all that run follow one leader that has committed
    elapse S                     S seconds pass
    until V is ROLE    until V holds N    until V commits N
    propose V WORD ...    read V
    cut 1 2 | 3                  only voters of one group hear each other
    block V V                    these two do not hear each other
    heal
    voted V in epoch E           voter V is down, and its disk says that it voted for itself
    logs                         every log: offset by offset, the epoch and what was proposed

A Fetch is shown if it is about another place of the log than the voter's last one, and an answer to a Fetch if it
brings something, or refuses in another way than the last one.  The rest is silence between a follower and its leader.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated_quorum.network import Call, Node
from simulated_quorum.world import World

from system_under_test.kraft.raft import effects, messages
from system_under_test.kraft.raft.core import Core

FOLDER = Path(__file__).parent
SCENARIOS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_voters_do_what_the_transcript_says(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    played = play(written)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    assert played == play(played), "a scenario decides everything"
    assert path.read_text() == played


@pytest.mark.parametrize("path", [p for p in SCENARIOS if " bug " in p.read_text()], ids=lambda path: path.stem)
def test_a_planted_bug_breaks_an_invariant_and_without_it_all_hold(path: Path) -> None:
    scenario = path.read_text()
    assert " is violated: " in play(scenario)
    clean = re.sub(r"^(> voters .*) bug [a-z-]+", r"\1", scenario, flags=re.MULTILINE)
    assert play(clean).endswith("Every invariant held.\n")


def test_every_transcript_explains_itself_first() -> None:
    assert len(SCENARIOS) >= 10
    for path in SCENARIOS:
        assert path.read_text().startswith("# "), path.name


def test_a_line_that_is_no_command_is_refused() -> None:
    with pytest.raises(UnknownCommand, match="dance"):
        play("> voters 3\n> dance 1\n")


LIMIT_S = 30.0


class UnknownCommand(ValueError):
    """A line of a scenario that is no command."""


class Narrator(World):
    """A world that writes down every effect before it carries it out."""

    def __init__(self, *args: object, **fields: object) -> None:
        self.lines: list[str] = []
        self._fetched: dict[int, tuple[int, int, int]] = {}
        self._refused: dict[tuple[int, int], str] = {}
        super().__init__(*args, **fields)  # type: ignore[arg-type]

    def _carry_out(self, node: Node, effect: effects.CoreEffect) -> None:
        words = self._words(node, effect)
        if words and not (isinstance(effect, effects.Reply) and self._is_repeated(node, effect, words)):
            self.lines.append(f"{self.now:8.3f}  {node.id}  {words}")
        super()._carry_out(node, effect)

    def _flushed(self, node: Node, core: Core, log_end: int) -> list[effects.CoreEffect]:
        self.lines.append(f"{self.now:8.3f}  {node.id}  ends a flush of everything below {log_end}")
        return super()._flushed(node, core, log_end)

    def _is_repeated(self, node: Node, effect: effects.Reply, words: str) -> bool:
        """The same refusal of a Fetch as before: a follower whose leader has resigned asks forty times a second."""
        call = self._calls[effect.token]
        if not isinstance(call.request, messages.FetchRequest):
            return False
        pair = (node.id, call.client)
        repeated = effect.response.error != messages.Error.NONE and self._refused.get(pair) == words
        self._refused[pair] = words
        return repeated

    def _words(self, node: Node, effect: effects.CoreEffect) -> str | None:
        match effect:
            case effects.Persist(state=state, voted_now=voted_now):
                return f"writes {_state(state)}" + (", which is its vote" if voted_now else "")
            case effects.Append(batches=batches):
                return f"appends {', '.join(map(_batch, batches))}"
            case effects.Flush():
                return "flushes"
            case effects.Truncate(end_offset=end):
                return f"cuts its log to {end}"
            case effects.Send(peer=peer, request=request):
                return self._request(node, peer, request)
            case effects.Reply(token=token, response=response):
                return _answer(self._calls[token], response)
            case effects.RoleChanged(role=role, epoch=epoch, leader_id=leader, epoch_start_offset=start):
                of = (
                    ""
                    if leader in (None, node.id)
                    else f" of {leader}"
                    if role == "follower"
                    else f", without {leader},"
                )
                return f"is {role}{of} in epoch {epoch}" + (
                    "" if start is None else f", which begins at offset {start}"
                )
            case effects.HighWatermark(offset=offset):
                return f"knows that everything below {offset} is committed"
            case effects.Accepted(first_offset=first, end_offset=end):
                return f"accepts a proposal as offsets {first} to {end - 1}"
            case effects.NotAccepted(reason=reason):
                return f"refuses: {reason}"
            case effects.ReadReady(high_watermark=mark):
                return f"answers a read from the state at {mark}"
            case effects.Fatal(reason=reason):
                return f"STOPS: {reason}"

    def _request(self, node: Node, peer: int, request: messages.RaftRequest) -> str | None:
        match request:
            case messages.VoteRequest(epoch=epoch, last_epoch=last_epoch, last_offset=end, pre_vote=pre_vote):
                kind = f"whether it would vote in epoch {epoch + 1}" if pre_vote else f"for its vote in epoch {epoch}"
                return f"-> {peer}: asks {kind}; its own log ends at {end}, in epoch {last_epoch}"
            case messages.BeginQuorumEpochRequest(epoch=epoch):
                return f"-> {peer}: leads epoch {epoch}"
            case messages.EndQuorumEpochRequest(epoch=epoch, preferred_candidates=preferred):
                line = ", ".join(str(key.id) for key in preferred) or "none"
                return f"-> {peer}: leads epoch {epoch} no more; next in line: {line}"
            case messages.FetchRequest(fetch_offset=offset, last_fetched_epoch=epoch):
                place = (peer, offset, epoch)
                if self._fetched.get(node.id) == place:
                    return None
                self._fetched[node.id] = place
                return f"-> {peer}: fetches from {offset}, behind epoch {epoch}"


def _state(state: messages.QuorumState) -> str:
    words = [f"epoch {state.epoch}"]
    words += [] if state.leader_id is None else [f"leader {state.leader_id}"]
    words += [] if state.voted is None else [f"vote for {state.voted.id}"]
    return ", ".join(words)


def _batch(batch: messages.Batch) -> str:
    body = "LeaderChange" if isinstance(batch.body, messages.LeaderChange) else str(batch.body)
    return f"{batch.base_offset}: {body} (epoch {batch.epoch})"


def _answer(call: Call, response: messages.RaftResponse) -> str | None:
    to = f"-> {call.client}:"
    if response.error != messages.Error.NONE:
        knows = "no leader" if response.leader_id is None else f"leader {response.leader_id}"
        return f"{to} error {messages.Error(response.error).name}; knows epoch {response.leader_epoch}, {knows}"
    match response:
        case messages.VoteResponse(granted=granted, pre_vote=pre_vote):
            return f"{to} {'would vote' if pre_vote and granted else 'votes' if granted else 'no'}"
        case messages.FetchResponse(diverging=diverging) if diverging is not None:
            return f"{to} the logs part: here epoch {diverging.epoch} ends at {diverging.end_offset}"
        case messages.FetchResponse(batches=batches, high_watermark=mark):
            assert isinstance(call.request, messages.FetchRequest)
            news = mark is not None and mark != call.request.high_watermark
            if not batches and not news:
                return None
            held = ", ".join(map(_batch, batches)) or "nothing new"
            return f"{to} {held}" + (f"; committed below {mark}" if mark is not None else "")
        case _:
            return f"{to} agrees"


def play(scenario: str) -> str:
    """The scenario with what the voters do now between its commands.  Raises UnknownCommand."""
    world: Narrator | None = None
    written: list[str] = []
    for line in scenario.splitlines():
        if line.startswith("#"):
            written.append(line)
        elif line.startswith(">"):
            written += ["", line]
            command = line[1:].strip()
            if command.startswith("voters"):
                world = _begin(command.split())
            else:
                assert world is not None, "a scenario begins with `voters`"
                _do(world, command)
            written += world.lines
            world.lines.clear()
    assert world is not None
    written.append("")
    broken = [f"at {each.time_s:.3f} s, {each.rule!r} is violated: {each.what}" for each in world.watch.found]
    written += broken or ["Every invariant held."]
    return "\n".join(written) + "\n"


def _begin(words: list[str]) -> Narrator:
    options = dict(zip(words[2::2], words[3::2], strict=False))
    one_batch = " ".join(words).endswith("one batch a fetch")
    bugs = [options["bug"]] if "bug" in options else []
    return Narrator(
        int(words[1]), seed=int(options.get("seed", 0)), bugs=bugs, batches_per_read=1 if one_batch else 1000
    )


def _do(world: Narrator, command: str) -> None:
    match command.replace(",", "").split():
        case ["log", voter, "=", *epochs]:
            _replace_log(world, int(voter), epochs)
        case ["start", *voters]:
            for voter in map(int, voters):
                world.restart(voter)
        case ["crash", voter, *how]:
            world.crash(int(voter), power_loss=how == ["power", "lost"])
        case ["shut", "down", voter]:
            world.shut_down(int(voter))
        case ["campaign", voter]:
            _campaign(world, int(voter))
        case ["elect"]:
            world.elect(LIMIT_S)
        case ["elapse", seconds]:
            world.elapse(float(seconds))
        case ["until", voter, what, value]:
            _until(world, int(voter), what, value)
        case ["propose", voter, *words]:
            world.propose(int(voter), *words)
        case ["read", voter]:
            world.read(int(voter))
        case ["cut", *groups]:
            world.cut(*[[int(voter) for voter in group.split()] for group in " ".join(groups).split("|")])
        case ["block", one, other]:
            world.blocked |= {(int(one), int(other)), (int(other), int(one))}
        case ["voted", voter, "in", "epoch", epoch]:
            world.crash(int(voter))
            world.nodes[int(voter)].disk.quorum_state = messages.QuorumState(
                int(epoch), None, messages.ReplicaKey(int(voter))
            )
        case ["heal"]:
            world.heal()
        case ["logs"]:
            world.lines += [f"          {node.id}  {_log(node)}" for node in world.nodes.values()]
        case _:
            raise UnknownCommand(command)


def _replace_log(world: Narrator, voter: int, words: list[str]) -> None:
    """The voter goes down, if it runs, and gets another log."""
    epoch = int(words.pop()) if "epoch" in words else 0
    epochs = [int(word) for word in words if word != "epoch"]
    if world.nodes[voter].core is not None:
        world.crash(voter)
    disk = world.nodes[voter].disk
    disk.truncate(0)
    for number, of in enumerate(epochs):
        disk.append([messages.Batch(number, of, 1, f"{of}.{number}")])
    disk.flush()
    disk.quorum_state = messages.QuorumState(max([epoch, *epochs]))


def _campaign(world: Narrator, voter: int) -> None:
    node = world.nodes[voter]
    state = world.core(voter).state
    for name in ("election_deadline", "fetch_deadline"):
        if hasattr(state, name):
            setattr(state, name, world.now)
    world._enter(node, lambda core: core.tick(world.now))


def _until(world: Narrator, voter: int, what: str, value: str) -> None:
    def reached() -> bool:
        node = world.nodes[voter]
        if what == "holds":
            return node.disk.end_offset >= int(value)
        if node.core is None:
            return False
        if what == "commits":
            return (node.core.high_watermark or 0) >= int(value)
        return str(node.core.role) == value

    if what not in ("is", "holds", "commits"):
        raise UnknownCommand(f"until {voter} {what} {value}")
    assert world.wait_for(reached, LIMIT_S), f"voter {voter} never {what} {value}"


def _log(node: Node) -> str:
    held = [
        f"{batch.epoch}" + ("" if isinstance(batch.body, messages.LeaderChange) else f":{batch.body}")
        for batch in node.disk.batches
    ]
    return " ".join(held) or "(empty)"
