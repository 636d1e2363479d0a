# SPDX-License-Identifier: Apache-2.0
"""What is written down of the devices of plugins that a pod has."""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from agent.model.devices.plugin import PluginAllocation
from agent.model.text.json_text import decode_json

VERSION = 1
PLUGIN_FOLDER = "plugins"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource for one container; without an answer the plugin may know of them, or not. `was_used` once
    the container was about to start, where that counts."""

    container: str
    resource: str
    ids: tuple[str, ...]
    answer: PluginAllocation | None = None
    was_used: bool = False


class PodGrants(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    uid: str
    namespace: str
    name: str
    boot_id: str = ""
    grants: tuple[Grant, ...] = ()

    def of(self, container: str, resource: str) -> Grant | None:
        return next((one for one in self.grants if (one.container, one.resource) == (container, resource)), None)

    def with_grant(self, grant: Grant) -> "PodGrants":
        return replace(self.without(grant.container, grant.resource), grants=(*self._but(grant), grant))

    def without(self, container: str, resource: str) -> "PodGrants":
        kept = tuple(one for one in self.grants if (one.container, one.resource) != (container, resource))
        return replace(self, grants=kept)

    def _but(self, grant: Grant) -> tuple[Grant, ...]:
        return self.without(grant.container, grant.resource).grants

    @property
    def devices(self) -> list[tuple[str, str]]:
        """Resource and id, each once."""
        return list(dict.fromkeys((one.resource, device) for one in self.grants for device in one.ids))


def grants_name(uid: str) -> str:
    return f"{PLUGIN_FOLDER}/{uid}.json"


def decode_grants(content: bytes) -> PodGrants:
    """Raises ValueError."""
    found = decode_json(content, PodGrants)
    if found.version != VERSION or not found.uid:
        raise ValueError(f"is of version {found.version}; this kepd reads {VERSION}")
    return found


def in_use(records: Iterable[PodGrants], resource: str) -> dict[str, str]:
    """Devices of a resource that pods have, with their pods."""
    return {
        device: f"{record.namespace}/{record.name}"
        for record in records
        for one in record.grants
        if one.resource == resource
        for device in one.ids
    }
