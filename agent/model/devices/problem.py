# SPDX-License-Identifier: Apache-2.0
"""How a pod learns that it cannot have its devices, or cannot give them back, yet."""


class DevicesNotReady(Exception):
    """`reason` is that of an event; the text says what the pod waits for."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class DevicesNotReleased(Exception):
    """A driver has not taken its devices back; it is asked again."""
