# SPDX-License-Identifier: Apache-2.0
"""Which devices the containers of pods have, as exporters of vendors ask for them."""

import msgspec


class ResourceUse(msgspec.Struct, frozen=True):
    """Devices of a plugin; `nodes` are those of NUMA."""

    resource: str
    ids: tuple[str, ...]
    nodes: tuple[int, ...] = ()


class ClaimDevice(msgspec.Struct, frozen=True, kw_only=True):
    driver: str
    pool: str
    device: str
    share_id: str = ""
    cdi_ids: tuple[str, ...] = ()


class ClaimOfContainer(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    devices: tuple[ClaimDevice, ...]


class ContainerResources(msgspec.Struct, frozen=True):
    name: str
    resources: tuple[ResourceUse, ...] = ()
    claims: tuple[ClaimOfContainer, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()
