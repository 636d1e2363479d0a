# SPDX-License-Identifier: Apache-2.0
"""Affinity between pods: which nodes it keeps a pod from, and which it would rather have.

Source of behaviour: the scheduler's plugin InterPodAffinity (filtering.go, scoring.go).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agent.model.finding import Finding
from agent.model.selector import Matcher, Requirement, compile_selector
from agent.topology.manifest.facts import PodFacts
from agent.topology.manifest.pods import read_selector
from agent.topology.manifest.reader import ManifestComplaints, ReadPart

Object = Mapping[str, Any]
Pair = tuple[str, str]
REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# What a required term of a pod that is there is worth to one that comes.
WEIGHT_OF_REQUIRED = 1
BEST = 100


class Term(msgspec.Struct, frozen=True, gc=False):
    """`namespaces` None: those whose labels match; only their names are known here. `weight` below zero: it stays away
    from them."""

    key: str
    matcher: Matcher
    namespaces: frozenset[str] | None
    of_namespace: Matcher
    weight: int = 0

    def matches(self, pod: PodFacts) -> bool:
        named = self.namespaces is not None and pod.namespace in self.namespaces
        if not named and not self.of_namespace.matches({NAMESPACE_LABEL: pod.namespace}):
            return False
        return self.matcher.matches(pod.labels)


class Neighbours(msgspec.Struct, frozen=True, gc=False):
    """The terms of one pod: which pods it needs by its side, which it cannot have, which it would like."""

    needed: tuple[Term, ...] = ()
    refused: tuple[Term, ...] = ()
    liked: tuple[Term, ...] = ()


NOBODY = Neighbours()


def read_neighbours(spec: Object, pod: PodFacts, where: str, notes: list[Finding]) -> Neighbours:
    """Most pods have none of it, and cost nothing."""
    affinity = spec.get("affinity")
    if not isinstance(affinity, Mapping) or not affinity.keys() & {"podAffinity", "podAntiAffinity"}:
        return NOBODY
    complaints = ManifestComplaints(where, takes_unknown=True)
    top = ReadPart(complaints, "spec.affinity", affinity, None)
    near, far = top.part("podAffinity", None), top.part("podAntiAffinity", None)
    found = Neighbours(
        needed=tuple(_terms(near.parts(REQUIRED, None), pod)),
        refused=tuple(_terms(far.parts(REQUIRED, None), pod)),
        liked=(*_weighted(near, pod, 1), *_weighted(far, pod, -1)),
    )
    notes += [Finding(one.where, one.path, f"{one.text}; this affinity is not looked at") for one in complaints.errors]
    return NOBODY if complaints.errors else found


def _weighted(holder: ReadPart, pod: PodFacts, sign: int) -> Iterator[Term]:
    for one in holder.parts(PREFERRED, None):
        weight = sign * (one.optional_whole("weight") or 0)
        yield from _terms([one.part("podAffinityTerm", None)], pod, weight)


def _terms(parts: Iterable[ReadPart], pod: PodFacts, weight: int = 0) -> Iterator[Term]:
    for part in parts:
        names, of_namespace = part.texts("namespaces"), read_selector(part, "namespaceSelector")
        own = frozenset(names) if names or of_namespace is not None else frozenset({pod.namespace})
        matcher = compile_selector(read_selector(part, "labelSelector"))
        more = [
            Requirement(key, operator, (pod.labels[key],))
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in part.texts(field)
            if key in pod.labels
        ]
        if more and not matcher.matches_nothing:
            matcher = Matcher((*matcher.requirements, *more))
        yield Term(part.text("topologyKey"), matcher, own, compile_selector(of_namespace), weight)


class Surroundings:
    """What pods of one template find around them, kept up while pods come and go."""

    def __init__(self, own: Neighbours, pod: PodFacts) -> None:
        self._own, self._pod = own, pod
        self._needed: Counter[Pair] = Counter()
        self._refused: Counter[Pair] = Counter()
        self._refusing: Counter[Pair] = Counter()
        self._liked: Counter[Pair] = Counter()
        self._is_first_of_its_kind = bool(own.needed) and all(one.matches(pod) for one in own.needed)

    def note(self, pod: PodFacts, terms: Neighbours, labels: Mapping[str, str], step: int) -> None:
        """A pod came to a node with these labels, or went from it."""
        own = self._own
        if own.needed and all(one.matches(pod) for one in own.needed):
            _count(self._needed, own.needed, labels, step)
        _count(self._refused, [one for one in own.refused if one.matches(pod)], labels, step)
        _count(self._liked, [one for one in own.liked if one.matches(pod)], labels, step)
        if terms is NOBODY:
            return
        _count(self._refusing, [one for one in terms.refused if one.matches(self._pod)], labels, step)
        _count(self._liked, [one for one in terms.liked if one.matches(self._pod)], labels, step)
        needing = [one for one in terms.needed if one.matches(self._pod)]
        _count(self._liked, needing, labels, step * WEIGHT_OF_REQUIRED)

    def keeps_out(self, labels: Mapping[str, str]) -> str:
        """Why a node with these labels cannot have it."""
        for one in self._own.needed:
            if one.key not in labels:
                return "do not match its affinity to pods"
        if any(self._needed[one.key, labels[one.key]] <= 0 for one in self._own.needed) and (
            self._is_anywhere() or not self._is_first_of_its_kind
        ):
            return "do not match its affinity to pods"
        if any(self._refused[one.key, labels[one.key]] > 0 for one in self._own.refused if one.key in labels):
            return "have pods that it stays away from"
        if any(count > 0 and labels.get(key) == value for (key, value), count in self._refusing.items()):
            return "have pods that stay away from it"
        return ""

    def _is_anywhere(self) -> bool:
        return any(count > 0 for count in self._needed.values())

    def scores(self, nodes: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
        """By the labels of the nodes that are left; empty where nobody likes or dislikes anybody."""
        if not any(self._liked.values()):
            return {}
        by_key: dict[str, dict[str, int]] = {}
        for (key, value), weight in self._liked.items():
            by_key.setdefault(key, {})[value] = weight
        sums = {
            name: sum(weights.get(labels[key], 0) for key, weights in by_key.items() if key in labels)
            for name, labels in nodes.items()
        }
        least, most = min(sums.values()), max(sums.values())
        return {
            name: int(BEST * ((value - least) / (most - least))) if most > least else 0 for name, value in sums.items()
        }

    @property
    def is_empty(self) -> bool:
        return self._own is NOBODY and not self._refusing and not self._liked


def _count(counts: Counter[Pair], terms: Sequence[Term], labels: Mapping[str, str], step: int) -> None:
    for one in terms:
        if one.key in labels:
            counts[one.key, labels[one.key]] += step * (one.weight or 1)
