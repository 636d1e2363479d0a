# SPDX-License-Identifier: Apache-2.0
"""Back-off after failed attempts: which keys must wait, and how long the next pause is.

Source of behaviour: kubernetes client-go `util/flowcontrol/backoff.go` for the default curve.
"""

from collections.abc import Mapping

import msgspec

from agent.images.queue.errors import CURVES, KUBELET_CURVE, BackoffCurve
from agent.model.images.pull import ErrorClass


class BackoffRules(msgspec.Struct, frozen=True):
    """The curve of every class; `kubelet` has one for all."""

    default: BackoffCurve = KUBELET_CURVE
    by_class: Mapping[ErrorClass, BackoffCurve] = msgspec.field(default_factory=lambda: CURVES)

    def curve(self, error_class: ErrorClass) -> BackoffCurve:
        return self.by_class.get(error_class, self.default)


class Pause(msgspec.Struct, frozen=True):
    """The last failure of a key. `delay_s` is without jitter."""

    failed_at_s: float
    delay_s: float
    until_s: float
    memory_s: float
    text: str = ""
    reason: str = ""

    def is_expired(self, now_s: float) -> bool:
        return now_s - self.failed_at_s > self.memory_s


class BackoffTable:
    def __init__(self) -> None:
        self._entries: dict[str, Pause] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def fail(
        self,
        key: str,
        now_s: float,
        curve: BackoffCurve = KUBELET_CURVE,
        *,
        luck: float = 0.0,
        text: str = "",
        reason: str = "",
    ) -> float:
        """An attempt failed: answers with the pause that follows. `luck` is random, from 0 to 1."""
        before = self._entries.get(key)
        if before is None or before.is_expired(now_s):
            delay_s = curve.start_s
        else:
            delay_s = min(before.delay_s * curve.factor, curve.cap_s)
        pause_s = min(delay_s * (1 + curve.jitter * luck), curve.cap_s) if curve.jitter else delay_s
        self._entries[key] = Pause(now_s, delay_s, now_s + pause_s, curve.memory_s, text, reason)
        return pause_s

    def waiting(self, key: str, now_s: float) -> Pause | None:
        entry = self._entries.get(key)
        return entry if entry is not None and not entry.is_expired(now_s) and now_s < entry.until_s else None

    def is_waiting(self, key: str, now_s: float) -> bool:
        """Whether a key may not try yet; when the pause is exactly over, it may."""
        return self.waiting(key, now_s) is not None

    def reset(self, key: str) -> None:
        self._entries.pop(key, None)

    def forget_expired(self, now_s: float) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if not entry.is_expired(now_s)}
