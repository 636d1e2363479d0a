# SPDX-License-Identifier: Apache-2.0
"""The status of an object as a client writes it. What the node itself tells of the object goes on beside that, and what
it tells anew stands in its place; the node remembers it as long as the daemon runs."""

from typing import Any

from agent.kinds.parts import part
from agent.objects.patches import patched
from kepd_door.run.bodies import in_thread
from kepd_door.run.store import Entry, KindStore
from kepd_door.run.writing import HOW, JSON_PATCH, MERGE, Writer
from kepd_door.shape.bounds import check_object
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
WORDS = ("labels", "annotations")


async def write_status(writer: Writer, store: KindStore, entry: Entry, body: Any, kind: str) -> Object:  # noqa: ANN401
    """`kind` is that of a patch, empty for a whole object. The object as it is then."""
    shown = entry.made
    wanted = await in_thread(patched, shown, body, HOW.get(kind, "merge")) if kind else body
    if not isinstance(wanted, dict) or not isinstance(wanted.get("status") or {}, dict):
        raise Failure(400, "the body is no object of Kubernetes")
    metadata = part(wanted, "metadata")
    version = str(metadata.get("resourceVersion") or "")
    given = part(body, "metadata")
    if version not in ("", shown["metadata"]["resourceVersion"]) or metadata.get("uid") not in (
        None, "", shown["metadata"]["uid"],
    ):  # fmt: skip
        raise writer.conflict()
    check_object(wanted)
    if writer.is_dry:
        return {**shown, "status": wanted.get("status") or {}}
    words = {name: metadata[name] for name in WORDS if metadata.get(name) != shown["metadata"].get(name)}
    if kind and words and (given or kind == JSON_PATCH):
        await writer.patch({"metadata": {name: value for name, value in words.items() if value}}, MERGE)
    return store.put_status(entry.key, dict(wanted.get("status") or {})).made
