# SPDX-License-Identifier: Apache-2.0
"""`kubectl rollout undo`: a client writes a former template as a list showed it, without the values of its variables.
They are put back from what kepd remembers, or going back would empty them."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from agent.wire.kepd.v1 import object_pb2
from kepd_door.run.calls import Caller, Calls

Object = dict[str, Any]
REMEMBERED = {"Deployment": "ReplicaSet", "DaemonSet": "ControllerRevision", "StatefulSet": "ControllerRevision"}
HASH = "pod-template-hash"


async def with_values(
    calls: Calls, caller: Caller, made: Object, manifest: Callable[[str, str], Awaitable[Object | None]]
) -> Object:
    """`manifest` gives an object whole, by kind and name. What is no former template stays as it is."""
    kind, spec = REMEMBERED.get(str(made.get("kind"))), made.get("spec")
    if kind is None or not isinstance(spec, dict) or not isinstance(spec.get("template"), dict):
        return made
    wanted = _bare(spec["template"])
    listed = await calls.ask(caller, object_pb2.ListObjectsRequest(kind=kind), object_pb2.ListObjectsResponse)
    for one in listed.objects:
        shown = msgspec.json.decode(one.content)
        owner = (shown["metadata"].get("ownerReferences") or [{}])[0]
        is_own = one.namespace == made["metadata"].get("namespace", "default") and (
            owner.get("kind"), owner.get("name")
        ) == (made["kind"], made["metadata"]["name"])  # fmt: skip
        if is_own and _bare(_template(shown)) == wanted and (whole := await manifest(kind, one.name)) is not None:
            template = _template(whole)
            template.pop("$patch", None)
            ((template.get("metadata") or {}).get("labels") or {}).pop(HASH, None)
            return {**made, "spec": {**spec, "template": template}}
    return made


def _template(made: Object) -> Object:
    found: Object = (made.get("data") or made).get("spec", {}).get("template") or {}
    return found


def _bare(template: Object) -> Any:  # noqa: ANN401  # JSON
    """Without what clients with types of their own add, and what only kepd adds."""
    labels = {
        name: value for name, value in ((template.get("metadata") or {}).get("labels") or {}).items() if name != HASH
    }
    shown = {key: value for key, value in template.items() if key != "$patch"}
    return _filled({**shown, "metadata": {**(template.get("metadata") or {}), "labels": labels}})


def _filled(value: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        kept = {key: _filled(one) for key, one in value.items()}
        return {key: one for key, one in kept.items() if one not in (None, {}, [], "")}
    return [_filled(one) for one in value] if isinstance(value, list) else value
