# SPDX-License-Identifier: Apache-2.0
"""Numbers of the images plane: kept as plain counts where they arise, made into families only for a scrape.

No label per image, pod or namespace; the `registry` label is bounded.
Source of behaviour: buckets and size classes are the kubelet's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.images.queue.flights import SharedPull
from agent.model.histogram import Histogram, counter_family, gauge_family
from agent.model.images.pull import ErrorClass, PullClass, PullResult
from agent.model.images.state import LimitState
from agent.model.images.store import Filesystem
from agent.model.span import SpanRef

MIB, GIB = 2**20, 2**30
PULL_BUCKETS_S = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
SHORT_BUCKETS_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
SIZE_CLASSES = (
    (10 * MIB, "0-10MB"), (100 * MIB, "10MB-100MB"), (500 * MIB, "100MB-500MB"), (GIB, "500MB-1GB"),
    (5 * GIB, "1GB-5GB"), (10 * GIB, "5GB-10GB"), (20 * GIB, "10GB-20GB"), (30 * GIB, "20GB-30GB"),
    (40 * GIB, "30GB-40GB"), (60 * GIB, "40GB-60GB"), (100 * GIB, "60GB-100GB"),
)  # fmt: skip
MOST_REGISTRIES = 20
OTHER = "other"


def size_class(size_bytes: int) -> str:
    """The label for a size; lower bounds are exclusive."""
    if size_bytes <= 0:
        return "N/A"
    return next((name for bound, name in SIZE_CLASSES if size_bytes <= bound), "GT100GB")


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    queued: dict[PullClass, int] = msgspec.field(default_factory=dict)
    in_flight: dict[str, int] = msgspec.field(default_factory=dict)
    limits: Sequence[LimitState] = ()
    oldest_wait_s: float = 0.0
    backoff_entries: int = 0
    disk: Filesystem = msgspec.field(default_factory=Filesystem)
    images: dict[str, int] = msgspec.field(default_factory=dict)
    collected_at_s: float = 0.0


def gauges_of(flights: Sequence[SharedPull], limits: Sequence[LimitState], backoffs: int, now_s: float) -> Gauges:
    waiting = [flight for flight in flights if not flight.is_running]
    arrivals = [member.arrived_s for flight in waiting for member in flight.members]
    return Gauges(
        queued=dict(Counter(flight.pull_class for flight in waiting)),
        in_flight=dict(Counter(flight.registry for flight in flights if flight.is_running)),
        limits=limits,
        oldest_wait_s=now_s - min(arrivals) if arrivals else 0.0,
        backoff_entries=backoffs,
    )


class ImageMetrics:
    def __init__(self) -> None:
        self._pull_s = Histogram(PULL_BUCKETS_S)
        self._active_s = Histogram(PULL_BUCKETS_S)
        self._wait_s = Histogram(SHORT_BUCKETS_S)
        self._unpack_s = Histogram(SHORT_BUCKETS_S)
        self._provider_s = Histogram(SHORT_BUCKETS_S)
        self._pulls: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._layers: Counter[str] = Counter()
        self._provider_errors: Counter[str] = Counter()
        self._removed: Counter[str] = Counter()
        self._use: Counter[str] = Counter()
        self.freed_bytes = 0

    def request_ended(self, result: PullResult, pull_class: PullClass) -> None:
        self._pulls[str(result), str(pull_class)] += 1

    def pull_succeeded(
        self, registry: str, size_bytes: int, active_s: float, whole_s: float, span: SpanRef | None = None
    ) -> None:
        """One flight worked; times with and without waiting."""
        label = (size_class(size_bytes),)
        self._pull_s.observe(label, whole_s, span)
        self._active_s.observe(label, active_s)
        self._use[registry] += 1

    def pull_failed(self, registry: str, error_class: ErrorClass) -> None:
        self._errors[str(error_class), registry] += 1
        self._use[registry] += 1

    def waited(self, pull_class: PullClass, wait_s: float) -> None:
        self._wait_s.observe((str(pull_class),), wait_s)

    def fetched(self, registry: str, done_bytes: int, downloaded: int, cached: int) -> None:
        self._bytes[registry] += done_bytes
        self._layers["downloaded"] += downloaded
        self._layers["cached"] += cached

    def unpacked(self, duration_s: float) -> None:
        self._unpack_s.observe((), duration_s)

    def provider_called(self, provider: str, duration_s: float, has_failed: bool) -> None:
        self._provider_s.observe((provider,), duration_s)
        self._provider_errors[provider] += has_failed

    def removed(self, reason: str, freed_bytes: int) -> None:
        """The collector removed an image; the difference is measured, and may be none."""
        self._removed[reason] += 1
        self.freed_bytes += max(0, freed_bytes)

    def kubelet_families(self) -> Iterable[Metric]:
        """Under the name that a kubelet has for it."""
        name, text = "kubelet_image_pull_duration_seconds", "Duration of pulls, with waiting."
        yield self._pull_s.family(name, text, ["image_size_in_bytes"])

    def _registry(self, registry: str) -> str:
        """The label of a registry: the most used ones by name."""
        if len(self._use) <= MOST_REGISTRIES:
            return registry
        return registry if registry in [name for name, _ in self._use.most_common(MOST_REGISTRIES)] else OTHER

    def families(self, gauges: Gauges) -> Iterable[Metric]:
        size = ["image_size_in_bytes"]
        yield self._pull_s.family(
            "kepd_image_pull_duration_seconds", "Duration of successful pulls, with their wait.", size
        )
        yield self._active_s.family(
            "kepd_image_pull_active_seconds", "Duration of successful pulls, without their wait.", size
        )
        yield self._wait_s.family("kepd_image_pull_wait_seconds", "Time that pulls waited for a slot.", ["class"])
        yield counter_family("kepd_image_pulls", "Requests for images.", ["result", "class"], self._pulls.items())
        errors = self._by_registry({(name, kind): count for (kind, name), count in self._errors.items()}).items()
        yield counter_family("kepd_image_pull_errors", "Pulls that failed.", ["registry", "error_class"], errors)
        fetched = self._by_registry({(name,): count for name, count in self._bytes.items()})
        yield counter_family("kepd_image_bytes_downloaded", "Bytes downloaded.", ["registry"], fetched.items())
        yield counter_family("kepd_image_layers", "Layers of pulled images.", ["state"], self._layers.items())
        yield self._unpack_s.family("kepd_image_unpack_seconds", "Time from the last byte of a pull to its end.", [])
        provider = ["provider"]
        yield self._provider_s.family(
            "kepd_credential_provider_seconds", "Duration of runs of credential providers.", provider
        )
        text = "Failed runs of credential providers."
        yield counter_family("kepd_credential_provider_errors", text, provider, self._provider_errors.items())
        yield counter_family("kepd_image_gc_removed", "Images removed.", ["reason"], self._removed.items())
        yield CounterMetricFamily(
            "kepd_image_gc_freed_bytes", "Disk space freed by removing images.", value=self.freed_bytes
        )
        yield from self._gauges(gauges)

    def _by_registry(self, counts: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
        bounded: Counter[tuple[str, ...]] = Counter()
        for (name, *rest), number in counts.items():
            bounded[self._registry(name), *rest] += number
        return bounded

    def _gauges(self, now: Gauges) -> Iterable[Metric]:
        queued = {str(one): now.queued.get(one, 0) for one in PullClass}
        yield gauge_family("kepd_image_pull_queue_length", "Pulls waiting for a slot.", ["class"], queued.items())
        in_flight = self._by_registry({(name,): number for name, number in now.in_flight.items()})
        yield gauge_family("kepd_image_pulls_in_flight", "Pulls running.", ["registry"], in_flight.items())
        limits = [(one.scope, one.limit) for one in now.limits[: MOST_REGISTRIES + 1]]
        yield gauge_family("kepd_image_pull_limit", "Concurrent pulls allowed; 0 = no limit.", ["scope"], limits)
        oldest = "kepd_image_pull_oldest_wait_seconds"
        yield GaugeMetricFamily(oldest, "Age of the oldest waiting pull.", value=now.oldest_wait_s)
        yield GaugeMetricFamily("kepd_image_backoff_entries", "Back-offs in force.", value=now.backoff_entries)
        disk, kind = now.disk, ["kind"]
        space = {"capacity": disk.capacity_bytes, "available": disk.available_bytes}
        yield gauge_family("kepd_image_fs_bytes", "Space on the file system of images.", kind, space.items())
        inodes = {"capacity": disk.inodes, "available": disk.free_inodes}
        yield gauge_family("kepd_image_fs_inodes", "Inodes on the file system of images.", kind, inodes.items())
        last = "kepd_image_gc_last_run_timestamp_seconds"
        yield GaugeMetricFamily(last, "When images were last collected.", value=now.collected_at_s)
        yield gauge_family("kepd_images", "Images on the node.", ["state"], now.images.items())
