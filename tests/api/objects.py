# SPDX-License-Identifier: Apache-2.0
"""Services of the API with the one that shows their objects, on a node whose manifests are those of a test."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from agent.api.services.objects import ObjectService
from agent.model.refused import Refused
from agent.wire.kepd.v1 import object_pb2

OBJECTS = object_pb2.DESCRIPTOR.services_by_name["ObjectService"]


class NoManifests:
    """Nobody reads any."""

    def files(self) -> object:
        return None

    async def listed(self, _kind: str, *, is_whole: bool) -> Any:
        del is_whole
        raise Refused("selection", "kepd.v1.ObjectService is not served here")


def with_objects(services: Mapping[ServiceDescriptor, object], view: Any = None) -> dict[ServiceDescriptor, object]:
    return {**services, OBJECTS: ObjectService(view or NoManifests(), services)}
