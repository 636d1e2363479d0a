# SPDX-License-Identifier: Apache-2.0
"""Gathers what rows of features stand on, of this node."""

import asyncio
import platform
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from agent.config.diff import value_at
from agent.config.document import Configuration
from agent.config.effective import enabled_planes
from agent.config.keys import all_keys
from agent.drivers.cgroups.driver import ControlGroups
from agent.drivers.kubelet.signs import kubelet_sign
from agent.drivers.pressure.driver import FOLDER
from agent.host.features import KEYS, feature_rows
from agent.host.traces.extra import has_extra
from agent.kit.configuration import RunningConfiguration
from agent.model.feature import FeatureFacts, FeatureReport
from agent.model.runtime_features import RuntimeFeatures
from agent.observe.attach.node_logs import has_journalctl

if TYPE_CHECKING:
    from agent.kit.runtime import Runtime

RELEASE = re.compile(r"(\d+)\.(\d+)")


async def node_features(
    running: RunningConfiguration, runtime: "Runtime | None", environment: Mapping[str, str]
) -> FeatureReport:
    known = await runtime.watch.features() if runtime is not None else RuntimeFeatures()
    facts = await asyncio.to_thread(_facts, running.configuration, known, environment)
    return FeatureReport(features=tuple(feature_rows(facts)), facts=msgspec.json.encode(facts).decode())


def _facts(configuration: Configuration, runtime: RuntimeFeatures, environment: Mapping[str, str]) -> FeatureFacts:
    found = RELEASE.match(platform.release())
    return FeatureFacts(
        runtime=runtime,
        groups=ControlGroups().shape(),
        release=(int(found[1]), int(found[2])) if found else (0, 0),
        has_pressure=_has_pressure(),
        has_kubelet=bool(kubelet_sign(environment)),
        has_journalctl=has_journalctl(),
        can_trace=has_extra(),
        planes=frozenset(enabled_planes(configuration)),
        keys={path: value_at(configuration, all_keys(Configuration)[path]) for path in KEYS},
    )


def _has_pressure() -> bool:
    """With psi=0 the kernel has the files and refuses to read them."""
    try:
        return bool((FOLDER / "memory").read_bytes())
    except OSError:
        return False
