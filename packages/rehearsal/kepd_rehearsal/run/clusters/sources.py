# SPDX-License-Identifier: Apache-2.0
"""Which cluster a rehearsal is of: files, an API server by a kubeconfig, or this node. Exactly one of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from agent.cli.session import CommandFailed, Session
from agent.model.exit_codes import USAGE
from agent.topology.manifest.objects import Document
from kepd_rehearsal.plan.assumed import with_assumed
from kepd_rehearsal.plan.cluster import Cluster

Command = Callable[..., Any]
Tell = Callable[[str], None]
KINDS = ("--from-files", "--kubeconfig", "--from-node")


class Source(msgspec.Struct, frozen=True):
    files: tuple[Path, ...] = ()
    kubeconfig: Path | None = None
    context: str = ""
    is_this_node: bool = False
    config: Path | None = None


class Given(msgspec.Struct, frozen=True):
    """`has_all_pods`: whoever told of them would know of others. `has_memory`: hints are those of a control plane."""

    documents: list[Document]
    notes: tuple[str, ...] = ()
    has_all_pods: bool = False
    has_memory: bool = True

    def complete(self, cluster: Cluster) -> tuple[Cluster, list[str]]:
        """With the pods that must be somewhere, and what was assumed for that."""
        cluster = replace(cluster, has_memory=self.has_memory)
        return (cluster, []) if self.has_all_pods else with_assumed(cluster, self.documents)


def source_options(command: Command) -> Command:
    """What they say is for `chosen_source`, so no command need pass it on."""
    for one in reversed((
        _option("--from-files", multiple=True, type=click.Path(exists=True, path_type=Path),
                help="Files or directories of `kubectl get -o json`, or manifests; as often as there are."),
        _option("--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
                help="Ask its API server, with no right but list."),
        _option("--context", default="", metavar="NAME", help="Of the kubeconfig; the current one otherwise."),
        _option("--from-node", is_flag=True, help="This node, by the manifests that kepd runs."),
        _option("--config", type=click.Path(path_type=Path, readable=False), metavar="FILE",
                help="kepd's configuration, for --from-node [/etc/kepd/config.yaml]."),
    )):  # fmt: skip
        command = one(command)
    return command


def _option(name: str, **more: Any) -> Callable[[Command], Command]:  # noqa: ANN401  # click's
    return click.option(name, expose_value=False, callback=_remember, **more)


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta[f"source {param.name}"] = value


def chosen_source(meta: Mapping[str, Any]) -> Source:
    """Of what a context remembers. Raises CommandFailed where it is not one."""
    files, kubeconfig, is_this_node, context, config = (
        meta.get(f"source {name}") for name in ("from_files", "kubeconfig", "from_node", "context", "config")
    )
    given = [name for name, is_given in zip(KINDS, (files, kubeconfig, is_this_node), strict=True) if is_given]
    if len(given) != 1:
        told = f"{' and '.join(given)} name {len(given)} clusters" if given else "no cluster is named"
        raise CommandFailed(f"{told}; expected exactly one of {', '.join(KINDS)}", USAGE)
    for option, value, owner in (("--context", context, KINDS[1]), ("--config", config, KINDS[2])):
        if value and given != [owner]:
            raise CommandFailed(f"{option} is for {owner}, and {given[0]} is given", USAGE)
    return Source(tuple(files or ()), kubeconfig, context or "", bool(is_this_node), config)


def read_source(
    source: Source, session: Session, tell: Tell, read_files: Callable[[Sequence[Path]], list[Document]]
) -> Given:
    """Raises CommandFailed."""
    if source.kubeconfig is not None:
        # Only who has a cluster pays for what speaks HTTP.
        from kepd_rehearsal.run.clusters.asking import asked_cluster

        documents, notes = asked_cluster(source.kubeconfig, source.context, session.timeout_s, tell)
        return Given(documents, notes, has_all_pods=True)
    if source.is_this_node:
        from kepd_rehearsal.run.clusters.bare_node import node_cluster

        return Given(*node_cluster(source.config, session, tell), has_memory=False)
    tell(f"reading {source.files[0]}" + (f" and {len(source.files) - 1} more" if source.files[1:] else ""))
    return Given(read_files(source.files))
