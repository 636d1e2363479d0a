# SPDX-License-Identifier: Apache-2.0
"""What stands in a pod's volumes: directories, and files with their content."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from agent.model.pods.container_fields import Container, KeyToPath
from agent.model.pods.fields import ClaimedVolume, DownwardItem, Volume
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.pods.runtime.environment import ClaimPlace, ConfigProblem, PodFacts, Sources, field_value, resource_value
from agent.pods.runtime.qos import amount

NANOS = 10**9
HUGE_PAGES, HUGE_PAGE_RESOURCE = "HugePages", "hugepages-"
MOUNT_PROBLEM = "FailedMount"
NO_FACTS = PodFacts()
DIRECTORY_NAMES = {
    "empty_dir": "kubernetes.io~empty-dir",
    "config_map": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
}
SECRET_BYTES = 16 << 20
# One key or field may stand under many paths, so a short manifest could fill a disk.
MOST_CONTENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file of a volume. Its content is in no text that is made of it."""

    path: str
    mode: int
    content: bytes = field(repr=False)


class PlannedVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of our own (below the pod's), or a path of the node that has to be as `check` says, or that kepd made
    for a claim (`is_made`). `files` None: containers fill it; `tmpfs_bytes` asks for memory (0: no bound), `page_bytes`
    for huge pages."""

    name: str
    directory: str = ""
    host_path: str = ""
    check: str = ""
    is_made: bool = False
    is_read_only: bool = False
    files: tuple[PlannedFile, ...] | None = None
    tmpfs_bytes: int | None = None
    group: int | None = None
    limit_bytes: int = 0
    page_bytes: int = 0


class _Room:
    """For the files that kepd writes into the volumes of one pod."""

    def __init__(self) -> None:
        self._left = MOST_CONTENT_BYTES

    def kept(self, files: Iterator[PlannedFile]) -> Iterator[PlannedFile]:
        for file in files:
            self._left -= len(file.content)
            if self._left < 0:
                text = f"with {file.path} the files of the pod's volumes have more than {MOST_CONTENT_BYTES} bytes, "
                raise ConfigProblem(text + "which kepd does not write; fewer items, or an emptyDir", MOUNT_PROBLEM)
            yield file


def plan_volumes(pod: PodSpec, sources: Sources, facts: PodFacts) -> tuple[PlannedVolume, ...]:
    """All volumes. Raises ConfigProblem where a source is missing."""
    room = _Room()
    return tuple(_named(pod, one, sources, facts, room) for one in pod.spec.volumes if one.image is None)


def _named(pod: PodSpec, volume: Volume, sources: Sources, facts: PodFacts, room: _Room) -> PlannedVolume:
    """A problem says of which volume it is."""
    try:
        return _volume(pod, volume, sources, facts, room)
    except ConfigProblem as problem:
        text = f'volume "{volume.name}" cannot be mounted: {problem}'
        raise ConfigProblem(text, problem.reason) from problem


class Updates(msgspec.Struct, frozen=True):
    """Volumes whose content may be another now, and what is wrong with those that have none."""

    volumes: tuple[PlannedVolume, ...]
    problems: tuple[str, ...]


def plan_updates(pod: PodSpec, sources: Sources, facts: PodFacts) -> Updates:
    """Of a pod that runs: each volume with content by itself."""
    planned, problems, room = [], [], _Room()
    for volume in pod.spec.volumes:
        if volume.config_map or volume.secret or volume.downward_api or volume.projected:
            try:
                planned.append(_volume(pod, volume, sources, facts, room))
            except ConfigProblem as problem:
                problems.append(f'volume "{volume.name}" keeps its content: {problem}')
    return Updates(tuple(planned), tuple(problems))


def mount_source(pod: PodSpec, volume_name: str, facts: PodFacts = NO_FACTS) -> str:
    """Where a volume stands, relative to the pod's directory, or absolute for one of the node."""
    volume = next(one for one in pod.spec.volumes if one.name == volume_name)
    if volume.persistent_volume_claim is not None:
        return _place(volume.persistent_volume_claim, facts).path
    return volume.host_path.path if volume.host_path is not None else _directory(volume)


def claims_of(pod: PodSpec) -> frozenset[str]:
    """By their names, in the namespace of the pod."""
    claims = (one.persistent_volume_claim for one in pod.spec.volumes)
    return frozenset(one.claim_name for one in claims if one is not None)


def _place(claim: ClaimedVolume, facts: PodFacts) -> ClaimPlace:
    place = facts.claims.get(claim.claim_name, ClaimPlace())
    if not place.path:
        raise ConfigProblem(place.why or f'persistentvolumeclaim "{claim.claim_name}" not found', MOUNT_PROBLEM)
    return place


def written_paths(pod: PodSpec) -> frozenset[str]:
    """Paths of the node that its containers may change."""
    mounted = {mount.name for one in pod.containers for mount in one.fields.volume_mounts if not mount.read_only}
    return frozenset(one.host_path.path for one in pod.spec.volumes if one.host_path and one.name in mounted)


def is_ours_alone(pod: PodSpec, volume_name: str) -> bool:
    """Whether only we write there, or nobody may: containers see it read-only, whatever their mount says."""
    volume = next(one for one in pod.spec.volumes if one.name == volume_name)
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.read_only
    return bool(volume.config_map or volume.secret or volume.downward_api or volume.projected)


def _directory(volume: Volume) -> str:
    kind = next((name for name in DIRECTORY_NAMES if getattr(volume, name) is not None), "empty_dir")
    return f"volumes/{DIRECTORY_NAMES[kind]}/{volume.name}"


def _volume(pod: PodSpec, volume: Volume, sources: Sources, facts: PodFacts, room: _Room) -> PlannedVolume:
    if volume.host_path is not None:
        given = volume.host_path
        is_read_only = given.path not in written_paths(pod)
        return PlannedVolume(name=volume.name, host_path=given.path, check=given.type, is_read_only=is_read_only)
    if volume.persistent_volume_claim is not None:
        place = _place(volume.persistent_volume_claim, facts)
        return PlannedVolume(name=volume.name, host_path=place.path, check=place.check, is_made=place.is_made)
    group = pod.spec.security_context.fs_group if pod.spec.security_context is not None else None
    directory = _directory(volume)
    if volume.empty_dir is not None:
        limit = amount({"": volume.empty_dir.size_limit or 0}, "") // NANOS
        is_memory = volume.empty_dir.medium == "Memory"
        size = _memory_size(pod, limit, facts) if is_memory else None
        return PlannedVolume(
            name=volume.name,
            directory=directory,
            tmpfs_bytes=size,
            group=group,
            limit_bytes=0 if is_memory else limit,
            page_bytes=page_size_of(pod, volume.empty_dir.medium, volume.name),
        )
    files = tuple(room.kept(_files(pod, volume, sources, facts)))
    has_secret = volume.secret is not None or (
        volume.projected is not None and any(one.secret is not None for one in volume.projected.sources)
    )
    return PlannedVolume(
        name=volume.name,
        directory=directory,
        files=files,
        group=group,
        tmpfs_bytes=SECRET_BYTES if has_secret else None,
    )


def page_size_of(pod: PodSpec, medium: str, volume: str) -> int:
    """The size that the medium names, or the only one that the pod asks for; 0 where it is no such medium."""
    if not medium.startswith(HUGE_PAGES):
        return 0
    named = medium.removeprefix(HUGE_PAGES).removeprefix("-")
    listed = (pod.spec.resources, *(one.fields.resources for one in pod.containers))
    asked = {
        amount({"": name.removeprefix(HUGE_PAGE_RESOURCE)}, "") // NANOS
        for one in listed
        for name in (*one.limits, *one.requests)
        if name.startswith(HUGE_PAGE_RESOURCE)
    }
    wanted = {amount({"": named}, "") // NANOS} if named else asked
    if len(wanted) == 1 and wanted <= asked:
        return wanted.pop()
    what = "none" if not asked else "several" if not named else "others"
    text = f'volume "{volume}" has the medium {medium}, and the containers ask for {what} of such pages; '
    raise ConfigProblem(text + "one size has to be asked for, or be named as in HugePages-2Mi", MOUNT_PROBLEM)


def _memory_size(pod: PodSpec, limit: int, facts: PodFacts) -> int:
    """The smallest of its own limit, the memory of all containers together, and the node's."""
    listed = [amount(one.fields.resources.limits, "memory") // NANOS for one in pod.containers]
    whole = amount(pod.spec.resources.limits, "memory") // NANOS or (sum(listed) if all(listed) else 0)
    return min((size for size in (limit, whole, facts.memory_bytes) if size), default=0)


def _files(pod: PodSpec, volume: Volume, sources: Sources, facts: PodFacts) -> Iterator[PlannedFile]:
    if (one := volume.config_map) is not None:
        which = ("ConfigMap", one.name)
        yield from _from_source(pod, which, one.items, sources, mode=one.default_mode, optional=one.optional)
    if (secret := volume.secret) is not None:
        which = ("Secret", secret.secret_name)
        yield from _from_source(pod, which, secret.items, sources, mode=secret.default_mode, optional=secret.optional)
    if volume.downward_api is not None:
        yield from _downward(pod, volume.downward_api.items, volume.downward_api.default_mode, facts)
    if volume.projected is not None:
        mode = volume.projected.default_mode
        for source in volume.projected.sources:
            for kind, part in (("ConfigMap", source.config_map), ("Secret", source.secret)):
                if part is not None:
                    which = (kind, part.name)
                    yield from _from_source(pod, which, part.items, sources, mode=mode, optional=part.optional)
            if source.downward_api is not None:
                yield from _downward(pod, source.downward_api.items, mode, facts)


def _from_source(
    pod: PodSpec, which: tuple[str, str], items: Sequence[KeyToPath], sources: Sources, *, mode: int, optional: bool
) -> Iterator[PlannedFile]:
    kind, name = which
    source = sources.get((kind, pod.namespace, name))
    if source is None:
        if optional:
            return
        raise ConfigProblem(f'{kind.lower()} "{name}" not found', MOUNT_PROBLEM)
    if not items:
        yield from (PlannedFile(key, mode, value) for key, value in sorted(source.data.items()))
    for item in items:
        value = source.data.get(item.key)
        if value is not None:
            yield PlannedFile(item.path, mode if item.mode is None else item.mode, value)
        elif not optional:
            word = "secret" if kind == "Secret" else "config"
            raise ConfigProblem(f"references non-existent {word} key: {item.key}", MOUNT_PROBLEM)


def _downward(pod: PodSpec, items: Sequence[DownwardItem], default_mode: int, facts: PodFacts) -> Iterator[PlannedFile]:
    for item in items:
        text = ""
        if item.field_ref is not None:
            text = field_value(item.field_ref.field_path, pod, facts)
        elif item.resource_field_ref is not None:
            anonymous = ContainerSpec(pod.containers[0].kind, Container())
            text = resource_value(item.resource_field_ref, pod, anonymous, facts)
        yield PlannedFile(item.path, default_mode if item.mode is None else item.mode, text.encode())
