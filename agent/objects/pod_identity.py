# SPDX-License-Identifier: Apache-2.0
"""The uid of a pod whose manifest kepd writes. It stays over edits, so that a label, an annotation or other resources
change the pod that runs: a pod without a uid in its manifest is another one after any edit. Pure but for the uid."""

import re
from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace

from agent.config.strict_yaml import UnreadableYaml
from agent.kinds.parts import part
from agent.objects.decoding import Content
from agent.objects.documents import ManifestObject, dumped, read_objects

LINES = re.compile(r"^metadata:[ \t]*\n(?P<indent>[ ]+)(?=[A-Za-z])", re.MULTILINE)
BRACES = re.compile(r"^metadata: \{", re.MULTILINE)


def with_identity(
    pod: ManifestObject, text: str, there: ManifestObject | None, uid_of: Callable[[str, str], str]
) -> tuple[ManifestObject, str]:
    """`uid_of` is of a pod that runs, by namespace and name in its manifest; empty for another."""
    if _uid(pod.content):
        return pod, text
    uid = _uid(there.content) if there is not None else ""
    uid = uid or (uid_of(pod.namespace, pod.name) if there is not None else "") or str(uuid4())
    content = {**pod.content, "metadata": {**part(pod.content, "metadata"), "uid": uid}}
    return replace(pod, content=content), _with_line(text, uid, content) or dumped(content)


def _uid(content: Content) -> str:
    return str(part(content, "metadata").get("uid") or "")


def _with_line(text: str, uid: str, wanted: Content) -> str:
    """The author's text with a line more; empty where it would read otherwise."""
    changed = LINES.sub(lambda at: f'{at[0]}uid: "{uid}"\n{at["indent"]}', text, count=1)
    if changed == text:
        changed = BRACES.sub(f'metadata: {{uid: "{uid}", ', text, count=1)
    try:
        read = read_objects("manifest", changed.encode())
    except UnreadableYaml:
        return ""
    return changed if [each.content for each in read] == [wanted] else ""
