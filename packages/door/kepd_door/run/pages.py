# SPDX-License-Identifier: Apache-2.0
"""What is known without any object: what there is, which version, and what objects look like."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from agent import __version__
from kepd_door.shape import discovery, openapi
from kepd_door.shape.resources import Resource
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
# The version of Kubernetes whose API this is.
MAJOR, MINOR = "1", "36"
NOWHERE = "the server could not find the requested resource"


def page(request: web.BaseRequest, resources: Sequence[Resource], address: str) -> web.Response:
    """What is known without any object."""
    path = request.path.rstrip("/")
    accept = request.headers.get("Accept", "")
    if request.method not in ("GET", "HEAD"):
        raise Failure(404, NOWHERE)
    if path in ("/api", "/apis"):
        for version in discovery.VERSIONS:
            if f"g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" in accept.replace(" ", ""):
                made = discovery.aggregated(resources, version, is_core=path == "/api")
                kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
                return json_answer(made, content_type=kind)
        return json_answer(discovery.api_versions(address) if path == "/api" else discovery.group_list(resources))
    if path == "/version":
        return json_answer(_version())
    if path == "/openapi/v2":
        kind = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        if "proto" in accept:
            return web.Response(body=openapi.document_v2(resources), headers={"Content-Type": kind})
        return json_answer({"swagger": "2.0", "info": {"title": "kepd", "version": "v1"}, "paths": {}})
    if path == "/openapi/v3":
        return json_answer(openapi.index_v3(resources, __version__))
    if path in ("/healthz", "/livez", "/readyz"):
        return web.Response(text="ok")
    steps = path.strip("/").split("/")
    found: Object | None = None
    if steps[0] == "api" and len(steps) == 2:
        found = discovery.resource_list(resources, "", steps[1])
    elif steps[:3] == ["openapi", "v3", "api"] and len(steps) == 4:
        found = openapi.document_v3(resources, "", steps[3])
    elif steps[:3] == ["openapi", "v3", "apis"] and len(steps) == 5:
        found = openapi.document_v3(resources, steps[3], steps[4])
    elif steps[0] == "apis" and len(steps) == 2:
        found = discovery.one_group(resources, steps[1])
    elif steps[0] == "apis" and len(steps) == 3:
        found = discovery.resource_list(resources, steps[1], steps[2])
    if found is None:
        raise Failure(404, NOWHERE)
    return json_answer(found)


def _version() -> Mapping[str, str]:
    return {
        "major": MAJOR, "minor": MINOR, "gitVersion": f"v{MAJOR}.{MINOR}.0+kepd-{__version__}", "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "", "goVersion": "", "compiler": "",
        "platform": f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine())}",
    }  # fmt: skip


def json_answer(
    made: object, *, status: int = 200, content_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> web.Response:
    encoded = msgspec.json.encode(made)
    return web.Response(status=status, body=encoded, headers={**(headers or {}), "Content-Type": content_type})
