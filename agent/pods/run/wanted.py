# SPDX-License-Identifier: Apache-2.0
"""What is wanted on this node: the pods of manifest files, and those that workloads make. Tells what is wrong there."""

import asyncio
from collections.abc import Iterable

import structlog

from agent.model.event import Event
from agent.model.pods.pod import PodSpec
from agent.pods.manifest.objects import NodeIdentity
from agent.pods.manifest.reading import ReadManifest, read_pods
from agent.pods.ports import Snapshot
from agent.pods.run.pod_context import PodDependencies

log = structlog.get_logger(plane="pods")


class WantedPods:
    def __init__(self) -> None:
        self.reading = ReadManifest()
        self.has_read = False
        self.by_uid: dict[str, PodSpec] = {}
        self.by_key: dict[str, PodSpec] = {}

    async def read(self, snapshot: Snapshot, context: PodDependencies) -> ReadManifest:
        """Answers with what was read before."""
        before, settings = self.reading, context.settings()
        identity = NodeIdentity(
            settings.node, settings.pods.name_suffix, settings.gives_devices, settings.gives_plugins
        )
        self.reading = await asyncio.to_thread(read_pods, snapshot, before, identity)
        return before

    def settle(self, made: Iterable[PodSpec]) -> None:
        """A pod of a file comes before one that is made and has the same name."""
        self.by_uid = {pod.uid: pod for pod in (*made, *self.reading.pods.values())}
        self.by_key = {pod.key: pod for pod in self.by_uid.values()}

    def add(self, pod: PodSpec) -> None:
        self.by_uid[pod.uid] = self.by_key[pod.key] = pod

    def remove(self, pod: PodSpec) -> None:
        self.by_uid.pop(pod.uid, None)
        if self.by_key.get(pod.key) is pod:
            del self.by_key[pod.key]

    def tell_findings(self, before: ReadManifest, context: PodDependencies) -> None:
        known, doubted = set(before.findings), set(before.warnings)
        for finding in self.reading.findings:
            if finding not in known:
                log.warning("manifest_refused", finding=str(finding))
                reason = "ManifestDuplicate" if finding in self.reading.duplicates else "FailedValidation"
                context.tell(Event(id="", is_warning=True, reason=reason, message=str(finding), plane="pods"))
        for finding in self.reading.warnings:
            if finding not in doubted:
                log.warning("manifest_doubtful", finding=str(finding))
