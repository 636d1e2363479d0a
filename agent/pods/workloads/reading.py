# SPDX-License-Identifier: Apache-2.0
"""A document becomes a Deployment, ReplicaSet, DaemonSet, StatefulSet or Job, or a list of all that is wrong with it.

A field that one node cannot carry out is refused by its path with the reason.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree, plain
from agent.model.finding import Finding
from agent.model.generation import generation_of
from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import HostPath, Metadata, Volume
from agent.pods.manifest.annotations import annotations_of
from agent.pods.manifest.selecting import Selector
from agent.pods.manifest.validation import check_pod, warnings_about, where_claimed
from agent.pods.manifest.validation.complaint import Complaint, Complaints
from agent.pods.manifest.validation.object_names import check_metadata
from agent.pods.runtime.names import LONGEST_FILE_NAME, log_directory_name
from agent.pods.workloads.job import JobRules
from agent.pods.workloads.job_rules import INDEXED
from agent.pods.workloads.rollout import ON_DELETE, ROLLING, RolloutRules
from agent.pods.workloads.stateful import StatefulRules
from agent.pods.workloads.stateful_validation import check_stateful_set
from agent.pods.workloads.validation import (
    LONGEST_S,
    check_daemon_set,
    check_deployment,
    check_job,
    check_replicas,
    share,
)
from agent.pods.workloads.workload import (
    Claim,
    ControllerFields,
    DaemonSetFields,
    DeploymentFields,
    JobFields,
    ReplicaSetFields,
    StatefulSetFields,
    Template,
    Workload,
    revision_of,
    workload_uid,
)

DEPLOYMENT, DAEMON_SET, STATEFUL_SET, JOB = "Deployment", "DaemonSet", "StatefulSet", "Job"
REPLICA_SET, CONTROLLER = "ReplicaSet", "ReplicationController"
VERSIONS = {
    DEPLOYMENT: "apps/v1", REPLICA_SET: "apps/v1", CONTROLLER: "v1", DAEMON_SET: "apps/v1", STATEFUL_SET: "apps/v1",
    JOB: "batch/v1",
}  # fmt: skip
BELOW = "spec.template."
# As long as the uid of a pod that is made.
SAMPLE_UID = "0" * 36
LONGEST_NAME = 253
NOTHING: Mapping[str, bool] = MappingProxyType({})


class _Document(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    status: object = None


class _Deployment(_Document, frozen=True):
    spec: DeploymentFields = DeploymentFields()


class _ReplicaSet(_Document, frozen=True):
    spec: ReplicaSetFields = ReplicaSetFields()


class _Controller(_Document, frozen=True):
    spec: ControllerFields = ControllerFields()


class _DaemonSet(_Document, frozen=True):
    spec: DaemonSetFields = DaemonSetFields()


class _StatefulSet(_Document, frozen=True):
    spec: StatefulSetFields = StatefulSetFields()


class _Job(_Document, frozen=True):
    spec: JobFields = JobFields()


_Read = _Deployment | _ReplicaSet | _Controller | _DaemonSet | _StatefulSet | _Job
SHAPES: Mapping[str, type[_Read]] = {
    DEPLOYMENT: _Deployment,
    REPLICA_SET: _ReplicaSet,
    CONTROLLER: _Controller,
    DAEMON_SET: _DaemonSet,
    STATEFUL_SET: _StatefulSet,
    JOB: _Job,
}


def read_workload(
    tree: Tree,
    kind: str,
    path: str,
    node: str,
    findings: list[Finding],
    *,
    gives: Mapping[str, bool] = NOTHING,
) -> Workload | None:
    """None if there are findings, which are added to the list."""
    before = len(findings)
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != VERSIONS[kind]:
        findings.append(Finding((given or tree).where, "apiVersion", f"must be {VERSIONS[kind]}"))
    findings += [
        Finding(tree.where, name, "must be a map") for name in ("metadata", "spec") if name not in tree.entries
    ]
    value = Shape(findings).read(tree, SHAPES[kind], "")
    if len(findings) > before:
        return None
    read = msgspec.convert(value, SHAPES[kind])
    findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in _wrong(read, gives)]
    if len(findings) > before:
        return None
    workload = _built(read, tree, path, workload_uid(kind, *_named(read), node))
    findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in _unfit(workload)]
    return workload if len(findings) == before else None


def _named(read: _Read) -> tuple[str, str]:
    return read.metadata.namespace, read.metadata.name


def _wrong(read: _Read, gives: Mapping[str, bool]) -> Iterator[Complaint]:
    out = Complaints()
    check_metadata(read.metadata, out)
    yield from out.found
    template = read.spec.template
    inner = Complaints()
    check_metadata(replace(template.metadata, name="x", namespace="default"), inner)
    if template.metadata.uid:
        inner.forbidden("metadata.uid", "all its pods would have the same one")
    pod = template.spec
    unfit = where_claimed(pod, **gives)
    if isinstance(read, _StatefulSet):
        claims = [one.metadata.name for one in read.spec.volume_claim_templates]
        own = [Volume(name=name, host_path=HostPath(path="/")) for name in dict.fromkeys(claims)]
        pod = replace(pod, volumes=(*(one for one in pod.volumes if one.name not in claims), *own))
    yield from _below((*inner.found, *check_pod(pod), *unfit))
    match read:
        case _Deployment(spec=spec):
            yield from check_deployment(spec).found
        case _ReplicaSet(spec=replicas):
            yield from check_replicas(replicas, replicas.selector).found
        case _Controller(spec=controller):
            labels = controller.selector or controller.template.metadata.labels
            yield from check_replicas(controller, Selector(match_labels=labels)).found
        case _DaemonSet(spec=daemon_set):
            yield from check_daemon_set(daemon_set).found
        case _StatefulSet(spec=stateful_set):
            yield from check_stateful_set(stateful_set).found
        case _Job(spec=job):
            yield from check_job(job).found


def _below(found: tuple[Complaint, ...]) -> Iterator[Complaint]:
    return (Complaint(f"{BELOW}{one.path}", one.text) for one in found)


def _built(read: _Read, tree: Tree, path: str, uid: str) -> Workload:
    metadata, template = read.metadata, read.spec.template
    own = read.spec if isinstance(read, _StatefulSet) else None
    return Workload(
        kind=read.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid or uid,
        labels=tuple(metadata.labels.items()),
        annotations=tuple(metadata.annotations.items()),
        template=template,
        revision=revision_of(template),
        generation=generation_of(plain(tree)),
        rules=_rules(read),
        service=own.service_name if own is not None else "",
        claims=tuple(
            Claim(one.metadata.name, one.spec, one.metadata.labels)
            for one in (own.volume_claim_templates if own is not None else ())
        ),
        file=path,
        source=tree.where,
    )


def _unfit(workload: Workload) -> Iterator[Complaint]:
    """What shows only in a pod that is made."""
    pod = workload.pod(next(workload.names(lambda _: False)), SAMPLE_UID)
    directory = log_directory_name(pod.namespace, pod.name, pod.uid)
    if len(pod.name) > LONGEST_NAME or len(directory) > LONGEST_FILE_NAME:
        text = f"its pods are called like {pod.name}, which with namespace and uid is too long for a directory of logs"
        yield Complaint("metadata.name", text)
    for name in (claim.of(pod.name) for claim in workload.claims):
        if len(name) > LONGEST_NAME:
            text = f"Too long: {name}, the name of a claim, would have {len(name)} characters; at most {LONGEST_NAME}"
            yield Complaint("metadata.name", f"{text} are possible: shorten it or the claim's name")
    if cycle := annotations_of(pod).cycle:
        text = f"Invalid value: kepd.dev/depends-on {cycle}: each waits for the next, so none of them would ever start"
        yield Complaint(f"{BELOW}metadata.annotations", text)


def _rules(read: _Read) -> RolloutRules | JobRules | StatefulRules:
    match read:
        case _Deployment(spec=spec):
            return _rollout(spec)
        case _ReplicaSet(spec=replicas) | _Controller(spec=replicas):
            # Pods that are there stay as they are; only those that are missing are made of the template.
            return RolloutRules(
                replicas=replicas.replicas, strategy=ON_DELETE, min_ready_s=replicas.min_ready_seconds, history_limit=0
            )
        case _DaemonSet(spec=daemon_set):
            return _daemon_rollout(daemon_set)
        case _StatefulSet(spec=stateful_set):
            return _stateful_rules(stateful_set)
        case _Job(spec=job):
            return _job_rules(job)


def _stateful_rules(spec: StatefulSetFields) -> StatefulRules:
    rolling = spec.update_strategy.rolling_update
    most = rolling.max_unavailable if rolling is not None and rolling.max_unavailable is not None else 1
    retention = spec.persistent_volume_claim_retention_policy
    return StatefulRules(
        replicas=spec.replicas,
        start=spec.ordinals.start,
        is_ordered=spec.pod_management_policy == "OrderedReady",
        strategy=spec.update_strategy.type,
        partition=rolling.partition if rolling is not None else 0,
        # A share is rounded up, so that there is always one.
        most_unavailable=max(share(most, spec.replicas, is_up=True) or 0, 1),
        min_ready_s=spec.min_ready_seconds,
        history_limit=spec.revision_history_limit,
        ends_claims_of_scaled=retention.when_scaled == "Delete",
        ends_claims_of_deleted=retention.when_deleted == "Delete",
    )


def _job_rules(job: JobFields) -> JobRules:
    parallelism = 1 if job.parallelism is None else job.parallelism
    failure, success, per_index = job.pod_failure_policy, job.success_policy, job.backoff_limit_per_index
    usual = 6 if per_index is None else LONGEST_S
    return JobRules(
        completions=1 if job.completions is None and job.parallelism is None else job.completions,
        parallelism=parallelism,
        backoff_limit=usual if job.backoff_limit is None else job.backoff_limit,
        deadline_s=job.active_deadline_seconds,
        keeps_finished_s=job.ttl_seconds_after_finished,
        is_suspended=job.suspend,
        waits_for_ends=job.pod_replacement_policy == "Failed",
        restarts_inside=job.template.spec.restart_policy == "OnFailure",
        is_indexed=job.completion_mode == INDEXED,
        limit_per_index=per_index,
        most_failed_indexes=job.max_failed_indexes,
        failures=failure.rules if failure is not None else (),
        successes=success.rules if success is not None else (),
    )


def _rollout(spec: DeploymentFields) -> RolloutRules:
    """Shares of what may be missing are rounded down, of what may be too many up; never both 0."""
    rolling, replicas = spec.strategy.rolling_update, spec.replicas
    unavailable = "25%" if rolling is None or rolling.max_unavailable is None else rolling.max_unavailable
    surge = "25%" if rolling is None or rolling.max_surge is None else rolling.max_surge
    most_surge = share(surge, replicas, is_up=True) or 0
    most_unavailable = min(share(unavailable, replicas, is_up=False) or 0, replicas)
    return RolloutRules(
        replicas=replicas,
        strategy=spec.strategy.type,
        most_unavailable=most_unavailable if most_unavailable or most_surge else 1,
        most_surge=most_surge,
        min_ready_s=spec.min_ready_seconds,
        progress_deadline_s=spec.progress_deadline_seconds,
        history_limit=spec.revision_history_limit,
        is_paused=spec.paused,
    )


def _daemon_rollout(spec: DaemonSetFields) -> RolloutRules:
    rolling = spec.update_strategy.rolling_update
    surge = rolling.max_surge if rolling is not None and rolling.max_surge is not None else 0
    default = 0 if share(surge, 1, is_up=True) else 1
    unavailable = rolling.max_unavailable if rolling is not None and rolling.max_unavailable is not None else default
    return RolloutRules(
        replicas=1,
        strategy=spec.update_strategy.type,
        most_unavailable=min(share(unavailable, 1, is_up=True) or 0, 1),
        most_surge=min(share(surge, 1, is_up=True) or 0, 1),
        min_ready_s=spec.min_ready_seconds,
        history_limit=spec.revision_history_limit,
    )


def workload_warnings(workload: Workload) -> Iterator[tuple[str, str]]:
    """What is right and yet unwise on one node."""
    spec, rules = workload.template.spec, workload.rules
    yield from ((f"{BELOW}{path}", text) for path, text in warnings_about(spec))
    for index, claim in enumerate(workload.claims):
        text = f"claims are directories: what pods write may grow beyond {claim.spec.size}"
        yield f"spec.volumeClaimTemplates[{index}].spec.resources", text
    if not isinstance(rules, RolloutRules) or not _takes_ports(workload.template):
        return
    if rules.replicas > 1:
        yield "spec.replicas", "its pods take a port of the node, so only one of them can run"
    if rules.strategy == ROLLING and not rules.most_unavailable:
        place = "updateStrategy" if workload.kind == DAEMON_SET else "strategy"
        text = (
            "its pods take a port of the node, so a new one waits for the old one to end, which waits for the new one"
        )
        yield f"spec.{place}", f"{text}; use maxUnavailable 1 with maxSurge 0"


def _takes_ports(template: Template) -> bool:
    containers = (*template.spec.init_containers, *template.spec.containers)
    return any(port.host_port or template.spec.host_network for one in containers for port in one.ports)
