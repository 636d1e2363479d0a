# SPDX-License-Identifier: Apache-2.0
"""Which objects of a list a command means: by namespace, labels and names. `-n`, `-A` and `-l` of every command."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from agent.cli.objects.words import Wanted, find_named
from agent.cli.session import CommandFailed
from agent.kinds.registry import Kind, Named
from agent.kinds.table import Listing
from agent.model.exit_codes import NOT_FOUND, USAGE

if TYPE_CHECKING:
    from google.protobuf.message import Message

Item = TypeVar("Item", bound="Message")
Command = TypeVar("Command", bound=Callable[..., object])


class Scope(msgspec.Struct, frozen=True):
    """Empty: nothing is left out."""

    namespace: str = ""
    selector: str = ""


def scope_options(command: Command) -> Command:
    """`-n`, `-A` and `-l`; the command gets `namespace`, `everywhere` and `selector`."""
    import click

    for option in (
        click.option("-l", "--selector", default="", metavar="LABELS", help="Only objects with these labels."),
        click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces, as without -n."),
        namespace_option(),
    ):
        command = option(command)
    return command


def namespace_option() -> Callable[[Command], Command]:
    import click

    return click.option("-n", "--namespace", default="", metavar="NAMESPACE", help="Only objects of this namespace.")


def scope_of(namespace: str, selector: str, *, everywhere: bool) -> Scope:
    if namespace and everywhere:
        raise CommandFailed(f"-n {namespace} and -A exclude each other; expected one", USAGE)
    return Scope(namespace, selector)


def named(listing: Listing[Item], item: Item) -> Named:
    if listing.named is not None:
        return listing.named(item)
    return Named("", listing.name(item).rpartition("/")[2])


def in_scope(listing: Listing[Item], kind: Kind, scope: Scope) -> Listing[Item]:
    """Without what the scope leaves out."""
    items = list(listing.items)
    if scope.namespace and kind.has_namespace:
        items = [item for item in items if named(listing, item).namespace == scope.namespace]
    if scope.selector:
        from agent.cli.objects.selectors import parse_selector

        labels, holds = listing.labels, parse_selector(scope.selector)
        if labels is None:
            raise CommandFailed(f"{kind.plural} have no labels, so -l selects none of them", USAGE)
        items = [item for item in items if holds(labels(item))]
    empty = listing.empty
    if scope.namespace or scope.selector:
        where = f" in namespace {scope.namespace}" if scope.namespace else ""
        empty = f"no {kind.plural}{where}" + (f" with labels {scope.selector}" if scope.selector else "")
    return msgspec.structs.replace(listing, items=items, empty=empty)


def picked(listing: Listing[Item], wanted: Wanted, scope: Scope) -> Listing[Item]:
    """What is wanted, in the order in which it was named. Raises for a name that nothing has."""
    listing = in_scope(listing, wanted.kind, scope)
    if not wanted.names:
        return listing
    found: list[Item] = []
    for name in wanted.names:
        found += [item for item in _meant(listing, wanted.kind, name, scope.namespace) if item not in found]
    return msgspec.structs.replace(listing, items=found, notes=())


def _meant(listing: Listing[Item], kind: Kind, name: str, namespace: str) -> Sequence[Item]:
    """By its names, else by the last part of what `-o name` prints, as of an endpoint the address."""
    known = [(named(listing, item), item) for item in listing.items]
    try:
        one = find_named(kind, name, dict.fromkeys(found for found, _ in known), namespace)
    except CommandFailed as error:
        items = [item for item in listing.items if name in (_rest(listing, item), _rest(listing, item, last=True))]
        if error.exit_code != NOT_FOUND or not items:
            raise
        return items
    return [item for found, item in known if found == one]


def _rest(listing: Listing[Item], item: Item, *, last: bool = False) -> str:
    text = listing.name(item)
    return text.rpartition("/")[2] if last else text.partition("/")[2]
