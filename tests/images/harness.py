# SPDX-License-Identifier: Apache-2.0
"""A whole images plane on fakes, or on real drivers, the way the daemon puts it together.

Owns: construction, and what the parts told while a test ran.
Never: decides or waits; tests move the clock.
"""

from dataclasses import dataclass, field
from pathlib import Path

from agent.config.sections.images import Images
from agent.images.run.collector import CollectorParts, ImageCollector
from agent.images.run.credentials import CredentialSource, NodeConfig, Providers
from agent.images.run.metrics import ImageMetrics
from agent.images.run.node_images import ImageInspector, NodeImages
from agent.images.run.prefetcher import Prefetcher, PrefetcherParts
from agent.images.run.puller import Puller
from agent.images.run.pulling.attempt import Attempts
from agent.images.run.pulling.flight import Parts
from agent.images.run.pulling.intake import PullIntake
from agent.images.run.pulling.outcomes import PullOutcomes
from agent.images.run.pulling.recorded_pull import RecordedPulls, Verifiers
from agent.images.run.pulling.requests import PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.run.records import AccessRecords
from agent.images.run.sizes import SizeRecord
from agent.images.run.state import ImageHistory, StateFile
from agent.images.settings import ImageSettings, image_settings
from agent.model.component import Board, Report, State


@dataclass
class Told:
    """An event sink that keeps everything."""

    events: list = field(default_factory=list)

    def tell(self, event) -> None:
        self.events.append(event)

    def reasons(self, uid: str = "") -> list[str]:
        return [one.sentence.reason for one in self.events if not uid or one.pod.uid == uid]

    def texts(self) -> list[str]:
        return [one.sentence.text for one in self.events]


@dataclass
class Plane:
    """All parts."""

    puller: Puller
    collector: ImageCollector
    prefetcher: Prefetcher
    node: NodeImages
    inspector: ImageInspector
    metrics: ImageMetrics
    records: AccessRecords
    intake: PullIntake
    watcher: ProgressWatcher
    told: Told
    board: Board
    report: Report
    report2: Report
    report3: Report


def build_plane(
    cri,
    containerd,
    files,
    clock,
    *,
    settings: ImageSettings | None = None,
    providers=(),
    plugin_folder: Path = Path("/nonexistent"),
    node_config: tuple[Path, ...] = (),
    probe=None,
    pods=None,
    contents=None,
    wanted=(),
) -> Plane:
    settings = settings or image_settings(Images())
    told, metrics = Told(), ImageMetrics()
    plugins = Providers(
        providers, plugin_folder, {"PATH": "/usr/bin:/bin"}, clock=clock, observe=metrics.provider_called
    )
    records = AccessRecords(files)
    intake = PullIntake(
        cri, records, CredentialSource(NodeConfig(node_config, clock=clock), plugins), settings, clock=clock
    )
    watcher = ProgressWatcher(containerd, clock=clock, snapshotters=cri.snapshotters)
    attempts = Attempts(cri, watcher, containerd, containerd, clock=clock, contents=contents)
    requests = PullRequests(metrics, told.tell, clock=clock)
    history = ImageHistory(files, clock=clock)
    outcomes = PullOutcomes(intake, requests, metrics, watcher, history, luck=lambda: 0.0, clock=clock)
    verifiers = Verifiers(lambda: settings.keys.verify.signatures, {"PATH": "/usr/bin:/bin"})
    pulls = RecordedPulls(attempts, records, containerd, clock, verifiers)
    collector_parts = CollectorParts(
        runtime=cri, usage=cri, files=files, history=history, records=records, metrics=metrics,
        names=containerd, leases=containerd, content=containerd, events=told.tell,
    )  # fmt: skip
    collector = ImageCollector(collector_parts, settings, clock=clock)
    parts = Parts(
        intake=intake, attempts=attempts, watcher=watcher, outcomes=outcomes, pulls=pulls,
        requests=requests, records=records,
        sizes=StateFile(files, "sizes.json", "SizeMemory", dict[str, SizeRecord]), probe=probe, collector=collector,
    )  # fmt: skip
    puller = Puller(parts, settings, clock=clock)
    for one in (puller, *wanted):
        collector.protect(one)
    prefetcher = Prefetcher(
        PrefetcherParts(
            runtime=cri,
            pulls=puller,
            disk=collector,
            files=files,
            names=containerd,
            pods=lambda: pods,
            events=told.tell,
            contents=contents,
        ),
        settings,
        clock=clock,
    )
    inspector = ImageInspector(collector, containerd, containerd, records, lambda: puller.settings)
    node = NodeImages(puller, collector, prefetcher, lambda: Path("/nonexistent"), inspector)
    board = Board(clock.wall_s)
    reports = [board.add(name, State.STARTING) for name in ("images", "collector", "prefetcher")]
    return Plane(
        puller, collector, prefetcher, node, inspector, metrics, records, intake, watcher, told, board, *reports
    )
