# SPDX-License-Identifier: Apache-2.0
"""When a CronJob starts next, and why its last time did or did not start a Job."""

from collections.abc import Iterator
from typing import Any

from agent.kinds.ages import age_of, seconds_of
from agent.kinds.parts import items, part
from agent.kinds.workloads.cronjobs import next_times, time_of
from agent.model.finding import printable


def explained_cron_job(made: dict[str, Any], now_s: float) -> Iterator[str]:
    metadata, spec, status = (part(made, name) for name in ("metadata", "spec", "status"))
    name = f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    zone = spec.get("timeZone") or "the zone of the node"
    yield printable(f'CRONJOB {name}  "{spec.get("schedule", "")}" in {zone}')
    if not status:
        yield "- kepd does not carry it out: its manifest has a fault or is not read yet, or pods do not run here"
        return
    for one in items(status, "conditions"):
        yield printable(f"- {one.get('lastTransitionTime')}: {one.get('reason')}: {one.get('message')}")
    last = time_of(made, "lastScheduleTime")
    if seconds_of(last) > now_s:
        text = "the clock is behind the last time that was used, and no time up to that starts again"
        yield f"- {text}; if the clock was wrong then, delete the CronJob and apply it anew"
    elif last:
        yield f"- the last Job was made for {last}, {age_of(last, now_s)} ago"
    active = [str(one.get("name")) for one in items(status, "active")]
    if active:
        policy = spec.get("concurrencyPolicy") or "Allow"
        yield printable(f"- it runs {', '.join(active)}; concurrencyPolicy is {policy}")
    if spec.get("suspend"):
        yield "- its manifest says suspend: true, so nothing starts; of what comes meanwhile the latest is made up for"
        return
    times = next_times(made)
    yield from (f"- next: {here}  ({utc})" for here, utc in times)
    if not times:
        yield "- no time comes any more: none of the months that it names has such a day"
