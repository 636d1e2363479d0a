# SPDX-License-Identifier: Apache-2.0
"""What all commands have that name objects: `-n`, and live names after Tab. One place for all of them."""

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from agent.cli.completing import NAMESPACE, names_of
from agent.kinds.kind import Kind
from agent.kinds.registry import BY_WORD


def take_namespace(command: click.Command) -> None:
    """Give a command `-n`, or those below it."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            take_namespace(inner)
    elif "namespace" not in {param.name for param in command.params}:
        option = click.Option(
            ("-n", "--namespace"),
            metavar="NAMESPACE",
            expose_value=False,
            is_eager=True,
            callback=_remember,
            help="Namespace of names that have none.",
        )
        command.params.append(option)


def _remember(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    from msgspec.structs import replace

    ctx.meta[NAMESPACE] = value or ""
    if value and ctx.obj is not None:
        ctx.obj = replace(ctx.obj, namespace=value)


class LiveName(StringParamType):
    """A name that the daemon knows."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names_of(ctx, self._kind, incomplete)]


def offer_names(command: click.Command) -> None:
    """For arguments that are objects by what they are called."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            offer_names(inner)
    for param in command.params:
        kind = _kind(param) if isinstance(param, click.Argument) and param.type is click.STRING else None
        if kind is not None:
            param.type = LiveName(kind)


def _kind(param: click.Parameter) -> Kind | None:
    called = param.metavar or ""
    if param.name == "pod" or "POD" in called:
        return BY_WORD["pods"]
    if param.name == "service":
        return BY_WORD["services"]
    if "REF" in called:
        return BY_WORD["images"]
    return BY_WORD["pulls"] if param.name == "pull_id" else None
