# SPDX-License-Identifier: Apache-2.0
"""What a node does while its API server is away, put together: the keeper, the snapshot and their settings."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent import __version__
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.drivers.endpoint_checks.driver import EndpointChecks
from agent.model.event import Event
from agent.services.objects.bounds import Doubts, most_entries
from agent.services.objects.snapshot import LONGEST_AGE_S, MOST_ENTRY_BYTES, Expected
from agent.services.ports import LocalEnds
from agent.services.run.cluster.outage import OutageKeeper, OutageSettings
from agent.services.run.cluster.snapshot_file import SNAPSHOT_FILE, SnapshotFile
from agent.services.run.cluster.source import KubeServices
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

DAY_S = 86400.0
WEEK_S = 7 * DAY_S


def outage_settings(configuration: Configuration) -> OutageSettings:
    services = configuration.services
    mode = services.outage if services.source == "kubernetes" else "off"
    return OutageSettings(mode, services.outage_after, float(services.outage_checks))


def doubts(configuration: Configuration) -> Doubts:
    return Doubts(configuration.services.list_shrink, configuration.services.list_doubt)


def expected(configuration: Configuration, find: "Callable[[], KubeClient | None] | None") -> Expected:
    """Of a snapshot."""
    services, node = configuration.services, configuration.node
    kube = find() if find is not None else None
    is_kept = outage_settings(configuration).mode != "off"
    return Expected(
        read_by=(__version__, node.name, services.proxy_name, str(services.strict_source_ranges)),
        cluster=kube.cluster if kube is not None else "",
        longest_age_s=services.snapshot_age or (WEEK_S if is_kept else LONGEST_AGE_S),
        most_ahead_s=DAY_S if is_kept else 0.0,
        most_bytes=MOST_ENTRY_BYTES * most_entries(services.elements_max),
    )


def outage(
    current: list[Configuration],
    clock: SystemClock,
    tell: Callable[[Event], None],
    plane: ServicesPlane,
    ends: LocalEnds | None,
) -> OutageKeeper:
    wanted = current[0].services.outage
    if wanted != outage_settings(current[0]).mode:
        log.warning("services_outage_unused", wanted=wanted, reason="Services come from files, without any API server")
    return OutageKeeper(plane, clock, tell, lambda: outage_settings(current[0]), EndpointChecks, ends=ends)


def snapshot_of(
    current: list[Configuration],
    clock: SystemClock,
    tell: Callable[[Event], None],
    keeper: OutageKeeper,
    find: "Callable[[], KubeClient | None] | None",
    source: object,
) -> SnapshotFile:
    """Files are there before kepd is, so Services of manifests need none."""
    configuration = current[0]
    services = configuration.services
    is_kept = outage_settings(configuration).mode != "off"
    made = SnapshotFile(
        keeper.plane,
        Path(configuration.node.state_directory) / SNAPSHOT_FILE,
        clock,
        lambda: expected(current[0], find),
        silent_s=source.silent_s if isinstance(source, KubeServices) else lambda: 0.0,
        is_on=isinstance(source, KubeServices) and (services.snapshot or is_kept),
        keeps_changes=is_kept,
        restored=keeper.began_with,
        tell=tell,
    )
    keeper.restore = made.restore
    keeper.unwritten = lambda: made.problem
    return made
