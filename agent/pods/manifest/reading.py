# SPDX-License-Identifier: Apache-2.0
"""Which pods are wanted, from all manifest files together and from what they said before.

A file with a fault keeps the pods that it had, for a slip of the pen must not end what runs; only a file or
document that is gone from a faultless file ends its pod. Of two objects with one name, or pods with one uid, the one
that is in force stays, else the first file wins; a source in a document comes before one in a directory. Workloads that
ask for too many pods are refused, never those that are in force.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from agent.model.finding import Finding, printable
from agent.model.manifests.in_force import FileInForce, Key
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.container_fields import Container
from agent.model.pods.fields import Volume
from agent.model.pods.pod import PodSpec
from agent.model.pods.source_folder import SourceFolder
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.manifest.source_folders import FolderReading, read_folder
from agent.pods.manifest.validation import warnings_about
from agent.pods.runtime.environment import EnvironmentSource
from agent.pods.workloads.budget import Budget
from agent.pods.workloads.cron_reading import manifest_warnings
from agent.pods.workloads.workload import Workload

MOST_MADE = 1000
"""How many pods all workloads may ask for together; `pods.maxPods` run of them."""
EXPOSED = "holds a Secret and is readable by others than root; use chmod 600"
CONFIG_MAP, SECRET = "ConfigMap", "Secret"


class FileReading(msgspec.Struct, frozen=True):
    """One file. `accepted` are the pods that run because of it, the last good version where it has faults now. `fresh`
    are the objects that its content has without fault."""

    content: bytes
    pods: tuple[PodSpec, ...]
    findings: tuple[Finding, ...]
    accepted: tuple[PodSpec, ...] = ()
    was_good: bool = False
    sources: tuple[EnvironmentSource, ...] = ()
    warnings: tuple[Finding, ...] = ()
    workloads: tuple[Workload, ...] = ()
    budgets: tuple[Budget, ...] = ()
    fresh: Mapping[Key, object] = msgspec.field(default_factory=dict)


class ReadManifest(msgspec.Struct, frozen=True):
    """All files. `complaints` are by file or directory; about what stands in `unread` nothing is known."""

    files: Mapping[str, FileReading] = msgspec.field(default_factory=dict)
    pods: Mapping[str, PodSpec] = msgspec.field(default_factory=dict)
    complaints: Mapping[str, tuple[Finding, ...]] = msgspec.field(default_factory=dict)
    duplicates: frozenset[Finding] = frozenset()
    """Those among the complaints that are about a name or uid which another manifest has."""
    rivals: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By pod: the places of manifests that are ignored, for it has their name or uid."""
    unread: frozenset[str] = frozenset()
    sources: Mapping[Key, EnvironmentSource] = msgspec.field(default_factory=dict)
    folders: Mapping[str, FolderReading] = msgspec.field(default_factory=dict)
    warnings: tuple[Finding, ...] = ()
    workloads: Mapping[Key, Workload] = msgspec.field(default_factory=dict)
    budgets: Mapping[Key, Budget] = msgspec.field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for findings in self.complaints.values() for finding in findings)

    def is_unread(self, file: str) -> bool:
        return any(_covers(path, file) for path in self.unread)

    def complaints_about(self, file: str) -> tuple[Finding, ...]:
        return tuple(one for path, findings in self.complaints.items() if _covers(path, file) for one in findings)

    @property
    def in_force(self) -> tuple[dict[str, FileInForce], dict[str, SourceFolder]]:
        """What of each file and folder has to outlive this process."""
        objects: dict[str, dict[Key, object]] = {}
        owned: tuple[_Named, ...] = (*self.workloads.values(), *self.budgets.values(), *self.sources.values())
        for one in owned:
            if one.file in self.files:
                objects.setdefault(one.file, {})[one.key] = one
        for pod in self.pods.values():
            objects.setdefault(pod.file, {})["Pod", pod.namespace, pod.manifest_name] = pod
        folders = {
            path: dataclasses.replace(one.folder, values=one.source.data)
            for path, one in self.folders.items()
            if one.source is not None and self.sources[one.source.key] is one.source
        }
        return {path: _in_force(self.files[path], own) for path, own in objects.items()}, folders

    def is_stale(self, pod: PodSpec) -> bool:
        """Whether its file says something else by now, but with faults."""
        return pod.file in self.files and pod not in self.files[pod.file].pods


def _in_force(file: FileReading, own: Mapping[Key, object]) -> FileInForce:
    kept = frozenset(key for key, one in own.items() if file.fresh.get(key) is not one)
    return FileInForce(file.content, frozenset(own), kept, bool(file.findings or kept) or len(own) < len(file.fresh))


