# SPDX-License-Identifier: Apache-2.0
"""OpenAPI documents: which fields objects have, for `kubectl explain` and for clients that look before they write.

Made of the table that protobuf is read by. Kinds that only kepd has are objects with a status that is not described.
"""

from collections.abc import Sequence
from typing import Any

from kepd_door.shape.protobuf import INLINE, all_types, field
from kepd_door.shape.resources import Resource, groups

Object = dict[str, Any]
SCALARS: dict[str, Object] = {
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "i": {"type": "integer", "format": "int64"},
    "y": {"type": "string", "format": "byte"},
    "T": {"type": "string", "format": "date-time"},
    "Q": {"type": "string", "format": "quantity"},
    "I": {"type": "string", "format": "int-or-string"},
    "-": {"type": "object"},
    "!": {"type": "object"},
}
NAMED = {"properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}}


def document_v2(resources: Sequence[Resource]) -> bytes:
    """As protobuf, the form that older clients ask for: that a dry run is possible, and no types, so that they leave
    the check of an object to us. Field numbers: gnostic's OpenAPIv2.proto."""
    paths = b"".join(field(2, _dry_run(one)) for one in resources if one.is_written)
    return field(1, b"2.0") + field(2, field(1, b"kepd") + field(2, b"v1")) + field(8, paths)


def _dry_run(one: Resource) -> bytes:
    """The path of a resource, with the one parameter that is looked for."""
    where = f"/apis/{one.group}" if one.group else "/api"
    path = f"{where}/{one.version}/namespaces/{{namespace}}/{one.name}/{{name}}"
    parameter = field(1, field(2, field(3, field(2, b"query") + field(4, b"dryRun"))))
    kind = f"group: {one.group or chr(39) * 2}\nkind: {one.object_kind}\nversion: {one.version}\n"
    extension = field(1, b"x-kubernetes-group-version-kind") + field(2, field(2, kind.encode()))
    operation = field(8, parameter) + field(13, extension)
    return field(1, path.encode()) + field(2, field(8, operation))


def index_v3(resources: Sequence[Resource], version: str) -> Object:
    """Where the document of each group is."""
    names = ["api/v1", *(f"apis/{group}/{of}" for group, of in groups(resources).items())]
    return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={version}"} for name in names}}


def document_v3(resources: Sequence[Resource], group: str, version: str) -> Object | None:
    those = [one for one in resources if (one.group, one.version) == (group, version)]
    if not those:
        return None
    paths: Object = {}
    schemas: Object = {}
    for one in those:
        where = "/api/v1" if not group else f"/apis/{group}/{version}"
        path = f"{where}/namespaces/{{namespace}}/{one.name}" if one.has_namespace else f"{where}/{one.name}"
        gvk = {"group": group, "version": version, "kind": one.object_kind}
        paths[path] = {"get": {"x-kubernetes-action": "list", "x-kubernetes-group-version-kind": gvk}}
        works: Object = {"get": {"x-kubernetes-action": "get", "x-kubernetes-group-version-kind": gvk}}
        if one.is_written:
            strict = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
            works["patch"] = {**works["get"], "x-kubernetes-action": "patch", "parameters": [strict]}
        paths[f"{path}/{{name}}"] = works
        schemas[_name(group, one.object_kind)] = _schema(one.object_kind, schemas) | {
            "x-kubernetes-group-version-kind": [gvk]
        }
    return {
        "openapi": "3.0.0", "info": {"title": "kepd", "version": version}, "paths": paths,
        "components": {"schemas": schemas},
    }  # fmt: skip


def _name(group: str, kind: str) -> str:
    return f"{group or 'core'}.{kind}"


def _schema(kind: str, schemas: Object) -> Object:
    if kind not in all_types():
        status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        fields = {"metadata": _of("ObjectMeta", schemas), "spec": status, "status": status}
        return {"type": "object", "properties": {**NAMED["properties"], **fields}}
    return {"type": "object", "properties": {**NAMED["properties"], **_fields(kind, schemas)}}


def _fields(kind: str, schemas: Object) -> Object:
    found: Object = {}
    for name, mark, code in all_types()[kind].values():
        if name in INLINE:
            found |= _fields(code, schemas)
        elif mark == "*":
            found[name] = {"type": "array", "items": _of(code, schemas)}
        elif mark == "%":
            found[name] = {"type": "object", "additionalProperties": _of(code, schemas)}
        else:
            found[name] = _of(code, schemas)
    return found


def _of(code: str, schemas: Object) -> Object:
    if code in SCALARS:
        return SCALARS[code]
    name = _name("", f"part.{code}")
    if name not in schemas:
        # First the name, for types may be inside of themselves.
        schemas[name] = {"type": "object"}
        schemas[name]["properties"] = _fields(code, schemas)
    return {"$ref": f"#/components/schemas/{name}"}
