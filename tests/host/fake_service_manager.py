# SPDX-License-Identifier: Apache-2.0
"""A service manager that keeps what it was told, in the words of the protocol."""


class FakeServiceManager:
    """Collects messages; the tests read `messages`."""

    def __init__(self, watchdog_s: float | None = None) -> None:
        self.messages: list[str] = []
        self.watchdog_s = watchdog_s

    def ready(self, status: str) -> None:
        self.messages.append(f"READY=1 {status}")

    def status(self, status: str) -> None:
        self.messages.append(f"STATUS={status}")

    def reloading(self) -> None:
        self.messages.append("RELOADING=1")

    def stopping(self) -> None:
        self.messages.append("STOPPING=1")

    def extend_timeout(self, duration_s: float) -> None:
        self.messages.append(f"EXTEND_TIMEOUT_USEC={duration_s:g}s")

    def alive(self) -> None:
        self.messages.append("WATCHDOG=1")
