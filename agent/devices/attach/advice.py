# SPDX-License-Identifier: Apache-2.0
"""What `kepctl doctor` says of the runtime and CDI."""

from collections.abc import Sequence
from typing import Protocol

from agent.devices.cdi.merging import plain_place
from agent.model.finding import Advice
from agent.model.runtime_features import RuntimeFacts, RuntimeFeatures


class RuntimeSeen(Protocol):
    @property
    def facts(self) -> RuntimeFacts: ...

    async def features(self) -> RuntimeFeatures: ...


async def cdi_advice(runtime: RuntimeSeen, directories: Sequence[str]) -> list[Advice]:
    """No advice while the runtime does not answer, for it alone knows. `directories` are those of the configuration."""
    if not runtime.facts.is_connected:
        return []
    features = await runtime.features()
    if features.has_cdi:
        known = {plain_place(one) for one in features.cdi_directories}
        return [_elsewhere(features, one) for one in directories if known and plain_place(one) not in known]
    text = (
        "kepd reads CDI files itself and passes their contents to the runtime; what CRI cannot carry, such as a hook,"
        " fails the container with CDINotSupported"
    )
    return [Advice(subject=features.label, found="resolves no CDI ids", wanted="", text=text, is_note=True)]


def _elsewhere(features: RuntimeFeatures, directory: str) -> Advice:
    return Advice(
        subject=features.label,
        found=f"looks for CDI files in {', '.join(features.cdi_directories)}",
        wanted=f"{directory} too, which devices.cdi names",
        text="containers whose devices are described there fail with CDINotSupported",
    )
