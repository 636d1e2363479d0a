# SPDX-License-Identifier: Apache-2.0
"""`kepctl get`: lists of everything the daemon knows."""

from typing import TYPE_CHECKING, Any

import click

from agent.cli.completing import complete_objects
from agent.cli.objects.listed import listed
from agent.cli.objects.selection import Scope, picked, scope_of, scope_options
from agent.cli.objects.words import Wanted, parse_wanted
from agent.cli.render import output_option, print_listing, print_objects, wants_objects
from agent.cli.session import CommandFailed, Session
from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing
from agent.model.exit_codes import USAGE

if TYPE_CHECKING:
    from agent.cli.client import Client


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND [NAME…]", shell_complete=complete_objects)
@scope_options
@output_option()
@click.option("--sort-by", "sort_path", default="", metavar="PATH", help="Order by this, such as .metadata.name.")
@click.option("-w", "--watch", is_flag=True, help="Keep printing changes of one kind.")
@click.pass_obj
def get(
    session: Session, words: tuple[str, ...], output: str, namespace: str, selector: str, *, everywhere: bool,
    watch: bool, sort_path: str,
) -> None:  # fmt: skip
    """List objects: all of KIND, or those that are named, also as KIND/NAME.

    Kinds, with their short names: nodes (no), planes, filesystems (fs), features, pods (po), deployments (deploy),
    daemonsets (ds), jobs, containers, checkpoints, images (im), pulls, mirrors, services (svc), endpoints (ep),
    configmaps (cm), secrets, servicecidrs, devices (dev), claims, claimtemplates, deviceclasses, slices, drivers, cdi,
    dns, rules, proxy, events (ev).
    """
    from agent.cli.client import connected

    scope, found = scope_of(namespace, selector, everywhere=everywhere), parse_wanted(words)
    if watch and sort_path:
        raise CommandFailed("--sort-by and -w exclude each other, for changes come as they happen; expected one", USAGE)
    with connected(session) as daemon:
        if watch:
            from agent.cli.waits.watching import follow

            if len({one.kind for one in found}) > 1:
                raise CommandFailed("only one kind can be watched at a time", USAGE)
            one = Wanted(found[0].kind, tuple(name for wanted in found for name in wanted.names))
            follow(daemon, one, scope, output, session)
            return
        with_objects, is_wide = wants_objects(output) or bool(selector or sort_path), output == "wide"
        listings = _all(daemon, found, scope, with_objects=with_objects, is_wide=is_wide)
    if sort_path:
        from agent.cli.objects.ordering import ordered_by

        listings = [ordered_by(one, sort_path) for one in listings]
    if len(listings) > 1 and wants_objects(output):
        print_objects(_together(listings), output)
        return
    is_one = len(found) == 1 and len(found[0].names) == 1
    for place, listing in enumerate(listings):
        if place and output in ("table", "wide"):
            click.echo()
        print_listing(listing, output, session, is_one=is_one)


def _all(
    daemon: "Client", found: tuple[Wanted, ...], scope: Scope, *, with_objects: bool, is_wide: bool
) -> list[AnyListing]:
    """One listing for each kind, whatever the order of KIND/NAME."""
    names: dict[Kind, tuple[str, ...]] = {}
    for one in found:
        names[one.kind] = (*names.get(one.kind, ()), *one.names)
    return [
        picked(listed(daemon, kind, with_objects=with_objects, is_wide=is_wide), Wanted(kind, given), scope)
        for kind, given in names.items()
    ]


def _together(listings: list[AnyListing]) -> dict[str, Any]:
    from agent.kinds.kube_shape import list_of

    for one in listings:
        if one.objects is None:
            raise CommandFailed(f"{one.kind} is no kind of Kubernetes; list it by itself", USAGE)
    return list_of(made for one in listings if one.objects is not None for made in one.objects(one.items))
