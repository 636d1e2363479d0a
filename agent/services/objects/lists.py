# SPDX-License-Identifier: Apache-2.0
"""Decides whether a complete list is believed at the first look.

A server that was restored from an empty or an old store lists what it has, and that is no proof that the rest was
deleted: deletions are told one by one, unless kepd was away meanwhile. So what would take most of a node's Services
away is looked at again, and believed when it stays so.
"""

from collections.abc import Collection

KUBERNETES = ("default", "kubernetes")
LEAST_KEPT = 0.5


def doubt(known: Collection[tuple[str, str]], listed: Collection[tuple[str, str]], *, has_rules: bool) -> str:
    """Why a list is doubted; "" if it is not. `has_rules`: an earlier process left rules of Services."""
    if not known:
        return "nothing is listed, and there are rules of Services" if has_rules and not listed else ""
    if KUBERNETES in known and KUBERNETES not in listed:
        return "default/kubernetes is not listed, which each cluster has"
    left = len(set(known).intersection(listed))
    return f"of {len(known)} that were known {left} are listed" if left < LEAST_KEPT * len(known) else ""
