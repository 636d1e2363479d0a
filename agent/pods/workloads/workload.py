# SPDX-License-Identifier: Apache-2.0
"""A Deployment, ReplicaSet, DaemonSet, StatefulSet or Job: its fields as manifests write them, and the pods it makes.

Fields that one node cannot carry out stand here as well, so that reading.py can say why. A pod that is made is a
PodSpec like one from a file, with its owner in it, and takes the same way from there.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import msgspec
from msgspec.structs import replace

from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import ClaimedVolume, Metadata, PodFields, Texts, Volume
from agent.model.pods.pod import PodOwner, PodSpec, content_hash
from agent.pods.manifest.selecting import Selector
from agent.pods.storage.objects import ClaimFields
from agent.pods.workloads.job import JobRules
from agent.pods.workloads.job_rules import INDEX, FailurePolicy, SuccessPolicy, indexed_spec
from agent.pods.workloads.rollout import RolloutRules
from agent.pods.workloads.stateful import StatefulRules

Count = int | str
"""A number of pods, or a share such as 25%."""
Key = tuple[str, str, str]
# Letters and digits that make no words, as Kubernetes has them in names.
SIGNS = "bcdfghjklmnpqrstvwxz2456789"
REVISION_LENGTH, SUFFIX_LENGTH = 10, 5
MOST_DIGITS = 11


class Template(Fields, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodFields = PodFields()


class RollingUpdate(Fields, frozen=True):
    max_unavailable: Count | None = None
    max_surge: Count | None = None


class Strategy(Fields, frozen=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentFields(Fields, frozen=True):
    replicas: int = 1
    selector: Selector | None = None
    template: Template = Template()
    strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    progress_deadline_seconds: int = 600
    revision_history_limit: int = 10
    paused: bool = False


class ReplicaSetFields(Fields, frozen=True):
    replicas: int = 1
    selector: Selector | None = None
    template: Template = Template()
    min_ready_seconds: int = 0


class ControllerFields(Fields, frozen=True):
    """Of a ReplicationController; without a selector it selects the labels of its template."""

    replicas: int = 1
    selector: Texts = msgspec.field(default_factory=dict)
    template: Template = Template()
    min_ready_seconds: int = 0


class DaemonSetFields(Fields, frozen=True):
    selector: Selector | None = None
    template: Template = Template()
    update_strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    revision_history_limit: int = 10


class ClaimMetadata(Fields, frozen=True):
    """What only an API server fills is taken and not looked at."""

    creation_timestamp: object = None
    name: str = ""
    labels: Texts = msgspec.field(default_factory=dict)
    annotations: Texts = msgspec.field(default_factory=dict)


class ClaimTemplate(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ClaimMetadata = ClaimMetadata()
    spec: ClaimFields = ClaimFields()
    status: object = None


class ClaimRetention(Fields, frozen=True):
    when_deleted: str = "Retain"
    when_scaled: str = "Retain"


class Ordinals(Fields, frozen=True):
    start: int = 0


class StatefulRolling(Fields, frozen=True):
    partition: int = 0
    max_unavailable: Count | None = None


class StatefulStrategy(Fields, frozen=True):
    type: str = "RollingUpdate"
    rolling_update: StatefulRolling | None = None


class StatefulSetFields(Fields, frozen=True):
    replicas: int = 1
    selector: Selector | None = None
    service_name: str = ""
    template: Template = Template()
    update_strategy: StatefulStrategy = StatefulStrategy()
    pod_management_policy: str = "OrderedReady"
    min_ready_seconds: int = 0
    revision_history_limit: int = 10
    ordinals: Ordinals = Ordinals()
    volume_claim_templates: tuple[ClaimTemplate, ...] = ()
    persistent_volume_claim_retention_policy: ClaimRetention = ClaimRetention()


class JobFields(Fields, frozen=True):
    template: Template = Template()
    completions: int | None = None
    parallelism: int | None = None
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool = False
    completion_mode: str = "NonIndexed"
    pod_replacement_policy: str = "TerminatingOrFailed"
    selector: object = None
    manual_selector: bool = False
    managed_by: object = None
    pod_failure_policy: FailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None


class Claim(msgspec.Struct, frozen=True):
    """Each pod of a StatefulSet has one of its own."""

    name: str
    spec: ClaimFields
    labels: Texts

    def of(self, pod: str) -> str:
        return f"{self.name}-{pod}"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`rules` say how many pods there are and how they change."""

    kind: str
    namespace: str
    name: str
    uid: str
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    template: Template = field(default_factory=Template)
    revision: str = ""
    generation: int = 0
    rules: RolloutRules | JobRules | StatefulRules = field(default_factory=RolloutRules)
    service: str = ""
    """Of a StatefulSet: the name that those of its pods lie below."""
    claims: tuple[Claim, ...] = ()
    file: str = ""
    source: str = ""

    @property
    def key(self) -> Key:
        return self.kind, self.namespace, self.name

    @property
    def text(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def most_pods(self) -> int:
        """As many as its manifest asks for at one time; one that asks for none counts as well."""
        return max(self.rules.most_pods, 1)

    def pod(self, name: str, uid: str, created_s: float = 0.0, index: int | None = None) -> PodSpec:
        """`index`: of a Job whose pods have some."""
        own = {INDEX: str(index)} if index is not None else {}
        labels = {**self.template.metadata.labels, **self._labels(name), **own}
        annotations = {**self.template.metadata.annotations, **own}
        spec = self._spec(name) if index is None else indexed_spec(self.template.spec, self.name, index)
        owner = PodOwner(
            kind=self.kind,
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            revision=self.revision,
            created_s=created_s,
        )
        document = {
            "name": name,
            "namespace": self.namespace,
            "uid": uid,
            "labels": labels,
            "annotations": annotations,
            "spec": spec,
        }
        return PodSpec(
            namespace=self.namespace,
            name=name,
            uid=uid,
            hash=content_hash(msgspec.json.encode(document, order="sorted").decode()),
            labels=tuple(labels.items()),
            annotations=tuple(annotations.items()),
            spec=spec,
            file=self.file,
            source=self.source,
            manifest_name=name,
            owner=owner,
        )

    def indexed_name(self, index: int, is_taken: Callable[[str], bool]) -> str:
        stem = f"{self.name}-{index}"
        words = (_word(f"{self.revision}/{index}/{place}", SUFFIX_LENGTH) for place in count())
        return next(name for word in words if not is_taken(name := f"{stem}-{word}"))

    def _spec(self, name: str) -> PodFields:
        """A pod of a StatefulSet is known by its name, and has its own claims."""
        spec = self.template.spec
        if self.kind != "StatefulSet":
            return spec
        own = {one.name: ClaimedVolume(claim_name=one.of(name)) for one in self.claims}
        volumes = [one for one in spec.volumes if one.name not in own]
        volumes += [Volume(name=name, persistent_volume_claim=claim) for name, claim in own.items()]
        return replace(spec, hostname=name, subdomain=self.service, volumes=tuple(volumes))

    def at(self, revision: str, template: Template) -> "Workload":
        """With a template that it had before."""
        return dataclasses.replace(self, revision=revision, template=template)

    def _labels(self, name: str) -> Mapping[str, str]:
        """Those that Kubernetes adds, for selectors and recipes that ask for them."""
        match self.kind:
            case "Deployment":
                return {"pod-template-hash": self.revision}
            case "ReplicaSet" | "ReplicationController":
                return {}
            case "DaemonSet":
                return {"controller-revision-hash": self.revision}
            case "StatefulSet":
                return {
                    "controller-revision-hash": f"{self.name}-{self.revision}",
                    "statefulset.kubernetes.io/pod-name": name,
                    "apps.kubernetes.io/pod-index": str(ordinal_of(name)),
                }
        prefixed = {f"batch.kubernetes.io/{name}": value for name, value in self._job_labels().items()}
        return {**self._job_labels(), **prefixed}

    def _job_labels(self) -> Mapping[str, str]:
        return {"controller-uid": self.uid, "job-name": self.name[:63].rstrip("-.")}

    def names(self, is_taken: Callable[[str], bool]) -> Iterator[str]:
        """For pods, always in the same order: the first that no other pod has."""
        if isinstance(self.rules, StatefulRules):
            yield from (f"{self.name}-{ordinal}" for ordinal in reversed(self.rules.ordinals))
            yield f"{self.name}-{self.rules.start}"
            return
        stem = f"{self.name}-{self.revision}" if self.kind == "Deployment" else self.name
        for place in count():
            name = f"{stem}-{_word(f'{self.revision}/{place}', SUFFIX_LENGTH)}"
            if not is_taken(name):
                yield name


def ordinal_of(name: str) -> int:
    """By which a pod of a StatefulSet is told; -1 for a name that has none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < MOST_DIGITS else -1


def revision_of(template: Template) -> str:
    """Over the decoded values: defaults written out, comments and the order of keys change nothing."""
    metadata = template.metadata
    document: tuple[Mapping[str, str], Mapping[str, str], PodFields] = (
        metadata.labels,
        metadata.annotations,
        template.spec,
    )
    return _word(msgspec.json.encode(document, order="sorted").decode(), REVISION_LENGTH)


def workload_uid(kind: str, namespace: str, name: str, node: str) -> str:
    """The same as long as it has its name, wherever its manifest lies."""
    return hashlib.sha256(f"{kind}/{namespace}/{name}@{node}".encode()).hexdigest()[:32]


def _word(text: str, length: int) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
    return "".join(SIGNS[byte % len(SIGNS)] for byte in digest[:length])
