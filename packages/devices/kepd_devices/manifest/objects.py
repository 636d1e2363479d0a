# SPDX-License-Identifier: Apache-2.0
"""The kinds of resource.k8s.io/v1 as they are written. Amounts stay texts until a plan needs them."""

from typing import Any

import msgspec

from agent.model.pods.affinity import NodeTerms

Amount = str | int | float


class ManifestPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an object."""


class Metadata(ManifestPart, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    # What only an API server fills is taken, and not looked at.
    generate_name: Any = None
    creation_timestamp: Any = None
    resource_version: Any = None
    generation: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    finalizers: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    self_link: Any = None


class CelSelector(ManifestPart, frozen=True, kw_only=True):
    expression: str = ""


class Selector(ManifestPart, frozen=True, kw_only=True):
    cel: CelSelector | None = None


class Toleration(ManifestPart, frozen=True, kw_only=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequests(ManifestPart, frozen=True, kw_only=True):
    requests: dict[str, Amount] = {}


class Wish(ManifestPart, frozen=True, kw_only=True):
    """What one request, or one of its alternatives, asks for; only an alternative has a name of its own."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[Selector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequests | None = None

    @property
    def is_all(self) -> bool:
        return self.allocation_mode == "All"

    @property
    def wanted(self) -> int:
        return 1 if self.count is None else self.count

    @property
    def amounts(self) -> dict[str, Amount]:
        return self.capacity.requests if self.capacity is not None else {}


class DeviceRequest(ManifestPart, frozen=True, kw_only=True):
    name: str = ""
    exactly: Wish | None = None
    first_available: tuple[Wish, ...] = ()


class Constraint(ManifestPart, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class Opaque(ManifestPart, frozen=True, kw_only=True):
    driver: str = ""
    parameters: Any = None


class Config(ManifestPart, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    opaque: Opaque | None = None


class Wishes(ManifestPart, frozen=True, kw_only=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Config, ...] = ()


class ClaimSpec(ManifestPart, frozen=True, kw_only=True):
    devices: Wishes = Wishes()


class Result(ManifestPart, frozen=True, kw_only=True):
    """One device that a claim has."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Amount] = {}
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class DeviceAllocation(ManifestPart, frozen=True, kw_only=True):
    results: tuple[Result, ...] = ()
    config: tuple[Any, ...] = ()


class Allocation(ManifestPart, frozen=True, kw_only=True):
    devices: DeviceAllocation = DeviceAllocation()
    node_selector: Any = None
    allocation_timestamp: Any = None


class ClaimStatus(ManifestPart, frozen=True, kw_only=True):
    """Who uses it, and what drivers say of its devices, is known better here."""

    allocation: Allocation | None = None
    reserved_for: Any = None
    devices: Any = None


class Claim(ManifestPart, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class TemplateSpec(ManifestPart, frozen=True, kw_only=True):
    """`metadata` is what claims that are made of it have: labels and annotations."""

    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()


class ClaimTemplate(ManifestPart, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: TemplateSpec = TemplateSpec()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ClassSpec(ManifestPart, frozen=True, kw_only=True):
    selectors: tuple[Selector, ...] = ()
    config: tuple[Config, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(ManifestPart, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: ClassSpec = ClassSpec()


class Attribute(ManifestPart, frozen=True, kw_only=True):
    """One of these has a value."""

    whole: int | None = msgspec.field(default=None, name="int")
    truth: bool | None = msgspec.field(default=None, name="bool")
    text: str | None = msgspec.field(default=None, name="string")
    version: str | None = None
    wholes: tuple[int, ...] | None = msgspec.field(default=None, name="ints")
    truths: tuple[bool, ...] | None = msgspec.field(default=None, name="bools")
    texts: tuple[str, ...] | None = msgspec.field(default=None, name="strings")
    versions: tuple[str, ...] | None = None

    @property
    def scalars(self) -> dict[str, object]:
        """By kind."""
        found = {"int": self.whole, "bool": self.truth, "string": self.text, "version": self.version}
        return {kind: value for kind, value in found.items() if value is not None}

    @property
    def has_list(self) -> bool:
        return any(one is not None for one in (self.wholes, self.truths, self.texts, self.versions))

    @property
    def lists(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...] | None] = {
            "int": self.wholes, "bool": self.truths, "string": self.texts, "version": self.versions,
        }  # fmt: skip
        return {kind: values for kind, values in found.items() if values is not None}


class ValidRange(ManifestPart, frozen=True, kw_only=True):
    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class RequestPolicy(ManifestPart, frozen=True, kw_only=True):
    default: Amount | None = None
    valid_values: tuple[Amount, ...] = ()
    valid_range: ValidRange | None = None


class Capacity(ManifestPart, frozen=True, kw_only=True):
    value: Amount = "0"
    request_policy: RequestPolicy | None = None


class Counter(ManifestPart, frozen=True, kw_only=True):
    value: Amount = "0"


class CounterSet(ManifestPart, frozen=True, kw_only=True):
    name: str = ""
    counters: dict[str, Counter] = {}


class ConsumedCounters(ManifestPart, frozen=True, kw_only=True):
    counter_set: str = ""
    counters: dict[str, Counter] = {}


class Taint(ManifestPart, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class DeviceOfSlice(ManifestPart, frozen=True, kw_only=True):
    name: str = ""
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, Capacity] = {}
    consumes_counters: tuple[ConsumedCounters, ...] = ()
    taints: tuple[Taint, ...] = ()
    node_name: str | None = None
    node_selector: NodeTerms | None = None
    all_nodes: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class Pool(ManifestPart, frozen=True, kw_only=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(ManifestPart, frozen=True, kw_only=True):
    driver: str = ""
    pool: Pool = Pool()
    node_name: str | None = None
    node_selector: NodeTerms | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[DeviceOfSlice, ...] | None = None
    shared_counters: tuple[CounterSet, ...] | None = None


class Slice(ManifestPart, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: SliceSpec = SliceSpec()