def read_pods(snapshot: ManifestSnapshot, before: ReadManifest, identity: NodeIdentity) -> ReadManifest:
    parsed = {path: _parsed(path, content, before, identity) for path, content in snapshot.files.items()}
    claims = _Claims()
    offers = [pod for file in parsed.values() for pod in file.pods]
    offers += [pod for path, file in parsed.items() if file.findings for pod in _missing(path, file.pods, before)]
    for pod in sorted(offers, key=lambda pod: not _is_in_force(pod, before)):
        claims.claim(pod)
    # Whoever lost a name to another has a fault as well, and keeps what it had, unless that is taken by now.
    for path in claims.losers:
        for pod in before.files[path].accepted if path in before.files else ():
            claims.take_if_free(pod)
    accepted = claims.by_file()
    folders = {path: read_folder(one, before.folders.get(path)) for path, one in snapshot.folders.items()}
    in_files = [one for file in parsed.values() for one in file.sources]
    in_folders = [folder.source for folder in folders.values() if folder.source is not None]
    sources = _claimed([*in_files, *in_folders], claims.losers, before.sources)
    named = _claimed([one for file in parsed.values() for one in file.workloads], claims.losers, before.workloads)
    workloads, excess = _within_bound(named, before.workloads)
    told = {path: one.findings for path, one in parsed.items()} | {path: one.findings for path, one in folders.items()}
    complaints = {
        path: (*findings, *claims.losers.get(path, ()), *excess.get(path, ())) for path, findings in told.items()
    }
    for problem in snapshot.problems:
        complaints[problem.where] = (problem, *complaints.get(problem.where, ()))
    return ReadManifest(
        files={path: replace(file, accepted=accepted.get(path, ())) for path, file in parsed.items()},
        pods=dict(sorted(claims.pods.items())),
        complaints={path: findings for path, findings in complaints.items() if findings},
        duplicates=frozenset(one for findings in claims.losers.values() for one in findings),
        rivals={key: tuple(places) for key, places in claims.rivals.items()},
        unread=snapshot.unread | {path for path, file in parsed.items() if not file.was_good},
        sources=sources,
        folders=folders,
        workloads=workloads,
        budgets=_claimed([one for file in parsed.values() for one in file.budgets], claims.losers, before.budgets),
        warnings=(
            *snapshot.ignored,
            *_exposed(snapshot, parsed),
            *(warning for file in parsed.values() for warning in file.warnings),
        ),
    )


def changed_sources(before: ReadManifest, now: ReadManifest) -> frozenset[Key]:
    """Of which there is another content, or which came or went; where they stand does not matter."""
    if before.sources is now.sources:
        return frozenset()
    keys = before.sources.keys() | now.sources.keys()
    return frozenset(key for key in keys if _data(before.sources.get(key)) != _data(now.sources.get(key)))


def _data(source: EnvironmentSource | None) -> object:
    return None if source is None else (source.data, source.binary)


def _exposed(snapshot: ManifestSnapshot, parsed: Mapping[str, FileReading]) -> Iterable[Finding]:
    for path in sorted(snapshot.exposed):
        if path in parsed and any(one.kind == "Secret" for one in parsed[path].sources):
            yield Finding(path, "", EXPOSED)
    for folder in snapshot.folders.values():
        if folder.kind == "Secret" and folder.exposed:
            yield Finding(folder.exposed, "", EXPOSED)


def _covers(path: str, file: str) -> bool:
    """`file` may come from an annotation, where names that are no UTF-8 are made printable. Asked for each pod and each
    finding, so it makes no paths of them."""
    path, file = printable(path), printable(file)
    return file == path or file.startswith(f"{path.rstrip('/')}/")


def _parsed(path: str, content: bytes, before: ReadManifest, identity: NodeIdentity) -> FileReading:
    last = before.files.get(path)
    if last is not None and last.content == content:
        return last
    found = parse_objects(path, content, identity)
    pods, findings, sources = tuple(found.pods), tuple(found.findings), tuple(found.sources)
    workloads, budgets = tuple(found.workloads), tuple(found.budgets)
    owned: tuple[_Named, ...] = (*sources, *workloads, *budgets)
    fresh: dict[Key, object] = {one.key: one for one in reversed(owned)}
    if not content.strip() and last is not None and (last.accepted or last.fresh):
        findings = (Finding(path, "", "is empty; what it had ends when the file is removed"),)
    if findings:
        # As with pods: a slip of the pen takes nothing away.
        budgets += tuple(one for one in _of_file(path, before.budgets) if one.key not in fresh)
        sources += tuple(one for one in _of_file(path, before.sources) if one.key not in fresh)
        workloads += tuple(one for one in _of_file(path, before.workloads) if one.key not in fresh)
    fresh |= {("Pod", pod.namespace, pod.manifest_name): pod for pod in reversed(pods)}
    warnings: tuple[Finding, ...] = ()
    if not findings and not (pods or sources or workloads or budgets or found.others):
        warnings = (Finding(path, "", "says nothing: it holds no object, so nothing comes of it"),)
    was_good = not findings or (last is not None and last.was_good)
    warnings += tuple(Finding(pod.source, at, text) for pod in pods for at, text in warnings_about(pod.spec))
    warnings += tuple(Finding(one.source, at, text) for one in found.workloads for at, text in manifest_warnings(one))
    return FileReading(
        content, pods, findings, was_good=was_good, sources=sources, warnings=warnings, workloads=workloads,
        budgets=budgets, fresh=fresh,
    )  # fmt: skip


class _Named(Protocol):
    @property
    def key(self) -> Key: ...

    @property
    def file(self) -> str: ...

    @property
    def source(self) -> str: ...


