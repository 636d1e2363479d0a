# SPDX-License-Identifier: Apache-2.0
"""A document becomes a PriorityClass, a LimitRange or a ResourceQuota, or a list of what is wrong with it."""

from collections.abc import Iterator, Mapping

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.pods.container_fields import Amount, Fields
from agent.model.pods.fields import Metadata
from agent.model.quantity import QuantityError, parse_quantity
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.manifest.validation.object_names import check_metadata

Key = tuple[str, str, str]
Amounts = Mapping[str, Amount]
PRIORITY, LIMITS, QUOTA = "PriorityClass", "LimitRange", "ResourceQuota"
VERSIONS = {PRIORITY: "scheduling.k8s.io/v1", LIMITS: "v1", QUOTA: "v1"}
HIGHEST_PRIORITY = 10**9
LIMITED, HELD_TYPES = ("cpu", "memory", "ephemeral-storage"), ("Container", "Pod")
TYPES = (*HELD_TYPES, "PersistentVolumeClaim")
HELD = {
    "pods": "pods", "count/pods": "pods", "cpu": "requests.cpu", "requests.cpu": "requests.cpu",
    "memory": "requests.memory", "requests.memory": "requests.memory", "limits.cpu": "limits.cpu",
    "limits.memory": "limits.memory",
}  # fmt: skip
"""What pods are held to, by the names that quotas have for it."""
MOST_ENTRIES = 50
"""Of one object: each pod that is to begin is held against all of them."""
SCOPES = ("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass")


class LimitItem(Fields, frozen=True):
    type: str = ""
    default: dict[str, Amount] = msgspec.field(default_factory=dict)
    default_request: dict[str, Amount] = msgspec.field(default_factory=dict)
    min: dict[str, Amount] = msgspec.field(default_factory=dict)
    max: dict[str, Amount] = msgspec.field(default_factory=dict)
    max_limit_request_ratio: dict[str, Amount] = msgspec.field(default_factory=dict)


class _LimitFields(Fields, frozen=True):
    limits: tuple[LimitItem, ...] = ()


class ScopeRequirement(Fields, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _ScopeSelector(Fields, frozen=True):
    match_expressions: tuple[ScopeRequirement, ...] = ()


class _QuotaFields(Fields, frozen=True):
    hard: dict[str, Amount] = msgspec.field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: _ScopeSelector = _ScopeSelector()


class _Priority(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    value: int | None = None
    global_default: bool = False
    description: str = ""
    preemption_policy: str = "PreemptLowerPriority"


class _Limits(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: _LimitFields = _LimitFields()


class _Quota(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: _QuotaFields = _QuotaFields()
    status: object = None


SHAPES: Mapping[str, type[_Priority] | type[_Limits] | type[_Quota]] = {
    PRIORITY: _Priority, LIMITS: _Limits, QUOTA: _Quota,
}  # fmt: skip


class PriorityRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: int
    is_default: bool = False


class LimitRule(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    limits: tuple[LimitItem, ...]


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """`scopes` say which pods count."""

    namespace: str
    name: str
    hard: Amounts
    scopes: tuple[ScopeRequirement, ...] = ()

    @property
    def key(self) -> Key:
        return QUOTA, self.namespace, self.name


Rule = PriorityRule | LimitRule | Quota


def read_rule(tree: Tree, kind: str, findings: list[Finding]) -> Rule | None:
    """None if there are findings, which are added to the list."""
    before = len(findings)
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != VERSIONS[kind]:
        findings.append(Finding((given or tree).where, "apiVersion", f"must be {VERSIONS[kind]}"))
    value = Shape(findings).read(tree, SHAPES[kind], "")
    if len(findings) > before:
        return None
    read, out = msgspec.convert(value, SHAPES[kind]), Complaints()
    check_metadata(read.metadata, out)
    made = _made(read, out)
    findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in out.found]
    return made if len(findings) == before else None


def _made(read: _Priority | _Limits | _Quota, out: Complaints) -> Rule:
    namespace, name = read.metadata.namespace, read.metadata.name
    match read:
        case _Priority():
            if read.value is None:
                out.required("value", "pods of a higher one begin first and end last")
            elif not -(2**31) <= read.value <= HIGHEST_PRIORITY:
                out.invalid("value", read.value, f"must be a number of 32 bits and at most {HIGHEST_PRIORITY}")
            return PriorityRule(name=name, value=read.value or 0, is_default=read.global_default)
        case _Limits(spec=limits):
            _few(out, "spec.limits", len(limits.limits))
            for index, item in enumerate(limits.limits):
                _limit_item(out, f"spec.limits[{index}]", item)
            return LimitRule(namespace=namespace, name=name, limits=limits.limits)
        case _Quota(spec=quota):
            _amounts(out, "spec.hard", quota.hard)
            _few(out, "spec.hard", len(quota.hard))
            _few(out, "spec.scopes", len(quota.scopes) + len(quota.scope_selector.match_expressions))
            scopes = [ScopeRequirement(scope_name=scope, operator="Exists") for scope in quota.scopes]
            scopes += quota.scope_selector.match_expressions
            for scope in scopes:
                out.one_of("spec.scopes", scope.scope_name, SCOPES)
                out.one_of("spec.scopeSelector", scope.operator, ("In", "NotIn", "Exists", "DoesNotExist"))
            return Quota(namespace=namespace, name=name, hard=quota.hard, scopes=tuple(scopes))


def _few(out: Complaints, path: str, count: int) -> None:
    if count > MOST_ENTRIES:
        out.too_many(path, count, MOST_ENTRIES)


def _limit_item(out: Complaints, path: str, item: LimitItem) -> None:
    out.one_of(f"{path}.type", item.type, TYPES)
    named = (
        ("default", item.default), ("defaultRequest", item.default_request), ("min", item.min), ("max", item.max),
        ("maxLimitRequestRatio", item.max_limit_request_ratio),
    )  # fmt: skip
    for name, amounts in named:
        _amounts(out, f"{path}.{name}", amounts)


def _amounts(out: Complaints, path: str, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        try:
            is_right = parse_quantity(str(amount)).nanos >= 0
        except QuantityError:
            is_right = False
        if not is_right:
            out.invalid(f"{path}[{name}]", amount, "must be a quantity from 0 on, such as 500m or 1Gi")


def rule_warnings(rule: Rule) -> Iterator[tuple[str, str]]:
    """What is right and yet holds nobody here."""
    match rule:
        case LimitRule(limits=limits):
            for index, item in enumerate(limits):
                if item.type not in HELD_TYPES:
                    yield f"spec.limits[{index}].type", f"limits of {item.type} hold nobody on this node"
        case Quota(hard=hard):
            for name in hard:
                if name not in HELD:
                    yield f"spec.hard.{name}", f"holds nobody on this node; only {', '.join(HELD)} do"
