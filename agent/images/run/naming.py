# SPDX-License-Identifier: Apache-2.0
"""Gives an image that was pulled from elsewhere the name that is written in the pod.

Owns: the second name after a rewritten pull.
Never: fails a pull: without the name the runtime would pull the written one, which is the fallback anyway.
Source of behaviour: IMG-R03.
"""

from contextlib import suppress
from dataclasses import replace

import structlog

from agent.images.ports import ImageNames
from agent.model.image_reference import ImageReference
from agent.model.runtime_error import AlreadyExists, NotFound, RuntimeCallFailed

__all__ = ["keep_name"]

log = structlog.get_logger(plane="images")


async def keep_name(names: ImageNames, target: ImageReference, written: ImageReference) -> bool:
    """Whether the written name now stands for what was pulled as the target."""
    try:
        records = {record.name: record for record in await names.image_records()}
        pulled = records.get(str(target))
        if pulled is None:
            return False
        known = records.get(str(written))
        if known is not None and known.digest == pulled.digest:
            return True
        if known is not None:
            with suppress(NotFound):
                await names.delete_image(known.name)
        with suppress(AlreadyExists):
            await names.create_image(replace(pulled, name=str(written)))
    except RuntimeCallFailed as error:
        log.warning("image_name_not_kept", image=str(written), pulled_as=str(target), error=error.details)
        return False
    return True
