# SPDX-License-Identifier: Apache-2.0
"""What is known of Jobs on disk and here: the same, for a change is taken over only once it is written."""

from collections.abc import Iterable

import structlog

from agent.pods.ports import PodRecords
from agent.pods.workloads.job_record import (
    FOLDER,
    JobRecord,
    decode_job_record,
    encode_job_record,
    job_record_name,
)
from agent.pods.workloads.workload import Key, Workload

log = structlog.get_logger(plane="pods")


class JobRecords:
    def __init__(self, files: PodRecords) -> None:
        self._files = files
        self._known: dict[Key, JobRecord] = {}

    async def load(self) -> None:
        """One that cannot be read is left out: its Job is counted anew from the pods that are still there."""
        self._known.clear()
        try:
            found = await self._files.read_folder(FOLDER)
        except OSError as error:
            log.warning("job_records_unreadable", error=str(error))
            return
        for name, content in found.items():
            try:
                record = decode_job_record(content)
            except ValueError as error:
                log.warning("job_record_unreadable", record=name, error=str(error))
                continue
            self._known[record.key] = record

    def of(self, job: Workload) -> JobRecord:
        """With another template it is another run."""
        known = self._known.get(job.key)
        if known is not None and known.revision == job.revision:
            return known
        return JobRecord(namespace=job.namespace, name=job.name, revision=job.revision, file=job.file)

    def keys(self) -> Iterable[Key]:
        return tuple(self._known)

    def file_of(self, key: Key) -> str:
        return self._known[key].file

    def has(self, key: Key) -> bool:
        return key in self._known

    async def keep(self, record: JobRecord) -> None:
        """Raises OSError."""
        if self._known.get(record.key) == record:
            return
        await self._files.write(job_record_name(record.namespace, record.name), encode_job_record(record))
        self._known[record.key] = record

    async def forget(self, key: Key) -> None:
        """Raises OSError."""
        if key in self._known:
            await self._files.remove(job_record_name(key[1], key[2]))
            del self._known[key]
