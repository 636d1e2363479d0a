# SPDX-License-Identifier: Apache-2.0
"""Changes of a cluster as people write them, and the cluster after one: who goes, who waits for a node, what is edited.

Pure: a change takes a cluster and gives another, with pods that have no node yet; scheduling.py gives them one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from agent.model.finding import suggestion
from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL, Node
from agent.model.selector import label_value_faults
from agent.topology.hints.mode import DISTRIBUTIONS, MODE_ANNOTATION
from agent.topology.manifest.facts import PodFacts
from agent.topology.manifest.pods import DEFAULT_NAMESPACE
from agent.topology.spread.placement import stand
from kepd_rehearsal.plan.budgets import held, share
from kepd_rehearsal.plan.cluster import HASH_LABEL, MOST_REPLICAS, Cluster, Crew, Host, Member, Traffic, part

Verb = Literal["scale", "hpa", "drain", "lose-node", "lose-zone", "add-node", "roll", "traffic", "file"]
SCALED = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController")
ROLLED = ("Deployment", "StatefulSet", "DaemonSet")
OF_A_STATE = "node.kubernetes.io/"
POLICIES = ("Cluster", "Local", "Auto", "None", *DISTRIBUTIONS)
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class BadChange(ValueError):
    """What is wrong, and what would be right."""


class Change(msgspec.Struct, frozen=True):
    """`what` is a node, a zone, NAMESPACE/NAME of a workload or Service; `least` and `most` are numbers of pods. Of a
    roll `value` is the image, with the container's name and = before it where there are several."""

    verb: Verb
    what: str
    least: int = 0
    most: int = 0
    value: str = ""

    @property
    def text(self) -> str:
        match self.verb:
            case "scale":
                return f"scale {self.what} to {self.least}"
            case "hpa":
                return f"scale {self.what} to any of {self.least} to {self.most}"
            case "traffic":
                return f"give {self.what} {self.value}"
            case "add-node":
                return f"add a node like {self.what}" + (f" in {self.value}" if self.value else "")
            case "roll" if self.value:
                return f"roll {self.what} to {self.value}"
            case "file":
                return self.what
        return f"{self.verb.replace('-', ' ')} {self.what}"


def parse_scale(text: str) -> Change:
    what, _, count = text.partition("=")
    return Change("scale", _named(what), _number(count, text), _number(count, text))


def parse_hpa(text: str) -> Change:
    what, _, span = text.partition("=")
    least, dots, most = span.partition("..")
    if not dots:
        raise BadChange(f"{text!r} has no range; expected NAMESPACE/NAME=MIN..MAX")
    change = Change("hpa", _named(what), _number(least, text), _number(most, text))
    if change.least > change.most:
        raise BadChange(f"{text!r}: {change.least} is more than {change.most}; expected MIN..MAX")
    return change


def parse_add_node(text: str) -> Change:
    like, _, rest = text.partition(",")
    name, _, node = like.partition("=")
    key, _, zone = rest.partition("=")
    if name != "LIKE" or not node or (rest and (key != "zone" or not zone)):
        raise BadChange(f"{text!r} is no node to add; expected LIKE=NODE or LIKE=NODE,zone=ZONE")
    for right in label_value_faults(zone):
        raise BadChange(f"{text!r}: {zone!r} is no zone; expected {right}")
    return Change("add-node", node, value=zone)


def parse_traffic(text: str) -> Change:
    what, _, policy = text.partition("=")
    if policy not in POLICIES:
        hint = suggestion(policy, POLICIES)
        raise BadChange(f"{text!r}: {policy!r} is no policy; expected one of {', '.join(POLICIES)}{hint}")
    return Change("traffic", _named(what), value=policy)


def _named(text: str) -> str:
    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace):
        raise BadChange(f"{text!r} is no name; expected NAMESPACE/NAME")
    return f"{namespace or DEFAULT_NAMESPACE}/{name}"


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > MOST_REPLICAS:
        raise BadChange(f"{whole!r}: {text!r} is no number of pods; expected 0 to {MOST_REPLICAS}")
    return int(text)


class Changed(msgspec.Struct, frozen=True):
    """`waiting` have no node yet; `gone` are pods that end, `lost` those of them that nobody makes anew."""

    cluster: Cluster
    waiting: tuple[Member, ...] = ()
    gone: tuple[Member, ...] = ()
    lost: tuple[Member, ...] = ()


