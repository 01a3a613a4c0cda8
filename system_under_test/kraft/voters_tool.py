"""A tool for operators that lists or changes the voters of a running quorum, as `kafka-metadata-quorum` does.

    python -m system_under_test.kraft voters list   --servers HOST:PORT,...
    python -m system_under_test.kraft voters remove --servers HOST:PORT,... --id 3
    python -m system_under_test.kraft voters add    --servers HOST:PORT,... --id 3 --directory UUID --at HOST:PORT
    python -m system_under_test.kraft voters upgrade --servers HOST:PORT,...

`upgrade` sets `kraft.version` to 1, as `kafka-features` does.  From then on the voters can change, even in a cluster
that began with static voters.

Any server forwards a request to the leader.  A request without an answer may have been executed.  So a change is
repeated until the leader's own list contains the change, or the time is over.  The last list is printed as JSON:
{"leader": id, "epoch": epoch, "voters": {id: directory id}}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from system_under_test.kraft.client import WHO_LEADS
from system_under_test.kraft.controller.features import KRAFT_VERSION
from system_under_test.kraft.log.small_files import kafka_uuid, parse_uuid
from system_under_test.kraft.ports import Network
from system_under_test.kraft.raft.voters import LISTENER
from system_under_test.kraft.wire import versions
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.versions import requested

CLIENT_ID = "voters-tool"
"""Client id that does not mark the project's own clients: servers forward its requests."""
PATIENCE_S = 1.0
CHANGE_S = 5.0
AGAIN_S = 0.1


class NotAgreed(OSError):
    """The quorum did not agree in time; the message contains the last refusal."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The leader's list of voters.

    voters: id -> directory id
    """

    leader: int
    epoch: int
    voters: dict[int, UUID | None]

    def as_json(self) -> str:
        shown = {str(voter): None if one is None else kafka_uuid(one) for voter, one in sorted(self.voters.items())}
        return json.dumps({"leader": self.leader, "epoch": self.epoch, "voters": shown})


def _error(answer: Entity) -> tuple[int, str | None]:
    return int(answer.error_code), answer.error_message


def _removal(now: Listed, voter: int) -> Entity:
    given = {"cluster_id": None, "voter_id": voter, "voter_directory_id": now.voters[voter]}
    return requested(versions.REMOVE_RAFT_VOTER, 0, given)


