# SPDX-License-Identifier: Apache-2.0
"""All policies and the pods of this node become one table.

What only policies say is worked out once per policy, and what only one pod changes is worked out for that pod: on a
node with many of both, a change is one pod or one policy.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress

from msgspec.structs import replace

from agent.policies.manifest.objects import DIRECTIONS, Direction, PolicedPod, Policy
from agent.policies.rules.bridge_text import links_of
from agent.policies.rules.compiling import Compiled, Selection, compiled, digest
from agent.policies.rules.table import (
    FAMILIES,
    NO_TABLE,
    POLICED,
    SELVES,
    Chain,
    Family,
    NamedSet,
    Rule,
    SetKind,
    Table,
    family_of,
    refusal,
    way,
)

Mine = dict[str, Compiled]
Chains = dict[tuple[Direction, tuple[str, ...]], tuple[str, Chain]]
"""By the names of policies' rules."""
# Pods of a namespace that differ in their policies have chains of their own, with the rules of all of these.
SMALL_CHAIN = 50
MOST_LINES = {"namespace": 5_000, "node": 20_000}
"""Of chains that are not small."""


class Builder:
    """Remembers what it worked out before; the table depends on what is given alone."""

    def __init__(self) -> None:
        self._compiled: Mine = {}
        self._pods: dict[str, PolicedPod] = {}
        self._mine: dict[str, Mine] = {}
        """By uid of a pod the policies that select it."""
        self._sets: dict[str, NamedSet] = {}
        """With members; a rule whose set has none allows nothing, so the kernel gets neither."""
        self._groups: dict[str, NamedSet] = {}
        """Also without members."""
        self._chains: Chains = {}
        self.crowded: dict[str, str] = {}
        """By uid of a pod that is refused everything, why: its chain is one too many."""

    def table(self, policies: Mapping[str, Policy], pods: Iterable[PolicedPod]) -> Table:
        """Of two pods with one address the later has it."""
        changed = self._compile(policies)
        touched = self._take(sole_owners(pods), changed)
        if not policies:
            return NO_TABLE
        sets = self._with_members(touched)
        made: Chains = {}
        lines: Counter[str] = Counter()
        ways: dict[str, dict[str, str]] = {way(one, family): {} for one in DIRECTIONS for family in FAMILIES}
        selves: dict[str, str] = {}
        self.crowded = {}
        for pod in self._pods.values():
            if not pod.is_host_network:
                self._send(pod, ways, made, lines)
                selves |= {
                    f"{one} . {other}": one
                    for one in pod.addresses or ()
                    for other in pod.addresses or ()
                    if family_of(one) == family_of(other)
                }
        for family in FAMILIES:
            policed = frozenset().union(*(ways[way(one, family)] for one in DIRECTIONS))
            pairs = frozenset(pair for pair, one in selves.items() if one in policed)
            sets[f"{POLICED}{family}"] = NamedSet(SetKind.ADDRESSES, family, policed)
            sets[f"{SELVES}{family}"] = NamedSet(SetKind.PAIRS, family, pairs)
        self._chains = made
        policed = sets[f"{POLICED}4"].elements | sets[f"{POLICED}6"].elements
        is_blunt = any(not pod.links and not policed.isdisjoint(pod.addresses or ()) for pod in self._pods.values())
        chains = {name: one for name, one in made.values() if one.rules}
        return Table(chains, sets, ways, links_of(self._pods.values(), ways), is_blunt)

    def policies_of(self, uid: str) -> Mine:
        """Those that select a pod, of the last table."""
        return self._mine.get(uid, {})

    def policy(self, key: str) -> Compiled | None:
        return self._compiled.get(key)

    def _compile(self, policies: Mapping[str, Policy]) -> dict[str, Compiled | None]:
        """What is another policy now than at the last table, or none."""
        before, now = self._compiled, {}
        for key, one in sorted(policies.items()):
            known = before.get(key)
            is_same = known is not None and (known.policy is one or known.policy == one)
            now[key] = known if known is not None and is_same else compiled(one)
        self._compiled = now
        return {key: now.get(key) for key in before.keys() | now.keys() if before.get(key) is not now.get(key)}

    def _take(self, pods: Iterable[PolicedPod], changed: Mapping[str, Compiled | None]) -> list[PolicedPod]:
        """Those that are new, gone, or other than at the last table: as they were, and as they are."""
        before, touched = self._pods, []
        now: dict[str, PolicedPod] = {}
        for pod in pods:
            known = before.get(pod.uid)
            if known == pod:
                now[pod.uid] = known
                kept = {key: one for key, one in self._mine[pod.uid].items() if key not in changed}
                more = _selecting(pod, changed)
                self._mine[pod.uid] = dict(sorted((kept | more).items())) if more else kept
            else:
                touched += [pod] if known is None else [known, pod]
                now[pod.uid] = pod
                self._mine[pod.uid] = _selecting(pod, self._compiled)
        for uid in before.keys() - now.keys():
            touched.append(before[uid])
            del self._mine[uid]
        self._pods = now
        return touched

    def _send(self, pod: PolicedPod, ways: dict[str, dict[str, str]], made: Chains, lines: Counter[str]) -> None:
        for direction in DIRECTIONS:
            limiting = [one for one in self._mine[pod.uid].values() if direction in one.limited]
            is_limited = bool(limiting) or self._is_unknown(pod)
            for address in pod.addresses or ():
                family = family_of(address)
                if is_limited:
                    chain = self._chain(pod, limiting, (direction, family), made, lines)
                    ways[way(direction, family)][address] = chain

    def _is_unknown(self, pod: PolicedPod) -> bool:
        """Nobody can tell any more whether policies of its namespace select it; it is refused everything."""
        return pod.labels is None and any(one.policy.namespace == pod.namespace for one in self._compiled.values())

    def _chain(
        self, pod: PolicedPod, limiting: list[Compiled], way_of: tuple[Direction, Family], made: Chains,
        lines: Counter[str],
    ) -> str:  # fmt: skip
        """Where packets of a pod go; pods with the same policies share it."""
        direction, family = way_of
        names = tuple(one.names[way_of] for one in limiting if way_of in one.names)
        known = made.get((direction, names)) or self._chains.get((direction, names))
        if known is None:
            allowed: dict[Rule, str] = {}
            for one in limiting:
                allowed |= {rule: one.policy.key for rule in one.rules.get(way_of, ()) if rule not in allowed}
            is_there = [all(name in self._sets for name in (one.peers, one.named) if name) for one in allowed]
            rules = tuple(compress(allowed.items(), is_there))
            name = f"pod_{digest(direction, names, is_there)}" if rules else refusal(direction)
            known = (name, Chain(family, direction, rules))
        count = len(known[1].rules)
        if count > SMALL_CHAIN and (direction, names) not in made:
            for scope, whose in (("namespace", pod.namespace), ("node", "")):
                if lines[whose] + count > MOST_LINES[scope]:
                    self.crowded[pod.uid] = (
                        f"its policies have {count} rules in the kernel, beside {lines[whose]} of other pods of its "
                        f"{scope}; at most {MOST_LINES[scope]} are taken"
                    )
                    return refusal(direction)
            lines.update({pod.namespace: count, "": count})
        made[direction, names] = known
        return known[0]

    def _with_members(self, touched: list[PolicedPod]) -> dict[str, NamedSet]:
        """All sets that have any. A first member, or a last one that goes, changes the chains that look for it."""
        self._groups = dict(self._members(touched))
        blocks = {name: one for each in self._compiled.values() for name, one in each.blocks.items()}
        sets = {name: one for name, one in (self._groups | blocks | self._named_ports()).items() if one.elements}
        if sets.keys() != self._sets.keys():
            self._chains = {}
        self._sets = sets
        return dict(sets)

    def _members(self, touched: list[PolicedPod]) -> Iterator[tuple[str, NamedSet]]:
        """A set that no touched pod is or was in stays the same value."""
        for name, (family, group) in {k: v for one in self._compiled.values() for k, v in one.groups.items()}.items():
            known = self._groups.get(name)
            if known is None or any(_is_in(group, one) for one in touched):
                members = (pod for pod in self._pods.values() if _is_in(group, pod))
                found = (one for pod in members for one in pod.addresses or () if family_of(one) == family)
                known = NamedSet(SetKind.ADDRESSES, family, frozenset(found))
            yield name, known

    def _named_ports(self) -> dict[str, NamedSet]:
        """One look at the pods' ports, however many names policies have."""
        names = {ends: name for one in self._compiled.values() for name, ends in one.ports.items()}
        found: dict[str, set[str]] = {}
        for pod in self._pods.values() if names else ():
            for called, of, number in pod.ports:
                for address in pod.addresses or ():
                    if name := names.get((family_of(address), called, of)):
                        found.setdefault(name, set()).add(f"{address} . {of.lower()} . {number}")
        return {
            name: NamedSet(SetKind.PORTS, ends[0], frozenset(found[name]))
            for ends, name in names.items()
            if name in found
        }


def sole_owners(pods: Iterable[PolicedPod]) -> list[PolicedPod]:
    """Who had an address before another pod got it has no say any more, neither for itself nor as a peer."""
    taken: set[str] = set()
    found = []
    for pod in reversed(list(pods)):
        own = pod.addresses or ()
        if not pod.is_host_network and not taken.isdisjoint(own):
            found.append(replace(pod, addresses=tuple(one for one in own if one not in taken)))
        else:
            found.append(pod)
        taken.update(() if pod.is_host_network else own)
    return found[::-1]


def _is_in(group: tuple[Selection, ...], pod: PolicedPod) -> bool:
    return any(one.selects(pod) for one in group)


def _selecting(pod: PolicedPod, policies: Mapping[str, Compiled | None]) -> Mine:
    if pod.is_host_network:
        return {}
    return {
        key: one
        for key, one in policies.items()
        if one is not None and one.policy.namespace == pod.namespace and one.selected.selects(pod)
    }
