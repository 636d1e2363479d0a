# SPDX-License-Identifier: Apache-2.0
"""A pod as it stands on disk, so that a kepd that starts anew knows what an earlier one knew.

After a reboot monotonic times mean nothing any more, outcomes and counts do. Never: holds values of Secrets.
"""

import dataclasses
from collections.abc import Sequence

import msgspec

from agent.model.finding import printable
from agent.model.pods.pod import PodSpec
from agent.pods.plan.remembered import Memory, begun_anew, resumed_memory
from agent.pods.view.history import Moment

FOLDER = "records"
FORMAT = 1
SHUTDOWN_REASON = "Terminated"
MOMENTS_KEPT = 200


class Record(msgspec.Struct, frozen=True, kw_only=True):
    pod: PodSpec
    memory: Memory = msgspec.field(default_factory=Memory)
    moments: tuple[Moment, ...] = ()
    boot_id: str = ""
    format: int = FORMAT


def record_name(uid: str) -> str:
    return f"{FOLDER}/{uid}.json"


def encode_record(pod: PodSpec, memory: Memory, moments: Sequence[Moment], boot_id: str) -> bytes:
    # Names that are no UTF-8 have no place in JSON; whoever compares files makes them printable first.
    pod = dataclasses.replace(pod, file=printable(pod.file), source=printable(pod.source))
    record = Record(pod=pod, memory=memory, moments=tuple(moments[-MOMENTS_KEPT:]), boot_id=boot_id)
    return msgspec.json.encode(record)


def decode_record(content: bytes, boot_id: str, now_s: float, wall_s: float) -> Record:
    """From the disk, as it stands now. Raises ValueError for what cannot be read."""
    try:
        record = msgspec.json.decode(content, type=Record)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if record.format != FORMAT:
        raise ValueError(f"format {record.format} is not {FORMAT}")
    is_same_boot = bool(boot_id) and record.boot_id == boot_id
    memory = resumed_memory(record.memory) if is_same_boot else _after_reboot(record, now_s, wall_s)
    return msgspec.structs.replace(record, memory=memory)


def _after_reboot(record: Record, now_s: float, wall_s: float) -> Memory:
    """Nothing runs; what was counted stays counted. A pod that ended because the node went down is wanted
    again, unless its policy is to run once."""
    memory = record.memory
    is_over = memory.outcome is not None and (
        memory.outcome.reason != SHUTDOWN_REASON or record.pod.spec.restart_policy == "Never"
    )
    return msgspec.structs.replace(
        begun_anew(memory, {}),
        first_seen_s=now_s - max(wall_s - memory.first_seen_wall_s, 0.0),
        outcome=memory.outcome if is_over else None,
    )
