# SPDX-License-Identifier: Apache-2.0
"""What our own zone says to a question, for people."""

from kepd_dns.handover.status import Cached, Explanation
from kepd_dns.wire.names import to_text
from kepd_dns.wire.question import NXDOMAIN
from kepd_dns.wire.records_text import data_text, type_text
from kepd_dns.zones.own import OwnZone


def own_explanation(
    own: OwnZone, name: bytes, kind: int, zone: str, cached: tuple[Cached, ...] = ()
) -> Explanation:  # fmt: skip
    found = own.look(name, kind)
    records = tuple(
        f"{to_text(one.owner)} {one.ttl} {type_text(one.type)} {data_text(one.type, one.data)}" for one in found.answers
    )
    target = to_text(found.target) if found.target else ""
    return Explanation(
        name=to_text(name), zone=zone, kind="own", code=found.code, records=records, target=target, cached=cached,
        meant=own.meant(name) if found.code == NXDOMAIN else "",
    )  # fmt: skip
