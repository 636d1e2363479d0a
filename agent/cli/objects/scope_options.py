# SPDX-License-Identifier: Apache-2.0
"""`-n`, `-A` and `-l` of every command."""

from collections.abc import Callable
from typing import TypeVar

from agent.cli.session import CommandFailed
from agent.kinds.selection import Scope
from agent.model.exit_codes import USAGE

Command = TypeVar("Command", bound=Callable[..., object])


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
