# SPDX-License-Identifier: Apache-2.0
"""What a shell offers after Tab: kinds, and the live names of objects."""

from typing import TYPE_CHECKING

import click

from agent.cli.quick.completion import LIMIT_S, offered
from agent.cli.session import CommandFailed, Session
from agent.kinds.registry import BY_WORD, KINDS, Kind

if TYPE_CHECKING:
    from agent.kinds.shown import AnyListing

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
    """None if the daemon does not answer quickly. Of another namespace with that, unless `-n` says it."""
    from agent.cli.objects.selection import named

    root = ctx.find_root()
    session = Session(endpoint=root.params.get("endpoint"), timeout_s=LIMIT_S)
    try:
        listing = _listing(session, kind)
    except (CommandFailed, TimeoutError):
        return []
    namespace = ctx.params.get("namespace") or ctx.meta.get(NAMESPACE, "")
    return offered((named(listing, item) for item in listing.items), namespace, typed)


def _listing(session: Session, kind: Kind) -> "AnyListing":
    paths = session.sockets()
    if kind.plural == "pods" and len(paths) == 1:
        from agent.cli.quick.pods import quick_pods
        from agent.kinds.pods.pods import pod_listing

        pods = quick_pods(paths[0], session.timeout_s)
        if pods is not None:
            return pod_listing(pods)
    from agent.cli.client import connected
    from agent.cli.objects.listed import listed

    with connected(session) as daemon:
        return listed(daemon, kind)
