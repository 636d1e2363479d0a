# SPDX-License-Identifier: Apache-2.0
"""What a shell offers after Tab: kinds, and the live names of objects."""

import click

from agent.cli.quick.completion import LIMIT_S, offered
from agent.cli.session import CommandFailed, Session
from agent.kinds.kind import Kind, Named
from agent.kinds.registry import BY_WORD, KINDS

NAMESPACE = "kepctl.namespace"
"""Where a context remembers `-n`."""


def complete_objects(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    """After a kind its names, after `KIND/` those as KIND/NAME, else kinds."""
    kind, slash, rest = typed.partition("/")
    if slash and kind in BY_WORD:
        return [f"{kind}/{name}" for name in names_of(ctx, BY_WORD[kind], rest)]
    words = ctx.params.get("words") or ()
    if words and words[0] in BY_WORD:
        return names_of(ctx, BY_WORD[words[0]], typed)
    return [one.plural for one in KINDS if one.plural.startswith(typed)]


def names_of(ctx: click.Context, kind: Kind, typed: str) -> list[str]:
    """Empty if the daemon does not answer quickly. Of another namespace with that, unless `-n` says it."""
    from agent.cli.client import connected
    from agent.cli.objects.listed import listed

    root = ctx.find_root()
    session = Session(endpoint=root.params.get("endpoint"), timeout_s=LIMIT_S)
    try:
        with connected(session) as daemon:
            rows = listed(daemon, kind).rows
    except (CommandFailed, TimeoutError):
        return []
    namespace = ctx.params.get("namespace") or ctx.meta.get(NAMESPACE, "")
    return offered((Named(row.namespace, row.name, row.short) for row in rows), namespace, typed)
