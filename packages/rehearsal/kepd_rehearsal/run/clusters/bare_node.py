# SPDX-License-Identifier: Apache-2.0
"""A bare node as the cluster that it is: one host, with the manifests that kepd runs here by its configuration.

They are read as files, under the same rule of who may have written them. Only a daemon knows which pods there are now.
If one answers, it is asked. If none does, pods count as the manifests say, and a note tells so.
Never: needs a daemon, or reads Secrets.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.cli.session import CommandFailed, Session
from agent.config.document import Configuration
from agent.config.sources import Sources, host_facts, load
from agent.config.strict_yaml import UnreadableYaml
from agent.drivers.manifests.driver import read_manifests
from agent.drivers.manifests.trust import Trust
from agent.model.exit_codes import BAD_CONFIGURATION, UNREACHABLE, USAGE
from agent.model.nodes.node import HOSTNAME_LABEL
from agent.objects.reading import documents_in
from agent.topology.manifest.objects import VERSIONS, Document
from kepd_rehearsal.plan.cluster import part
from kepd_rehearsal.plan.reading import EXTRA_KINDS
from kepd_rehearsal.run.clusters.shedding import Shedding

Plain = dict[str, Any]
Answer = tuple[list[Document], tuple[str, ...], bool]
READ = frozenset({*VERSIONS, *EXTRA_KINDS})
MOST_PODS = 110
FOR_A_DAEMON = "; its last good content stays valid"


def node_cluster(config_file: Path | None, session: Session, tell: Callable[[str], None]) -> Answer:
    """Documents, notes, and whether a daemon told of its pods. Raises CommandFailed."""
    configuration = _configuration(config_file)
    name = configuration.node.name
    tell(f"reading {configuration.manifests.directory}")
    found = list(_manifests(configuration))
    tell("asking the daemon for its pods")
    pods, note = _running(session, name)
    shedding, shown = Shedding(), [("pods of the daemon", one) for one in pods or ()]
    own: tuple[str, Plain] = "this node", {}
    others = 0
    for where, one in found:
        kind = one.get("kind")
        if kind == "Node":
            is_own = part(one, "metadata").get("name") == name
            own, others = ((where, one), others) if is_own else (own, others + 1)
        elif kind == "Pod" and pods is None:
            shown.append((where, _here(one, name)))
        elif kind in READ - {"Pod"}:
            shown.append((where, one))
    shown.append((own[0], _node(own[1], configuration)))
    shed = [Document(where, shedding.object(one)) for where, one in shown]
    more = f"{others} other nodes of the manifests run pods of their own; they are not looked at" if others else ""
    return shed, tuple(filter(None, (note, more))), pods is not None


def _configuration(file: Path | None) -> Configuration:
    checked = load(Sources(file=file, environment=os.environ), host_facts(os.environ))
    if checked.configuration is None:
        raise CommandFailed("\n".join(map(str, checked.findings)), BAD_CONFIGURATION)
    return checked.configuration


def _manifests(configuration: Configuration) -> Iterator[tuple[str, Plain]]:
    """Objects with their places. Raises CommandFailed for what kepd would not read either."""
    section = configuration.manifests
    snapshot = read_manifests(Path(section.directory), trust=Trust(section.group_writable))
    if snapshot.problems:
        raise CommandFailed("\n".join(str(one).removesuffix(FOR_A_DAEMON) for one in snapshot.problems), USAGE)
    try:
        yield from documents_in(dict(sorted(snapshot.files.items())), *VERSIONS, *EXTRA_KINDS)
    except UnreadableYaml as error:
        raise CommandFailed(str(error), USAGE) from error


def _running(session: Session, node: str) -> tuple[list[Plain] | None, str]:
    """The pods that the daemon has; None and a note where none answers."""
    # Only who looks at a bare node pays for protobuf.
    from agent.cli.client import connected
    from agent.cli.objects.listed import objects
    from agent.kinds.table import without_facts

    try:
        with connected(session) as daemon:
            pods = objects(daemon, "pods")
    except CommandFailed as error:
        why = "no daemon answers" if error.exit_code == UNREACHABLE else str(error)
        return None, f"{why}, so pods are taken to run as the manifests say"
    return [_bound(without_facts(pod), node) for pod in pods], ""


def _here(pod: Plain, node: str) -> Plain:
    """A pod of a manifest as it runs: here, and by the node's name too."""
    metadata = {**part(pod, "metadata")}
    metadata["name"] = f"{metadata.get('name')}-{node}"
    return _bound({**pod, "metadata": metadata}, node)


def _bound(pod: Plain, node: str) -> Plain:
    return {**pod, "spec": {**part(pod, "spec"), "nodeName": node}}


def _node(written: Mapping[str, Any], configuration: Configuration) -> Plain:
    """As its manifest has it; what that does not say comes from the configuration and from this machine."""
    name = configuration.node.name
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    here = {"cpu": str(os.cpu_count() or 1), "memory": str(memory), "pods": str(MOST_PODS)}
    status = {**part(written, "status")}
    given = {**part(status, "capacity"), **part(status, "allocatable")}
    status["allocatable"] = {**here, **given}
    status.setdefault("conditions", [{"type": "Ready", "status": "True"}])
    labels = {HOSTNAME_LABEL: name, **configuration.node.labels, **part(written, "metadata", "labels")}
    metadata = {**part(written, "metadata"), "name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "spec": part(written, "spec"), **written, "metadata": metadata,
            "status": status}  # fmt: skip
