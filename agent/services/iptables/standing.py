# SPDX-License-Identifier: Apache-2.0
"""Keeps kepd's rules that a reading found but no plan of this process knows, while others are written.

They stand behind all that is wanted, so that they decide only what nothing else does.
Never: keeps rules of other programs, which nothing of ours touches.
"""

from collections.abc import Collection

from agent.model.services.iptables_rules import Chains, Content, RulesChange, Table, as_saved, is_ours
from agent.services.iptables.frame import last_rules
from agent.services.iptables.rendering import RuleSettings

_OF_SERVICES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-")
_SHARED: dict[Table, tuple[str, ...]] = {
    "filter": ("KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"),
    "nat": ("KUBE-SERVICES", "KUBE-NODEPORTS"),
}


def reached_from(names: Collection[str], have: Content) -> frozenset[str]:
    """These chains of Services, as far as they are there, and all those that they lead to."""
    nat = have.get("nat", {})
    reached: set[str] = set()
    todo = [name for name in names if name in nat]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [one for one in map(_target, nat[name]) if one in nat and one.startswith(_OF_SERVICES)]
    return frozenset(reached)


def kept_of(want: Content, have: Content, chains: Collection[str] | None = None) -> Content:
    """What the reading has of these chains of Services beyond what is wanted, and the rules to them. None: of all."""
    found, wanted = have.get("nat", {}), want.get("nat", {})
    kept = {name for name in found if name.startswith(_OF_SERVICES) and (chains is None or name in chains)}
    content: Content = {"nat": {name: found[name] for name in kept if name not in wanted}}
    for table, names in _SHARED.items():
        for name in names:
            rules = set(map(as_saved, want.get(table, {}).get(name, ())))
            had = [rule for rule in have.get(table, {}).get(name, ()) if rule not in rules]
            # What refuses or accepts by itself lets no packet through that would not have come through before.
            extra = tuple(rule for rule in had if _target(rule) in kept or not is_ours(_target(rule)))
            if extra:
                content.setdefault(table, {})[name] = extra
    return content


def beside(want: Content, kept: Content, settings: RuleSettings, *, only_rules: bool = False) -> Content:
    """Both: rules that are kept stand behind those that are wanted."""
    content: Content = {table: dict(wanted) for table, wanted in want.items()}
    for table, chains in kept.items():
        for name, extra in chains.items():
            wanted = content.get(table, {}).get(name)
            if name not in _SHARED.get(table, ()):
                if wanted is None and not only_rules:
                    content.setdefault(table, {})[name] = extra
            elif wanted is not None:
                last = last_rules(settings) if (table, name) == ("nat", "KUBE-SERVICES") else ()
                content[table][name] = (*wanted[: len(wanted) - len(last)], *extra, *last)
    return content


def restoring(now: Content, before: Content) -> RulesChange:
    """Back to what an earlier reading had, after a change of which some tables or parts were taken."""
    chains: dict[Table, Chains] = {}
    gone: dict[Table, list[str]] = {}
    for table, found in now.items():
        had = before.get(table, {})
        differ = {name: had[name] for name in had if is_ours(name) and found.get(name) != had[name]}
        fresh = [name for name in found if is_ours(name) and name not in had]
        if differ:
            chains[table] = differ
        if fresh:
            gone[table] = fresh
    return RulesChange(chains, gone=gone)


def _target(rule: str) -> str:
    return rule.rpartition("-j ")[2].split(" ")[0]
