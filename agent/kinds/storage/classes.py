# SPDX-License-Identifier: Apache-2.0
"""StorageClasses."""

from agent.kinds.kind import BY_PODS, Kind
from agent.kinds.parts import part
from agent.kinds.table import Column, Columns, Object
from agent.kinds.written import AGE, shown_objects

KIND = Kind(
    "storageclasses", "storageclass", ("sc",), "StorageClass", has_namespace=False, group="storage.k8s.io",
    read_by=BY_PODS,
)  # fmt: skip
DEFAULT = "storageclass.kubernetes.io/is-default-class"


def _name(made: Object) -> str:
    is_default = part(made, "metadata", "annotations").get(DEFAULT) == "true"
    return f"{part(made, 'metadata')['name']}{' (default)' if is_default else ''}"


COLUMNS: Columns[Object] = (
    Column("NAME", _name),
    Column("PROVISIONER", lambda made: str(made.get("provisioner", ""))),
    Column("RECLAIMPOLICY", lambda made: str(made.get("reclaimPolicy", "Retain"))),
    Column("VOLUMEBINDINGMODE", lambda made: str(made.get("volumeBindingMode", "Immediate"))),
    Column("ALLOWVOLUMEEXPANSION", lambda made: str(bool(made.get("allowVolumeExpansion"))).lower()),
    AGE,
)
SHOWN = shown_objects(COLUMNS)
