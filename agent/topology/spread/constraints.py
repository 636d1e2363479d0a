# SPDX-License-Identifier: Apache-2.0
"""Spread constraints made ready: defaults filled in, selectors compiled, hard and soft ones told apart.

Source of behaviour: scheduler plugin podtopologyspread (common.go, plugin.go), plugins/helper (DefaultSelector);
KEP-895, KEP-3022, KEP-3094, KEP-3243.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL
from agent.model.selector import LabelSelector, Matcher, compile_selector, equality_matcher, selector_faults
from agent.topology.manifest.facts import PodFacts, SelectingService, SpreadConstraint
from agent.topology.spread.placement import NodeStanding

HARD = "DoNotSchedule"
SOFT = "ScheduleAnyway"
HONOR = "Honor"
IGNORE = "Ignore"

ConstraintSource = Literal["pod", "system-defaults", "list-defaults", "none"]


class Defaulting(msgspec.Struct, frozen=True, gc=False):
    """The scheduler's defaultConstraints: its own ("System") or an administrator's ("List")."""

    kind: Literal["System", "List"]
    constraints: tuple[SpreadConstraint, ...]


SYSTEM_DEFAULTS = Defaulting(
    "System",
    (
        SpreadConstraint(max_skew=3, topology_key=HOSTNAME_LABEL, when_unsatisfiable=SOFT),
        SpreadConstraint(max_skew=5, topology_key=ZONE_LABEL, when_unsatisfiable=SOFT),
    ),
)


class PreparedConstraint(msgspec.Struct, frozen=True, gc=False):
    """A constraint with nothing left open. `position` is its place in the pod's or the administrator's list."""

    position: int
    topology_key: str
    max_skew: int
    matcher: Matcher
    min_domains: int
    affinity_policy: str
    taints_policy: str


class PreparedConstraints(msgspec.Struct, frozen=True, gc=False):
    """Hard and soft constraints. An error text stands for a selector that cannot be used; its list is empty then.

    `requires_all_keys` False: a node without a soft key is scored all the same, which only System defaults do.
    """

    source: ConstraintSource
    hard: tuple[PreparedConstraint, ...]
    soft: tuple[PreparedConstraint, ...]
    hard_error: str | None = None
    soft_error: str | None = None
    requires_all_keys: bool = True


def prepare_constraints(
    pod: PodFacts,
    services: Sequence[SelectingService] = (),
    defaulting: Defaulting = SYSTEM_DEFAULTS,
    owner_selector: LabelSelector | None = None,
) -> PreparedConstraints:
    """The pod's own constraints or, only if it has none at all, the default ones."""
    if pod.constraints:
        hard, hard_error = _prepared(pod.constraints, HARD, pod.labels)
        soft, soft_error = _prepared(pod.constraints, SOFT, pod.labels)
        return PreparedConstraints("pod", hard, soft, hard_error, soft_error)
    requires_all_keys = defaulting.kind != "System"
    derived = _derived_matcher(pod, services, owner_selector)
    if derived.is_empty:
        return PreparedConstraints("none", (), (), requires_all_keys=requires_all_keys)
    return PreparedConstraints(
        source="system-defaults" if defaulting.kind == "System" else "list-defaults",
        hard=_defaulted(defaulting, HARD, derived),
        soft=_defaulted(defaulting, SOFT, derived),
        requires_all_keys=requires_all_keys,
    )


def _prepared(
    constraints: Sequence[SpreadConstraint], action: str, labels: Mapping[str, str]
) -> tuple[tuple[PreparedConstraint, ...], str | None]:
    prepared = []
    for position, constraint in enumerate(constraints):
        if constraint.when_unsatisfiable != action:
            continue
        for fault in selector_faults(constraint.label_selector):
            where = f"constraint {position}: labelSelector.{fault.path}"
            return (), f"{where}: {fault.value!r} cannot be used; expected {fault.right}"
        chosen = {key: labels[key] for key in constraint.match_label_keys if key in labels}
        matcher = compile_selector(constraint.label_selector).narrowed(chosen)
        prepared.append(_completed(constraint, position, matcher))
    return tuple(prepared), None


def _defaulted(defaulting: Defaulting, action: str, matcher: Matcher) -> tuple[PreparedConstraint, ...]:
    return tuple(
        _completed(constraint, position, matcher)
        for position, constraint in enumerate(defaulting.constraints)
        if constraint.when_unsatisfiable == action
    )


def _completed(constraint: SpreadConstraint, position: int, matcher: Matcher) -> PreparedConstraint:
    affinity, taints = constraint.node_affinity_policy, constraint.node_taints_policy
    return PreparedConstraint(
        position=position,
        topology_key=constraint.topology_key,
        max_skew=constraint.max_skew,
        matcher=matcher,
        min_domains=1 if constraint.min_domains is None else constraint.min_domains,
        affinity_policy=HONOR if affinity is None else affinity,
        taints_policy=IGNORE if taints is None else taints,
    )


def _derived_matcher(
    pod: PodFacts, services: Sequence[SelectingService], owner_selector: LabelSelector | None
) -> Matcher:
    """All that Services and the owner select this pod by."""
    merged: dict[str, str] = {}
    for service in services:
        if service.namespace != pod.namespace or service.selector is None:
            continue
        if all(pod.labels.get(key) == value for key, value in service.selector.items()):
            merged.update(service.selector)
    derived = equality_matcher(merged)
    if owner_selector is None or selector_faults(owner_selector):
        return derived
    return Matcher(requirements=derived.requirements + compile_selector(owner_selector).requirements)


def has_all_keys(labels: Mapping[str, str], constraints: Sequence[PreparedConstraint]) -> bool:
    return all(constraint.topology_key in labels for constraint in constraints)


def includes(constraint: PreparedConstraint, standing: NodeStanding) -> bool:
    """Whether the policies of the constraint let the node take part in counting."""
    if constraint.affinity_policy == HONOR and not standing.matches_affinity:
        return False
    return constraint.taints_policy != HONOR or standing.taint is None
