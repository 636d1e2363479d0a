# SPDX-License-Identifier: Apache-2.0
"""Figures of the devices plane for /metrics. No label per claim or device; of drivers at most 64, then `other`."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.core import Metric

from agent.model.histogram import Histogram, counter_family, gauge_family

ALLOCATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
STEP_BOUNDS = (10, 100, 1000, 10_000, 100_000)
CALL_BOUNDS = (0.005, 0.025, 0.1, 0.5, 1, 5, 10, 45)
MOST_DRIVERS = 64
OTHER = "other"


class DeviceMetrics:
    """`devices` counts by driver and state, `claims` by state, `drivers` by kind and state."""

    def __init__(self) -> None:
        self.devices: Callable[[], Counter[tuple[str, str]]] = Counter
        self.claims: Callable[[], Counter[str]] = Counter
        self.drivers: Callable[[], Counter[tuple[str, str]]] = Counter
        # Calls of a kubelet that wait now, by what for.
        self.holds: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._resets: Counter[tuple[str, str]] = Counter()
        self._allocations = Histogram(ALLOCATION_BOUNDS)
        self._steps = Histogram(STEP_BOUNDS)
        self._calls = Histogram(CALL_BOUNDS)
        self._known: set[str] = set()

    def _driver(self, name: str) -> str:
        if name not in self._known and len(self._known) >= MOST_DRIVERS:
            return OTHER
        self._known.add(name)
        return name

    def allocated(self, outcome: str, seconds: float, tried: int) -> None:
        """`allocated`, `waits` or `error`."""
        self._outcomes[outcome] += 1
        self._allocations.observe((), seconds)
        self._steps.observe((), tried)

    def called(self, driver: str, method: str, code: str, seconds: float) -> None:
        self._calls.observe((self._driver(driver), method, code), seconds)

    @contextmanager
    def held(self, reason: str) -> Iterator[None]:
        self.holds[reason] += 1
        try:
            yield
        finally:
            self.holds[reason] -= 1

    def reset(self, driver: str, outcome: str) -> None:
        self._resets[self._driver(driver), outcome] += 1

    def families(self) -> Iterator[Metric]:
        counted: Counter[tuple[str, str]] = Counter()
        for (driver, state), count in self.devices().items():
            counted[self._driver(driver), state] += count
        yield gauge_family("kepd_devices", "Devices of this node.", ("driver", "state"), sorted(counted.items()))
        yield gauge_family("kepd_device_claims", "Claims on devices.", ("state",), sorted(self.claims().items()))
        drivers = sorted(self.drivers().items())
        yield gauge_family("kepd_device_drivers", "Drivers of devices.", ("kind", "state"), drivers)
        text = "Calls of a kubelet that wait for a device."
        yield gauge_family("kepd_device_holds", text, ("reason",), sorted(self.holds.items()))
        text = "Searches for the devices of a pod."
        yield counter_family("kepd_device_allocations", text, ("outcome",), sorted(self._outcomes.items()))
        yield self._allocations.family(
            "kepd_device_allocation_duration_seconds", "Duration of a search for the devices of a pod.", ()
        )
        yield self._steps.family("kepd_device_search_steps", "Devices that a search tried.", ())
        yield self._calls.family(
            "kepd_device_calls_duration_seconds", "Duration of calls of drivers.", ("driver", "method", "code")
        )
        resets = sorted(self._resets.items())
        yield counter_family("kepd_device_resets", "Resets of devices.", ("driver", "outcome"), resets)
