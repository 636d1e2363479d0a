# SPDX-License-Identifier: Apache-2.0
"""Selectors of labels, as workloads, budgets and claims write them."""

from collections.abc import Iterator, Mapping

import msgspec

from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import Texts
from agent.pods.manifest.validation.complaint import Complaints

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class SelectorRequirement(Fields, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class Selector(Fields, frozen=True):
    match_labels: Texts = msgspec.field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


def check_expressions(out: Complaints, selector: Selector, path: str = "spec.selector") -> None:
    for index, one in enumerate(selector.match_expressions):
        place = f"{path}.matchExpressions[{index}]"
        out.one_of(f"{place}.operator", one.operator, OPERATORS)
        if (one.operator in ("In", "NotIn")) != bool(one.values):
            out.invalid(f"{place}.values", list(one.values), "In and NotIn need values, Exists and DoesNotExist none")


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    return all(_holds(labels, selector))


def _holds(labels: Mapping[str, str], selector: Selector) -> Iterator[bool]:
    for key, value in selector.match_labels.items():
        yield labels.get(key) == value
    for one in selector.match_expressions:
        yield _meets(labels, one)


def _meets(labels: Mapping[str, str], one: SelectorRequirement) -> bool:
    match one.operator:
        case "In":
            return labels.get(one.key) in one.values
        case "NotIn":
            return labels.get(one.key) not in one.values
        case "Exists":
            return one.key in labels
    return one.key not in labels
