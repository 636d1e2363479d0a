# SPDX-License-Identifier: Apache-2.0
"""Nodes of this machine become devices of a pool, as the rules of the configuration say."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.finding import Finding
from kepd_devices.cdi.merging import HostNode
from kepd_devices.cdi.spec import Edits, MountEdit, NodeEdit
from kepd_devices.local.claim_files import ClaimFileRefused, ResultEdits, own_results
from kepd_devices.local.parameters import parameters_for, strictly
from kepd_devices.local.pool_rules import PoolRule, as_label, filled, is_each, sysfs_words, words_of
from kepd_devices.manifest.objects import (
    Attribute,
    Capacity,
    DeviceOfSlice,
    Metadata,
    Pool,
    RequestPolicy,
    Result,
    Slice,
    SliceSpec,
    Taint,
    ValidRange,
)
from kepd_devices.plan.records import ClaimRecord

PARAMETERS = "devices.kepd.dev/v1alpha1"
MISSING, QUARANTINED = "devices.kepd.dev/missing", "devices.kepd.dev/quarantined"
# A scheduler sees taints and not health: no new pod gets such a device, and the pod that has it keeps running.
UNHEALTHY = "devices.kepd.dev/unhealthy"
MOST_IN_SLICE = 64
SHARES = "shares"


class SeenNode(msgspec.Struct, frozen=True):
    """A node that a rule's pattern matches, with the values of sysfs that the rule asks for. `target` is where it is,
    if the path is a link."""

    path: str
    node: HostNode
    sysfs: Mapping[str, str] = {}
    target: str = ""

    @property
    def place(self) -> str:
        return f"{self.target or self.path} ({self.node.type} {self.node.major}:{self.node.minor})"


class LocalDevice(msgspec.Struct, frozen=True):
    name: str
    rule: PoolRule
    words: Mapping[str, str]
    sysfs: Mapping[str, str] = {}
    nodes: tuple[SeenNode, ...] = ()
    is_missing: bool = False

    @property
    def place(self) -> str:
        return ", ".join(one.place for one in self.nodes)


class EnvParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    api_version: Literal["devices.kepd.dev/v1alpha1"]
    kind: Literal["DeviceParameters"]
    env: dict[str, str] = {}


def find_devices(
    rules: Sequence[PoolRule], seen: Sequence[Sequence[SeenNode]]
) -> tuple[dict[str, LocalDevice], list[Finding]]:
    """`seen` are the nodes of each rule, in order. Two with one name: the first counts. What a name says of the device
    itself, such as its serial number, stays when it comes back as another node."""
    found: dict[str, LocalDevice] = {}
    findings: list[Finding] = []
    for number, (rule, nodes) in enumerate(zip(rules, seen, strict=True)):
        place = f"devices.driver.pools[{number}].name"
        for index, group in enumerate(_grouped(rule, nodes)):
            one = group[0]
            words = {**_own_words(one), "index": str(index)}
            known = _known(rule, one)
            asked = [*words_of(rule.match.group), *words_of(rule.name)]
            lacks = [word for word in asked if word in known and not known[word]]
            name = as_label(filled(rule.name, {**known, **words}))
            if lacks:
                findings.append(
                    Finding("", place, f"{rule.name} gives no name for {one.path}, which has no {lacks[0]}")
                )
            elif not name:
                findings.append(Finding("", place, f"{rule.name} gives no name for {one.path}"))
            elif name in found:
                text = f"{one.path} is called {name}, as {found[name].words['path']} is; it is left out"
                findings.append(Finding("", place, text))
            else:
                found[name] = LocalDevice(name, rule, {**words, "name": name}, one.sysfs, tuple(group))
    return found, findings


def _grouped(rule: PoolRule, nodes: Sequence[SeenNode]) -> list[list[SeenNode]]:
    """The nodes of each device, in the order of their paths. A node without the attributes of its group is a
    device of its own."""
    groups: dict[str, list[SeenNode]] = {}
    for one in sorted(nodes, key=lambda it: it.path):
        if one.node.type and all(one.sysfs.get(key) == it for key, it in rule.match.sysfs.items()):
            known = _known(rule, one)
            is_told = rule.match.group and all(known[word] for word in words_of(rule.match.group))
            # No path begins with a space.
            groups.setdefault(f" {filled(rule.match.group, known)}" if is_told else one.path, []).append(one)
    return list(groups.values())


def _known(rule: PoolRule, one: SeenNode) -> dict[str, str]:
    return {word: one.sysfs.get(file, "") for word, file in sysfs_words(rule).items()}


def _own_words(one: SeenNode) -> dict[str, str]:
    return {"path": one.path, "basename": one.path.rpartition("/")[2]}


def configured_slices(
    driver: str,
    node: str,
    devices: Mapping[str, LocalDevice],
    generation: int,
    quarantined: Collection[str] = (),
    unhealthy: Collection[str] = (),
) -> tuple[Slice, ...]:
    listed = [
        _device(one, is_quarantined=one.name in quarantined, is_unhealthy=one.name in unhealthy)
        for _, one in sorted(devices.items())
    ]
    parts = [listed[at : at + MOST_IN_SLICE] for at in range(0, len(listed), MOST_IN_SLICE)]
    pool = Pool(name=node, generation=generation, resource_slice_count=len(parts))
    return tuple(
        Slice(
            metadata=Metadata(name=f"{node}-{driver}-{number:03}"),
            spec=SliceSpec(driver=driver, pool=pool, node_name=node, devices=tuple(part)),
        )
        for number, part in enumerate(parts)
    )


def _device(one: LocalDevice, *, is_quarantined: bool, is_unhealthy: bool) -> DeviceOfSlice:
    rule = one.rule
    capacity = {name: Capacity(value=str(amount)) for name, amount in rule.capacity.items()}
    if rule.shared is not None:
        policy = RequestPolicy(default="1", valid_range=ValidRange(min="1", step="1"))
        capacity[SHARES] = Capacity(value=str(rule.shared.max), request_policy=policy)
    taints = []
    if one.is_missing:
        taints.append(Taint(key=MISSING, effect="NoExecute"))
    if is_quarantined:
        taints.append(Taint(key=QUARANTINED, effect="NoSchedule"))
    if is_unhealthy:
        taints.append(Taint(key=UNHEALTHY, effect="NoSchedule"))
    return DeviceOfSlice(
        name=one.name,
        attributes=dict(_attributes(one)),
        capacity=capacity,
        taints=tuple(taints),
        allow_multiple_allocations=True if rule.shared is not None else None,
    )


def _attributes(one: LocalDevice) -> Iterator[tuple[str, Attribute]]:
    for name, value in one.rule.attributes.items():
        if isinstance(value, Mapping):
            if "version" in value:
                yield name, Attribute(version=str(value["version"]))
            elif (text := one.sysfs.get(str(value["sysfs"]))) is not None:
                yield name, Attribute(text=text[:64])
        elif isinstance(value, bool):
            yield name, Attribute(truth=value)
        elif isinstance(value, int):
            yield name, Attribute(whole=value)
        else:
            yield name, Attribute(text=str(value))


def configured_edits(
    record: ClaimRecord, driver: str, devices: Mapping[str, LocalDevice]
) -> tuple[Edits, list[ResultEdits]]:
    """Raises Refused."""
    found = []
    for result in own_results(record, driver):
        device = devices.get(result.device)
        if device is None or device.is_missing:
            raise ClaimFileRefused(f"device {result.device} is not there")
        found.append(ResultEdits(result, _edits(device, _env_given(record, driver, result, device.rule))))
    return Edits(), found


def _env_given(record: ClaimRecord, driver: str, result: Result, rule: PoolRule) -> dict[str, str]:
    """Variables that the claim may set: those that the pool names."""
    env: dict[str, str] = {}
    for given in parameters_for(record, driver, result):
        read = strictly(given, EnvParameters, driver)
        for name in read.env:
            if name not in rule.parameters:
                allowed = ", ".join(rule.parameters) or "none"
                raise ClaimFileRefused(
                    f"parameters for {driver}: variable {name} is not one that the pool lets claims set: {allowed}"
                )
        env.update(read.env)
    return env


def _edits(device: LocalDevice, env: Mapping[str, str]) -> Edits:
    rule, words = device.rule, device.words
    variables = {name: filled(value, words) for name, value in rule.env.items()} | dict(env)
    nodes = []
    targets = {one.path: one.target for one in device.nodes}
    for one in rule.nodes:
        each = [_own_words(it) for it in device.nodes] if is_each(one) else []
        for own in each or [{}]:
            path = filled(one.path, {**words, **own})
            inside = filled(one.as_, {**words, **own}) or path
            host = targets.get(path, "") or path
            nodes.append(NodeEdit(path=inside, host_path=host if host != inside else "", permissions=one.permissions))
    mounts = tuple(
        MountEdit(
            host_path=one.host_path,
            container_path=one.container_path,
            options=("ro", "bind") if one.read_only else ("rw", "bind"),
        )
        for one in rule.mounts
    )
    listed = tuple(f"{name}={value}" for name, value in variables.items())
    return Edits(env=listed, device_nodes=tuple(nodes), mounts=mounts)
