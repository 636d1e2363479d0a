# SPDX-License-Identifier: Apache-2.0
"""Whose a container, a sandbox or a name is, without asking every pod; and what an earlier kepd wrote down of its own.

Changed by the runner alone; pods say what they have by `learn`. Whatever loops over pods does its work for each within
`contained`, so that a fault of one pod stays with that pod.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from agent.pods.plan.remembered import FOLDER, Record, decode_record
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.pod_context import PodDependencies
from agent.pods.runtime.observed import SeenPod

log = structlog.get_logger(plane="pods")

Kinds = tuple[type[Exception], ...]


class Owners:
    def __init__(self) -> None:
        self._keepers: dict[str, PodWorker] = {}
        self._named: dict[str, list[PodWorker]] = {}
        # The uid of the pod.
        self._instances: dict[str, str] = {}
        self._sandboxes: dict[str, str] = {}

    @property
    def keepers(self) -> Mapping[str, PodWorker]:
        return self._keepers

    def named(self, key: str) -> PodWorker | None:
        """Who has a name, the first if an earlier run has not gone yet."""
        found = self._named.get(key)
        return found[0] if found else None

    def of_instance(self, container_id: str) -> PodWorker | None:
        return self._keepers.get(self._instances.get(container_id, ""))

    def of_sandbox(self, sandbox_id: str) -> PodWorker | None:
        return self._keepers.get(self._sandboxes.get(sandbox_id, ""))

    def add(self, keeper: PodWorker) -> None:
        run = keeper.run
        self._keepers[run.pod.uid] = keeper
        self._named.setdefault(run.pod.key, []).append(keeper)
        self.learn(run, SeenPod())

    def remove(self, keeper: PodWorker) -> None:
        run = keeper.run
        self._keepers.pop(run.pod.uid, None)
        others = [one for one in self._named.get(run.pod.key, ()) if one is not keeper]
        if others:
            self._named[run.pod.key] = others
        else:
            self._named.pop(run.pod.key, None)
        self._forget(run.seen)

    def clear(self) -> None:
        for index in (self._keepers, self._named, self._instances, self._sandboxes):
            index.clear()

    def learn(self, run: LivePod, before: SeenPod) -> None:
        """What one pod has in the runtime is another now. One that is not kept yet has nothing here."""
        if run.pod.uid not in self._keepers:
            return
        self._forget(before)
        self._instances.update({one.id: run.pod.uid for one in run.seen.instances})
        self._sandboxes.update({one.id: run.pod.uid for one in run.seen.sandboxes})

    def _forget(self, before: SeenPod) -> None:
        for instance in before.instances:
            self._instances.pop(instance.id, None)
        for sandbox in before.sandboxes:
            self._sandboxes.pop(sandbox.id, None)


async def load_records(context: PodDependencies) -> dict[str, Record]:
    """By uid. What cannot be read is logged and left out."""
    try:
        found = await context.records.read_folder(FOLDER)
    except OSError as error:
        log.warning("pod_records_unreadable", error=str(error))
        return {}
    records: dict[str, Record] = {}
    clock, boot_id = context.clock, context.settings().facts.boot_id
    for name, content in found.items():
        try:
            records[name.removesuffix(".json")] = decode_record(content, boot_id, clock.now_s(), clock.wall_s())
        except ValueError as error:
            log.warning("pod_record_unreadable", record=name, error=str(error))
    return records


@contextmanager
def contained(pod: str, doing: str, *, but: Kinds = ()) -> Iterator[list[Exception]]:
    """Log what fails inside and go on after the block; the list has it then. `but` is raised all the same."""
    faults: list[Exception] = []
    try:
        yield faults
    except but:
        raise
    except Exception as error:  # a fault of one pod ends no other's work
        faults.append(error)
        log.error("pod_fault_contained", pod=pod, doing=doing, error=repr(error), exc_info=error)


class Faults:
    """Pods for which kepd failed since the last look. What they have is unclear, so nothing begins in their place."""

    def __init__(self) -> None:
        # By uid.
        self.names: dict[str, str] = {}

    def concern(self, uid: str, name: str) -> bool:
        return uid in self.names or name in self.names.values()

    @contextmanager
    def contained(self, uid: str, name: str, doing: str, *, but: Kinds = ()) -> Iterator[None]:
        with contained(name, doing, but=but) as faults:
            yield
        if faults:
            self.names[uid] = name
