# SPDX-License-Identifier: Apache-2.0
"""What `kepctl doctor` says of the runtime and CDI. DVC-1."""

from typing import Protocol

from agent.model.finding import Advice
from agent.model.runtime_features import RuntimeFacts, RuntimeFeatures


class RuntimeSeen(Protocol):
    @property
    def facts(self) -> RuntimeFacts: ...

    async def features(self) -> RuntimeFeatures: ...


async def cdi_advice(runtime: RuntimeSeen) -> list[Advice]:
    """No advice while the runtime does not answer, for it alone knows."""
    if not runtime.facts.is_connected:
        return []
    features = await runtime.features()
    if features.has_cdi:
        return []
    text = (
        "kepd reads CDI files itself and passes their contents to the runtime; what CRI cannot carry, such as a hook,"
        " fails the container with CDINotSupported"
    )
    return [Advice(subject=features.label, found="resolves no CDI ids", wanted="", text=text, is_note=True)]
