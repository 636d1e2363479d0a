# SPDX-License-Identifier: Apache-2.0
"""All policies and the pods of this node become one table.

What only policies say is worked out once per policy, and what only one pod changes is worked out for that pod: on a
node with many of both, a change is one pod or one policy.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from agent.policies.manifest.objects import DIRECTIONS, Direction, PolicedPod, Policy
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


class Builder:
    """Remembers what it worked out before; the table depends on what is given alone."""

    def __init__(self) -> None:
        self._compiled: Mine = {}
        self._pods: dict[str, PolicedPod] = {}
        self._mine: dict[str, Mine] = {}
        """By uid of a pod the policies that select it."""
        self._sets: dict[str, NamedSet] = {}
        self._chains: dict[tuple[Direction, tuple[str, ...]], tuple[str, Chain]] = {}

    def table(self, policies: Mapping[str, Policy], pods: Iterable[PolicedPod]) -> Table:
        """Of two pods with one address the later has it."""
        changed = self._compile(policies)
        touched = self._take(sole_owners(pods), changed)
        if not policies:
            return NO_TABLE
        chains: dict[str, Chain] = {}
        ways: dict[str, dict[str, str]] = {way(one, family): {} for one in DIRECTIONS for family in FAMILIES}
        selves: dict[str, str] = {}
        for pod in self._pods.values():
            if not pod.is_host_network:
                self._send(pod, ways, chains)
                selves |= {
                    f"{one} . {other}": one
                    for one in pod.addresses or ()
                    for other in pod.addresses or ()
                    if family_of(one) == family_of(other)
                }
        sets = self._sets = dict(self._members(touched))
        sets |= {name: blocks for one in self._compiled.values() for name, blocks in one.blocks.items()}
        for family in FAMILIES:
            policed = frozenset().union(*(ways[way(one, family)] for one in DIRECTIONS))
            pairs = frozenset(pair for pair, one in selves.items() if one in policed)
            sets[f"{POLICED}{family}"] = NamedSet(SetKind.ADDRESSES, family, policed)
            sets[f"{SELVES}{family}"] = NamedSet(SetKind.PAIRS, family, pairs)
        self._chains = {key: one for key, one in self._chains.items() if one[0] in chains}
        return Table(chains, sets, ways)

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

    def _send(self, pod: PolicedPod, ways: dict[str, dict[str, str]], chains: dict[str, Chain]) -> None:
        for direction in DIRECTIONS:
            limiting = [one for one in self._mine[pod.uid].values() if direction in one.limited]
            is_limited = bool(limiting) or self._is_unknown(pod)
            for address in pod.addresses or ():
                family = family_of(address)
                if is_limited:
                    chain = self._chain(chains, limiting, direction, family)
                    ways[way(direction, family)][address] = chain

    def _is_unknown(self, pod: PolicedPod) -> bool:
        """Nobody can tell any more whether policies of its namespace select it; it is refused everything."""
        return pod.labels is None and any(one.policy.namespace == pod.namespace for one in self._compiled.values())

    def _chain(self, chains: dict[str, Chain], limiting: list[Compiled], direction: Direction, family: Family) -> str:
        """Where packets of a pod go; pods with the same policies share it."""
        way_of = direction, family
        names = tuple(one.names[way_of] for one in limiting if way_of in one.names)
        if not names:
            return refusal(direction)
        known = self._chains.get((direction, names))
        if known is None:
            allowed: dict[Rule, str] = {}
            for one in limiting:
                allowed |= {rule: one.policy.key for rule in one.rules.get(way_of, ()) if rule not in allowed}
            known = (f"pod_{digest(direction, names)}", Chain(family, direction, tuple(allowed.items())))
            self._chains[direction, names] = known
        chains[known[0]] = known[1]
        return known[0]

    def _members(self, touched: list[PolicedPod]) -> Iterator[tuple[str, NamedSet]]:
        """A set that no touched pod is or was in stays the same value."""
        for name, (family, group) in {k: v for one in self._compiled.values() for k, v in one.groups.items()}.items():
            known = self._sets.get(name)
            if known is None or any(_is_in(group, one) for one in touched):
                members = (pod for pod in self._pods.values() if _is_in(group, pod))
                found = (one for pod in members for one in pod.addresses or () if family_of(one) == family)
                known = NamedSet(SetKind.ADDRESSES, family, frozenset(found))
            yield name, known
        for name, (family, port, protocol) in {
            k: v for one in self._compiled.values() for k, v in one.ports.items()
        }.items():
            elements = {
                f"{address} . {protocol.lower()} . {number}"
                for pod in self._pods.values()
                for called, of, number in pod.ports
                if (called, of) == (port, protocol)
                for address in pod.addresses or ()
                if family_of(address) == family
            }
            yield name, NamedSet(SetKind.PORTS, family, frozenset(elements))


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
