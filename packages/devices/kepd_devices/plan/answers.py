# SPDX-License-Identifier: Apache-2.0
"""Whether what a driver answers can be true."""

from collections.abc import Mapping, Sequence

from agent.model.devices.plugin import ClaimAnswer, PreparedDevice
from agent.model.finding import printable, shown
from kepd_devices.cdi.spec import parse_id
from kepd_devices.plan.records import ClaimRecord

LONGEST_TEXT = 1024
MOST_IDS = 128


Answers = Mapping[str, ClaimAnswer]


def checked(driver: str, asked: Sequence[ClaimRecord], answers: Answers, *, is_prepare: bool) -> Answers:
    """An answer for each claim, those that cannot be true as errors. A claim that nobody asked about spoils them all:
    nobody knows what such a driver did."""
    known = {one.uid for one in asked}
    if strange := sorted(answers.keys() - known):
        text = f"driver {driver} answers about claim {shown(strange[0])}, which was not asked about"
        return {one.uid: ClaimAnswer(error=text) for one in asked}
    return {one.uid: _checked(driver, one, answers.get(one.uid), is_prepare=is_prepare) for one in asked}


def _checked(driver: str, record: ClaimRecord, answer: ClaimAnswer | None, *, is_prepare: bool) -> ClaimAnswer:
    if answer is None:
        return ClaimAnswer(error=f"driver {driver} skipped claim {record.key}")
    if answer.error:
        return ClaimAnswer(error=f"driver {driver}: {told(answer.error)}")
    why = next(filter(None, (_wrong(driver, record, one) for one in answer.devices)), "") if is_prepare else ""
    return ClaimAnswer(error=f"driver {driver} {why}") if why else answer


def _wrong(driver: str, record: ClaimRecord, device: PreparedDevice) -> str:
    own = [one for one in record.results if one.driver == driver]
    name = f"{device.pool}/{device.device}"
    if not any((one.pool, one.device) == (device.pool, device.device) for one in own):
        return f"answers with device {shown(name)}, which claim {record.key} does not have"
    requests = {one.request.partition("/")[0] for one in own}
    for request in device.requests:
        if request not in requests:
            return f"answers with request {shown(request)}, which claim {record.key} does not have"
    if len(device.cdi_ids) > MOST_IDS:
        return f"answers with {len(device.cdi_ids)} CDI ids for one device; expected at most {MOST_IDS}"
    for text in device.cdi_ids:
        try:
            parse_id(text)
        except ValueError as error:
            return f"answers with an id that cannot be used: {error}"
    return ""


def told(text: str) -> str:
    """What a driver wrote, as people may see it."""
    text = printable(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