@dataclass(frozen=True, slots=True)
class QuorumOfVoters:
    """The quorum, reached through some of its nodes.

    servers: addresses of any nodes
    within_s: maximum seconds for one change
    """

    servers: Sequence[tuple[str, int]]
    within_s: float
    network: Network | None = None

    async def listed(self) -> Listed:
        """Return the leader's current list.  Raises NotAgreed if no server forwards the request to a leader."""
        why = "no server"
        for server in self.servers:
            try:
                return await self._listed(server)
            except OSError as problem:
                why = f"{server[0]}:{server[1]}: {problem or type(problem).__name__}"
        raise NotAgreed(why)

    async def remove(self, voter: int) -> Listed:
        """Remove a voter, and wait until the list no longer contains it.  Raises NotAgreed."""
        return await self._changed(lambda now: _removal(now, voter) if voter in now.voters else None)

    async def add(self, voter: int, directory: UUID, at: tuple[str, int]) -> Listed:
        """Add a voter, and wait until the list contains it.  If the list contains the voter with another directory,
        remove that first.  Raises NotAgreed.
        """
        given = {"cluster_id": None, "voter_id": voter, "voter_directory_id": directory}
        listeners = [{"name": LISTENER, "host": at[0], "port": at[1]}]
        more = {"timeout": timedelta(seconds=CHANGE_S), "listeners": listeners}
        addition = requested(versions.ADD_RAFT_VOTER, 1, {**given, **more})

        def request(now: Listed) -> Entity | None:
            if now.voters.get(voter) == directory:
                return None
            return _removal(now, voter) if voter in now.voters else addition

        return await self._changed(request)

    async def upgrade(self) -> Listed:
        """Set `kraft.version` to 1, and wait until the leader acknowledges it.  Raises NotAgreed."""
        level = {"feature": KRAFT_VERSION, "max_version_level": 1}
        wanted = requested(versions.UPDATE_FEATURES, 1, {"feature_updates": [level]})
        acknowledged = False

        def take(answer: Entity) -> tuple[int, str | None]:
            nonlocal acknowledged
            error, words = int(answer.error_code), answer.error_message
            for each in answer.results:
                error, words = error or int(each.error_code), words or each.error_message
            acknowledged = error == 0
            return error, words

        return await self._changed(lambda now: None if acknowledged else wanted, take)

    async def _changed(
        self, request: Callable[[Listed], Entity | None], error_in: Callable[[Entity], tuple[int, str | None]] = _error
    ) -> Listed:
        """Send requests until the leader's list is as wanted.  Raises NotAgreed.

        request: returns the next request for a list of the leader; None if the list is as wanted
        error_in: returns the error of an answer, and its text
        """
        loop = asyncio.get_running_loop()
        until, why = loop.time() + self.within_s, "no time"
        while loop.time() < until:
            for server in self.servers:
                try:
                    now = await self._listed(server)
                    wanted = request(now)
                    if wanted is None:
                        return now
                    why = "error {}: {}".format(*error_in(await self._ask(server, wanted, CHANGE_S)))
                except OSError as problem:
                    why = f"{server[0]}:{server[1]}: {problem or type(problem).__name__}"
            await asyncio.sleep(AGAIN_S)
        raise NotAgreed(f"within {self.within_s:g} s the voters did not change: {why}")

    async def _listed(self, server: tuple[str, int]) -> Listed:
        answer = await self._ask(server, WHO_LEADS, PATIENCE_S)
        partition = answer.topics[0].partitions[0]
        if partition.error_code != 0:
            raise OSError(f"no leader answered: error {partition.error_code}")
        voters = {int(each.replica_id): each.replica_directory_id for each in partition.current_voters}
        return Listed(int(partition.leader_id), int(partition.leader_epoch), voters)

    async def _ask(self, server: tuple[str, int], request: Entity, patience_s: float) -> Entity:
        """Send one request to one server, and return the answer.  Raises OSError."""
        connection = Connection(*server, CLIENT_ID, connect_timeout_s=PATIENCE_S, network=self.network)
        try:
            async with asyncio.timeout(patience_s):
                return await connection.ask(request)
        except MalformedFrame as problem:
            raise OSError(str(problem)) from None
        finally:
            connection.close()


async def run(argv: Sequence[str], network: Network | None = None) -> Listed:
    """Run one command line, without the program's name.  Raises NotAgreed, and SystemExit for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m system_under_test.kraft voters",
        description="List the voters of a running quorum, or change them one at a time.",
        epilog="Exit status: 0; 1 if the quorum did not agree in time.",
    )
    parser.add_argument("verb", choices=["list", "add", "remove", "upgrade"])
    parser.add_argument("--servers", required=True, type=_addresses, metavar="HOST:PORT,...", help="any of the nodes")
    parser.add_argument("--id", type=int, help="of the voter")
    parser.add_argument("--directory", type=parse_uuid, metavar="UUID", help="add: its directory id (meta.properties)")
    parser.add_argument("--at", type=_addresses, metavar="HOST:PORT", help="add: where the other voters reach it")
    parser.add_argument("--within", type=float, default=30.0, metavar="SECONDS", help="how long to try")
    given = parser.parse_args(argv)
    quorum = QuorumOfVoters(given.servers, given.within, network)
    if given.verb == "list":
        return await quorum.listed()
    if given.verb == "upgrade":
        return await quorum.upgrade()
    if given.id is None or (given.verb == "add" and (given.directory is None or given.at is None)):
        parser.error("remove needs --id, and add needs --id, --directory and --at")
    if given.verb == "remove":
        return await quorum.remove(given.id)
    return await quorum.add(given.id, given.directory, given.at[0])


def _addresses(text: str) -> list[tuple[str, int]]:
    """Parse addresses separated by commas.  Raises ValueError."""
    found = [address.rpartition(":") for address in text.split(",")]
    return [(host, int(port)) for host, _, port in found]
