# SPDX-License-Identifier: Apache-2.0
"""Commands with a kind as their second word, by any of its names: `explain po web`, `explain pod/web`."""

import click

from agent.cli.objects.foreign import COMMANDS, KINDS, in_place_of
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import nearest

# What a kind is called where a command has its own word for it.
OTHER_WORDS = {"image": "pull", "networkpolicy": "policy"}


class KindGroup(click.Group):
    """A group that takes short names and KIND/NAME, and says what was meant by a near miss. `anything` takes a single
    word that is no kind: the name of an object, whose kind it finds."""

    anything: str = ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, slash, name = args[0].partition("/")
        known = self.list_commands(ctx)
        kind = BY_WORD.get(word.lower())
        candidates = (word, kind.singular, OTHER_WORDS.get(kind.singular, "")) if kind is not None else (word,)
        chosen = next((one for one in candidates if one in known), None)
        if chosen is not None:
            rest = [name, *args[1:]] if slash and name else args[1:]
            return super().resolve_command(ctx, [chosen, *rest])
        is_name = not word.startswith("-") and kind is None and all(one.startswith("-") for one in args[1:])
        if self.anything and is_name:
            return super().resolve_command(ctx, [self.anything, *args])
        if not word.startswith("-"):
            above = ctx.command_path.partition(" ")[2]
            of_group = in_place_of(f"{above} {word}", COMMANDS) or in_place_of(word, KINDS)
            if text := of_group or in_place_of(f"{above} *", COMMANDS):
                raise click.UsageError(f'{ctx.command_path} has no "{word}"{text}', ctx)
            close = nearest(word, known)
            hint = f'; did you mean "{close}"?' if close else f"; expected {', '.join(known)}"
            raise click.UsageError(f'{ctx.command_path} has no "{word}"{hint}', ctx)
        return super().resolve_command(ctx, args)
