# SPDX-License-Identifier: Apache-2.0
"""The few changes to messages of CRI, as bytes to bytes: another timeout of a stop, exits that look like a success.

Whatever else a message has, also fields of newer kubelets and runtimes, stays.
Never: changes annotations or labels, for a kubelet rebuilds its own state from them.
"""

from collections.abc import Collection

from agent.wire.cri import runtime_v1_pb2 as pb

TIMEOUT_TAG = 0x10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SUCCESS = "Completed"


def with_timeout(message: bytes, timeout_s: int) -> bytes:
    """A StopContainerRequest of the same length with a shorter timeout. Raises ValueError. The length must stay,
    because window and frame already count it; a number may be written with leading zeros."""
    position = 0
    while position < len(message):
        tag, start = _varint(message, position)
        kind = tag & 7
        if kind == VARINT:
            _, end = _varint(message, start)
            if tag == TIMEOUT_TAG:
                return message[:start] + _padded(timeout_s, end - start) + message[end:]
        elif kind == BYTES:
            length, start = _varint(message, start)
            end = start + length
        elif kind in (FIXED64, FIXED32):
            end = start + (8 if kind == FIXED64 else 4)
        else:
            break
        position = end
    raise ValueError("a StopContainerRequest without a timeout")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
    raise ValueError("a number that is cut off")


def _padded(value: int, length: int) -> bytes:
    out = bytearray()
    for _ in range(length - 1):
        out.append(value & 0x7F | 0x80)
        value >>= 7
    if value > 0x7F:
        raise ValueError("a timeout that needs more room than the one it replaces")
    return bytes([*out, value])


def masked_answer(method: str, message: bytes, masked: Collection[str]) -> bytes:
    """The answer of a method with the exits of masked containers turned into successes."""
    match method:
        case "ContainerStatus":
            one = pb.ContainerStatusResponse.FromString(message)
            return one.SerializeToString() if _mask([one.status], masked) else message
        case "PodSandboxStatus":
            pod = pb.PodSandboxStatusResponse.FromString(message)
            return pod.SerializeToString() if _mask(pod.containers_statuses, masked) else message
        case "GetContainerEvents":
            event = pb.ContainerEventResponse.FromString(message)
            return event.SerializeToString() if _mask(event.containers_statuses, masked) else message
    return message


def _mask(statuses: Collection[pb.ContainerStatus], masked: Collection[str]) -> bool:
    hidden = [one for one in statuses if one.id in masked and one.state == pb.CONTAINER_EXITED]
    for one in hidden:
        one.exit_code = 0
        one.reason = SUCCESS
        one.message = ""
    return bool(hidden)
