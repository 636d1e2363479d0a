# SPDX-License-Identifier: Apache-2.0
"""What clients of Kubernetes send as protobuf, as the JSON that they would have sent: slices, and options of deletions.

The client library of Go writes protobuf unless its user says otherwise, and takes JSON back.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError, Message

from agent.model.pods.wall_clock import stamp
from agent.wire.kubernetes import resource_v1_pb2 as pb

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
KINDS: Mapping[str, type[Message]] = {"ResourceSlice": pb.ResourceSlice, "DeleteOptions": pb.DeleteOptions}


def from_protobuf(body: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    if not body.startswith(MAGIC):
        raise ValueError("the body does not begin as protobuf of Kubernetes does")
    envelope = pb.Envelope()
    try:
        envelope.ParseFromString(body[len(MAGIC) :])
        kind = KINDS.get(envelope.typeMeta.kind)
        if kind is None:
            raise ValueError(f"protobuf of {envelope.typeMeta.kind!r} is not read; send application/json")
        message = kind()
        message.ParseFromString(envelope.raw)
    except DecodeError as error:
        raise ValueError(f"the body is no protobuf: {error}") from error
    document: dict[str, Any] = _plain(message)
    head = {"apiVersion": envelope.typeMeta.apiVersion, "kind": envelope.typeMeta.kind}
    return {**head, **document}


def _plain(message: Message) -> Any:  # noqa: ANN401  # JSON
    if isinstance(message, pb.Quantity):
        return message.string
    if isinstance(message, pb.Time):
        return stamp(message.seconds)
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = {key: _value(one) for key, one in value.items()}
        elif field.is_repeated:
            found[field.name] = [_value(one) for one in value]
        else:
            found[field.name] = _value(value)
    return found


def _value(value: Any) -> Any:  # noqa: ANN401  # JSON
    return _plain(value) if isinstance(value, Message) else value
