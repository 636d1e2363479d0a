# SPDX-License-Identifier: Apache-2.0
"""CDI files and a container's ids become what a runtime without CDI understands, or a refusal.

Nothing is left out in silence: an edit that CRI cannot say is a refusal which names id, file and edit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from posixpath import normpath

import msgspec

from agent.model.devices.container_devices import ContainerDevices, DeviceMount, DeviceNode
from agent.model.finding import Finding, shown
from kepd_devices.cdi.spec import CdiDevice, CdiSpec, Edits, MountEdit, NodeEdit, env_of, parse_id

PLAIN_OPTIONS = {"", "rw", "bind", "rbind", "private", "rprivate"}
PROPAGATIONS = {"slave": "slave", "rslave": "slave", "shared": "shared", "rshared": "shared"}
NEEDS_RUNTIME = "a runtime that knows CDI is needed (containerd 2, CRI-O 1.28)"
UNDER_PROC, UNDER_SYS = "/proc", "/sys"


class CannotMerge(Exception):
    """The container cannot have what its devices ask for; nothing of it is made."""


class NotResolved(CannotMerge):
    """No file has the id, or none that counts. It may come yet."""


class CdiFile(msgspec.Struct, frozen=True):
    """A file of a directory; later directories have higher numbers."""

    path: str
    directory: int
    spec: CdiSpec


class HostNode(msgspec.Struct, frozen=True):
    """A node as it stands on the host. `type` is as in CDI, or "" for what is no device."""

    type: str
    major: int = 0
    minor: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0


class Resolved(msgspec.Struct, frozen=True):
    id: str
    file: CdiFile
    device: CdiDevice


class Catalogue:
    """Which file has which id: a later directory hides an earlier one, and what stands twice in one cannot be used."""

    def __init__(self, files: Iterable[CdiFile] = (), directories: Sequence[str] = ()) -> None:
        self._directories = directories
        self._known: dict[str, Resolved] = {}
        self._twice: dict[str, tuple[str, str]] = {}
        for file in sorted(files, key=lambda one: (one.directory, one.path)):
            for device in file.spec.devices:
                self._add(Resolved(f"{file.spec.kind}={device.name}", file, device))

    def _add(self, one: Resolved) -> None:
        known = self._known.get(one.id)
        if known is not None and known.file.directory == one.file.directory:
            self._twice[one.id] = (known.file.path, one.file.path)
            return
        self._twice.pop(one.id, None)
        self._known[one.id] = one

    @property
    def every(self) -> list[str]:
        """Those that cannot be used too."""
        return sorted(self._known)

    def resolve(self, text: str) -> Resolved:
        """Raises CannotMerge."""
        try:
            parse_id(text)
        except ValueError as error:
            raise CannotMerge(str(error)) from error
        if twice := self._twice.get(text):
            raise NotResolved(f"CDI id {text} stands in {twice[0]} and in {twice[1]}; expected it once")
        if (found := self._known.get(text)) is None:
            places = ", ".join(self._directories) or "any directory"
            raise NotResolved(f"CDI id {text} is in no file of {places}")
        return found

    def findings(self) -> Iterator[Finding]:
        for text, (first, second) in sorted(self._twice.items()):
            yield Finding(second, "devices", f"{text} is also in {first}; neither can be used")


def check_seen(resolved: Iterable[Resolved], directories: Collection[str]) -> None:
    """Whether a runtime that resolves ids itself looks where their files are; `directories` are those that it tells of,
    if it does. Raises CannotMerge."""
    known = {plain_place(one) for one in directories}
    for one in resolved:
        place = one.file.path.rpartition("/")[0]
        if known and plain_place(place) not in known:
            text = f"CDI id {one.id} is in {one.file.path}, and the runtime looks into {', '.join(directories)} alone"
            raise CannotMerge(f"{text}; make the files there, or set devices.cdi.merge: always")


def plain_place(directory: str) -> str:
    """/var/run is a link to /run wherever systemd runs."""
    return directory.rstrip("/").removeprefix("/var") if directory.startswith("/var/run/") else directory.rstrip("/")


def nodes_of(resolved: Iterable[Resolved]) -> list[str]:
    """Paths of the host about which merging has to know something."""
    edits = [one for found in resolved for one in (found.file.spec.container_edits, found.device.container_edits)]
    return sorted({node.on_host for one in edits for node in one.device_nodes})


def merge(
    resolved: Sequence[Resolved], host: Mapping[str, HostNode | None], private: Sequence[str] = ()
) -> ContainerDevices:
    """Edits of a file once, before those of its first device. `private` are places of the host that no container may
    see. Raises CannotMerge."""
    env: dict[str, str] = {}
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, DeviceMount] = {}
    groups: dict[int, None] = {}
    for edits, where in _in_order(resolved):
        if why := next(_unsaid(edits), ""):
            raise CannotMerge(f"{where} has {why}; {NEEDS_RUNTIME}")
        env.update(env_of(edits))
        for node in edits.device_nodes:
            if why := _differs(node, host.get(node.on_host)):
                raise CannotMerge(f"{where}: node {node.on_host} {why}")
            nodes[node.path] = DeviceNode(node.on_host, node.path, node.permissions or "rwm")
        for mount in edits.mounts:
            mounts[mount.container_path] = _mount(mount, where, private)
        groups.update(dict.fromkeys(edits.additional_gids))
    return ContainerDevices(
        env=tuple(env.items()), nodes=tuple(nodes.values()), mounts=tuple(mounts.values()), groups=tuple(groups)
    )


def _in_order(resolved: Sequence[Resolved]) -> Iterator[tuple[Edits, str]]:
    seen: set[str] = set()
    for one in {one.id: one for one in resolved}.values():
        where = f"CDI id {one.id}, file {one.file.path}"
        if one.file.path not in seen:
            seen.add(one.file.path)
            yield one.file.spec.container_edits, where
        yield one.device.container_edits, where


def _unsaid(edits: Edits) -> Iterator[str]:
    """What CRI has no words for."""
    for hook in edits.hooks:
        yield f"a {hook.hook_name} hook, {hook.path}"
    if edits.intel_rdt is not None:
        yield "intelRdt"
    for net in edits.net_devices:
        yield f"network device {net.host_interface_name}"
    for mount in edits.mounts:
        if mount.type not in ("", "bind"):
            yield f"a mount of type {shown(mount.type)} at {mount.container_path}"
        for option in mount.options:
            if option != "ro" and option not in PLAIN_OPTIONS and option not in PROPAGATIONS:
                yield f"mount option {shown(option)} at {mount.container_path}"


def _differs(node: NodeEdit, there: HostNode | None) -> str:
    """CRI takes a node as it stands on the host; what the edit says beyond that has to be so there."""
    if there is None or not there.type:
        return "is no device of this host" if there is not None else "does not exist on this host"
    kind = "c" if node.type == "u" else node.type
    if kind and kind != there.type:
        return f"is of type {there.type} on this host; the edit says {node.type}"
    pairs = (
        ("major", node.major, there.major), ("minor", node.minor, there.minor), ("uid", node.uid, there.uid),
        ("gid", node.gid, there.gid), ("fileMode", node.file_mode, there.mode),
    )  # fmt: skip
    for name, wanted, found in pairs:
        if wanted is not None and (wanted & 0o7777 if name == "fileMode" else wanted) != found:
            return f"has {name} {found} on this host; the edit says {wanted}"
    return ""


def _mount(mount: MountEdit, where: str, private: Sequence[str]) -> DeviceMount:
    is_read_only = "ro" in mount.options
    if why := mount_fault(mount.host_path, private, is_read_only=is_read_only):
        raise CannotMerge(f"{where} {why}")
    path = plain_path(mount.host_path)
    propagation = next((PROPAGATIONS[one] for one in mount.options if one in PROPAGATIONS), "")
    return DeviceMount(path, mount.container_path, is_read_only, propagation)


def mount_fault(host_path: str, private: Iterable[str], *, is_read_only: bool) -> str:
    """Why no container gets this of the host, whoever asks for it; empty where it may."""
    path = plain_path(host_path)
    # One name for what nearly every host has by two.
    path = path.removeprefix("/var") if _is_below(path, "/var/run") else path
    if path == "/" or _is_below(path, UNDER_PROC) or (_is_below(path, UNDER_SYS) and not is_read_only):
        return f"mounts {path} of the host, which no device needs"
    for place in map(plain_path, private):
        if _is_below(path, place) or _is_below(place, path):
            return f"mounts {path} of the host, where {place} is; expected another place"
    return ""


def plain_path(path: str) -> str:
    """Without dots and slashes that say nothing."""
    return normpath("/" + path.lstrip("/"))


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")
