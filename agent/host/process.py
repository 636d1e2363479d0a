# SPDX-License-Identifier: Apache-2.0
"""What the process has of its own, and what it takes from each plane: units to run, figures, advice, what to close."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent import __version__
from agent.api.access import AccessRule, find_gid
from agent.api.metrics import Metrics
from agent.api.socket_path import admit, make_directory
from agent.config.diff import ReloadPlan
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.drivers.systemd.driver import ServiceManager
from agent.host.lifecycle import DaemonLifecycle
from agent.host.memory_relief import GroupMemory, MemoryRelief
from agent.host.set_clock import SetClock
from agent.host.tracing import wire_tracing
from agent.host.tree import Unit
from agent.host.turns import LongTurns
from agent.kit.configuration import RunningConfiguration
from agent.kit.event_ring import EventRing
from agent.kit.kube import new_kube
from agent.kit.logs import Levels
from agent.kit.memory import give_back_pages
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit, Run, compatible
from agent.model.component import Board, State
from agent.model.finding import Advice
from agent.model.pods.ending import EndingPods
from agent.model.span import SpanRef

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient
    from agent.kit.runtime import Runtime
    from agent.objects.admitting import InForce
    from agent.objects.reading import Reading
    from agent.objects.run.follower import ManifestFollower
    from agent.objects.wanted import WantedSource

log = structlog.get_logger(plane="daemon")

RUN_DIRECTORY_MODE = 0o750
STATE_DIRECTORY_MODE = 0o700
# The log level that shows every call to the runtime, as klog has it.
CALLS_LEVEL = 6


class Process:
    """Raises PathTaken or OSError where this node cannot run kepd at all."""

    def __init__(self, running: RunningConfiguration, levels: Levels, environment: Mapping[str, str]) -> None:
        configuration = running.configuration
        self.running = running
        self.configuration = configuration
        self.levels = levels
        self.environment = environment
        self.clock = SystemClock()
        self.board = Board(time.time)
        self.tracing = wire_tracing(lambda: running.configuration)
        self.metrics = Metrics(__version__, self.board.lines)
        self.metrics.watch_collector(time.monotonic)
        self.metrics.config_reloaded_at_s = time.time()
        self.manager = ServiceManager(environment)
        self.access = access_rule(configuration)
        self.ring = EventRing(
            Path(configuration.node.state_directory), configuration.telemetry.events.ring, self.clock.wall_s
        )
        self.runtime: Runtime | None = None
        self._kube: KubeClient | None = None
        self._manifests: ManifestFollower | None = None
        self.sheds: list[Callable[[], None]] = [self.ring.shed]
        self.relief = MemoryRelief(GroupMemory().look, self.sheds, self.ring.tell, self.clock, give_back_pages)
        self.advisers: list[Callable[[], Awaitable[Sequence[Advice]]]] = []
        self.resources = ExitStack()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.units: list[Unit] = []
        self.turns = LongTurns()
        self.set_clock = SetClock(self.clock, self.ring.tell)
        self.resources.callback(self.turns.watch())
        self.lifecycle = DaemonLifecycle(self.board, self.manager, self.clock, self._note_lag)
        make_directory(Path(configuration.node.run_directory), RUN_DIRECTORY_MODE)
        make_directory(Path(configuration.node.state_directory), STATE_DIRECTORY_MODE)
        self.ring.load()
        if self.tracing is not None:
            self._closers.append(self.tracing.close)
            self.metrics.sources.append(self.tracing.families)
        self.add_unit("event-ring", lambda report: self.ring.run(report, self.clock))
        self.inputs = PlaneInputs(
            configuration=lambda: running.configuration,
            environment=environment,
            clock=self.clock,
            board=self.board,
            tell=self.ring.tell,
            find_runtime=self.find_runtime,
            find_kube=self.find_kube,
            find_manifests=self.find_manifests,
            metrics_page=self.metrics.page,
            endings=EndingPods(),
            traces=self.tracing,
        )

    def find_runtime(self) -> "Runtime":
        """For all planes but one: a process that only programs Services has none, and is ready without one."""
        if self.runtime is None:
            from agent.kit.runtime import Runtime

            self.runtime = Runtime(self.configuration.runtime, self.clock, self._cri_called, self._called)
            self._closers.append(self.runtime.close)
            self.add_unit("runtime", self.runtime.watch.run)
            self.add_unit("events", self.runtime.events.run)
        return self.runtime

    def find_kube(self) -> "KubeClient | None":
        """Planes share the client. One that cannot work is told, not used."""
        if self._kube is None:
            self._kube = new_kube(self.running.configuration, self.environment, self.clock)
            if self._kube is not None:
                self._closers.append(self._kube.close)
        return self._kube

    def find_manifests(self, reading: "Callable[[], Reading]") -> "WantedSource":
        """One look for all planes."""
        return self.follow_manifests().source(reading)

    def follow_manifests(self) -> "ManifestFollower":
        """Also for who only writes and shows objects."""
        if self._manifests is None:
            from agent.objects.run.follower import follow_manifests

            self._manifests = follow_manifests(self.inputs.configuration)
            self._closers.append(self._manifests.close)
            self.add_unit("manifests", self._manifests.run)
        return self._manifests

    def in_force(self) -> "InForce | None":
        """None where no plane follows the manifests, or before their memory has been read."""
        return self._manifests.in_force if self._manifests is not None else None

    def take(self, plane: Attached[object]) -> None:
        """What there is of a plane takes part from now on."""
        self.metrics.sources += plane.families
        for program, families in plane.named_alike.items():
            self.metrics.sources.append(compatible(self.inputs.configuration, program, families))
        self.advisers += plane.advice
        self.sheds += plane.shed
        self._closers.append(plane.close)
        if (apply := plane.apply) is not None:
            self.running.listeners.append(lambda configuration, _plan: apply(configuration))
        for unit in plane.units:
            self.add(unit)

    def add_unit(self, name: str, run: Run, stop_s: float = 5.0) -> None:
        self.add(PlaneUnit(name, run, stop_s=stop_s))

    def add(self, unit: PlaneUnit) -> None:
        report = self.board.add(unit.name, State.STARTING, "starting", is_plane=unit.is_plane)
        self.units.append(Unit(unit.name, unit.run, report, unit.stop_s, unit.last))

    def follow_reloads(self) -> None:
        def take_over(configuration: Configuration, _plan: ReloadPlan) -> None:
            rule = access_rule(configuration)
            if rule.gids != self.access.gids:
                share(configuration, rule)
            self.access = rule
            self.levels.verbosity = configuration.telemetry.verbosity
            self.levels.planes = dict(configuration.telemetry.vmodule)
            if self.runtime is not None:
                self.runtime.cri.request_timeout_s = configuration.runtime.request_timeout
            if self._kube is not None:
                self._kube.set_rate(configuration.kubernetes.qps, configuration.kubernetes.burst)
            self.metrics.config_reloaded_at_s = time.time()

        self.running.listeners.append(take_over)

    def say_stopping(self) -> None:
        allowed_s = sum(unit.end_s for unit in self.units)
        log.info("daemon_stopping", allowed_s=allowed_s, v=0)
        self.manager.stopping()
        self.manager.extend_timeout(allowed_s)

    async def close(self) -> None:
        for close in self._closers:
            await close()
        self.resources.close()

    def _note_lag(self, lag_s: float) -> None:
        self.metrics.loop_lag_s = lag_s
        self.turns.tick(is_ready=self.lifecycle.is_ready)
        self.set_clock.look()

    def _cri_called(self, method: str, code: str, duration_s: float) -> None:
        span = self.tracing.called(method, code, duration_s) if self.tracing is not None else None
        self._called(method, code, duration_s, span)

    def _called(self, method: str, code: str, duration_s: float, span: SpanRef | None = None) -> None:
        self.metrics.cri_called(method, code, duration_s, span)
        if self.levels.of("daemon") >= CALLS_LEVEL:
            log.info("cri_call_finished", method=method, code=code, duration_s=round(duration_s, 4), v=CALLS_LEVEL)


def access_rule(configuration: Configuration) -> AccessRule:
    """The rule with its groups looked up; done once per configuration, because looking up may take long."""
    api = configuration.api
    return AccessRule(find_gid(api.read_group), find_gid(api.operate_group), api.read_group, os.geteuid())


def share(configuration: Configuration, rule: AccessRule) -> None:
    """Let in who has a level; others could not even ask why they have none."""
    for path in (configuration.node.run_directory, configuration.api.socket):
        try:
            admit(path, rule.gids)
        except OSError as error:
            log.warning("api_groups_not_changed", path=path, gids=rule.gids, error=error.strerror)
