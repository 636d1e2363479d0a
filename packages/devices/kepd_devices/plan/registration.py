# SPDX-License-Identifier: Apache-2.0
"""Whether a plugin that asks to be registered is, and with which version."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.model.devices.plugin import PluginInfo, PluginPeer
from agent.model.finding import printable, shown
from kepd_devices.manifest.faults import driver_name

DRA = "DRAPlugin"
# In the order in which they are taken, whatever the driver's is.
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = "v1alpha1.DRAResourceHealth"
LONGEST_PATH = 107
MOST_DRIVERS = 64
REGISTRATION_END = "-reg.sock"


class PluginRefused(Exception):
    """It is told so once; the same socket is not asked again."""


class Instance(msgspec.Struct, frozen=True):
    """One process of a driver: where it serves, who it is, and what it speaks."""

    driver: str
    endpoint: str
    version: str
    peer: PluginPeer
    finding: str = ""
    tells_health: bool = False


def judge(
    info: PluginInfo, socket: str, peer: PluginPeer, own: Collection[str], known: Mapping[str, Iterable[Instance]]
) -> Instance:
    """`own` are names of kepd's own drivers; `known` the instances that are connected. Raises PluginRefused."""
    if info.type != DRA:
        what = shown(info.type)
        raise PluginRefused(f"{what} plugins are not served here; expected {DRA}")
    if faults := list(driver_name(info.name, "name")):
        raise PluginRefused(faults[0].text)
    if info.name in own:
        raise PluginRefused(f"{info.name} is one of kepd's own drivers")
    endpoint = info.endpoint or socket
    is_path = endpoint.startswith("/") and ".." not in endpoint.split("/") and endpoint.isprintable()
    if not is_path or len(endpoint.encode()) > LONGEST_PATH:
        text = f"endpoint {shown(endpoint)} is no path of a socket; expected an absolute one without .."
        raise PluginRefused(f"{text}, of at most {LONGEST_PATH} bytes")
    version = next((one for one in VERSIONS if one in info.versions), "")
    if not version:
        offered = ", ".join(shown(printable(one)) for one in info.versions) or "nothing"
        raise PluginRefused(f"driver {info.name} offers {offered}; expected one of {', '.join(VERSIONS)}")
    _check_known(info.name, endpoint, peer, known)
    stem = socket.rpartition("/")[2]
    finding = ""
    if stem.endswith(REGISTRATION_END) and not stem.removesuffix(REGISTRATION_END).startswith(info.name):
        finding = f"{socket} registers {info.name}; expected {info.name}{REGISTRATION_END}"
    return Instance(info.name, endpoint, version, peer, finding, HEALTH in info.versions)


def _check_known(name: str, endpoint: str, peer: PluginPeer, known: Mapping[str, Iterable[Instance]]) -> None:
    """A name belongs to its first user while that user is connected. The new pod of a rolling update has a control
    group of its own, so another group is accepted, and `groups_note` reports it."""
    if name not in known and len(known) >= MOST_DRIVERS:
        raise PluginRefused(f"{MOST_DRIVERS} drivers are registered already")
    for other, instances in known.items():
        for one in instances:
            if one.endpoint == endpoint:
                raise PluginRefused(f"endpoint {endpoint} is already registered for driver {other}")
            if other == name and one.peer.user != peer.user:
                raise PluginRefused(f"driver {name} is registered by {one.peer}; {peer} may not add to it")


def groups_note(name: str, instances: Iterable[Instance]) -> str:
    """Where a driver's instances are of several control groups, as in a rolling update, or if one poses as another."""
    groups = list(dict.fromkeys(one.peer.group for one in instances))
    if len(groups) < 2:
        return ""
    first, *others = [one or "an unknown one" for one in groups]
    return f"driver {name} is registered by control group {first}, and added to by {', '.join(others)}"
