# SPDX-License-Identifier: Apache-2.0
"""Messages made by dnspython, which is the oracle of our codec."""

from collections.abc import Sequence

import dns.flags
import dns.message
import dns.rrset

from kepd_dns.wire.answer import FilteredAnswer, keep, read_answer
from kepd_dns.wire.question import Question, read_question


def ask(name: str, kind: str = "A", *, options: bool = True, is_dnssec: bool = False, id_: int = 7) -> bytes:
    made = dns.message.make_query(name, kind, use_edns=False)
    if options:
        made.use_edns(0, dns.flags.DO if is_dnssec else 0, 1232)
    made.id = id_
    return made.to_wire()


def question(name: str, kind: str = "A", **more: object) -> Question:
    return read_question(ask(name, kind, **more))  # type: ignore[arg-type]


def answer(
    asked: bytes,
    answers: Sequence[str] = (),
    authority: Sequence[str] = (),
    extra: Sequence[str] = (),
    *,
    code: int = 0,
) -> bytes:
    """Records as `name TTL class type data`."""
    made = dns.message.make_response(dns.message.from_wire(asked), recursion_available=True)
    made.set_rcode(code)
    for section, lines in ((made.answer, answers), (made.authority, authority), (made.additional, extra)):
        for line in lines:
            name, ttl, klass, kind, *data = line.split(maxsplit=4)
            section.append(dns.rrset.from_text(name, int(ttl), klass, kind, *data))
    return made.to_wire(max_size=65535)


def kept(asked: bytes, made: bytes) -> FilteredAnswer:
    return keep(made, read_answer(made), read_question(asked))


SOA = "cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"
