# SPDX-License-Identifier: Apache-2.0
"""How much all Burstable pods of the node ask for together, which is what their common group is worth.

Owns: one figure per pod, so that nobody has to walk over pods. Told by whoever keeps a pod; changed in the event loop.
Never: writes to a group.
"""

from agent.model.pod import PodSpec
from agent.pods.runtime.qos import pod_needs, qos_class

__all__ = ["BurstableShares"]


class BurstableShares:
    """By uid."""

    def __init__(self) -> None:
        self._milli: dict[str, int] = {}

    @property
    def milli(self) -> int:
        """Thousandths of a processor."""
        return sum(self._milli.values())

    def note(self, pod: PodSpec) -> None:
        if qos_class(pod) == "Burstable":
            self._milli[pod.uid] = pod_needs(pod).cpu_request
        else:
            self.forget(pod.uid)

    def forget(self, uid: str) -> None:
        self._milli.pop(uid, None)
