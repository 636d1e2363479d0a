# SPDX-License-Identifier: Apache-2.0
"""Answers of a daemon that shows the objects of a test."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.kinds.selectors import parse_selector
from agent.kinds.shown import labels_of
from agent.kinds.table import Object, names_of
from agent.wire.kepd.v1 import object_pb2 as pb


def answered(method: str, request: Any, objects: Mapping[str, Sequence[Object]]) -> Any:
    """Of ObjectService/List and Get; `objects` by the plural of their kind. None for other methods."""
    match method.rpartition("/")[2]:
        case "List":
            holds = parse_selector(request.selector)
            return pb.ListResponse(
                objects=[
                    json.dumps(made).encode()
                    for made in objects[request.kind]
                    if request.namespace in ("", names_of(made)[0]) and holds(labels_of(made))
                ]
            )
        case "Get":
            known = (made for made in objects[request.kind] if names_of(made) == (request.namespace, request.name))
            return pb.GetResponse(object=json.dumps(next(known)).encode())
    return None
