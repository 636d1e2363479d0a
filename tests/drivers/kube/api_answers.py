# SPDX-License-Identifier: Apache-2.0
"""Bodies and headers as a 1.36 API server writes them.

Owns: the JSON text (pretty for people's tools, compact for others, Go's escapes), headers, page tokens, refusals.
Checked against recordings by test_recordings.py.
"""

import base64
import gzip
import json
import uuid

from aiohttp import web

from tests.drivers.kube.fake_objects import Json, StoredKind, StoreRefusal

FLOW_SCHEMA = "d228bae4-daf9-4ea8-9600-4ef5700a3b36"
PRIORITY_LEVEL = "8d5faf8c-1344-47d3-9c97-690c59f6203d"
PEOPLES_TOOLS = ("curl/", "Wget/", "Mozilla/")
LARGEST_UNCHUNKED_BYTES = 4096
SMALLEST_PACKED_BYTES = 128 << 10
VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "$Format:%H$",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.27.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}


def base_headers(*, is_known: bool = True) -> dict[str, str]:
    """Of every answer; a request whose sender is unknown was not classified yet."""
    headers = {"audit-id": str(uuid.uuid4()), "cache-control": "no-cache, private", "content-type": "application/json"}
    if is_known:
        headers["x-kubernetes-pf-flowschema-uid"] = FLOW_SCHEMA
        headers["x-kubernetes-pf-prioritylevel-uid"] = PRIORITY_LEVEL
    return headers


def compact(value: object) -> bytes:
    """One line of JSON without its end."""
    return _escaped(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _escaped(text: str) -> bytes:
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").encode()


def body_of(value: object, user_agent: str, *, is_pretty: bool = False) -> bytes:
    """A whole body."""
    if is_pretty or user_agent.startswith(PEOPLES_TOOLS):
        return _escaped(json.dumps(value, indent=2, ensure_ascii=False))
    return compact(value) + b"\n"


def answered(request: web.BaseRequest, value: object, status: int = 200, **headers: str) -> web.Response:
    """An answer with a JSON body."""
    user_agent = request.headers.get("User-Agent", "")
    body = body_of(value, user_agent, is_pretty=request.query.get("pretty") == "true")
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    response = web.Response(body=body, status=status, headers={**base_headers(is_known=status != 401), **named})
    if len(body) > SMALLEST_PACKED_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.body, response.headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    if len(body) > LARGEST_UNCHUNKED_BYTES:
        response.enable_chunked_encoding()
    return response


def refused(request: web.BaseRequest, no: StoreRefusal) -> web.Response:
    """An answer with a Status body."""
    headers = {}
    if no.code == 403:
        headers["x_content_type_options"] = "nosniff"
    seconds = no.body.get("details", {}).get("retryAfterSeconds")
    if seconds:
        headers["retry_after"] = str(seconds)
    return answered(request, no.body, no.code, **headers)


def unauthorized() -> StoreRefusal:
    return StoreRefusal(401, "Unauthorized", "Unauthorized")


def not_served() -> StoreRefusal:
    return StoreRefusal(404, "NotFound", "the server could not find the requested resource", {})


def forbidden(kind: StoredKind, user: str, verb: str, namespace: str, name: str) -> StoreRefusal:
    subject = f'{kind.qualified} "{name}"' if name else kind.qualified
    scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = (
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{kind.plural}" '
        f'in API group "{kind.group}" {scope}'
    )
    return StoreRefusal(403, "Forbidden", message, kind.details(name))


def version_ahead(asked: int, current: int) -> StoreRefusal:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return StoreRefusal(504, "Timeout", message, details)


def list_too_old() -> StoreRefusal:
    return StoreRefusal(410, "Expired", "The resourceVersion for the provided list is too old.")


def page_too_old(token: str) -> StoreRefusal:
    no = StoreRefusal(
        410,
        "Expired",
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    )
    no.body["metadata"] = {"continue": token}
    return no


def watch_too_old(asked: int, oldest: int) -> Json:
    no = StoreRefusal(410, "Expired", f"too old resource version: {asked} ({oldest - 1})")
    return {"type": "ERROR", "object": no.body}


def option_forbidden(option: str, text: str) -> StoreRefusal:
    cause = {"reason": "FieldValueForbidden", "message": f"Forbidden: {text}", "field": option}
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause]}
    message = f'ListOptions.meta.k8s.io "" is invalid: {option}: Forbidden: {text}'
    return StoreRefusal(422, "Invalid", message, details)


def too_many_requests(retry_after_s: int) -> web.Response:
    """As priority and fairness refuses: no Status."""
    headers = {"retry-after": str(retry_after_s), "x-content-type-options": "nosniff"}
    headers["content-type"] = "text/plain; charset=utf-8"
    return web.Response(body=b"Too many requests, please try again later.\n", status=429, headers=headers)


def bookmark(kind: StoredKind, resource_version: int, *, ends_initial: bool = False) -> Json:
    meta: Json = {"resourceVersion": str(resource_version)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    head = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
    return {"type": "BOOKMARK", "object": {**head, **kind.blank}}


def page_token(resource_version: int, last_key: str) -> str:
    text = compact({"v": "meta.k8s.io/v1", "rv": resource_version, "start": f"{last_key}\0"})
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def read_page_token(token: str) -> tuple[int, str]:
    try:
        value = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(value["rv"]), str(value["start"]).rstrip("\0")
    except (ValueError, KeyError) as error:
        raise StoreRefusal(400, "BadRequest", f"continue key is not valid: {error}") from error