Named = TypeVar("Named", bound=_Named)


def _of_file(path: str, objects: Mapping[Key, Named]) -> list[Named]:
    return [one for one in objects.values() if one.file == path]


def _claimed(
    objects: Iterable[Named], losers: dict[str, list[Finding]], before: Mapping[Key, Named]
) -> dict[Key, Named]:
    """Who has a name keeps it, else the first wins."""
    found: dict[Key, Named] = {}
    for one in sorted(objects, key=lambda one: one.key not in before or before[one.key].file != one.file):
        if one.key in found:
            kind, namespace, name = one.key
            text = f"{kind} {namespace}/{name} is already in {found[one.key].source}; this one is ignored"
            losers.setdefault(one.file, []).append(Finding(one.source, "metadata.name", text))
        else:
            found[one.key] = one
    return found


def _within_bound(
    workloads: Mapping[Key, Workload], before: Mapping[Key, Workload]
) -> tuple[Mapping[Key, Workload], Mapping[str, list[Finding]]]:
    """Without those that ask for more pods than there may be, and what is said of them. What is in force has its pods;
    one that is to grow beyond the bound stays as it is."""
    had = {key: min(before[key].most_pods, one.most_pods) for key, one in workloads.items() if key in before}
    count, found, excess = sum(had.values()), dict[Key, Workload](), dict[str, list[Finding]]()
    for key, one in workloads.items():
        more = one.most_pods - had.get(key, 0)
        if more and count + more > MOST_MADE:
            effect = "it stays as it was" if key in before else "it is ignored"
            text = f"{one.text} and those in force ask for more than {MOST_MADE} pods together; {effect}"
            excess.setdefault(one.file, []).append(Finding(one.source, "spec", text))
            found |= {key: before[key]} if key in before else {}
        else:
            found[key] = one
            count += more
    return found, excess


def _missing(path: str, pods: Iterable[PodSpec], before: ReadManifest) -> Iterable[PodSpec]:
    offered = {pod.key for pod in pods}
    return (pod for pod in before.files[path].accepted if pod.key not in offered) if path in before.files else ()


def _is_in_force(pod: PodSpec, before: ReadManifest) -> bool:
    known = before.pods.get(pod.key)
    return known is not None and known.file == pod.file


class _Claims:
    def __init__(self) -> None:
        self.pods: dict[str, PodSpec] = {}
        self.losers: dict[str, list[Finding]] = {}
        self.rivals: dict[str, list[str]] = {}
        self._by_uid: dict[str, PodSpec] = {}

    def claim(self, pod: PodSpec) -> None:
        holder = self.pods.get(pod.key)
        path, what = "metadata.name", f"pod {pod.key}"
        if holder is None:
            holder, path, what = self._by_uid.get(pod.uid), "metadata.uid", f"a pod with uid {pod.uid}"
        if holder is None:
            self.take_if_free(pod)
        else:
            text = f"{what} is already in {holder.source}; this one is ignored"
            self.losers.setdefault(pod.file, []).append(Finding(pod.source, path, text))
            self.rivals.setdefault(holder.key, []).append(pod.source)

    def take_if_free(self, pod: PodSpec) -> None:
        if pod.key not in self.pods and pod.uid not in self._by_uid:
            self.pods[pod.key] = self._by_uid[pod.uid] = pod

    def by_file(self) -> Mapping[str, tuple[PodSpec, ...]]:
        found: dict[str, list[PodSpec]] = {}
        for pod in self.pods.values():
            found.setdefault(pod.file, []).append(pod)
        return {path: tuple(pods) for path, pods in found.items()}


def source_references(pod: PodSpec) -> frozenset[tuple[str, str, str]]:
    volumes = (which for volume in pod.spec.volumes for which in _of_volume(volume))
    variables = (which for one in pod.containers for which in _of_container(one.fields))
    pulls = ((SECRET, one.name) for one in pod.spec.image_pull_secrets)
    return frozenset((kind, pod.namespace, name) for kind, name in (*volumes, *variables, *pulls))


def _of_volume(volume: Volume) -> Iterator[tuple[str, str]]:
    if volume.config_map is not None:
        yield CONFIG_MAP, volume.config_map.name
    if volume.secret is not None:
        yield SECRET, volume.secret.secret_name
    for part in volume.projected.sources if volume.projected is not None else ():
        if part.config_map is not None:
            yield CONFIG_MAP, part.config_map.name
        if part.secret is not None:
            yield SECRET, part.secret.name


def _of_container(container: Container) -> Iterator[tuple[str, str]]:
    for entry in container.env_from:
        if entry.config_map_ref is not None:
            yield CONFIG_MAP, entry.config_map_ref.name
        if entry.secret_ref is not None:
            yield SECRET, entry.secret_ref.name
    for env in container.env:
        if env.value_from is not None and env.value_from.config_map_key_ref is not None:
            yield CONFIG_MAP, env.value_from.config_map_key_ref.name
        if env.value_from is not None and env.value_from.secret_key_ref is not None:
            yield SECRET, env.value_from.secret_key_ref.name
