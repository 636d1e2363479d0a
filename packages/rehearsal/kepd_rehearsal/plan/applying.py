# SPDX-License-Identifier: Apache-2.0
"""Edited manifests as an apply carries them out upon a cluster: only what they name changes, and only where they say
something else. Workloads come to their numbers and, where their templates changed, make their pods anew.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from agent.model.quantity import QuantityError, parse_quantity
from kepd_rehearsal.plan.changes import (
    ROLLED,
    SCALED,
    Change,
    Changed,
    applied,
    daemon_on,
    takes_daemon,
)
from kepd_rehearsal.plan.cluster import HASH_LABEL, Cluster, Crew, Host, Key, Member, hashed
from kepd_rehearsal.plan.rehearse import Rehearsal, compared, put, then
from kepd_rehearsal.plan.rolling import Stage, rolled


def rehearse_files(before: Cluster, edited: Cluster, sources: Sequence[object]) -> tuple[Rehearsal, Cluster]:
    """`edited`: what the manifests alone have."""
    crews = {key: _like_now(crew, before.crews.get(key)) for key, crew in edited.crews.items()}
    known = replace(
        before,
        crews={**before.crews, **crews},
        traffic=tuple({one.key: one for one in (*before.traffic, *edited.traffic)}.values()),
        hosts=tuple({one.name: one for one in (*before.hosts, *edited.hosts)}.values()),
        guards=tuple({(one.namespace, one.name): one for one in (*before.guards, *edited.guards)}.values()),
        slices={**before.slices, **edited.slices},
        unhinted=before.unhinted | edited.unhinted,
        written={key: one for key, one in before.written.items() if key not in edited.slices},
    )
    stage = _counted(before, known, crews, edited)
    for key, crew in crews.items():
        old = before.crews.get(key)
        if old is not None and key[0] in ROLLED and not crew.is_paused and not says_the_same(crew.made, old.made):
            stage = then(stage, rolled(stage.after, crew))
    return compared(before, Change("file", f"apply {', '.join(map(str, sources))}"), stage)


def _like_now(crew: Crew, old: Crew | None) -> Crew:
    """With the number of pods that it has, where the manifest says none, and told apart as they are now."""
    if old is None:
        return crew
    if not crew.counts_itself:
        crew = replace(crew, replicas=old.replicas)
    value = old.facts.template.labels.get(HASH_LABEL)
    return hashed(crew, value) if value is not None and HASH_LABEL not in crew.facts.template.labels else crew


def _counted(before: Cluster, known: Cluster, crews: Mapping[Key, Crew], edited: Cluster) -> Stage:
    there = {one.key for one in before.members}
    waiting = [one for one in edited.members if one.key not in there and one.workload is None]
    gone: list[Member] = []
    for key, crew in crews.items():
        if key[0] in SCALED:
            changed = applied(known, Change("scale", f"{key[1]}/{key[2]}", crew.replicas, crew.replicas))
            gone += changed.gone
            waiting += changed.waiting
    leaving = {one.key for one in gone}
    left = [one for one in before.members if one.key not in leaving]
    left += _daemons(before, known, crews, edited.hosts, there)
    after, placed = put(Changed(replace(known, members=tuple(left)), tuple(waiting)))
    return Stage(after, tuple(left), (), placed, tuple(gone))


def _daemons(
    before: Cluster, known: Cluster, crews: Mapping[Key, Crew], edited: Sequence[Host], there: set[str]
) -> list[Member]:
    """Pods of new DaemonSets on all nodes, and of all DaemonSets on new nodes."""
    old = {host.name for host in before.hosts}
    new = [host for host in edited if host.name not in old]
    pairs = [(crew, host) for key, crew in crews.items() if key not in before.crews for host in known.hosts]
    pairs += [(crew, host) for key, crew in known.crews.items() if key in before.crews for host in new]
    made = [daemon_on(crew, host.node) for crew, host in pairs if takes_daemon(crew, host.node)]
    return [one for one in made if one.key not in there]


def says_the_same(written: object, stored: object) -> bool:
    """What a manifest says is there already; a server adds defaults, which no manifest takes away."""
    if isinstance(written, Mapping):
        there = stored if isinstance(stored, Mapping) else {}
        return all(_is_nothing(value) or says_the_same(value, there.get(name)) for name, value in written.items())
    if isinstance(written, list) and isinstance(stored, list):
        return len(written) == len(stored) and all(map(says_the_same, written, stored))
    return written == stored or _amount(written) == _amount(stored) is not None


def _is_nothing(value: object) -> bool:
    return value is None or value in ({}, [], "")


def _amount(value: object) -> int | None:
    try:
        return parse_quantity(str(value)).nanos if isinstance(value, (str, int, float)) else None
    except QuantityError:
        return None
