# SPDX-License-Identifier: Apache-2.0
"""What a container gets because of devices that its pod has, in words that a runtime understands."""

import msgspec

# On containers with devices: the claims that they have, NAMESPACE/NAME=UID, with commas.
CLAIMS_NOTE = "kepd.dev/devices.claims"


class DeviceNode(msgspec.Struct, frozen=True):
    host_path: str
    container_path: str
    permissions: str = "rwm"


class DeviceMount(msgspec.Struct, frozen=True):
    """`propagation` is "", slave or shared."""

    host_path: str
    container_path: str
    is_read_only: bool = False
    propagation: str = ""


class ContainerDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Either `cdi_ids`, which a runtime resolves by itself, or what they stand for. A variable replaces that of the
    image and of the pod. `notes` are annotations of the container."""

    env: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    groups: tuple[int, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


NO_DEVICES = ContainerDevices()
