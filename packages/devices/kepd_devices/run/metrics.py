# SPDX-License-Identifier: Apache-2.0
"""Figures of the devices plane for /metrics. No label per claim or device; of drivers at most 64, then `other`."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.model.histogram import Histogram

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
        devices = GaugeMetricFamily("kepd_devices", "Devices of this node.", labels=("driver", "state"))
        counted: Counter[tuple[str, str]] = Counter()
        for (driver, state), count in self.devices().items():
            counted[self._driver(driver), state] += count
        for (driver, state), count in sorted(counted.items()):
            devices.add_metric((driver, state), count)
        yield devices
        claims = GaugeMetricFamily("kepd_device_claims", "Claims on devices.", labels=("state",))
        for state, count in sorted(self.claims().items()):
            claims.add_metric((state,), count)
        yield claims
        drivers = GaugeMetricFamily("kepd_device_drivers", "Drivers of devices.", labels=("kind", "state"))
        for (kind, state), count in sorted(self.drivers().items()):
            drivers.add_metric((kind, state), count)
        yield drivers
        holds = GaugeMetricFamily("kepd_device_holds", "Calls of a kubelet that wait for a device.", labels=("reason",))
        for reason, count in sorted(self.holds.items()):
            holds.add_metric((reason,), count)
        yield holds
        outcomes = CounterMetricFamily(
            "kepd_device_allocations", "Searches for the devices of a pod.", labels=("outcome",)
        )
        for outcome, count in sorted(self._outcomes.items()):
            outcomes.add_metric((outcome,), count)
        yield outcomes
        yield self._allocations.family(
            "kepd_device_allocation_duration_seconds", "Duration of a search for the devices of a pod.", ()
        )
        yield self._steps.family("kepd_device_search_steps", "Devices that a search tried.", ())
        yield self._calls.family(
            "kepd_device_calls_duration_seconds", "Duration of calls of drivers.", ("driver", "method", "code")
        )
        resets = CounterMetricFamily("kepd_device_resets", "Resets of devices.", labels=("driver", "outcome"))
        for (driver, outcome), count in sorted(self._resets.items()):
            resets.add_metric((driver, outcome), count)
        yield resets