def crew_of(cluster: Cluster, what: str, kinds: Sequence[str] = SCALED) -> Crew:
    namespace, _, name = what.partition("/")
    for kind in kinds:
        if (crew := cluster.crews.get((kind, namespace, name))) is not None:
            return crew
    other = next((key[0] for key in cluster.crews if key[1:] == (namespace, name)), None)
    if other is not None:
        raise BadChange(f"{what} is a {other}; expected a {', '.join(kinds[:-1])} or {kinds[-1]}")
    known = sorted(f"{key[1]}/{key[2]}" for key in cluster.crews if key[0] in kinds)
    raise BadChange(f"no workload {what} is there{suggestion(what, known)}")


def applied(cluster: Cluster, change: Change) -> Changed:
    """Raises BadChange for what is not there. Rolling is a sequence, and rehearse.py walks through it."""
    steps: Mapping[str, Callable[[Cluster, Change], Changed]] = {
        "scale": _scaled, "drain": _drained, "lose-node": _without_node, "lose-zone": _without_zone,
        "add-node": _with_node, "traffic": _with_policy,
    }  # fmt: skip
    return steps[change.verb](cluster, change)


def _scaled(cluster: Cluster, change: Change) -> Changed:
    crew = crew_of(cluster, change.what)
    own = active(cluster, crew)
    crews = {**cluster.crews, crew.key: replace(crew, replicas=change.least)}
    count = change.least
    if len({one.facts.labels.get(HASH_LABEL) for one in own}) > 1:
        # In the middle of a rolling change both old and new ones are scaled, and more may be there.
        count += share(crew.surge, change.least, is_up=True)
    spare = first_to_go(own, crew)[: max(len(own) - count, 0)]
    leaving = {one.key for one in spare}
    members = tuple(one for one in cluster.members if one.key not in leaving) if leaving else cluster.members
    made = made_for(crew, count - len(own), {one.key for one in own})
    return Changed(replace(cluster, members=members, crews=crews), made, tuple(spare))


def active(cluster: Cluster, crew: Crew) -> list[Member]:
    """Its pods, but for those that end already: their controller counts on them no more."""
    return [one for one in cluster.members if one.workload == crew.key and not one.facts.is_terminating]


def first_to_go(own: Sequence[Member], crew: Crew) -> list[Member]:
    """Of a StatefulSet the highest ordinal; else without a node, not ready, cheap to delete, where most of them are
    together, young."""
    if crew.facts.kind == "StatefulSet":
        return sorted(own, key=lambda one: (len(one.facts.name), one.facts.name), reverse=True)
    together = Counter(one.node for one in own)
    young_first = sorted(sorted(own, key=lambda one: one.key), key=_made_at, reverse=True)
    return sorted(young_first, key=lambda one: (bool(one.node), one.is_ready, _deletion_cost(one), -together[one.node]))


def _made_at(one: Member) -> str:
    return str(part(one.made, "metadata").get("creationTimestamp", ""))


def _deletion_cost(one: Member) -> int:
    written = str(part(one.made, "metadata", "annotations").get(DELETION_COST, ""))
    return int(written) if re.fullmatch(r"-?[0-9]{1,10}", written) else 0


def made_for(crew: Crew, count: int, taken: Iterable[str], stem: str = "new") -> tuple[Member, ...]:
    """Pods that it makes now, by names that nobody has."""
    namespace, name = crew.key[1], crew.key[2]
    used = taken if isinstance(taken, set) else set(taken)
    made: list[Member] = []
    place = crew.first_ordinal if crew.facts.kind == "StatefulSet" else 0
    while len(made) < count:
        called = f"{name}-{place}" if crew.facts.kind == "StatefulSet" else f"{name}-{stem}-{place}"
        place += 1
        if f"{namespace}/{called}" not in used:
            facts = replace(crew.facts.template, name=called, node_name=None, owner=(crew.facts.kind, name))
            made.append(member_of(crew, facts))
    return tuple(made)


def member_of(crew: Crew, facts: PodFacts) -> Member:
    made = Member(facts, crew.asks, is_ready=False, workload=crew.key, grace_s=crew.grace_s)
    return replace(made, images=crew.images, policies=crew.policies, made=crew.made, neighbours=crew.neighbours)


def _host(cluster: Cluster, name: str) -> Host:
    found = next((one for one in cluster.hosts if one.name == name), None)
    if found is None:
        raise BadChange(f"no node {name} is there{suggestion(name, [one.name for one in cluster.hosts])}")
    return found


def _drained(cluster: Cluster, change: Change) -> Changed:
    """Pods that a budget never lets go stay, so that the drain does not end."""
    host = _host(cluster, change.what)
    cordoned = replace(host, node=replace(host.node, is_unschedulable=True))
    hosts = tuple(cordoned if one is host else one for one in cluster.hosts)
    leaving = [one for one in cluster.members if one.node == host.name and not is_of_the_node(one)]
    kept = {name for one in held(cluster, leaving) if not one.allowed for name in one.pods}
    return _replaced(replace(cluster, hosts=hosts), [one for one in leaving if one.key not in kept])


