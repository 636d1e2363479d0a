# SPDX-License-Identifier: Apache-2.0
"""The images plane put together: puller, collector, prefetcher on the drivers of this node."""

import asyncio
import os
import platform
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
import yaml
from msgspec.structs import replace
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.drivers.containerd.driver import Containerd
from agent.drivers.kubelet.driver import KubeletConfiguration
from agent.drivers.pressure.driver import KernelPressure
from agent.drivers.registry.driver import RegistrySizes
from agent.drivers.state_files.driver import StateFiles
from agent.images.access.provider_config import Provider, read_providers
from agent.images.attach.content_fetch import CONTENT_NAMESPACE, ContentFetch, RegistryHosts
from agent.images.attach.image_service import ImageService
from agent.images.ports import PodSource, RolloutSource
from agent.images.run.caller_pulls import FollowedPods
from agent.images.run.collector import CollectorParts, ImageCollector
from agent.images.run.credentials import CredentialSource, NodeConfig, Providers, node_config_paths, provider_documents
from agent.images.run.metrics import ImageMetrics
from agent.images.run.node_images import ImageInspector, NodeImages
from agent.images.run.prefetcher import Prefetcher, PrefetcherParts
from agent.images.run.puller import Puller
from agent.images.run.pulling.attempt import Attempts
from agent.images.run.pulling.flight import Parts
from agent.images.run.pulling.intake import PullIntake
from agent.images.run.pulling.limiter import AutoLimiter
from agent.images.run.pulling.outcomes import PullOutcomes
from agent.images.run.pulling.recorded_pull import RecordedPulls, Verifiers
from agent.images.run.pulling.requests import PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.run.records import AccessRecords
from agent.images.run.sizes import SizeRecord
from agent.images.run.state import ImageHistory, StateFile
from agent.images.settings import ImageSettings, KubeletDisk, image_settings, read_kubelet_disk
from agent.images.view.progress import snapshotter_advice
from agent.images.view.texts import ImageEvent, signature_advice
from agent.kit.kubelet_arrival import follow_kubelet, kubelet_beside
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit
from agent.kit.plane_lock import held_plane_lock
from agent.model.component import Report, State
from agent.model.event import Event
from agent.model.finding import Advice
from agent.model.images.platform import node_platform
from agent.model.runtime.error import RuntimeCallFailed

log = structlog.get_logger(plane="images")

KUBELET_CONFIG = Path("/var/lib/kubelet/config.yaml")


class ImageOffers(msgspec.Struct, frozen=True):
    puller: Puller
    collector: ImageCollector


def _event_of(event: ImageEvent) -> Event:
    return Event(
        is_warning=event.sentence.is_warning,
        reason=event.sentence.reason,
        message=event.sentence.text,
        plane="images",
        namespace=event.pod.namespace,
        object_name=event.pod.name,
        container=event.container,
    )


