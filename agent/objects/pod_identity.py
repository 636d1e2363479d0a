# SPDX-License-Identifier: Apache-2.0
"""What a manifest that kepd writes has of its object beside what its author wants: the uid of a pod, and what a client
of the API got. It stays over edits, so that a label, an annotation or other resources change the pod that runs: a pod
without a uid in its manifest is another one after any edit. Pure but for the uid."""

import json
import re
from collections.abc import Callable, Mapping
from uuid import uuid4

from msgspec.structs import replace

from agent.config.strict_yaml import UnreadableYaml
from agent.kinds.parts import part
from agent.objects.decoding import Content
from agent.objects.documents import ManifestObject, dumped, read_objects

LINES = re.compile(r"^metadata:[ \t]*\n(?P<indent>[ ]+)(?=[A-Za-z])", re.MULTILINE)
STAMPS = ("uid", "creationTimestamp", "generation")
BRACES = re.compile(r"^metadata: \{", re.MULTILINE)


def with_identity(
    pod: ManifestObject, text: str, there: ManifestObject | None, uid_of: Callable[[str, str], str]
) -> tuple[ManifestObject, str]:
    """`uid_of` is of a pod that runs, by namespace and name in its manifest; empty for another."""
    if _uid(pod.content):
        return pod, text
    uid = (uid_of(pod.namespace, pod.name) if there is not None else "") or str(uuid4())
    content = {**pod.content, "metadata": {**part(pod.content, "metadata"), "uid": uid}}
    return replace(pod, content=content), _with_lines(text, {"uid": uid}, content) or dumped(content)


def with_stamps(made: ManifestObject, text: str, there: ManifestObject) -> tuple[ManifestObject, str]:
    """With those that the object has in its file; where what it asks for is changed, that is counted."""
    given, before = part(made.content, "metadata"), part(there.content, "metadata")
    stamps = {name: before[name] for name in STAMPS if before.get(name)}
    count = stamps.get("generation")
    if isinstance(count, int) and made.content.get("spec") != there.content.get("spec"):
        stamps["generation"] = count + 1
    # Who counted already says so, and one may bring a uid of its own.
    more = {name: value for name, value in stamps.items() if given.get(name) in (None, "", before[name])}
    if all(given.get(name) == value for name, value in more.items()):
        return made, text
    content = {**made.content, "metadata": {**given, **more}}
    lines = {name: value for name, value in more.items() if name not in given}
    changed = _with_lines(text, lines, content) if lines == more else ""
    return replace(made, content=content), changed or dumped(content)


def _uid(content: Content) -> str:
    return str(part(content, "metadata").get("uid") or "")


def _with_lines(text: str, more: Mapping[str, object], wanted: Content) -> str:
    """The author's text with lines more; empty where it would read otherwise."""
    written = [f"{name}: {json.dumps(value)}" for name, value in more.items()]
    changed = LINES.sub(
        lambda at: "".join(f"{each}\n{at['indent']}" for each in [at[0] + written[0], *written[1:]]), text, 1
    )
    if changed == text:
        changed = BRACES.sub(f"metadata: {{{', '.join(written)}, ", text, count=1)
    try:
        read = read_objects("manifest", changed.encode())
    except UnreadableYaml:
        return ""
    return changed if [each.content for each in read] == [wanted] else ""
