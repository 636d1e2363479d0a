# SPDX-License-Identifier: Apache-2.0
"""The directory of manifests, that pods, devices and Services share: what each finds wrong with it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.document import Configuration
from agent.config.packages import is_installed
from agent.drivers.manifests.driver import read_manifests
from agent.drivers.manifests.source_folders import read_source_folders
from agent.drivers.manifests.trust import Trust
from agent.model.finding import Finding
from agent.model.refused import Refused
from agent.objects.run.applying import ManifestObjects
from agent.objects.run.writer import WRITING

if TYPE_CHECKING:
    from agent.pods.attach.unit import PodOffers
    from agent.pods.manifest.objects import NodeIdentity
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


def wire_objects(
    current: Callable[[], Configuration], pods: "PodOffers | None", policies: "PolicyOffers | None" = None
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
        keeper = pods.runner.keeper(namespace, name + identity_of(current()).suffix) if pods is not None else None
        return keeper.run.pod.uid if keeper is not None else ""

    def created_s(key: tuple[str, str, str]) -> float:
        if key[0] == "NetworkPolicy":
            return policies.plane.since_s.get(f"{key[1]}/{key[2]}", 0.0) if policies is not None else 0.0
        return workloads.created_s(key) if workloads is not None else 0.0

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
        lambda: identity_of(current()).suffix,
        status=workloads.status if workloads is not None else lambda _: None,
        created_s=created_s,
        made=workloads.revisions if workloads is not None else list,
        jobs=workloads.cron if workloads is not None else None,
        uid_of=uid_of,
    )


def identity_of(configuration: Configuration) -> "NodeIdentity":
    from agent.pods.manifest.objects import NodeIdentity

    devices = configuration.devices
    return NodeIdentity(
        configuration.node.name, configuration.pods.name_suffix, devices.manager.enabled, devices.plugins.enabled,
        configuration.pods.claim_directory,
    )  # fmt: skip


def faults_of(content: bytes, configuration: Configuration) -> Sequence[Finding]:
    """What each plane finds wrong with a manifest. Imported with the first who asks: a daemon without pods pays nothing
    for them."""
    from agent.pods.manifest.objects import parse_objects
    from agent.services.attach.manifests import hint_options, read_service_objects

    found = parse_objects("manifest", content, identity_of(configuration)).findings
    of_services = read_service_objects({"manifest": content}, hint_options(configuration)).findings
    of_policies = _faults_of_policies(content, configuration)
    of_devices = _faults_of_devices(content, configuration)
    return list(dict.fromkeys((*found, *of_services, *of_devices, *of_policies)))


def _faults_of_policies(content: bytes, configuration: Configuration) -> Sequence[Finding]:
    """Also that one would do nothing here: who applies it relies on it."""
    from agent.policies.attach.unit import why_off
    from agent.policies.manifest.reading import read_policies

    found, off = read_policies({"manifest": content}), why_off(configuration)
    places = found.places.values() if off else ()
    return (
        *found.findings,
        *(Finding(where, "kind", f"NetworkPolicy is not enforced here: {off}") for where in places),
    )


def _faults_of_devices(content: bytes, configuration: Configuration) -> Sequence[Finding]:
    if not is_installed("devices"):
        return ()
    from kepd_devices.manifest.documents import Reader
    from kepd_devices.manifest.reading import read_device_objects

    reader = Reader(configuration.node.name, trusts_status=configuration.devices.manager.trust_status)
    return read_device_objects({"manifest": content}, reader).findings