def attach(inputs: PlaneInputs) -> Attached[ImageOffers]:
    configuration = inputs.configuration()
    settings = _settings(configuration, inputs.environment)
    shared = _Shared(configuration, inputs)
    collector = _collector(shared, settings)
    puller = _puller(shared, settings, collector, _credentials(configuration, inputs, shared.metrics))
    collector.protect(puller)
    inputs.runtime.watch.listeners.append(puller.note_runtime)
    prefetcher = _prefetcher(shared, settings, puller, collector)
    limiter = AutoLimiter(puller, KernelPressure(), clock=inputs.clock)
    lines = [inputs.board.add(name, State.STARTING, "starting") for name in ("image-collection", "image-prefetch")]

    def apply(changed: Configuration) -> None:
        new = _settings(changed, inputs.environment)
        for part in (puller, collector, prefetcher):
            part.apply(new)

    def families() -> Iterable[Metric]:
        gauges = replace(
            puller.gauges(), disk=collector.disk, images=collector.counts(), collected_at_s=collector.collected_at_s
        )
        return shared.metrics.families(gauges)

    async def run(report: Report) -> None:
        with held_plane_lock("images", configuration.runtime.endpoint, configuration.node.run_directory):
            async with asyncio.TaskGroup() as group:
                group.create_task(puller.run(report), name="images-pulls")
                group.create_task(collector.run(lines[0]), name="images-collection")
                group.create_task(prefetcher.run(lines[1]), name="images-prefetch")
                group.create_task(limiter.run(), name="images-limit")
                group.create_task(shared.hosts.run(), name="images-hosts")
                look = partial(kubelet_beside, configuration, inputs.environment)
                follow = follow_kubelet(look, inputs.clock, lambda _: apply(inputs.configuration()), inputs.tell)
                group.create_task(follow, name="images-kubelet")

    async def close() -> None:
        await shared.probe.close()
        await shared.store.close()
        shared.files.close()

    containerd = inputs.runtime.containerd
    inspector = ImageInspector(collector, containerd, containerd, shared.records, lambda: puller.settings)
    images = NodeImages(puller, collector, prefetcher, lambda: shared.hosts.folder, inspector)
    return Attached(
        offers=ImageOffers(puller, collector),
        service=ImageService(puller, images),
        units=(PlaneUnit("images", run, is_plane=True, stop_s=configuration.images.drain + 5.0),),
        families=(families,),
        named_alike={"kubelet": shared.metrics.kubelet_families},
        advice=(partial(_advice, inputs),),
        apply=apply,
        close=close,
    )


async def _advice(inputs: PlaneInputs) -> Sequence[Advice]:
    cri = inputs.runtime.cri
    try:
        names, is_off = await cri.snapshotters(), await cri.are_snapshot_annotations_off()
    except RuntimeCallFailed:
        return ()
    keys = inputs.configuration()
    signatures = keys.images.verify.signatures if keys.proxy.enabled else ""
    return [*snapshotter_advice(names, are_annotations_off=is_off), *signature_advice(signatures)]


