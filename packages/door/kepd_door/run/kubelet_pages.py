# SPDX-License-Identifier: Apache-2.0
"""What a kubelet answers by itself, for programs that ask a node and no API server: its pods, logs and settings."""

import json
from typing import Any

from aiohttp import web

from agent.wire.kepd.v1 import node_pb2
from kepd_door.run.calls import Caller, Calls
from kepd_door.run.pods import log_of
from kepd_door.run.store import KindStore
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]


async def kubelet_page(request: web.BaseRequest, calls: Calls, caller: Caller, pods: KindStore | None) -> Any:  # noqa: ANN401
    """An answer, or what is one as JSON; None for what no kubelet has."""
    steps = request.path.strip("/").split("/")
    if steps == ["configz"]:
        return {"kepdconfig": await _configuration(calls, caller)}
    if steps in (["pods"], ["runningpods"]):
        found = [] if pods is None else [one.made for one in await pods.seen()]
        if steps == ["runningpods"]:
            found = [one for one in found if one["status"].get("phase") == "Running"]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found}
    if steps[0] != "containerLogs" or len(steps) != 4:
        return None
    entry = None
    if pods is not None:
        await pods.refresh()
        entry = pods.find(steps[1], steps[2])
    if entry is None:
        raise Failure(404, f'pod "{steps[2]}" not found')
    return await log_of(request, calls, caller, *entry.key, container=steps[3])


async def _configuration(calls: Calls, caller: Caller) -> Object:
    found: Object = {}
    for one in (await calls.ask(caller, node_pb2.GetConfigRequest(), node_pb2.GetConfigResponse)).values:
        *way, last = one.path.split(".")
        place = found
        for step in way:
            place = place.setdefault(step, {})
        place[last] = json.loads(one.value)
    return found
