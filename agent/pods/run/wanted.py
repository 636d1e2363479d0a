# SPDX-License-Identifier: Apache-2.0
"""What is wanted on this node: the pods of manifest files, and those that workloads make. Tells what is wrong there."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import structlog

from agent.model.event import Event
from agent.model.pods.pod import PodSpec
from agent.objects.wanted import Wanted
from agent.pods.manifest.reading import ReadManifest, read_wanted
from agent.pods.plan.edits import has_new_images_alone
from agent.pods.plan.remembered import Record
from agent.pods.run.owners import Owners
from agent.pods.run.pod_context import PodDependencies

log = structlog.get_logger(plane="pods")


class WantedPods:
    def __init__(self, owners: Owners, records: Mapping[str, Record]) -> None:
        self._owners = owners
        self._records = records
        self.reading = ReadManifest()
        self.has_read = False
        self.by_uid: dict[str, PodSpec] = {}
        self.by_key: dict[str, PodSpec] = {}

    def told_to(self, context: PodDependencies) -> PodDependencies:
        """With what the manifests say now."""
        return msgspec.structs.replace(
            context, sources=lambda: self.reading.sources, rules=lambda: self.reading.rules, handler_of=self.handler_of
        )

    async def read(self, wanted: Wanted) -> ReadManifest:
        """Answers with what was read before."""
        before, self.reading = self.reading, await asyncio.to_thread(read_wanted, wanted)
        return before

    def handler_of(self, runtime_class: str) -> str:
        """Of the runtime, as its class says; any other name is a handler itself."""
        return self.reading.handlers.get(runtime_class, runtime_class)

    def settle(self, made: Iterable[PodSpec]) -> None:
        """A pod of a file comes before one that is made and has the same name."""
        begun = {one.pod.key: one for one in self._records.values()}
        given = [self._identified(pod, begun.get(pod.key)) for pod in self.reading.pods.values()]
        self.by_uid = {pod.uid: pod for pod in (*made, *given)}
        self.by_key = {pod.key: pod for pod in self.by_uid.values()}

    def _identified(self, pod: PodSpec, begun: Record | None) -> PodSpec:
        """A uid that is made of a manifest changes with each edit. With other images alone it is the same pod, unless
        that ends or is over."""
        keeper = self._owners.named(pod.key)
        if keeper is not None:
            here, memory, is_ending = keeper.run.pod, keeper.run.memory, keeper.run.is_removed
        elif begun is not None:
            here, memory, is_ending = begun.pod, begun.memory, begun.memory.is_leaving
        else:
            return pod
        is_own = pod.has_own_uid or here.has_own_uid or here.owner is not None
        if is_own or pod.uid == here.uid or is_ending or memory.outcome or not has_new_images_alone(here, pod):
            return pod
        known = self.by_uid.get(here.uid)
        if known is not None and (known.hash, known.source) == (pod.hash, pod.source):
            return known
        return replace(pod, uid=here.uid)

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
                context.tell(Event(is_warning=True, reason=reason, message=str(finding), plane="pods"))
        for finding in self.reading.warnings:
            if finding not in doubted:
                log.warning("manifest_doubtful", finding=str(finding))
