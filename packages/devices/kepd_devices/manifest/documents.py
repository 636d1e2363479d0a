# SPDX-License-Identifier: Apache-2.0
"""One document becomes a claim, template, class or slice, or all that is wrong with it.

Versions v1 and v1beta2 say the same; v1beta1 has what v1 calls `exactly` in the request itself, and what v1 says of a
device in `basic`. Faults name the path as it is written.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding, shown
from kepd_devices.manifest.claim_faults import claim_faults, class_faults, wishes_faults
from kepd_devices.manifest.faults import Fault, Faults, is_label, is_subdomain, label_name
from kepd_devices.manifest.objects import Claim, ClaimTemplate, DeviceClass, Metadata, Slice
from kepd_devices.manifest.slice_faults import slice_faults

GROUP = "resource.k8s.io/"
V1, V1BETA2, V1BETA1 = f"{GROUP}v1", f"{GROUP}v1beta2", f"{GROUP}v1beta1"
DEFAULT_NAMESPACE = "default"
LONGEST_SLICE_BYTES = 1 << 20
Object = Claim | ClaimTemplate | DeviceClass | Slice
KINDS: dict[str, type[Object]] = {
    "ResourceClaim": Claim,
    "ResourceClaimTemplate": ClaimTemplate,
    "DeviceClass": DeviceClass,
    "ResourceSlice": Slice,
}
# What alpha versions had, and who came after it.
SUCCESSORS = {
    "ResourceClass": "a DeviceClass",
    "ResourceClaimParameters": "config.opaque of a ResourceClaim",
    "ResourceClassParameters": "config.opaque of a DeviceClass",
    "PodSchedulingContext": "not allowed: the node allocates",
    "DeviceTaintRule": "taints of devices in a ResourceSlice",
}
IN_CLUSTER = ("DeviceClass", "ResourceSlice")
WISH = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
# Part of objects in a cluster that this node cannot carry out.
LATER = ("extendedResourceName", "nodeAllocatableResourceMappings", "nodeAllocatableResources")


class Reader(msgspec.Struct, frozen=True):
    """`node` is for slices that do not say for which they are."""

    node: str
    trusts_status: bool = False

    def read(self, tree: Tree, kind: str, findings: list[Finding]) -> Object | None:
        """None where something is wrong, which is added to `findings`."""
        before = len(findings)
        version = _version(tree, kind, findings)
        if version is None:
            return None
        is_old = version == V1BETA1
        given = _as_v1(tree, kind) if is_old else tree
        value = Shape(findings).read(_without_later(given, kind, findings), KINDS[kind], "")
        if len(findings) == before:
            found = self._filled(msgspec.convert(value, KINDS[kind]))
            findings += [_finding(given, fault, is_old=is_old) for fault in self._faults(found, tree)]
            if len(findings) == before:
                return found
        return None

    def _filled(self, found: Object) -> Object:
        """Defaults, before anything is checked."""
        if isinstance(found, Claim | ClaimTemplate):
            namespace = found.metadata.namespace or DEFAULT_NAMESPACE
            return replace(found, metadata=replace(found.metadata, namespace=namespace))
        if isinstance(found, Slice):
            spec = found.spec
            places = (spec.node_name, spec.node_selector, spec.all_nodes, spec.per_device_node_selection)
            if all(place is None for place in places):
                return replace(found, spec=replace(spec, node_name=self.node))
        return found

    def _faults(self, found: Object, tree: Tree) -> Faults:
        yield from _metadata_faults(found.metadata, is_in_cluster=isinstance(found, DeviceClass | Slice))
        match found:
            case Claim():
                if "status" in tree.entries and not self.trusts_status:
                    text = "is of the cluster it was copied from; expected none: what a claim has is decided here"
                    yield Fault("status", "Forbidden", text)
                yield from claim_faults(found)
            case ClaimTemplate():
                inner = found.spec.metadata
                if inner.name or inner.namespace or inner.uid:
                    text = "names what is made of it; expected labels and annotations alone"
                    yield Fault("spec.metadata", "Forbidden", text)
                yield from wishes_faults(found.spec.spec.devices, "spec.spec.devices")
            case DeviceClass():
                yield from class_faults(found)
            case Slice():
                size = len(msgspec.json.encode(found))
                if size > LONGEST_SLICE_BYTES:
                    yield Fault("", "TooLong", f"has {size} bytes; expected at most {LONGEST_SLICE_BYTES}")
                yield from slice_faults(found)


def _version(tree: Tree, kind: str, findings: list[Finding]) -> str | None:
    given = tree.entries.get("apiVersion")
    version = str(given.scalar) if given is not None else ""
    if version in (V1, V1BETA2, V1BETA1):
        return version
    text = f"{shown(version)} is not known for a {kind}; expected {V1}" if version else f"is missing; expected {V1}"
    if version.startswith(f"{GROUP}v1alpha"):
        text = f"{version} is gone from Kubernetes; write the {kind} as {V1}"
    findings.append(Finding((given or tree).where, "apiVersion", text))
    return None


def successor_text(kind: str) -> str:
    return f"{kind} is of an alpha version that is gone; its place has {SUCCESSORS[kind]}"


def _finding(tree: Tree, fault: Fault, *, is_old: bool) -> Finding:
    where = place_of(tree, fault.field)
    path = fault.field.replace(".exactly", "").replace(".basic", "") if is_old else fault.field
    return Finding(where, path, f"{fault.type}: {fault.text}")


def _metadata_faults(metadata: Metadata, *, is_in_cluster: bool) -> Faults:
    if not metadata.name:
        yield Fault("metadata.name", "Required", "is missing")
    elif not is_subdomain(metadata.name):
        text = f"{shown(metadata.name)} is no name; expected a DNS name of at most 253 signs"
        yield Fault("metadata.name", "Invalid", text)
    if is_in_cluster and metadata.namespace:
        text = f"is {shown(metadata.namespace)}; expected none: objects of this kind belong to no namespace"
        yield Fault("metadata.namespace", "Forbidden", text)
    elif not is_in_cluster and not is_label(metadata.namespace):
        text = f"{shown(metadata.namespace)} is no name of a namespace; expected a DNS label"
        yield Fault("metadata.namespace", "Invalid", text)
    for key in (*metadata.labels, *metadata.annotations):
        yield from label_name(key, "metadata")


def _without_later(tree: Tree, kind: str, findings: list[Finding]) -> Tree:
    """Fields that Kubernetes has and this node cannot carry out: a finding that says so, and not a slip of the pen."""
    spec = tree.entries.get("spec")
    if kind != "DeviceClass" or spec is None:
        return tree
    for name in LATER:
        if name in spec.entries:
            text = "is not carried out on a node by itself; expected none"
            findings.append(Finding(spec.entries[name].where, f"spec.{name}", text))
    rest = {name: child for name, child in spec.entries.items() if name not in LATER}
    return _with(tree, "spec", _map(spec, rest))


def _as_v1(tree: Tree, kind: str) -> Tree:
    if kind == "ResourceSlice":
        return _below(tree, ["spec", "devices"], lambda listed: _each(listed, _device_as_v1))
    if kind in ("ResourceClaim", "ResourceClaimTemplate"):
        path = ["spec", "devices", "requests"] if kind == "ResourceClaim" else ["spec", "spec", "devices", "requests"]
        return _below(tree, path, lambda listed: _each(listed, _request_as_v1))
    return tree


def _request_as_v1(request: Tree) -> Tree:
    wish = {name: child for name, child in request.entries.items() if name in WISH}
    if request.kind != "map" or not wish:
        return request
    rest = {name: child for name, child in request.entries.items() if name not in WISH}
    return _map(request, {**rest, "exactly": _map(request, wish)})


def _device_as_v1(device: Tree) -> Tree:
    basic = device.entries.get("basic")
    if basic is None or basic.kind != "map":
        return device
    rest = {name: child for name, child in device.entries.items() if name != "basic"}
    return _map(device, {**rest, **basic.entries})


def _below(tree: Tree, path: list[str], change: Callable[[Tree], Tree]) -> Tree:
    if not path:
        return change(tree)
    child = tree.entries.get(path[0])
    return tree if child is None else _with(tree, path[0], _below(child, path[1:], change))


def _each(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    return replace(tree, items=[change(one) for one in tree.items])


def _with(tree: Tree, name: str, child: Tree) -> Tree:
    return _map(tree, {**tree.entries, name: child})


def _map(tree: Tree, entries: dict[str, Tree]) -> Tree:
    return replace(tree, entries=entries)
