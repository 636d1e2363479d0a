# SPDX-License-Identifier: Apache-2.0
"""`kubectl debug`: containers that are added to a pod that runs, one call of the daemon for each."""

from typing import Any

from agent.wire.kepd.v1 import pod_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
CARRIED_OUT = frozenset({
    "name", "image", "command", "args", "targetContainerName", "stdin", "stdinOnce", "tty", "securityContext",
    "imagePullPolicy", "terminationMessagePolicy", "terminationMessagePath", "resources",
})  # fmt: skip


def added(patch: Any, before: list[Object]) -> list[Object]:  # noqa: ANN401  # JSON
    """The containers of a patch that the pod has not."""
    spec = patch.get("spec") if isinstance(patch, dict) else None
    given = spec.get("ephemeralContainers") if isinstance(spec, dict) else None
    if not isinstance(given, list) or not all(isinstance(one, dict) and one.get("name") for one in given):
        raise Failure(422, "spec.ephemeralContainers is missing; expected a list of containers with names")
    known = {one.get("name") for one in before}
    new = [one for one in given if one["name"] not in known]
    for one in new:
        if unknown := sorted(one.keys() - CARRIED_OUT):
            raise Failure(422, f"spec.ephemeralContainers.{unknown[0]}: is not carried out here")
    return new


def profile_of(container: Object) -> str:
    """That of kepd's which comes next to what kubectl wrote of its own."""
    context = container.get("securityContext") or {}
    more = (context.get("capabilities") or {}).get("add") or ()
    if context.get("privileged"):
        return "sysadmin"
    if "NET_ADMIN" in more:
        return "netadmin"
    if context.get("runAsNonRoot"):
        return "restricted"
    return "general" if "SYS_PTRACE" in more else "baseline"


async def begin(calls: Calls, caller: Caller, namespace: str, name: str, container: Object) -> None:
    request = pod_pb2.DebugPodRequest(
        namespace=namespace,
        name=name,
        container=container["name"],
        image=str(container.get("image") or ""),
        command=[str(word) for part in ("command", "args") for word in container.get(part) or ()],
        target=str(container.get("targetContainerName") or ""),
        profile=profile_of(container),
        stdin=bool(container.get("stdin")),
        tty=bool(container.get("tty")),
    )
    await calls.ask(caller, request, pod_pb2.DebugPodResponse)
