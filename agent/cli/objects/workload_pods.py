# SPDX-License-Identifier: Apache-2.0
"""The pods of a workload, by the labels that it selects."""

from agent.cli.client import Client
from agent.cli.objects.listed import objects
from agent.cli.objects.words import find_named
from agent.kinds.kind import Kind, Named
from agent.kinds.registry import BY_API, BY_WORD, WORKLOADS
from agent.kinds.table import Object, names_of
from agent.kinds.workloads import workloads

PLURALS = tuple(BY_API[kind].plural for kind in WORKLOADS)


def workload_kind(word: str) -> Kind | None:
    """`deploy`, `ds` and the like; None for other kinds."""
    found = BY_WORD.get(word.lower())
    return found if found is not None and found.plural in PLURALS else None


def find_workload(daemon: Client, kind: Kind, name: str, *, elsewhere: bool = True) -> tuple[Named, Object]:
    listed = objects(daemon, kind.plural)
    known = [Named(*names_of(made)) for made in listed]
    found = find_named(kind, name, known, daemon.namespace, elsewhere=elsewhere)
    return found, listed[known.index(found)]


def pods_of(daemon: Client, kind: Kind, made: Object) -> list[Object]:
    return workloads.pods_of(kind, made, objects(daemon, "pods"))
