# SPDX-License-Identifier: Apache-2.0
"""What an apply changes, as people read it."""

from difflib import unified_diff

from agent.objects import hidden
from agent.objects.decoding import Content
from agent.objects.documents import ManifestObject, dumped

MOST_LINES = 5000


def difference_of(old: Content, new: ManifestObject, old_text: str, new_text: str, path: str) -> str:
    """As `diff -u` has it; of a Secret only which keys differ."""
    if new.kind == "Secret":
        clear = (hidden.without_secrets(old, {}), hidden.without_secrets(new.content, old))
        old_text, new_text = (dumped(each) if each else "" for each in clear)
    lines = old_text.splitlines(), new_text.splitlines()
    if sum(map(len, lines)) > MOST_LINES:
        return f"{path}: {len(lines[0])} lines become {len(lines[1])}; too many to compare"
    return "\n".join(unified_diff(*lines, f"{path} (now)", f"{path} (then)", lineterm=""))
