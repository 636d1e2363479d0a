# SPDX-License-Identifier: Apache-2.0
"""PersistentVolumeClaims, in kubectl's columns."""

from collections.abc import Mapping

from agent.kinds.described import Described, entries_of, events_of_object
from agent.kinds.kind import BY_PODS, Kind, status_of
from agent.kinds.parts import part
from agent.kinds.shown import Describing
from agent.kinds.table import Column, Columns, Object
from agent.kinds.written import AGE, NAMES, SOURCE, found_object, shown_objects

KIND = Kind(
    "persistentvolumeclaims", "persistentvolumeclaim", ("pvc",), "PersistentVolumeClaim", read_by=BY_PODS,
    is_carried_out=True, turn=2, subresources=(status_of("PersistentVolumeClaim"),),
)  # fmt: skip
MODES: Mapping[str, str] = {
    "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP",
}  # fmt: skip


def modes(given: object) -> str:
    return ",".join(MODES.get(str(mode), str(mode)) for mode in (given if isinstance(given, list) else ()))


COLUMNS: Columns[Object] = (
    *NAMES,
    Column("STATUS", lambda made: str(part(made, "status").get("phase", ""))),
    Column("VOLUME", lambda made: str(part(made, "spec").get("volumeName", ""))),
    Column("CAPACITY", lambda made: str(part(made, "status", "capacity").get("storage", ""))),
    Column("ACCESS MODES", lambda made: modes(part(made, "status").get("accessModes"))),
    Column("STORAGECLASS", lambda made: str(part(made, "spec").get("storageClassName", ""))),
    AGE,
    SOURCE,
)
SHOWN = shown_objects(COLUMNS)


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    made = yield from found_object(kind, namespace, name)
    spec, status = part(made, "spec"), part(made, "status")
    head = (
        ("Name", name),
        ("Namespace", str(part(made, "metadata").get("namespace", "default"))),
        ("Storage Class", str(spec.get("storageClassName", ""))),
        ("Status", str(status.get("phase", ""))),
        ("Volume", str(spec.get("volumeName", ""))),
        ("Asked For", str(part(spec, "resources", "requests").get("storage", ""))),
        ("Capacity", str(part(status, "capacity").get("storage", ""))),
        ("Used", str(status.get("used", ""))),
        ("Access Modes", modes(status.get("accessModes"))),
        ("Message", str(status.get("message", ""))),
    )
    return Described(tuple(entries_of("", iter(head))), [events_of_object(made, kind.api)])
