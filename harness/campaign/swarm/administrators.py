"""Administrators of a storm: they ask the leader, once each, to change topics, settings and the registry of brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checkers.base.history import Type
from harness.campaign.swarm.clients import History
from harness.campaign.swarm.registry import UNREGISTER, RegistryRequest
from harness.campaign.swarm.scenario import StormCard
from harness.campaign.swarm.settings import SettingAsked, setting_write
from harness.campaign.swarm.topics import TopicRequest
from harness.campaign.swarm.voter import CALLS_PORT, OK, REFUSED, VoterOnMachine
from harness.campaign.swarm.watch_brokers import BrokerWatch
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.loop import Process, SimulatedLoop
from simulation.network import SimulatedNetwork

REQUEST_S_MAX = 3.0


class Administrators:
    """host: where they run.  best: the living leader of the highest epoch.  brokers: None if none register."""

    def __init__(
        self,
        network: SimulatedNetwork,
        host: Process,
        history: History,
        best: Callable[[], VoterOnMachine | None],
        brokers: BrokerWatch | None,
    ) -> None:
        self.settings: list[SettingAsked] = []
        """Every write and read of a setting."""
        self._network = network
        self._loop: SimulatedLoop = network.loop
        self._host = host
        self._history = history
        self._best = best
        self._brokers = brokers

    # Cards

    def topics(self, card: StormCard) -> bool:
        """Ask for what the card says; False if nobody leads or no brokers register."""
        leader = self._best()
        if leader is None or self._brokers is None:
            return False
        self._call(leader, ("topics", "", TopicRequest.of(card)))
        return True

    def registry(self, card: StormCard, victim: VoterOnMachine) -> bool:
        """A broker asks for producer ids; or an administrator has it unregistered, while it is down."""
        leader = self._best()
        known = None if self._brokers is None else self._brokers.image.brokers.get(victim.number)
        if leader is None or known is None or (card.how == UNREGISTER and victim.alive):
            return False
        self._call(leader, ("registry", "", RegistryRequest(card.how, victim.number, known.broker_epoch)))
        return True

    def change_setting(self, card: StormCard, later: Callable[..., None]) -> bool:
        """Ask for the change, read it as soon as that has succeeded, and once more when another controller may lead.

        later: called with seconds, a function and its arguments, to be called then."""
        write = setting_write(card.how, int(card.size))
        read = write.setting

        def reads(written: SettingAsked) -> None:
            self.ask_setting(SettingAsked(read, True, 0), read, lambda _: None)
            later(card.for_s, self.ask_setting, SettingAsked(read, True, 0), read, lambda _: None)

        return self.ask_setting(SettingAsked(read, False, 0, write.value), write, reads)

    # Requests

    def ask(self, operation: tuple[str, str, object], done: Callable[[Type], None]) -> bool:
        """Ask the leader, once; False if there is none.  done: called with how it ended."""
        leader = self._best()
        if leader is None:
            return False
        self._call(leader, operation, lambda answer: done(_how(answer)))
        return True

    def ask_setting(self, asked: SettingAsked, what: object, done: Callable[[SettingAsked], None]) -> bool:
        """Ask the leader, once; False if there is none.  done: called with how it ended."""
        leader = self._best()
        if leader is None:
            return False
        asked.began = self._history.place()
        self.settings.append(asked)

        def answered(answer: Any) -> None:
            asked.ended = self._history.place()
            asked.type = _how(answer)
            if asked.reads and type(answer) is not NoAnswer:
                asked.value = answer[1]
            done(asked)

        self._call(leader, ("read-setting" if asked.reads else "setting", "", what), answered)
        return True

    def _call(
        self,
        leader: VoterOnMachine,
        operation: tuple[str, str, object],
        answered: Callable[[Any], None] = lambda answer: None,
    ) -> None:
        lane = Lane(self._network, leader.name, CALLS_PORT, LaneTimes(REQUEST_S_MAX), owner=self._host)
        lane.call(operation, answered)


def _how(answer: Any) -> Type:
    """FAIL: certainly nothing was written.  INFO: unknown."""
    if type(answer) is NoAnswer:
        return Type.INFO if answer.sent else Type.FAIL
    return {OK: Type.OK, REFUSED: Type.FAIL}.get(answer[0], Type.INFO)
