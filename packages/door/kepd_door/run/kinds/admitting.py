# SPDX-License-Identifier: Apache-2.0
"""What a pod that a client makes gets of other objects: what its RuntimeClass costs beside its containers."""

from collections.abc import Callable
from typing import Any

from agent.kinds.parts import part
from kepd_door.run.store import KindStore
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]


async def admitted(pod: Any, store_of: Callable[[str], KindStore | None]) -> Any:  # noqa: ANN401  # JSON
    """Raises Failure where there is no such class."""
    spec = part(pod, "spec")
    name, store = spec.get("runtimeClassName"), store_of("runtimeclasses")
    if not isinstance(name, str) or not name or store is None:
        return pod
    await store.refresh()
    entry = store.find("", name)
    if entry is None:
        whose = part(pod, "metadata").get("name", "")
        text = f'pods "{whose}" is forbidden: pod rejected: RuntimeClass "{name[:100]}" not found'
        raise Failure(403, text, kind="pods")
    overhead = part(entry.made, "overhead").get("podFixed")
    if not overhead:
        return pod
    if spec.get("overhead") not in (None, {}, overhead):
        raise Failure(
            403, f'pod rejected: spec.overhead is not that of RuntimeClass "{name}"; leave it out', kind="pods"
        )
    more: Object = {"overhead": overhead}
    return {**pod, "spec": {**spec, **more}}
