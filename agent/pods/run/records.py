# SPDX-License-Identifier: Apache-2.0
"""What an earlier kepd wrote down of its pods."""

import structlog

from agent.pods.plan.record import FOLDER, Record, decode_record
from agent.pods.run.pod_context import PodContext

log = structlog.get_logger(plane="pods")


async def load_records(context: PodContext) -> dict[str, Record]:
    """By uid. What cannot be read is logged and left out."""
    try:
        found = await context.records.read_folder(FOLDER)
    except OSError as error:
        log.warning("pod_records_unreadable", error=str(error))
        return {}
    records, boot_id = {}, context.settings().facts.boot_id
    for name, content in found.items():
        try:
            record = decode_record(content, boot_id, context.clock.now_s(), context.clock.wall_s())
        except ValueError as error:
            log.warning("pod_record_unreadable", record=name, error=str(error))
        else:
            records[name.removesuffix(".json")] = record
    return records
