# SPDX-License-Identifier: Apache-2.0
"""What each kind of failed pull means for what kepd does next: the one table that pauses, fallbacks and holds go by.

Reasons and messages are the kubelet's and do not depend on it (errors.py).
"""

from enum import StrEnum

import msgspec

from agent.model.images.pull import ErrorClass


class BackoffCurve(msgspec.Struct, frozen=True):
    """How pauses grow. `jitter` is the largest share that is added at random."""

    start_s: float = 10
    factor: float = 2
    cap_s: float = 300
    jitter: float = 0

    @property
    def memory_s(self) -> float:
        return 2 * self.cap_s


class Deed(StrEnum):
    """What is done: tried again after a pause of the pod, or after one that all pods with these credentials share,
    since it would fail for each alike; the registry is left alone; space is made, then the pod's pause."""

    PAUSE = "pause"
    SHARED_PAUSE = "shared pause"
    LEAVE_REGISTRY = "leave registry"
    MAKE_ROOM = "make room"


class Meaning(msgspec.Struct, frozen=True):
    """`is_outage`: the registry could not be asked, so what is on the node may do."""

    deed: Deed
    curve: BackoffCurve | None = None
    """How the pauses grow; None: as configured for all."""
    is_outage: bool = False


KUBELET_CURVE = BackoffCurve()
NETWORK_CURVE = BackoffCurve(start_s=2, jitter=0.2)

MEANINGS = {
    ErrorClass.AUTH: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.AUTH_PROVIDER: Meaning(Deed.PAUSE),
    ErrorClass.NOT_FOUND: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.NAME: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.PLATFORM: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.VERIFIER: Meaning(Deed.SHARED_PAUSE),
    ErrorClass.RATE: Meaning(Deed.LEAVE_REGISTRY, is_outage=True),
    ErrorClass.NO_SPACE: Meaning(Deed.MAKE_ROOM),
    ErrorClass.NET: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.DNS: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.TLS: Meaning(Deed.PAUSE),
    ErrorClass.TIMEOUT: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.SERVER: Meaning(Deed.PAUSE, NETWORK_CURVE, is_outage=True),
    ErrorClass.CORRUPT: Meaning(Deed.PAUSE),
    ErrorClass.RUNTIME: Meaning(Deed.PAUSE),
    ErrorClass.CANCELLED: Meaning(Deed.PAUSE),
    ErrorClass.UNKNOWN: Meaning(Deed.PAUSE),
}
CURVES = {kind: meaning.curve for kind, meaning in MEANINGS.items() if meaning.curve is not None}
