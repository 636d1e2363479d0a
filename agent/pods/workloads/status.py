# SPDX-License-Identifier: Apache-2.0
"""What people and programs are shown of a workload: `status`, with the words of Kubernetes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent.model.pods.wall_clock import stamp
from agent.pods.workloads.history import History
from agent.pods.workloads.job import COMPLETE, OVER, JobRecord, JobRules
from agent.pods.workloads.job_rules import IndexedPart, indexes_text
from agent.pods.workloads.rollout import OwnedPod, RolloutRules
from agent.pods.workloads.stateful import StatefulRules
from agent.pods.workloads.workload import Workload

Status = dict[str, Any]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Since when a rollout has been where it is; `place` is how far it has come."""

    since_s: float = 0.0
    place: tuple[str, int, int, int] = ("", 0, 0, 0)

    def of(self, revision: str, pods: Sequence[OwnedPod], before: "Progress | None") -> "Progress":
        """The earlier one where nothing has moved."""
        new = [one for one in pods if one.revision == revision and not one.is_ending]
        place = revision, len(new), sum(one.is_available for one in new), len(pods) - len(new)
        if before is not None and before.place == place:
            return before
        return Progress(since_s=self.since_s, place=place)


def workload_status(
    workload: Workload,
    pods: Sequence[OwnedPod],
    record: JobRecord | History,
    progress: Progress,
    now_s: float,
    *,
    why_not_here: str = "",
) -> Status:
    rules, observed = workload.rules, {"observedGeneration": workload.generation}
    if isinstance(rules, JobRules):
        return _job(rules, pods, record if isinstance(record, JobRecord) else None, why_not_here)
    alive = [one for one in pods if not one.is_ending]
    new = [one for one in alive if one.revision == workload.revision]
    if isinstance(rules, StatefulRules):
        current = record.current if isinstance(record, History) else ""
        return observed | _stateful_set(workload, current, alive, new, why_not_here)
    if workload.kind in ("ReplicaSet", "ReplicationController"):
        return observed | _replicas(alive, why_not_here)
    if workload.kind == "DaemonSet":
        return observed | _daemon_set(alive, new, why_not_here)
    is_late = now_s - progress.since_s > rules.progress_deadline_s
    return observed | _deployment(rules, alive, new, why_not_here, is_late=is_late)


def _deployment(
    rules: RolloutRules, alive: Sequence[OwnedPod], new: Sequence[OwnedPod], why_not_here: str, *, is_late: bool
) -> Status:
    available = sum(one.is_available for one in alive)
    status: Status = {
        "replicas": len(alive),
        "updatedReplicas": len(new),
        "readyReplicas": sum(one.is_ready for one in alive),
        "availableReplicas": available,
        "unavailableReplicas": max(rules.replicas, len(alive)) - available,
    }
    least = rules.replicas - rules.most_unavailable
    is_served = available >= least
    conditions = [
        _condition(
            "Available",
            "MinimumReplicasAvailable" if is_served else "MinimumReplicasUnavailable",
            f"{available} pods are available, and at least {least} should be",
            is_true=is_served,
        )
    ]
    serving = sum(one.is_available for one in new)
    if rules.is_paused:
        text = "its manifest says paused: true; kepctl rollout resume lets its template take the place of the former"
        conditions.append({**_condition("Progressing", "DeploymentPaused", text), "status": "Unknown"})
    elif serving == len(new) == len(alive) == rules.replicas:
        conditions.append(_condition("Progressing", "NewReplicaSetAvailable", "all pods have this template"))
    elif is_late:
        text = f"nothing has moved for {rules.progress_deadline_s} s: {serving} of {rules.replicas} pods are available"
        conditions.append(_condition("Progressing", "ProgressDeadlineExceeded", text, is_true=False))
    else:
        text = f"{serving} of {rules.replicas} pods have this template and are available"
        conditions.append(_condition("Progressing", "ReplicaSetUpdated", text))
    if why_not_here:
        conditions.append(_condition("ReplicaFailure", "NodeAffinity", why_not_here))
    return {**status, "conditions": conditions}


