# SPDX-License-Identifier: Apache-2.0
"""What is kept of a Job on disk: how often it succeeded and failed, since when, and how it all ended.

Pods are the first source, and they go. `counted` are the pods that are counted and still there: a pod is counted in the
same write that notes its uid, and goes only afterwards, so that no death of kepd counts it twice or never.
"""

import hashlib

import msgspec

FOLDER = "jobs"
FORMAT = 1
COMPLETE, FAILED = "Complete", "Failed"


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Times are wall time; 0 for what has not happened. `revision` is the template that all of it is about."""

    kind: str = "Job"
    namespace: str
    name: str
    revision: str
    file: str = ""
    started_s: float = 0.0
    finished_s: float = 0.0
    succeeded: int = 0
    failed: int = 0
    failed_in_a_row: int = 0
    failed_s: float = 0.0
    counted: tuple[str, ...] = ()
    outcome: str = ""
    reason: str = ""
    message: str = ""
    format: int = FORMAT

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


def job_record_name(namespace: str, name: str) -> str:
    """Names of objects are longer than those of files."""
    return f"{FOLDER}/{hashlib.sha256(f'{namespace}/{name}'.encode()).hexdigest()[:32]}.json"


def encode_job_record(record: JobRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_job_record(content: bytes) -> JobRecord:
    """Raises ValueError for what cannot be read."""
    try:
        record = msgspec.json.decode(content, type=JobRecord)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if record.format != FORMAT:
        raise ValueError(f"format {record.format} is not {FORMAT}")
    return record
