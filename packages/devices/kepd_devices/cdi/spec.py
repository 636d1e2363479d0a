# SPDX-License-Identifier: Apache-2.0
"""A CDI file becomes a specification, or all that is wrong with it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import documents_or_fault
from agent.model.finding import Finding, shown
from kepd_devices.manifest.faults import Fault, Faults

LONGEST_FILE_BYTES = 1 << 20
PART = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?")
ENV = re.compile(r"[^=\0]+=[^\0]*", re.DOTALL)
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
NODE_TYPES = ("b", "c", "u", "p")
PERMISSIONS = re.compile(r"[rwm]{1,3}")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
PLACES_OF_HOOKS = "one of " + ", ".join(HOOKS)


class CdiPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a file."""


class NodeEdit(CdiPart, frozen=True, kw_only=True):
    path: str = ""
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    @property
    def on_host(self) -> str:
        return self.host_path or self.path


class MountEdit(CdiPart, frozen=True, kw_only=True):
    host_path: str = ""
    container_path: str = ""
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(CdiPart, frozen=True, kw_only=True):
    hook_name: str = ""
    path: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class NetDevice(CdiPart, frozen=True, kw_only=True):
    host_interface_name: str = ""
    name: str = ""


class Edits(CdiPart, frozen=True, kw_only=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[NodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    hooks: tuple[Hook, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: dict[str, Any] | None = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")

    @property
    def is_empty(self) -> bool:
        return self == NO_EDITS


NO_EDITS = Edits()


class CdiDevice(CdiPart, frozen=True, kw_only=True):
    name: str = ""
    annotations: dict[str, str] = {}
    container_edits: Edits = Edits()


class CdiSpec(CdiPart, frozen=True, kw_only=True):
    cdi_version: str = ""
    kind: str = ""
    annotations: dict[str, str] = {}
    container_edits: Edits = Edits()
    devices: tuple[CdiDevice, ...] = ()


class CdiId(msgspec.Struct, frozen=True, order=True):
    vendor: str
    cls: str
    name: str

    @property
    def kind(self) -> str:
        return f"{self.vendor}/{self.cls}"

    def __str__(self) -> str:
        return f"{self.kind}={self.name}"


def parse_id(text: str) -> CdiId:
    """VENDOR/CLASS=NAME. Raises ValueError with what is wrong."""
    kind, equals, name = text.partition("=")
    vendor, slash, cls = kind.partition("/")
    if not equals or not slash:
        raise ValueError(f"{shown(text)} is no CDI id; expected VENDOR/CLASS=NAME")
    for what, part in (("vendor", vendor), ("class", cls)):
        if why := _wrong_part(part):
            raise ValueError(f"{shown(text)} is no CDI id: its {what} {why}")
    if not NAME.fullmatch(name):
        text = f"{shown(text)} is no CDI id: {shown(name)} is no name of a device"
        raise ValueError(f"{text}; expected letters and digits at both ends, and between them also _ - . :")
    return CdiId(vendor, cls, name)


def _wrong_part(part: str) -> str:
    if not PART.fullmatch(part):
        return f"{shown(part)} is no name; expected a letter, then letters, digits, _ - . and no sign of those last"
    if len(part) < 2:
        return f"{shown(part)} has one sign, on which containerd 2 crashes; expected two or more"
    return ""


def parse_spec(path: str, content: bytes) -> tuple[CdiSpec | None, tuple[Finding, ...]]:
    if len(content) > LONGEST_FILE_BYTES:
        return None, (Finding(path, "", f"has {len(content)} bytes; expected at most {LONGEST_FILE_BYTES}"),)
    trees, findings = documents_or_fault(content, path)
    if len(trees) != 1 and not findings:
        findings = [Finding(path, "", f"has {len(trees)} documents; expected one")]
    if findings:
        return None, tuple(findings)
    value = Shape(findings).read(trees[0], CdiSpec, "")
    if findings:
        return None, tuple(findings)
    found = msgspec.convert(value, CdiSpec)
    told = tuple(Finding(place_of(trees[0], one.field), one.field, one.text) for one in spec_faults(found))
    return (None, told) if told else (found, ())


def spec_faults(spec: CdiSpec) -> Faults:
    yield from _version(spec)
    vendor, slash, cls = spec.kind.partition("/")
    if not spec.kind:
        yield Fault("kind", "Required", "is missing; expected VENDOR/CLASS")
    elif not slash:
        yield Fault("kind", "Invalid", f"{shown(spec.kind)} is no kind; expected VENDOR/CLASS")
    else:
        for what, part in (("vendor", vendor), ("class", cls)):
            if why := _wrong_part(part):
                yield Fault("kind", "Invalid", f"its {what} {why}")
    yield from _edits(spec.container_edits, "containerEdits")
    if not spec.devices:
        yield Fault("devices", "Required", "is empty; expected a device")
    names: set[str] = set()
    for number, one in enumerate(spec.devices):
        place = f"devices[{number}]"
        if not NAME.fullmatch(one.name):
            text = f"{shown(one.name)} is no name of a device; expected letters and digits at both ends"
            yield Fault(f"{place}.name", "Invalid", f"{text}, and between them also _ - . :")
        if one.name in names:
            yield Fault(f"{place}.name", "Duplicate", f"{shown(one.name)} stands twice")
        names.add(one.name)
        if one.container_edits.is_empty:
            yield Fault(f"{place}.containerEdits", "Required", "is empty; expected at least one edit")
        yield from _edits(one.container_edits, f"{place}.containerEdits")


def _version(spec: CdiSpec) -> Faults:
    if spec.cdi_version not in VERSIONS:
        text = f"is {shown(spec.cdi_version)}" if spec.cdi_version else "is missing"
        yield Fault("cdiVersion", "NotSupported", f"{text}; expected one of {', '.join(VERSIONS)}")
        return
    needed, why = version_needed(spec)
    if VERSIONS.index(needed) > VERSIONS.index(spec.cdi_version):
        yield Fault("cdiVersion", "Invalid", f"is {spec.cdi_version}; expected {needed} or later, for {why}")


def version_needed(spec: CdiSpec) -> tuple[str, str]:
    """The lowest version that has everything the file uses, and what needs it."""
    everything = [spec.container_edits, *(one.container_edits for one in spec.devices)]
    uses: Sequence[tuple[str, bool, str]] = (
        ("1.1.0", any(one.net_devices for one in everything), "netDevices"),
        ("0.7.0", any(one.intel_rdt is not None for one in everything), "intelRdt"),
        ("0.7.0", any(one.additional_gids for one in everything), "additionalGids"),
        ("0.6.0", bool(spec.annotations) or any(one.annotations for one in spec.devices), "annotations"),
        ("0.6.0", "." in spec.kind.partition("/")[2], "a class with a dot"),
        ("0.5.0", any(node.host_path for one in everything for node in one.device_nodes), "hostPath of a node"),
        ("0.5.0", any(one.name[:1].isdigit() for one in spec.devices), "a name that begins with a digit"),
        ("0.4.0", any(mount.type for one in everything for mount in one.mounts), "type of a mount"),
    )
    return next(((version, why) for version, is_used, why in uses if is_used), (VERSIONS[0], ""))


def _edits(edits: Edits, field: str) -> Faults:
    for number, text in enumerate(edits.env):
        if not ENV.fullmatch(text):
            yield Fault(f"{field}.env[{number}]", "Invalid", "is no variable; expected NAME=VALUE")
    for number, node in enumerate(edits.device_nodes):
        yield from _node(node, f"{field}.deviceNodes[{number}]")
    for number, mount in enumerate(edits.mounts):
        place = f"{field}.mounts[{number}]"
        yield from _absolute(mount.host_path, f"{place}.hostPath")
        yield from _absolute(mount.container_path, f"{place}.containerPath")
    for number, hook in enumerate(edits.hooks):
        place = f"{field}.hooks[{number}]"
        if hook.hook_name not in HOOKS:
            yield Fault(f"{place}.hookName", "NotSupported", f"{shown(hook.hook_name)} is not known; expected "
                        f"{PLACES_OF_HOOKS}")  # fmt: skip
        yield from _absolute(hook.path, f"{place}.path")
    for number, net in enumerate(edits.net_devices):
        for name, value in (("hostInterfaceName", net.host_interface_name), ("name", net.name)):
            if not value:
                yield Fault(f"{field}.netDevices[{number}].{name}", "Required", "is missing")
    for number, gid in enumerate(edits.additional_gids):
        if not 0 <= gid < 1 << 32:
            yield Fault(f"{field}.additionalGids[{number}]", "Invalid", f"{gid} is no group")


def _node(node: NodeEdit, field: str) -> Faults:
    yield from _absolute(node.path, f"{field}.path")
    if node.host_path:
        yield from _absolute(node.host_path, f"{field}.hostPath")
    if node.type and node.type not in NODE_TYPES:
        yield Fault(f"{field}.type", "NotSupported", f"{shown(node.type)} is not known; expected b, c, u or p")
    if node.permissions and not PERMISSIONS.fullmatch(node.permissions):
        text = f"{shown(node.permissions)} is not known; expected letters of rwm"
        yield Fault(f"{field}.permissions", "Invalid", text)
    for name, number in (("major", node.major), ("minor", node.minor), ("uid", node.uid), ("gid", node.gid)):
        if number is not None and number < 0:
            yield Fault(f"{field}.{name}", "Invalid", f"is {number}; expected 0 or more")


def _absolute(path: str, field: str) -> Faults:
    if not path:
        yield Fault(field, "Required", "is missing")
    elif not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        yield Fault(field, "Invalid", f"{shown(path)} is no absolute path without ..")


def env_of(edits: Edits) -> Mapping[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in edits.env)}
