# SPDX-License-Identifier: Apache-2.0
"""The records of claims as they lie on the disk."""

import structlog

from agent.model.text.records import RecordFiles
from kepd_devices.plan.records import FOLDER, ClaimRecord, decode_record

log = structlog.get_logger(plane="devices")

BAD_FOLDER = f"{FOLDER}/bad"


async def read_records(files: RecordFiles) -> tuple[dict[str, ClaimRecord], dict[str, str]]:
    """Those that can be read, by uid, and what is wrong with the others, by file. These are put aside."""
    records: dict[str, ClaimRecord] = {}
    for name, content in (await files.read_folder(FOLDER)).items():
        try:
            record = decode_record(content)
        except ValueError as error:
            await files.write(f"{BAD_FOLDER}/{name}", content)
            await files.remove(f"{FOLDER}/{name}")
            log.error("claim_record_unreadable", record=name, error=str(error), effect="no device is given")
            continue
        records[record.uid] = record
    text = "record {} of a claim cannot be read; what it holds is not known"
    return records, {name: text.format(name) for name in await files.read_folder(BAD_FOLDER)}
