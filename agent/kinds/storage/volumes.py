# SPDX-License-Identifier: Apache-2.0
"""PersistentVolumes: directories of this node that claims are served by."""

from agent.kinds.kind import BY_PODS, Kind, status_of
from agent.kinds.parts import part
from agent.kinds.storage.claims import modes
from agent.kinds.table import Column, Columns, Object
from agent.kinds.written import AGE, NAMES, SOURCE, shown_objects

KIND = Kind(
    "persistentvolumes", "persistentvolume", ("pv",), "PersistentVolume", has_namespace=False, read_by=BY_PODS,
    is_carried_out=True, turn=1, subresources=(status_of("PersistentVolume"),),
)  # fmt: skip


def _claim(made: Object) -> str:
    reference = part(made, "spec", "claimRef")
    return f"{reference.get('namespace', 'default')}/{reference['name']}" if reference.get("name") else ""


def _path(made: Object) -> str:
    return str(part(made, "spec", "hostPath").get("path") or part(made, "spec", "local").get("path", ""))


COLUMNS: Columns[Object] = (
    NAMES[1],
    Column("CAPACITY", lambda made: str(part(made, "spec", "capacity").get("storage", ""))),
    Column("ACCESS MODES", lambda made: modes(part(made, "spec").get("accessModes"))),
    Column("RECLAIM POLICY", lambda made: str(part(made, "spec").get("persistentVolumeReclaimPolicy", "Retain"))),
    Column("STATUS", lambda made: str(part(made, "status").get("phase", ""))),
    Column("CLAIM", _claim),
    Column("STORAGECLASS", lambda made: str(part(made, "spec").get("storageClassName", ""))),
    AGE,
    Column("PATH", _path, wide=True),
    SOURCE,
)
SHOWN = shown_objects(COLUMNS)
