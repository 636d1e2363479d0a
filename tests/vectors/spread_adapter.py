# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of spread.json against agent.topology and compares what comes out.

Owns: reading the manifests of a case and writing the results in the form of the vectors.
Never: checks manifests before evaluating a `pod` case; a bad selector there has to reach the scheduler's own test.
Rules of which only recorded cases are a test: TOP-64, TOP-69, TOP-76, TOP-77, TOP-78, TOP-79,
TOP-84.
"""

from agent.model.selector import LabelSelector
from agent.topology.manifest.objects import read_node, read_service
from agent.topology.manifest.pods import read_constraint, read_pod
from agent.topology.manifest.reader import ManifestComplaints, ReadPart
from agent.topology.spread.admission import admit
from agent.topology.spread.constraints import SYSTEM_DEFAULTS, Defaulting
from agent.topology.spread.filter import NodeVerdict, SpreadQuestion, SpreadResult, evaluate_spread
from agent.topology.spread.score import Score
from tests.vectors.comparison import compare

KINDS = frozenset({"pod", "admit"})


def check(kind: str, given: dict, expect: dict) -> None:
    """Raises AssertionError with one line per difference."""
    actual = _pod(given) if kind == "pod" else _admit(given)
    if kind == "admit":
        expect, actual = _sorted_errors(expect), _sorted_errors(actual)
    differences = list(compare(expect, actual, "expect"))

    assert not differences, "\n".join(differences)


def _sorted_errors(verdict: dict) -> dict:
    return verdict | {"errors": sorted(verdict["errors"], key=lambda error: (error["field"], error["type"]))}


def _part(content: dict, place: str) -> ReadPart:
    return ReadPart(ManifestComplaints("vector"), "", content, place)


def _question(given: dict) -> SpreadQuestion:
    defaulting = SYSTEM_DEFAULTS
    if "defaulting" in given and given["defaulting"]["type"] == "List":
        constraints = given["defaulting"].get("constraints") or ()
        defaulting = Defaulting("List", tuple(read_constraint(_part(one, "constraint")) for one in constraints))
    return SpreadQuestion(
        pod=read_pod(_part(given["pod"], "object")),
        nodes=tuple(read_node(_part(node, "object")) for node in given["nodes"]),
        pods=tuple(read_pod(_part(pod, "object")) for pod in given["pods"]),
        services=tuple(read_service(_part(service, "object")) for service in given.get("services") or ()),
        defaulting=defaulting,
    )


def _pod(given: dict) -> dict:
    result = evaluate_spread(_question(given))
    if result.prefilter == "Error":
        return {"prefilter": "Error"}
    return {
        "prefilter": result.prefilter,
        "constraints": _constraints(result),
        "nodes": [_node(verdict) for verdict in result.nodes],
        "candidates": list(result.candidates),
        "score": _score(result.score),
    }


def _constraints(result: SpreadResult) -> list[dict]:
    return [
        {
            "topologyKey": counts.constraint.topology_key,
            "maxSkew": counts.constraint.max_skew,
            "minDomains": counts.constraint.min_domains,
            "nodeAffinityPolicy": counts.constraint.affinity_policy,
            "nodeTaintsPolicy": counts.constraint.taints_policy,
            "domains": dict(counts.domains),
            "globalMin": counts.global_min,
            "selfMatch": counts.self_match,
        }
        for counts in result.constraints
    ]


def _node(verdict: NodeVerdict) -> dict:
    return {
        "name": verdict.name,
        "excludedBy": verdict.excluded_by,
        "spread": verdict.spread,
        "failedConstraint": verdict.failed_constraint,
        "skew": list(verdict.skew),
        "preemptible": verdict.is_preemptible,
        "affinityMatch": verdict.standing.matches_affinity,
        "taintsTolerated": verdict.standing.taint is None,
    }


def _score(score: Score | None) -> object:
    if score is None:
        return None
    if score.outcome != "scored":
        return {"skipped": "Skip", "error": "Error"}[score.outcome]
    return {
        "ignored": list(score.ignored),
        "constraints": [
            {
                "topologyKey": soft.constraint.topology_key,
                "maxSkew": soft.constraint.max_skew,
                "weight": soft.weight,
                "counts": soft.counts,
            }
            for soft in score.constraints
        ],
        "raw": score.raw,
        "normalized": score.normalized,
    }


def _admit(given: dict) -> dict:
    verdict = admit(read_pod(_part(given["pod"], "object")))
    return {
        "errors": [{"field": error.field, "type": error.type} for error in verdict.errors],
        "selectors": [_selector(selector) for selector in verdict.selectors],
        "warnings": [{"index": warning.position, "code": warning.code} for warning in verdict.warnings],
    }


def _selector(selector: LabelSelector | None) -> dict | None:
    if selector is None:
        return None
    written: dict = {}
    if selector.match_labels:
        written["matchLabels"] = dict(selector.match_labels)
    if selector.match_expressions:
        written["matchExpressions"] = [
            {"key": one.key, "operator": one.operator} | ({"values": list(one.values)} if one.values else {})
            for one in selector.match_expressions
        ]
    return written
