# SPDX-License-Identifier: Apache-2.0
"""`kepctl get`: lists of everything the daemon knows."""

from typing import Any

import click

from agent.cli.completing import complete_objects
from agent.cli.objects.listed import listed, named_of
from agent.cli.objects.narrowing import FIELDS, labelled, with_fields, with_kinds
from agent.cli.objects.scope_options import scope_of, scope_options
from agent.cli.objects.words import Wanted, parse_wanted
from agent.cli.render import objects_of, output_option, print_objects, print_table, wants_objects
from agent.cli.session import CommandFailed, Session
from agent.kinds.kind import Kind
from agent.kinds.table import Table
from agent.model.exit_codes import CONFLICT, USAGE

ALL = "pods,services,deployments,daemonsets,statefulsets,jobs,cronjobs"
"""What `get all` lists, as kubectl has it."""


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND [NAME…]", shell_complete=complete_objects)
@scope_options
@output_option()
@click.option("--sort-by", "sort_path", default="", metavar="PATH", help="Order by this, such as .metadata.name.")
@click.option("-w", "--watch", is_flag=True, help="Keep printing changes of one kind.")
@click.option("--show-labels", is_flag=True, help="With all labels, in a last column.")
@click.option("-L", "--label-columns", multiple=True, metavar="KEY", help="With this label as a column; also several.")
@click.option("--no-headers", is_flag=True, help="Without the titles of columns.")
@click.option("--field-selector", default="", metavar="FIELDS", help=f"Only objects with these: {', '.join(FIELDS)}.")
@click.option("-a", "--all", "ended", is_flag=True, help="Also what is over, such as pulls that have ended.")
@click.pass_obj
def get(
    session: Session, words: tuple[str, ...], output: str, namespace: str, selector: str, *, everywhere: bool,
    watch: bool, sort_path: str, show_labels: bool, label_columns: tuple[str, ...], no_headers: bool,
    field_selector: str, ended: bool,
) -> None:  # fmt: skip
    """List objects: all of KIND, or those that are named, also as KIND/NAME.

    Kinds, with their short names: nodes (no), planes, filesystems (fs), features, pods (po), deployments (deploy),
    daemonsets (ds), statefulsets (sts), jobs, cronjobs (cj), replicasets (rs), poddisruptionbudgets (pdb),
    networkpolicies (netpol), containers, checkpoints, images (im), pulls, mirrors, services (svc), endpoints (ep),
    configmaps (cm), secrets, servicecidrs, devices (dev), claims, claimtemplates,
    deviceclasses, slices, drivers, cdi, dns, rules, proxy, events (ev).
    """
    from agent.cli.client import connected

    is_all = words == ("all",)
    scope, found = scope_of(namespace, selector, everywhere=everywhere), parse_wanted((ALL,) if is_all else words)
    names: dict[Kind, tuple[str, ...]] = {}
    for one in found:
        names[one.kind] = (*names.get(one.kind, ()), *one.names)
    has_columns = bool(show_labels or label_columns)
    for flag, is_given in (("--sort-by", sort_path), ("--field-selector", field_selector), ("--no-headers", no_headers),
                           ("--show-labels and -L", has_columns)):  # fmt: skip
        if watch and is_given:
            text = f"{flag} and -w exclude each other, for changes come as they happen; expected one"
            raise CommandFailed(text, USAGE)
    with connected(session) as daemon:
        if watch:
            from agent.cli.waits.watching import follow

            if len(names) > 1:
                raise CommandFailed("only one kind can be watched at a time", USAGE)
            kind, given = next(iter(names.items()))
            follow(daemon, Wanted(kind, given), scope, output, session, with_ended=bool(ended or given))
            return
        with_objects = wants_objects(output) or bool(sort_path or field_selector or has_columns)
        tables, failed = [], []
        for kind, given in names.items():
            try:
                table = listed(
                    daemon, kind, scope, with_objects=with_objects, is_wide=output == "wide",
                    with_ended=bool(ended or given),
                )  # fmt: skip
            except CommandFailed as error:
                # Where a plane is off, the others have theirs.
                if not is_all or error.exit_code not in (CONFLICT, USAGE):
                    raise
                failed.append(error)
                continue
            tables.append(named_of(table, kind, given, scope.namespace))
            if len(names) > 1 and output in ("table", "wide"):
                with_kinds(tables[-1], kind)
    if failed and not tables:
        raise failed[0]
    if is_all:
        tables = [one for one in tables if one.rows] or tables[:1]
    if field_selector:
        tables = [with_fields(one, field_selector) for one in tables]
    if has_columns and not wants_objects(output):
        keys = [key for one in label_columns for key in one.split(",") if key]
        tables = [labelled(one, keys, has_all=show_labels) for one in tables]
    if sort_path:
        from agent.cli.objects.ordering import ordered_by

        tables = [ordered_by(one, sort_path) for one in tables]
    if len(tables) > 1 and wants_objects(output):
        print_objects(_together(tables), output)
        return
    is_one = len(found) == 1 and len(found[0].names) == 1
    for place, table in enumerate(tables):
        if place and output in ("table", "wide"):
            click.echo()
        print_table(table, output, session, is_one=is_one, has_titles=not no_headers)


def _together(tables: list[Table]) -> dict[str, Any]:
    from agent.kinds.kube_shape import list_of

    for one in tables:
        if not one.is_kubernetes:
            raise CommandFailed(f"{one.kind} is no kind of Kubernetes; list it by itself", USAGE)
    return list_of(made for one in tables for made in objects_of(one))
