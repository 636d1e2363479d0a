# SPDX-License-Identifier: Apache-2.0
"""What is in force, as the pods plane asks for it: pods by their names here, sources, workloads and budgets; and what
is wrong, by the file that a pod is of."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.model.finding import Finding, printable
from agent.model.manifests.snapshot import Key, ManifestSnapshot
from agent.model.pods.container_fields import Container
from agent.model.pods.fields import Volume
from agent.model.pods.pod import PodSpec
from agent.objects.admitting import InForce
from agent.objects.wanted import Wanted
from agent.pods.admission.rules import AdmissionRules, admitted, rules_of
from agent.pods.manifest.objects import KINDS, POD
from agent.pods.runtime.environment import EnvironmentSource
from agent.pods.storage.binding import Storage, storage_of
from agent.pods.workloads.budget import Budget
from agent.pods.workloads.workload import Workload

EXPOSED = "holds a Secret and is readable by others than root; use chmod 600"
CONFIG_MAP, SECRET, RUNTIME_CLASS = "ConfigMap", "Secret", "RuntimeClass"
PLANE = "pods"


class ReadManifest(msgspec.Struct, frozen=True):
    """`complaints` are by file or directory; about what stands in `unread` nothing is known."""

    in_force: InForce = InForce()
    pods: Mapping[str, PodSpec] = {}
    complaints: Mapping[str, tuple[Finding, ...]] = {}
    duplicates: frozenset[Finding] = frozenset()
    """Those among the complaints that are about a name or uid which another manifest has."""
    unread: frozenset[str] = frozenset()
    sources: Mapping[Key, EnvironmentSource] = {}
    warnings: tuple[Finding, ...] = ()
    workloads: Mapping[Key, Workload] = {}
    budgets: Mapping[Key, Budget] = {}
    handlers: Mapping[str, str] = {}
    """Of the runtime, by the names of RuntimeClasses; any other name is a handler itself."""
    storage: Storage = Storage()
    rules: AdmissionRules = AdmissionRules()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for findings in self.complaints.values() for finding in findings)

    def is_unread(self, file: str) -> bool:
        return any(_covers(path, file) for path in self.unread)

    def complaints_about(self, file: str) -> tuple[Finding, ...]:
        return tuple(finding for path, known in self.complaints.items() if _covers(path, file) for finding in known)

    def rivals_of(self, pod: PodSpec) -> tuple[str, ...]:
        """The places of manifests that are ignored, for it has their name or uid."""
        return self.in_force.rivals.get(key_of(pod), ())

    def is_stale(self, pod: PodSpec) -> bool:
        """Whether its file says something else by now, but with faults."""
        key, file = key_of(pod), self.in_force.files.get(pod.file)
        object_ = self.in_force.objects.get(key)
        if object_ is None or object_.path != pod.file:
            return file is not None and key not in file.objects
        return self.in_force.is_stale(key)

    def holds_alone(self, pod: PodSpec) -> bool:
        """Whether its file has faults and nothing in force but this pod."""
        file = self.in_force.files[pod.file]
        own = [object_.key for object_ in self.in_force.objects.values() if object_.path == pod.file]
        return bool(file.complaints) and own == [key_of(pod)]


def key_of(pod: PodSpec) -> Key:
    return POD, pod.namespace, pod.manifest_name


def read_wanted(wanted: Wanted) -> ReadManifest:
    look, in_force = wanted.look, wanted.in_force
    values = {object_.key: object_.value for object_ in in_force.of(KINDS)}
    own = {
        path: [complaint for complaint in complaints if complaint.plane in ("", PLANE)]
        for path, complaints in in_force.complaints.items()
    }
    rules = rules_of(values.values())
    told = {path: tuple(complaint.finding for complaint in complaints) for path, complaints in own.items()}
    for problem in look.problems:
        told[problem.where] = (problem, *told.get(problem.where, ()))
    return ReadManifest(
        in_force=in_force,
        pods=dict(
            sorted((value.key, admitted(value, rules)) for value in values.values() if isinstance(value, PodSpec))
        ),
        complaints={path: findings for path, findings in told.items() if findings},
        duplicates=frozenset(each.finding for complaints in own.values() for each in complaints if each.is_duplicate),
        unread=look.unread | {path for path, file in in_force.files.items() if not file.was_good},
        sources={key: value for key, value in values.items() if isinstance(value, EnvironmentSource)},
        warnings=(
            *look.ignored, *_exposed(look, in_force),
            *(remark for file in in_force.files.values() for remark in (*file.warnings, *file.foreign)),
        ),
        workloads={key: value for key, value in values.items() if isinstance(value, Workload)},
        budgets={key: value for key, value in values.items() if isinstance(value, Budget)},
        handlers={each.key[2]: str(each.value["handler"]) for each in in_force.of([RUNTIME_CLASS])},
        storage=storage_of(values.values()),
        rules=rules,
    )  # fmt: skip


def changed_sources(before: ReadManifest, now: ReadManifest) -> frozenset[Key]:
    """Of which there is another content, or which came or went; where they stand does not matter."""
    keys = before.sources.keys() | now.sources.keys()
    return frozenset(key for key in keys if _data(before.sources.get(key)) != _data(now.sources.get(key)))


def _data(source: EnvironmentSource | None) -> object:
    return None if source is None else (source.data, source.binary)


def _exposed(look: ManifestSnapshot, in_force: InForce) -> Iterable[Finding]:
    with_secrets = {object_.path for object_ in in_force.of([SECRET])}
    yield from (Finding(path, "", EXPOSED) for path in sorted(look.exposed & with_secrets))
    for folder in look.folders.values():
        if folder.kind == SECRET and folder.exposed:
            yield Finding(folder.exposed, "", EXPOSED)


def _covers(path: str, file: str) -> bool:
    """`file` may come from an annotation, where names that are no UTF-8 are made printable. Asked for each pod and each
    finding, so it makes no paths of them."""
    path, file = printable(path), printable(file)
    return file == path or file.startswith(f"{path.rstrip('/')}/")


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
