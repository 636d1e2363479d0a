# SPDX-License-Identifier: Apache-2.0
"""Which devices of a plugin a container gets, and what the answers for it come to."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agent.model.devices.container_devices import ContainerDevices, DeviceMount, DeviceNode
from agent.model.devices.plugin import PluginAllocation, PluginDevice, PluginRegistration
from agent.model.finding import shown
from agent.model.pods.container_fields import Container
from agent.model.quantity import QuantityError, parse_quantity
from kepd_devices.cdi.merging import mount_fault
from kepd_devices.cdi.spec import ENV, PERMISSIONS, parse_id
from kepd_devices.manifest.faults import LABEL_NAME, is_subdomain
from kepd_devices.plan.answers import told

VERSION = "v1beta1"
MOST_DEVICES, MOST_PLUGINS, LONGEST_ID = 4096, 64, 256
# A name of a file that reads in a message and in the address of a socket.
ENDPOINT = re.compile(r"[A-Za-z0-9._:@+=,~-]{1,80}")
# Kept by the runtime for those who made a container: kepd's own notes, and those that a kubelet writes.
OWN_NOTES = re.compile(r"(.*\.)?(kepd\.dev|kubernetes\.io)/|io\.kubernetes\.")
LONGEST_NOTE = 317
DIGITS = re.compile(r"(\d+)")
NANOS = 10**9


class Unusable(Exception):
    """A registration, a list or an answer of a plugin that cannot be used."""


def resource_fault(name: str) -> str:
    """Why it is no extended resource; nothing where it is one."""
    domain, slash, word = name.removeprefix("requests.").partition("/")
    if not slash or not is_subdomain(domain) or not LABEL_NAME.fullmatch(word):
        return f"{shown(name)} is no extended resource; expected DOMAIN/NAME"
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return f"{shown(name)} belongs to Kubernetes; expected a domain of the maker's"
    return ""


def check_registration(one: PluginRegistration, known: Collection[str], allowed: Collection[int]) -> None:
    """Raises Unusable."""
    if one.version != VERSION:
        raise Unusable(f"version {shown(one.version)} is not known; expected {VERSION}")
    if why := resource_fault(one.resource):
        raise Unusable(why)
    if not ENDPOINT.fullmatch(one.endpoint) or one.endpoint in (".", "..", "kubelet.sock"):
        raise Unusable(f"endpoint {shown(one.endpoint)} is no name of a file beside this socket")
    if one.user not in allowed:
        raise Unusable(f"user {one.user} may not register; devices.plugins.allow names no such user")
    if one.resource not in known and len(known) >= MOST_PLUGINS:
        raise Unusable(f"{MOST_PLUGINS} plugins are registered already")


def checked_list(devices: Sequence[PluginDevice]) -> dict[str, PluginDevice]:
    """By id. Raises Unusable."""
    if len(devices) > MOST_DEVICES:
        raise Unusable(f"it lists {len(devices)} devices; expected at most {MOST_DEVICES}")
    found = {one.id: one for one in devices}
    if "" in found:
        raise Unusable("it lists a device without an id")
    if longest := next((name for name in found if len(name) > LONGEST_ID), ""):
        raise Unusable(f"it lists a device whose id has {len(longest)} signs; expected at most {LONGEST_ID}")
    if len(found) < len(devices):
        twice = next(name for name, count in Counter(one.id for one in devices).items() if count > 1)
        raise Unusable(f"it lists device {shown(twice)} twice")
    return found


def asked_of(container: Container) -> dict[str, int]:
    """Extended resources of a container, by name."""
    found = {}
    for name, amount in sorted(container.resources.limits.items()):
        if "/" in name:
            try:
                found[name] = parse_quantity(str(amount)).nanos // NANOS
            except QuantityError:
                continue
    return {name: count for name, count in found.items() if count > 0}


def choose(
    free: Mapping[str, PluginDevice], count: int, kept: Sequence[str] = (), preferred: Sequence[str] = ()
) -> list[str]:
    """`kept` come from init containers that have ended. Then what the plugin prefers, then the rest: of the NUMA node
    with the most that is free, in the order of people."""
    chosen = list(kept[:count])
    chosen += [one for one in dict.fromkeys(preferred) if one in free and one not in chosen][: count - len(chosen)]
    rest = [one for name, one in free.items() if name not in chosen]
    by_node = Counter(node for one in rest for node in one.nodes[:1])
    rest.sort(
        key=lambda one: (-max((by_node[node] for node in one.nodes[:1]), default=0), one.nodes[:1], natural(one.id))
    )
    return [*chosen, *(one.id for one in rest[: count - len(chosen)])]


def natural(name: str) -> list[tuple[int, int, str]]:
    """gpu-2 before gpu-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in DIGITS.split(name) if part]


def checked_answer(resource: str, answer: PluginAllocation, private: Collection[str] = ()) -> PluginAllocation:
    """`private` are places of the host that no container may see. Raises Unusable."""
    why = next(_wrong(answer, private), "")
    if why:
        raise Unusable(f"plugin {resource} answers with {why}")
    return answer


def _wrong(answer: PluginAllocation, private: Collection[str]) -> Iterator[str]:
    for key in answer.annotations:
        if OWN_NOTES.match(key) or not key.isprintable() or not 0 < len(key) <= LONGEST_NOTE:
            yield f"annotation {shown(key)}; expected one of a domain of the maker's"
    for name, value in answer.env.items():
        if not ENV.fullmatch(f"{name}={value}"):
            yield f"variable {shown(name)}, which is none"
    for node in answer.nodes:
        for path in (node.host_path, node.container_path):
            if not _is_path(path):
                yield f"node {shown(path)}; expected an absolute path without .."
        if node.permissions and not PERMISSIONS.fullmatch(node.permissions):
            yield f"permissions {shown(node.permissions)}; expected letters of rwm"
    for mount in answer.mounts:
        for path in (mount.host_path, mount.container_path):
            if not _is_path(path):
                yield f"mount {shown(path)}; expected an absolute path without .."
        if why := mount_fault(mount.host_path, private, is_read_only=mount.is_read_only):
            yield f"what {why}"
    for text in answer.cdi_ids:
        try:
            parse_id(text)
        except ValueError as error:
            yield str(error)


def _is_path(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def together(answers: Iterable[tuple[str, PluginAllocation]]) -> ContainerDevices:
    """By resource name. Raises Unusable where two resources set one variable to different values."""
    env: dict[str, tuple[str, str]] = {}
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, DeviceMount] = {}
    ids: dict[str, None] = {}
    notes: dict[str, str] = {}
    for resource, answer in sorted(answers, key=lambda one: one[0]):
        for name, value in sorted(answer.env.items()):
            known = env.setdefault(name, (value, resource))
            if known[0] != value:
                text = f"{known[1]} and {resource} set variable {told(name)} to different values"
                raise Unusable(text)
        for node in answer.nodes:
            nodes[node.container_path] = DeviceNode(node.host_path, node.container_path, node.permissions or "rwm")
        for mount in answer.mounts:
            mounts[mount.container_path] = DeviceMount(mount.host_path, mount.container_path, mount.is_read_only)
        ids.update(dict.fromkeys(answer.cdi_ids))
        notes.update(answer.annotations)
    return ContainerDevices(
        env=tuple((name, value) for name, (value, _) in env.items()),
        nodes=tuple(nodes.values()),
        mounts=tuple(mounts.values()),
        cdi_ids=tuple(ids),
        notes=tuple(sorted(notes.items())),
    )