def is_of_the_node(one: Member) -> bool:
    """A drain leaves it alone."""
    return one.is_mirror or (one.workload is not None and one.workload[0] == "DaemonSet")


def _without(cluster: Cluster, names: set[str]) -> Changed:
    hosts = tuple(one for one in cluster.hosts if one.name not in names)
    leaving = [one for one in cluster.members if one.node in names]
    return _replaced(replace(cluster, hosts=hosts), leaving)


def _without_node(cluster: Cluster, change: Change) -> Changed:
    return _without(cluster, {_host(cluster, change.what).name})


def _without_zone(cluster: Cluster, change: Change) -> Changed:
    names = {one.name for one in cluster.hosts if one.node.zone == change.what}
    if not names:
        known = sorted({one.node.zone for one in cluster.hosts} - {""})
        raise BadChange(f"no node is in zone {change.what}; there are {', '.join(known) or 'no zones'}")
    return _without(cluster, names)


def _with_node(cluster: Cluster, change: Change) -> Changed:
    like = _host(cluster, change.what)
    names = {one.name for one in cluster.hosts}
    name = next(
        f"{like.name}-like-{place}" for place in range(1, len(names) + 2) if f"{like.name}-like-{place}" not in names
    )
    zone = {ZONE_LABEL: change.value} if change.value else {}
    labels = {**like.node.labels, HOSTNAME_LABEL: name, **zone}
    taints = tuple(one for one in like.node.taints if not one.key.startswith(OF_A_STATE))
    node = replace(like.node, name=name, labels=labels, taints=taints, is_unschedulable=False, ready="True")
    added = replace(like, node=node, listed=())
    made = [daemon_on(crew, node) for crew in cluster.crews.values() if takes_daemon(crew, node)]
    return Changed(replace(cluster, hosts=(*cluster.hosts, added), members=(*cluster.members, *made)))


def takes_daemon(crew: Crew, node: Node) -> bool:
    """A DaemonSet's pods are given tolerations for all that a node's state brings."""
    if crew.facts.kind != "DaemonSet":
        return False
    taints = tuple(one for one in node.taints if not one.key.startswith(OF_A_STATE))
    standing = stand(crew.facts.template, replace(node, taints=taints))
    return standing.matches_affinity and standing.taint is None


def daemon_on(crew: Crew, node: Node) -> Member:
    name = f"{crew.key[2]}-{node.name}"
    facts = replace(crew.facts.template, name=name, node_name=node.name, owner=crew.key[::2])
    return replace(member_of(crew, facts), is_ready=True)


def _with_policy(cluster: Cluster, change: Change) -> Changed:
    found = next((one for one in cluster.traffic if one.key == change.what), None)
    if found is None:
        known = [one.key for one in cluster.traffic]
        raise BadChange(f"no Service {change.what} is there{suggestion(change.what, known)}")
    changed = _policed(found, change.value)
    return Changed(replace(cluster, traffic=tuple(changed if one is found else one for one in cluster.traffic)))


def _policed(traffic: Traffic, policy: str) -> Traffic:
    service = traffic.service
    if policy in ("Cluster", "Local"):
        return replace(traffic, is_internal_local=policy == "Local", is_external_local=policy == "Local")
    annotations = {name: value for name, value in service.annotations.items() if "topology-" not in name}
    if policy == "Auto":
        annotations[MODE_ANNOTATION] = "Auto"
    distribution = policy if policy in DISTRIBUTIONS else None
    return replace(traffic, service=replace(service, annotations=annotations, traffic_distribution=distribution))


def _replaced(cluster: Cluster, leaving: Sequence[Member]) -> Changed:
    """Others in the place of those that go, made by their workloads."""
    gone = {one.key for one in leaving}
    left = tuple(one for one in cluster.members if one.key not in gone)
    made: list[Member] = []
    lost = []
    taken = {one.key for one in cluster.members}
    for key in dict.fromkeys(one.workload for one in leaving):
        own = [one for one in leaving if one.workload == key and not one.facts.is_terminating]
        crew = cluster.crews.get(key) if key is not None else None
        if crew is None:
            lost += own
        elif crew.facts.kind == "StatefulSet":
            made += [replace(one, facts=replace(one.facts, node_name=None), is_ready=False) for one in own]
        elif crew.facts.kind != "DaemonSet":
            made += made_for(crew, len(own), taken)
    return Changed(replace(cluster, members=left), tuple(made), tuple(leaving), tuple(lost))
