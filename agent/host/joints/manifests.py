# SPDX-License-Identifier: Apache-2.0
"""The directory of manifests, that pods, devices and Services share: what each finds wrong with it."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.document import Configuration
from agent.drivers.manifests.driver import read_manifests
from agent.drivers.manifests.source_folders import read_source_folders
from agent.drivers.manifests.trust import Trust
from agent.model.refused import Refused
from agent.objects.admitting import InForce
from agent.objects.all_readings import faults_of
from agent.objects.run.applying import ManifestObjects
from agent.objects.run.writer import WRITING

if TYPE_CHECKING:
    from agent.pods.attach.unit import PodOffers
    from agent.pods.run.workloads.workloads import Workloads
    from agent.policies.attach.unit import PolicyOffers

GRAIN_NS = 50_000_000


class LastRead:
    """The files, read again where one of them, or what they are trusted by, looks otherwise than at the last look:
    whoever applies 500 objects one by one asks for all of them a thousand times. Asked in threads."""

    def __init__(self, read: Callable[[], Mapping[str, bytes]], place: Callable[[], tuple[Path, Trust]]) -> None:
        self._read, self._place = read, place
        self._last: tuple[object, Mapping[str, bytes]] = (None, {})

    def files(self) -> Mapping[str, bytes]:
        stamp = self._stamp()
        known, files = self._last
        if stamp is None or stamp != known:
            files = self._read()
            self._last = (stamp, files)
        return files

    def _stamp(self) -> object:
        """None where it may not tell a change: times have a grain, and what is no directory is read each time."""
        directory, trust = self._place()
        try:
            with os.scandir(directory) as entries:
                found = [directory.stat(), *(entry.stat() for entry in entries)]
        except OSError:
            return None
        if max(one.st_ctime_ns for one in found) > time.time_ns() - GRAIN_NS:
            return None
        return (
            trust,
            str(directory),
            frozenset(
                (one.st_ino, one.st_ctime_ns, one.st_mtime_ns, one.st_size, one.st_mode, one.st_uid, one.st_gid)
                for one in found
            ),
        )


class MadeHere:
    """What no file has, and what becomes of it when somebody deletes it."""

    def __init__(self, workloads: "Workloads") -> None:
        self._makers = (workloads.cron, workloads.claims)

    @property
    def files(self) -> Mapping[str, bytes]:
        return {path: content for maker in self._makers for path, content in maker.files.items()}

    async def drop(self, key: tuple[str, str, str]) -> bool:
        for maker in self._makers:
            if await maker.drop(key):
                return True
        return False


def wire_objects(
    current: Callable[[], Configuration],
    pods: "PodOffers | None",
    policies: "PolicyOffers | None" = None,
    in_force: Callable[[], InForce | None] = lambda: None,
) -> ManifestObjects:
    """`pods` are of the pods plane, if it runs here."""
    workloads = pods.runner.workloads if pods is not None else None

    def looked() -> Mapping[str, bytes]:
        """What cannot be looked at is not taken for a directory without objects."""
        place = directory()
        if not place.exists():
            return {}
        with WRITING:
            snapshot = read_manifests(place, trust=trust())
        if str(place) in snapshot.unread:
            raise Refused("precondition", "; ".join(map(str, snapshot.problems)))
        return snapshot.files

    def uid_of(namespace: str, name: str) -> str:
        keeper = pods.runner.keeper(namespace, name + suffix()) if pods is not None else None
        return keeper.run.pod.uid if keeper is not None else ""

    def created_s(key: tuple[str, str, str]) -> float:
        if key[0] == "NetworkPolicy":
            return policies.plane.since_s.get(f"{key[1]}/{key[2]}", 0.0) if policies is not None else 0.0
        return workloads.created_s(key) if workloads is not None else 0.0

    def suffix() -> str:
        now = current()
        return f"-{now.node.name}" if now.pods.name_suffix else ""

    def directory() -> Path:
        return Path(current().manifests.directory)

    def trust() -> Trust:
        return Trust(current().manifests.group_writable)

    return ManifestObjects(
        directory,
        LastRead(looked, lambda: (directory(), trust())).files,
        lambda: list(read_source_folders(directory(), {}, trust()).folders.values()),
        lambda content: faults_of(content, current()),
        pods.commands.end if pods is not None else None,
        suffix,
        status=workloads.status if workloads is not None else lambda _: None,
        created_s=created_s,
        revision=workloads.revision if workloads is not None else lambda _: 0,
        made=workloads.revisions if workloads is not None else list,
        jobs=MadeHere(workloads) if workloads is not None else None,
        uid_of=uid_of,
        in_force=in_force,
    )
