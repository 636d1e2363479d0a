# SPDX-License-Identifier: Apache-2.0
"""`kubectl debug`: containers that are added to a pod that runs, one call of the daemon for each."""

import json
from typing import Any

from agent.wire.kepd.v1 import pod_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
# What a request has by itself; the others go as they are, and what kepd does not carry out it refuses by name.
OWN = frozenset({"name", "image", "command", "targetContainerName", "stdin", "tty"})


def added(patch: Any, before: list[Object]) -> list[Object]:  # noqa: ANN401  # JSON
    """The containers of a patch that the pod has not."""
    spec = patch.get("spec") if isinstance(patch, dict) else None
    given = spec.get("ephemeralContainers") if isinstance(spec, dict) else None
    if not isinstance(given, list) or not all(isinstance(one, dict) and one.get("name") for one in given):
        raise Failure(422, "spec.ephemeralContainers is missing; expected a list of containers with names")
    known = {one.get("name") for one in before}
    return [one for one in given if one["name"] not in known]


async def begin(calls: Calls, caller: Caller, namespace: str, name: str, container: Object) -> None:
    # Clients write empty values of fields that they do not mean.
    more = {field: value for field, value in container.items() if field not in OWN and value}
    request = pod_pb2.DebugPodRequest(
        namespace=namespace,
        name=name,
        container=container["name"],
        image=str(container.get("image") or ""),
        command=[str(word) for word in container.get("command") or ()],
        target=str(container.get("targetContainerName") or ""),
        profile="baseline",
        stdin=bool(container.get("stdin")),
        tty=bool(container.get("tty")),
        custom=json.dumps(more).encode() if more else b"",
    )
    await calls.ask(caller, request, pod_pb2.DebugPodResponse)
