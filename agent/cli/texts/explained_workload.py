# SPDX-License-Identifier: Apache-2.0
"""Why a Deployment, DaemonSet, StatefulSet or Job is not where its manifest wants it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.cli.session import CommandFailed
from agent.cli.waits.workloads import progress
from agent.kinds.kind import Kind
from agent.kinds.parts import items, part
from agent.kinds.pods.pod_parts import is_ready, name_of, own, status_word, told
from agent.kinds.table import Object
from agent.model.finding import printable


def explained_workload(kind: Kind, made: Mapping[str, Any], pods: Sequence[Object]) -> Iterator[str]:
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
    for pod in sorted(pods, key=name_of):
        if not is_ready(pod) and told(pod, "phase") != "Succeeded":
            cause, waits = own(pod, "cause"), own(pod, "waitsFor")
            why = f": {cause}" if cause else f"; waits for: {waits}" if waits else ""
            yield printable(f"- pod {name_of(pod)}: {status_word(pod)}{why}; see kepctl explain pod {name_of(pod)}")
