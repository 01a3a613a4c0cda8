"""What is demanded of brokers and settings once the healed cluster has made progress.

steady   nothing happens to any server for longer than two sessions of a broker: once the first of them is over, no
         broker is fenced while one controller leads on
silence  a broker dies, and often the controller that heard of it last does, too: the broker is fenced, and comes
         back once it is started again
settings what administrators wrote is read once more; all settings of each kind are set and replaced, one of them is
         removed, and all are read each time
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from checkers.base.history import Type
from harness.campaign.swarm.administrators import Administrators
from harness.campaign.swarm.scenario import SETTINGS, Scenario
from harness.campaign.swarm.settings import (
    NUMBERS,
    Setting,
    SettingAsked,
    SettingWrite,
    hidden_changes,
    setting_write,
)
from harness.campaign.swarm.voter import VoterOnMachine
from harness.campaign.swarm.watch import Watch
from harness.campaign.swarm.watch_brokers import BrokerWatch
from simulation.loop import SimulatedLoop
from system_under_test.kraft.subject import KraftBrokers

CALM_S = 25.0
"""A healed cluster takes at most so long for whatever is demanded of it."""
LOOK_S = 0.1
SESSION_S_MAX = 1.2 * float(KraftBrokers.cluster_settings["brokers"]["session_timeout_s"])
"""A session of a broker by the slowest clock, with time for a record."""
STEADY_S = 2 * SESSION_S_MAX + 1.0
"""A broker that was fenced a moment before serves again, and is fenced once more, within a session and a second."""
STEADY_S_MAX = 40.0
RESTART_S = 0.3


class AfterStorm:
    """servers: all of them, and all run.  best: the living leader of the highest epoch.

    acts_until_s: until when cards of the storm go on to act.  restart: starts a server that is down after so many
    seconds."""

    def __init__(
        self,
        scenario: Scenario,
        loop: SimulatedLoop,
        watch: Watch,
        servers: Sequence[VoterOnMachine],
        administrators: Administrators,
        best: Callable[[], VoterOnMachine | None],
        acts_until_s: Callable[[], float],
        restart: Callable[[float, VoterOnMachine], None],
    ) -> None:
        self._scenario = scenario
        self._loop = loop
        self._watch = watch
        self._servers = servers
        self._administrators = administrators
        self._best = best
        self._acts_until_s = acts_until_s
        self._restart = restart

    async def demand(self) -> None:
        """All phases, one after another."""
        brokers = self._watch.brokers
        if brokers is not None:
            await self._steady(brokers)
            await self._silence(brokers)
            await self._settings()

    async def _steady(self, brokers: BrokerWatch) -> None:
        """A broker may be fenced for what happened before: it was silent, or asked to leave, or its controller changed.
        So the stretch begins anew with each change of the controller and of a server's life.  If none is long enough
        within STEADY_S_MAX, nothing is judged."""
        limit_s, began_s, before = self._loop.time() + STEADY_S_MAX, 0.0, None
        fences: Counter[int] = Counter()
        while (now_s := self._loop.time()) < limit_s:
            leader = self._best()
            state = leader and (leader.name, leader.epoch), [(each.lives, each.alive) for each in self._servers]
            if state != before or leader is None or now_s < self._acts_until_s():
                began_s, before = now_s, state
            if now_s < began_s + SESSION_S_MAX:
                fences = brokers.fences.copy()
            elif fenced := sorted(brokers.fences - fences):
                what = f"{fenced} were fenced, {now_s - began_s:.1f} s after anything last happened to a server"
                self._watch.violated("a broker is fenced without a cause", what)
                return
            elif now_s >= began_s + STEADY_S:
                return
            await asyncio.sleep(LOOK_S)

    async def _silence(self, brokers: BrokerWatch) -> None:
        """A new controller knows nothing of the heartbeats that the one before it got: it fences a broker, too, that it
        has never heard of."""
        leader = self._best()
        if leader is None:
            return
        voters = None if self._watch.sets is None else self._watch.sets.in_force(leader)
        may_die = [
            server
            for server in self._servers
            if server is not leader
            and server.number in self._scenario.broker_ids
            and (server.number > self._scenario.may_vote or (voters is None and self._scenario.nodes >= 3))
        ]
        if not may_die:
            return
        random = Random(f"{self._scenario.seed}/silence")
        silent, fails_over_s = random.choice(may_die), random.choice((None, 0.0, 1.5))
        silent.machine.kill()
        if fails_over_s is not None:
            await asyncio.sleep(fails_over_s)
            leader.machine.kill()
            self._restart(RESTART_S, leader)
        until_s = self._loop.time() + CALM_S
        while not brokers.image.brokers[silent.number].fenced:
            if self._loop.time() >= until_s:
                what = f"broker {silent.number} has been silent for {CALM_S:g} s, and is not fenced"
                self._watch.violated("a silent broker is not fenced", what)
                return
            await asyncio.sleep(LOOK_S)
        silent.start()
        if unsettled := await brokers_unsettled(self._loop, brokers, self._scenario.broker_ids, CALM_S):
            self._watch.violated("no progress", f"{unsettled} {CALM_S:g} s after broker {silent.number} was silent")

    async def _settings(self) -> None:
        """Read each that was ever written.  Then set and replace all of each kind, remove one of them, and read all
        each time."""
        asked = self._administrators.settings
        for setting in dict.fromkeys(each.setting for each in asked):
            await self._setting(setting, None)
        for kind in SETTINGS:
            of_kind = range(NUMBERS[kind])
            for value, numbers in ((1, of_kind), (2, of_kind), (0, [self._scenario.seed % len(of_kind)])):
                for number in numbers:
                    write = setting_write(kind, number + value * len(of_kind))
                    await self._setting(write.setting, write)
                for number in of_kind:
                    await self._setting(Setting(kind, number), None)
        for words in hidden_changes(asked):
            self._watch.violated("an acknowledged setting is not there", words)

    async def _setting(self, setting: Setting, write: SettingWrite | None) -> None:
        """Write or read it.  A read is asked again until it is answered, which has to be within CALM_S."""
        until_s = self._loop.time() + CALM_S
        while self._loop.time() < until_s:
            ended: asyncio.Future[SettingAsked] = self._loop.create_future()
            asked = SettingAsked(setting, write is None, 0, None if write is None else write.value)
            what = setting if write is None else write
            if self._administrators.ask_setting(asked, what, ended.set_result) and (
                (await ended).type is Type.OK or write is not None
            ):
                return
            await asyncio.sleep(LOOK_S)
        asked_for = f"{setting.kind} {setting.number}"
        self._watch.violated("no progress", f"{asked_for} can be neither read nor written {CALM_S:g} s after the storm")


async def brokers_unsettled(loop: SimulatedLoop, brokers: BrokerWatch | None, ids: range, limit_s: float) -> str:
    """Wait until each of these brokers serves, every partition has a leader, and all its replicas have been in sync at
    one time; what was missing at last."""
    until_s = loop.time() + limit_s
    were_in_sync: set[str] = set()
    while brokers is not None:
        unsettled = brokers.unsettled(ids)
        if unsettled:
            were_in_sync.clear()
        else:
            unsettled = brokers.out_of_sync(were_in_sync)
        if not unsettled or loop.time() >= until_s:
            return unsettled
        await asyncio.sleep(LOOK_S)
    return ""
