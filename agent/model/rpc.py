# SPDX-License-Identifier: Apache-2.0
"""Names and codes of calls to a runtime, as figures and traces have them."""

from collections.abc import Mapping
from functools import lru_cache

from agent.model.span import AttributeValue

CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(CODES)}
RUNTIME_SERVICE, IMAGE_SERVICE = "runtime.v1.RuntimeService", "runtime.v1.ImageService"
OF_IMAGES = frozenset({"ImageFsInfo", "ImageStatus", "ListImages", "PullImage", "RemoveImage", "StreamImages"})


def code_name(code: int | None) -> str:
    """gRPC's name; None is a call that ended without an answer."""
    if code is None:
        return "CANCELLED"
    return CODES[code] if 0 <= code < len(CODES) else "UNKNOWN"


def service_of(method: str) -> str:
    return IMAGE_SERVICE if method in OF_IMAGES else RUNTIME_SERVICE


@lru_cache(256)
def rpc_attributes(service: str, method: str, code: str) -> Mapping[str, AttributeValue]:
    """All of them words of our own, so nothing has to be looked for in them."""
    attributes: dict[str, AttributeValue] = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": NUMBERS.get(code, NUMBERS["UNKNOWN"]),
    }
    return attributes if code == "OK" else {**attributes, "error.type": code}