def _replicas(alive: Sequence[OwnedPod], why_not_here: str) -> Status:
    status: Status = {
        "replicas": len(alive),
        "fullyLabeledReplicas": len(alive),
        "readyReplicas": sum(one.is_ready for one in alive),
        "availableReplicas": sum(one.is_available for one in alive),
    }
    failure = [_condition("ReplicaFailure", "NodeAffinity", why_not_here)]
    return status | ({"conditions": failure} if why_not_here else {})


def _stateful_set(
    workload: Workload, current: str, alive: Sequence[OwnedPod], new: Sequence[OwnedPod], why_not_here: str
) -> Status:
    current = current or workload.revision
    status: Status = {
        "replicas": len(alive),
        "readyReplicas": sum(one.is_ready for one in alive),
        "availableReplicas": sum(one.is_available for one in alive),
        "currentReplicas": sum(one.revision == current for one in alive),
        "updatedReplicas": len(new),
        "currentRevision": f"{workload.name}-{current}",
        "updateRevision": f"{workload.name}-{workload.revision}",
    }
    return status | ({"conditions": [_condition("NotHere", "NodeAffinity", why_not_here)]} if why_not_here else {})


def _daemon_set(alive: Sequence[OwnedPod], new: Sequence[OwnedPod], why_not_here: str) -> Status:
    wanted = 0 if why_not_here else 1
    # During a change with maxSurge there are two pods, and one node all the same.
    available = min(sum(one.is_available for one in alive), wanted)
    status: Status = {
        "desiredNumberScheduled": wanted,
        "currentNumberScheduled": min(len(alive), wanted),
        "numberMisscheduled": 1 if alive and not wanted else 0,
        "numberReady": min(sum(one.is_ready for one in alive), wanted),
        "numberAvailable": available,
        "numberUnavailable": wanted - available,
        "updatedNumberScheduled": min(len(new), wanted),
    }
    return status | ({"conditions": [_condition("NotHere", "NodeAffinity", why_not_here)]} if why_not_here else {})


def _job(rules: JobRules, pods: Sequence[OwnedPod], record: JobRecord | None, why_not_here: str) -> Status:
    # Of a Job that is over none is wanted any more, though it has yet to be told to end.
    is_over = record is not None and bool(record.outcome)
    alive = [one for one in pods if one.phase not in OVER]
    running = [one for one in alive if not one.is_ending and not is_over]
    status: Status = {
        "active": len(running),
        "ready": sum(one.is_ready for one in running),
        "terminating": len(alive) - len(running),
        "succeeded": record.succeeded if record is not None else 0,
        "failed": record.failed if record is not None else 0,
    }
    conditions = []
    if rules.is_indexed:
        part = record.indexed if record is not None else IndexedPart()
        status["completedIndexes"] = indexes_text(part.succeeded)
        if rules.limit_per_index is not None:
            status["failedIndexes"] = indexes_text(part.failed)
    if record is not None and record.started_s:
        status["startTime"] = stamp(record.started_s)
    if record is not None and record.outcome:
        if record.outcome == COMPLETE:
            status["completionTime"] = stamp(record.finished_s)
        # What is decided comes before what is so.
        first = "FailureTarget" if record.outcome != COMPLETE else "SuccessCriteriaMet"
        for kind in (first, record.outcome):
            condition = _condition(kind, record.reason, record.message)
            conditions.append({**condition, "lastTransitionTime": stamp(record.finished_s)})
    elif rules.is_suspended:
        conditions.append(_condition("Suspended", "JobSuspended", "its manifest says suspend: true"))
    if why_not_here:
        conditions.append(_condition("NotHere", "NodeAffinity", why_not_here))
    return {**status, **({"conditions": conditions} if conditions else {})}


def _condition(kind: str, reason: str, message: str, *, is_true: bool = True) -> Status:
    return {"type": kind, "status": "True" if is_true else "False", "reason": reason, "message": message}
