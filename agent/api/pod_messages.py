# SPDX-License-Identifier: Apache-2.0
"""Pods as messages. Converts, nothing else."""

from agent.api.timestamps import timestamp
from agent.model.pod_state import ContainerState, PodState, Termination
from agent.wire.kepd.v1 import pod_pb2

__all__ = ["pod_message"]


def pod_message(pod: PodState) -> pod_pb2.Pod:
    """One pod with its containers."""
    parts = (pod.message, f"waits for: {pod.waits_for}" if pod.waits_for else "")
    return pod_pb2.Pod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=pod.phase,
        status=pod.status,
        reason=pod.reason,
        message="; ".join(part for part in parts if part),
        waits_for=pod.waits_for,
        ip=pod.ip,
        containers=[_container(pod, one) for one in pod.containers],
        sandbox_id=pod.sandbox_id,
        created_at=timestamp(pod.created_at_s),
        qos_class=pod.qos,
        manifest=pod.file,
        conditions=[
            pod_pb2.Condition(type=one.type, status=one.is_true, reason=one.reason, message=one.message)
            for one in pod.conditions
        ],
    )


def _container(pod: PodState, one: ContainerState) -> pod_pb2.Container:
    return pod_pb2.Container(
        name=one.name,
        kind=one.kind,
        image=one.image,
        image_id=one.image_id,
        stop_signal=one.stop_signal,
        id=one.id,
        state=one.state,
        reason=one.reason,
        message=one.message,
        exit_code=one.exit_code,
        started_at=timestamp(one.started_at_s),
        finished_at=timestamp(one.finished_at_s),
        restart_count=one.restart_count,
        ready=one.is_ready,
        started=one.is_started,
        last=_termination(one.last) if one.last is not None else None,
        pod_namespace=pod.namespace,
        pod_name=pod.name,
    )


def _termination(last: Termination) -> pod_pb2.Termination:
    return pod_pb2.Termination(
        exit_code=last.exit_code,
        reason=last.reason,
        message=last.message,
        started_at=timestamp(last.started_at_s),
        finished_at=timestamp(last.finished_at_s),
    )
