# SPDX-License-Identifier: Apache-2.0
"""Why a Deployment, DaemonSet, StatefulSet or Job is not where its manifest wants it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.cli.session import CommandFailed
from agent.cli.waits.workloads import progress
from agent.kinds.pods.parts import items, part
from agent.kinds.registry import Kind
from agent.model.finding import printable
from agent.wire.kepd.v1 import pod_pb2


def explained_workload(kind: Kind, made: Mapping[str, Any], pods: Sequence[pod_pb2.Pod]) -> Iterator[str]:
    """How far it has come, what it says of itself, and what each of its pods waits for that is not ready."""
    metadata = part(made, "metadata")
    try:
        text = progress(kind, dict(made))[1]
    except CommandFailed as error:
        text = str(error)
    name = f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    yield printable(f"{kind.api.upper()} {name}  {text}")
    for one in items(made, "status", "conditions"):
        yield printable(f"- {one.get('type')} is {one.get('status')}: {one.get('reason')}: {one.get('message')}")
    if not pods:
        yield "- it has no pods"
    for pod in sorted(pods, key=lambda one: one.name):
        is_ready = any(one.type == "Ready" and one.status for one in pod.conditions)
        if not is_ready and pod.phase != "Succeeded":
            why = f": {pod.cause}" if pod.cause else f"; waits for: {pod.waits_for}" if pod.waits_for else ""
            yield printable(f"- pod {pod.name}: {pod.status or pod.phase}{why}; see kepctl explain pod {pod.name}")
