# SPDX-License-Identifier: Apache-2.0
"""Figures under the names of other programs, while the configuration asks for them."""

from collections.abc import Callable

from agent.config.document import Configuration
from agent.kit.plane import Families


def asks_for(configuration: Configuration, program: str) -> bool:
    return program in configuration.telemetry.metrics_compat


def compatible(current: Callable[[], Configuration], program: str, families: Families) -> Families:
    return lambda: families() if asks_for(current(), program) else ()
