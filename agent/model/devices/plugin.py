# SPDX-License-Identifier: Apache-2.0
"""What drivers of devices say of themselves and of claims, whatever connects them."""

import msgspec


class PluginSocket(msgspec.Struct, frozen=True):
    """A socket in the registry's directory. One that is made anew at a path has another identity; `problem` is why it
    is not trusted."""

    path: str
    identity: tuple[int, int]
    problem: str = ""


class PluginPeer(msgspec.Struct, frozen=True):
    """The process that listens on a socket: its user, and its control group where that can be told."""

    user: int
    group: str = ""

    def __str__(self) -> str:
        return f"user {self.user}" + (f" of control group {self.group}" if self.group else "")


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What it says when asked who it is; without an endpoint it serves at the same socket."""

    type: str
    name: str
    endpoint: str = ""
    versions: tuple[str, ...] = ()


class ClaimReference(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver says of one device. Without requests it is for all of them."""

    requests: tuple[str, ...] = ()
    pool: str = ""
    device: str = ""
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


class ClaimAnswer(msgspec.Struct, frozen=True):
    """What a driver says of one claim; with an error, nothing else counts."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a device plugin wants to be asked: before each start of a container, and which devices it prefers."""

    wants_pre_start: bool = False
    has_preference: bool = False


class PluginRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoint` is the name of a file beside the socket where it registers."""

    version: str
    endpoint: str
    resource: str
    user: int = 0


class PluginDevice(msgspec.Struct, frozen=True):
    """As a device plugin lists it; `nodes` are those of NUMA."""

    id: str
    is_healthy: bool = True
    nodes: tuple[int, ...] = ()


class PluginMount(msgspec.Struct, frozen=True):
    host_path: str
    container_path: str
    is_read_only: bool = False


class PluginNode(msgspec.Struct, frozen=True):
    host_path: str
    container_path: str
    permissions: str = ""


class PluginAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a device plugin answers for the devices of one container."""

    env: dict[str, str] = {}
    mounts: tuple[PluginMount, ...] = ()
    nodes: tuple[PluginNode, ...] = ()
    annotations: dict[str, str] = {}
    cdi_ids: tuple[str, ...] = ()


class ToldHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver tells of one device, and for how long that holds; 0 where it does not say."""

    pool: str
    device: str
    status: str
    message: str = ""
    timeout_s: float = 0.0


class DeviceHealth(msgspec.Struct, frozen=True):
    """Of one device of a driver; `message` says what is wrong with it."""

    pool: str
    device: str
    is_healthy: bool = True
    message: str = ""
