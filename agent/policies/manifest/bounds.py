# SPDX-License-Identifier: Apache-2.0
"""How much one policy, one namespace and a node may ask of the kernel, so that no author's policies hold up others'.

What has been in force stays where a newcomer does not fit beside it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec.json import encode

from agent.model.finding import Finding
from agent.policies.manifest.objects import DIRECTIONS, KIND, Policy

Placed = Mapping[str, tuple[str, Policy]]
"""Policies by NAMESPACE/NAME, each with its file and line."""
LINES = "rules with their kinds of peers and ports"
"""About as many the kernel gets for each family, and looks through one after the other."""
SELECTIONS = "different selections of peers"
"""Sets of addresses in the kernel."""
# Measured: 2 000 policies at these limits and the worst of one namespace are in the kernel within 2 s (nft 1.0.6).
LIMITS: Mapping[str, tuple[int, int, int]] = {
    LINES: (500, 1_000, 20_000),
    SELECTIONS: (100, 200, 20_000),
    "peers": (5_000, 5_000, 50_000),
    "ports": (5_000, 5_000, 50_000),
    "networks with their exceptions": (20_000, 20_000, 100_000),
    "ports by name": (100, 200, 5_000),
}
"""Of a policy, of the policies of a namespace, and of all on a node."""


def size_of(policy: Policy) -> Counter[str]:
    size: Counter[str] = Counter()
    names, selections = list(LIMITS), set[bytes]()
    for rule in (one for direction in DIRECTIONS for one in policy.rules(direction)):
        blocks = [one.ip_block for one in rule.peers if one.ip_block is not None]
        named = {(one.protocol, one.port) for one in rule.ports if isinstance(one.port, str)}
        numbered = {one.protocol for one in rule.ports if not isinstance(one.port, str)}
        selectors = [one for one in rule.peers if one.ip_block is None]
        kinds = bool(blocks) + bool(selectors)
        selections.add(encode(selectors))
        counts = (
            max(kinds, 1) * max(len(named) + len(numbered), 1), 0, len(rule.peers), len(rule.ports),
            sum(1 + len(one.except_) for one in blocks), len(named),
        )  # fmt: skip
        size.update(dict(zip(names, counts, strict=True)))
    size[SELECTIONS] = len(selections - {b"[]"})
    return size


def size_faults(policy: Policy) -> Iterator[tuple[str, str]]:
    """Path and text of each."""
    for name, count in size_of(policy).items():
        if count > LIMITS[name][0]:
            yield "spec", f"has {count} {name}; at most {LIMITS[name][0]} are taken: share them out to several policies"


def beyond_bounds(chosen: Placed, before: Mapping[str, Policy]) -> list[tuple[str, Finding]]:
    """Those that do not fit: newcomers, and newer versions, whose version before stays in force."""
    taken: dict[str, Policy] = {}
    sums: dict[str, Counter[str]] = {}
    refused: list[tuple[str, Finding]] = []
    kept = {key: (where, before[key]) for key, (where, _) in chosen.items() if key in before}
    changed = [(key, placed) for key, placed in chosen.items() if placed != kept.get(key)]
    grows = {key: key not in kept or size_of(new).total() > size_of(kept[key][1]).total() for key, (_, new) in changed}
    # What gets smaller makes room, and what is new comes last.
    changed.sort(key=lambda placed: (placed[0] not in kept, grows[placed[0]]))
    for key, (where, policy) in [*kept.items(), *changed]:
        size = size_of(policy)
        size.subtract(size_of(taken[key]) if key in taken else {})
        fault = _excess(sums, policy.namespace, size)
        if fault and key not in kept:
            refused.append((key, Finding(where, "spec", f"{KIND} {key} is not in force: {fault}")))
        elif fault and key in taken:
            refused.append((key, Finding(where, "spec", f"{KIND} {key} stays in its version before this: {fault}")))
        else:
            taken[key] = policy
            for scope in (policy.namespace, ""):
                sums.setdefault(scope, Counter()).update(size)
    return refused


def _excess(sums: Mapping[str, Counter[str]], namespace: str, size: Counter[str]) -> str:
    for number, scope, words in ((1, namespace, f"namespace {namespace}"), (2, "", "the node")):
        for name, count in size.items():
            total = sums.get(scope, Counter())[name] + count
            if count > 0 and total > LIMITS[name][number]:
                return f"with it the policies of {words} have {total} {name}; at most {LIMITS[name][number]} are taken"
    return ""
