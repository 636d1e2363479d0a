# SPDX-License-Identifier: Apache-2.0
"""What drivers of devices say of themselves and of claims, whatever connects them."""

import msgspec


class PluginSocket(msgspec.Struct, frozen=True):
    """A socket in the registry's directory. One that is made anew at a path has another identity; `problem` is why it
    is not trusted."""

    path: str
    identity: tuple[int, int]
    problem: str = ""


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
