# SPDX-License-Identifier: Apache-2.0
"""Whether a term of a node selector fits a node: for pods that want a node, and for devices that are on some."""

from collections.abc import Iterator, Mapping

from agent.model.pods.affinity import NodeRequirement, NodeSelectorTerm


def term_fits(term: NodeSelectorTerm, labels: Mapping[str, str], node: str) -> bool:
    """An empty term fits no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    by_field = {"metadata.name": node}
    return all(_holds(one, labels) for one in term.match_expressions) and all(
        _holds(one, by_field) for one in term.match_fields
    )


def _holds(one: NodeRequirement, labels: Mapping[str, str]) -> bool:
    found = labels.get(one.key)
    match one.operator:
        case "In":
            return found in one.values
        case "NotIn":
            return found not in one.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
    numbers = list(_numbers(found or "", *one.values))
    if len(numbers) <= 1:
        return False
    return numbers[0] > numbers[1] if one.operator == "Gt" else numbers[0] < numbers[1]


def _numbers(*texts: str) -> Iterator[int]:
    for text in texts:
        try:
            yield int(text)
        except ValueError:
            return
