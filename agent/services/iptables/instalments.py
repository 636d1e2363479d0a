# SPDX-License-Identifier: Apache-2.0
"""Splits a large change into several restores, none of which leaves a Service half programmed.

The safe order: whole service ports first, which no rule reaches yet, then the shared chains and jumps, and what goes
away last, from where traffic enters to where it ends.

Why at all: the nft variant takes time with the square of the chains in one input, though not of those that are there:
1 000 Services of 10 endpoints take it 17 s at once and 1 s in eleven parts. A chain and those that it leads to are in
one part, as the program is slow to look for chains that are not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agent.model.services.iptables_rules import RulesChange

_MARKS = "KUBE-MARK-MASQ"
_KINDS = (("KUBE-SEP-",), ("KUBE-SVC-", "KUBE-SVL-"), ("KUBE-EXT-",), ("KUBE-FW-",))
"""Each leads only to those before it. The first: endpoints."""


def instalments(change: RulesChange, most: int) -> Iterator[RulesChange]:
    """To be applied one after the other. `most` chains at once; 0: as many as there are."""
    nat, gone = change.chains.get("nat", {}), change.gone.get("nat", ())
    if not most or len(nat) + len(gone) <= most:
        yield change
        return
    own = {name for name in (*nat, *gone) if name.startswith(tuple(one for kind in _KINDS for one in kind))}
    shared = {name: tuple(rules) for name, rules in nat.items() if name not in own}
    if _MARKS in shared:
        yield RulesChange({"nat": {_MARKS: shared[_MARKS]}})
    for names in _together(_groups({name: nat[name] for name in nat if name in own}), most):
        yield RulesChange({"nat": {name: tuple(nat[name]) for name in names}})
    entries = [name for name in gone if name not in own and name != _MARKS]
    chains = {**change.chains, "nat": shared} if "nat" in change.chains else change.chains
    yield replace(change, chains=chains, gone={**change.gone, "nat": entries})
    for kind in reversed(_KINDS):
        stale = [name for name in gone if name.startswith(kind)]
        for at in range(0, len(stale), most):
            yield RulesChange(gone={"nat": stale[at : at + most]})
    if _MARKS in gone:
        yield RulesChange(gone={"nat": [_MARKS]})


def _groups(chains: Mapping[str, Sequence[str]]) -> Iterable[list[str]]:
    """The chains of each service port with those of its endpoints."""
    groups: dict[str, list[str]] = {}
    placed: set[str] = set()
    for name, rules in chains.items():
        if name.startswith(_KINDS[0]):
            continue
        group = groups.setdefault(name.rpartition("-")[2], [])
        targets = (rule.rpartition("-j ")[2] for rule in rules)
        found = [one for one in dict.fromkeys(targets) if one in chains and one.startswith(_KINDS[0])]
        group += [name, *(one for one in found if one not in placed)]
        placed.update(found)
    alone = [[name] for name in chains if name.startswith(_KINDS[0]) and name not in placed]
    return (*groups.values(), *alone)


def _together(groups: Iterable[list[str]], most: int) -> Iterator[list[str]]:
    part: list[str] = []
    for group in groups:
        if part and len(part) + len(group) > most:
            yield part
            part = []
        part += group
    if part:
        yield part