def _settings(configuration: Configuration, environment: Mapping[str, str]) -> ImageSettings:
    place = configuration.proxy.kubelet_config
    path = Path(place) if place.startswith("/") else KUBELET_CONFIG
    disk = KubeletDisk()
    sign = f"{path} exists" if path.exists() else kubelet_beside(configuration, environment)
    if sign:
        reader = KubeletConfiguration(str(path))
        try:
            parts = [yaml.load(part, Loader=yaml.CSafeLoader) for part in reader.read_now() if part]
            disk = read_kubelet_disk(
                {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
            )
        except FileNotFoundError:
            # In a pod of a cluster there is a kubelet, and nothing of it to see.
            log.debug("kubelet_config_absent", path=reader.place)
        except (OSError, ValueError, yaml.YAMLError) as error:
            log.warning("kubelet_config_unreadable", path=reader.place, error=type(error).__name__)
    settings = image_settings(
        configuration.images, has_kubelet=bool(sign), is_proxied=configuration.proxy.enabled, kubelet_disk=disk
    )
    log.info("image_collection_chosen", mode=str(settings.collect.mode), kubelet=sign or "none found")
    return settings


class _Shared:
    def __init__(self, configuration: Configuration, inputs: PlaneInputs) -> None:
        self.inputs = inputs
        self.node = configuration.node.name
        self.follows_pods = configuration.proxy.enabled
        self.hosts = RegistryHosts(inputs.runtime.cri, clock=inputs.clock)
        self.files = StateFiles(Path(configuration.node.state_directory) / "images")
        self.probe = RegistrySizes(machine=platform.machine(), clock=inputs.clock, base_url=self.hosts.base_url)
        self.store = Containerd(inputs.runtime.containerd.endpoint, CONTENT_NAMESPACE)
        self.contents = ContentFetch(self.store, node_platform(platform.machine()), self.hosts, clock=inputs.clock)
        self.verifiers = Verifiers(lambda: inputs.configuration().images.verify.signatures, inputs.environment)
        self.followed = FollowedPods()
        self.metrics = ImageMetrics()
        self.events = lambda event: inputs.tell(_event_of(event))
        self.records = AccessRecords(self.files)
        self.history = ImageHistory(self.files, clock=inputs.clock)


def _collector(shared: _Shared, settings: ImageSettings) -> ImageCollector:
    cri, containerd = shared.inputs.runtime.cri, shared.inputs.runtime.containerd
    parts = CollectorParts(
        runtime=cri,
        usage=cri,
        files=shared.files,
        history=shared.history,
        records=shared.records,
        metrics=shared.metrics,
        names=containerd,
        leases=containerd,
        content=containerd,
        events=shared.events,
    )
    return ImageCollector(parts, settings, clock=shared.inputs.clock)


def _puller(
    shared: _Shared, settings: ImageSettings, collector: ImageCollector, credentials: CredentialSource
) -> Puller:
    cri, containerd, clock = shared.inputs.runtime.cri, shared.inputs.runtime.containerd, shared.inputs.clock
    intake = PullIntake(cri, shared.records, credentials, settings, clock=clock)
    watcher = ProgressWatcher(containerd, clock=clock, snapshotters=cri.snapshotters)
    attempts = Attempts(
        cri, watcher, containerd, containerd, clock=clock, contents=shared.contents, chain_of=shared.hosts.chain
    )
    requests = PullRequests(shared.metrics, shared.events, clock=clock)
    luck = random.SystemRandom().random
    parts = Parts(
        intake=intake,
        attempts=attempts,
        watcher=watcher,
        pulls=RecordedPulls(attempts, shared.records, containerd, clock, shared.verifiers),
        outcomes=PullOutcomes(intake, requests, shared.metrics, watcher, shared.history, luck=luck, clock=clock),
        requests=requests,
        records=shared.records,
        sizes=StateFile(shared.files, "sizes.json", "SizeMemory", dict[str, SizeRecord]),
        probe=shared.probe,
        collector=collector,
        pods=shared.followed,
    )
    return Puller(parts, settings, clock=clock)


def _prefetcher(shared: _Shared, settings: ImageSettings, puller: Puller, collector: ImageCollector) -> Prefetcher:
    parts = PrefetcherParts(
        runtime=shared.inputs.runtime.cri,
        pulls=puller,
        disk=collector,
        files=shared.files,
        names=shared.inputs.runtime.containerd,
        pods=lambda: _pod_source(shared, puller),
        rollouts=lambda: _rollout_source(shared),
        follows_pods=shared.follows_pods,
        events=shared.events,
        contents=shared.contents,
        followed=shared.followed,
    )
    return Prefetcher(parts, settings, clock=shared.inputs.clock)


def _pod_source(shared: _Shared, puller: Puller) -> PodSource | None:
    kube = shared.inputs.find_kube()
    if kube is None:
        return None
    from agent.images.run.cluster.pod_source import KubePods

    return KubePods(kube, shared.node, puller.pod_gone, shared.inputs.endings.note)


def _rollout_source(shared: _Shared) -> RolloutSource | None:
    kube = shared.inputs.find_kube()
    if kube is None:
        return None
    from agent.images.run.cluster.rollout_source import KubeRollouts

    return KubeRollouts(kube, shared.node, clock=shared.inputs.clock)


def _credentials(configuration: Configuration, inputs: PlaneInputs, metrics: ImageMetrics) -> CredentialSource:
    images = configuration.images
    plugins = Providers(
        _configured_providers(images.provider_config),
        Path(images.provider_bin_dir or "/nonexistent"),
        inputs.environment,
        clock=inputs.clock,
        observe=metrics.provider_called,
    )
    paths = node_config_paths(images.node_config, os.path.expanduser("~"))  # noqa: PTH111  # as docker does
    return CredentialSource(NodeConfig(paths, clock=inputs.clock), plugins)


def _configured_providers(place: str) -> Sequence[Provider]:
    """The providers of a file, or of all files of a directory. What is wrong is told and left out."""
    if not place:
        return ()
    try:
        documents = provider_documents(Path(place))
    except OSError as error:
        log.warning("provider_config_unreadable", path=place, error=error.strerror)
        return ()
    providers, findings = read_providers(documents)
    for finding in findings:
        log.warning("provider_config_refused", finding=str(finding))
    return providers
