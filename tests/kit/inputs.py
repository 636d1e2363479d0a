# SPDX-License-Identifier: Apache-2.0
"""What a process gives a plane, without a process."""

import time
from collections.abc import Callable

from agent.api.http import Page
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.kit.plane import PlaneInputs
from agent.kit.runtime import Runtime
from agent.model.component import Board
from agent.model.event import Event
from agent.model.pods.ending import EndingPods
from agent.objects.run.follower import follow_manifests


def inputs_of(
    configuration: Configuration, tell: Callable[[Event], None] = lambda _event: None, runtime: Runtime | None = None
) -> PlaneInputs:
    def find_runtime() -> Runtime:
        assert runtime is not None
        return runtime

    return PlaneInputs(
        configuration=lambda: configuration,
        environment={},
        clock=SystemClock(),
        board=Board(time.time),
        tell=tell,
        find_runtime=find_runtime,
        find_kube=lambda: None,
        find_manifests=follow_manifests(lambda: configuration).source,
        metrics_page=lambda _query, _headers: Page(404, b""),
        endings=EndingPods(),
    )
