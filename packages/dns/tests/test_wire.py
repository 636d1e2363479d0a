# SPDX-License-Identifier: Apache-2.0
"""The codec against dnspython, and against what attackers send."""

import random
import time
from collections.abc import Callable
from contextlib import suppress

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kepd_dns.wire.answer import keep, read_answer
from kepd_dns.wire.names import Malformed, is_within, labels, to_text, to_wire
from kepd_dns.wire.plain import read_plain
from kepd_dns.wire.question import (
    BADVERS,
    CD,
    FORMERR,
    NOTIMP,
    BadQuestion,
    Dropped,
    Question,
    read_question,
    read_whole,
)
from kepd_dns.wire.records_text import data_text
from kepd_dns.wire.writing import (
    answer_bytes,
    cut_bytes,
    error_bytes,
    question_bytes,
    refusal_bytes,
    spelled,
)
from packages.dns.tests.messages import SOA, answer, ask, kept, question

NAMES = st.lists(st.text("abcXYZ019-_", min_size=1, max_size=12), min_size=1, max_size=6).map(".".join)
KINDS = st.sampled_from(["A", "AAAA", "SRV", "PTR", "TXT", "MX", "HTTPS"])


@given(NAMES, KINDS, st.booleans(), st.booleans(), st.integers(0, 65535))
def test_a_question_is_read_as_dnspython_wrote_it(name: str, kind: str, options: bool, signed: bool, id_: int) -> None:
    """DNS-80, DNS-50."""
    text = ask(name, kind, options=options, is_dnssec=signed and options, id_=id_)
    oracle = dns.message.from_wire(text)

    found = read_question(text)

    assert (found.id, to_text(found.name)) == (oracle.id, oracle.question[0].name.to_text().lower())
    assert found.type == oracle.question[0].rdtype
    assert found.has_options == (oracle.edns == 0)
    assert found.is_dnssec == bool(oracle.ednsflags & dns.flags.DO)
    assert dns.message.from_wire(question_bytes(id_, found.section, found.flags, has_options=options)).question == (
        oracle.question
    )


def test_what_is_known_of_a_domain_changes_no_question() -> None:
    """DNS-50, DNS-90: names in other spellings, of 255 bytes and more, with other flags, and what mutation makes."""

    def outcome(read: Callable[[bytes], Question], data: bytes) -> object:
        try:
            return read(data)
        except (BadQuestion, Dropped) as error:
            return type(error), str(error), getattr(error, "section", None)

    domain = ".".join(["d" * 63] * 3)
    packets = [ask(f"{'x' * size}.{domain}", options=options) for size in (1, 20, 61) for options in (True, False)]
    # One byte more than a name may have, and a label that takes the next one's length with it.
    packets += [one[:12] + b"\x3e" + b"y" * size + one[14:] for one in packets[:2] for size in (62, 61)]
    packets += [ask("WEB.a"), ask("web.A"), ask("web.a", is_dnssec=True), ask("web.a", "TXT"), ask("a"), ask(".")]
    packets += [one[:3] + bytes((one[3] | 0x10,)) + one[4:] for one in packets]
    dice = random.Random(5)
    packets += [mutated(packets, dice) for _ in range(20_000)]

    different = [one for one in packets if outcome(read_question, one) != outcome(read_whole, one)]

    assert different == []
    assert {type(outcome(read_whole, one)) for one in packets} == {Question, tuple}


@given(st.binary(min_size=1, max_size=63))
def test_a_label_becomes_text_that_dnspython_reads_back(label: bytes) -> None:
    """DNS-97: whatever bytes a name has, its text shows none of them to a terminal."""
    name = bytes((len(label),)) + label.lower() + b"\0"

    text = to_text(name)

    assert (text.isascii(), text.isprintable()) == (True, True)
    assert dns.name.from_text(text).to_wire() == name


def test_a_zone_ends_at_whole_labels() -> None:
    """DNS-40."""
    zone = to_wire("cluster.local")

    found = [is_within(to_wire(one), zone) for one in ("a.cluster.local", "cluster.local", "xcluster.local", "local")]

    assert found == [True, True, False, False]
    assert labels(to_wire("a.B.")) == (b"a", b"b")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda one: one[:2] + b"\x29\x00" + one[4:], NOTIMP),
        (lambda one: one[:4] + b"\0\2" + one[6:], FORMERR),
        (lambda one: one[:4] + b"\0\0" + one[6:], FORMERR),
        (lambda one: one[:12] + b"\x40" + one[13:], FORMERR),
        (lambda one: one[:12] + b"\xc0\x0c" + one[12:], FORMERR),
        (lambda one: one + b"x", FORMERR),
        (lambda one: one[:-3], FORMERR),
        (lambda one: one[:10] + b"\0\2" + one[12:] + one[-11:], FORMERR),
        (lambda one: one[:-11] + b"\1a\0" + one[-10:], FORMERR),
        (lambda one: one[:-5] + b"\1" + one[-4:], BADVERS),
        (
            lambda one: one[:12] + b"\x3f" + b"a" * 63 + b"\x3f" + b"a" * 63 + (b"\x3f" + b"a" * 63) * 3 + one[-16:],
            FORMERR,
        ),
    ],
)
def test_a_bad_question_is_refused_with_its_code(change: object, code: int) -> None:
    """DNS-90, DNS-59: opcode, two questions, none, a long label, a pointer, more bytes, fewer, two OPT, an OPT with a
    name, another version, a long name."""
    made = change(ask("web.default.svc.cluster.local"))  # type: ignore[operator]

    with pytest.raises(BadQuestion) as caught:
        read_question(made)

    assert caught.value.code == code
    refusal = refusal_bytes(caught.value.id, caught.value.flags, caught.value.code, caught.value.section)
    assert refusal[:2] == made[:2]
    assert dns.message.from_wire(refusal).rcode() == code


def test_answers_and_short_packets_get_nothing() -> None:
    """DNS-90: two servers must not talk to each other for ever."""
    text = ask("a.b")

    for one in (text[:11], b"", text[:2] + b"\x81" + text[3:]):
        with pytest.raises(Dropped):
            read_question(one)


def test_client_subnets_and_cookies_are_not_sent_on() -> None:
    """DNS-47."""
    text = ask("a.b")[:-2] + b"\0\x0b" + b"\0\x08\0\x07\0\1\x18\0\x0a\0\0"

    found = read_question(text)

    assert (found.has_options, found.key) == (True, question("a.b").key)
    assert b"\0\x08\0\x07" not in question_bytes(1, found.section, found.flags, has_options=True)


def test_flags_that_change_answers_are_part_of_the_key() -> None:
    """DNS-46."""
    plain, signed = question("a.b"), question("a.b", is_dnssec=True)
    unchecked = read_question(ask("a.b")[:3] + bytes((CD,)) + ask("a.b")[4:])

    assert len({plain.key, signed.key, unchecked.key}) == 3
    assert question("A.b").key == plain.key


RECORDS = [
    "web.a. 30 IN CNAME Other.b.",
    "other.b. 20 IN A 10.0.0.1",
    "other.b. 20 IN A 10.0.0.2",
]


def test_an_answer_is_given_on_as_the_server_wrote_it() -> None:
    """DNS-50: dnspython reads from our message what it wrote into the server's."""
    asked = ask("WEB.a")
    made = answer(asked, RECORDS)
    found = kept(asked, made)

    text = answer_bytes(read_question(asked), found.code, found.tail, found.answers, found.authority)

    ours, theirs = dns.message.from_wire(text), dns.message.from_wire(made)
    assert ours.answer == theirs.answer
    assert ours.question[0].name.to_text() == "WEB.a."
    assert (found.life_s, found.is_negative, to_text(found.target)) == (20, False, "other.b.")


PLAIN: list[tuple[str, list[str], list[str], int]] = [
    ("A", ["web.a. 30 IN A 10.0.0.1"], [], 0),
    ("A", ["web.a. 30 IN A 10.0.0.1", "web.a. 7 IN A 10.0.0.2"], [], 0),
    ("AAAA", ["web.a. 30 IN AAAA fd00::1"], [], 0),
    ("A", [], ["a. 30 IN SOA ns.a. host.a. 1 7200 1800 86400 5"], 3),
    ("TXT", [], [". 3 IN SOA ns.b. host.web.a. 1 7200 1800 86400 5"], 0),
]


@pytest.mark.parametrize(("kind", "records", "reasons", "code"), PLAIN)
@pytest.mark.parametrize("options", [True, False])
def test_a_plain_answer_is_read_in_one_walk_as_any_other(
    kind: str, records: list[str], reasons: list[str], code: int, options: bool
) -> None:
    """DNS-91, DNS-92: what it keeps is what is kept of others."""
    asked = ask("WEB.a", kind, options=options)
    made = answer(asked, records, reasons, code=code)
    reading = read_question(asked)

    found = read_plain(made, reading.section, reading)

    assert found == keep(made, read_answer(made), reading)


def test_what_is_not_plain_is_left_to_those_who_read_all() -> None:
    """DNS-92: a chain, another spelling, another name, an error, a cut one, two records of other kinds, more bytes."""
    asked = ask("web.a")
    reading = read_question(asked)
    good = answer(asked, ["web.a. 30 IN A 10.0.0.1"])
    others = [
        answer(asked, RECORDS),
        answer(ask("WEB.a"), ["web.a. 30 IN A 10.0.0.1"]),
        answer(ask("web.b"), ["web.b. 30 IN A 10.0.0.1"]),
        answer(asked, ["web.a. 30 IN A 10.0.0.1", "web.a. 30 IN TXT x"]),
        answer(asked, ["web.a. 30 IN A 10.0.0.1"], ["a. 30 IN NS ns.a."]),
        answer(asked, [], [SOA], code=3),
        answer(asked, [], code=2),
        good[:2] + bytes((good[2] | 2,)) + good[3:],
        answer(asked, ["b.a. 30 IN A 10.0.0.1"]),
        answer(asked, ["web.a. 30 IN AAAA fd00::1"]),
        answer(asked, ["web.a. 30 IN A 10.0.0.1"]).replace(b"\0\0\0\x1e\0\4", b"\x80\0\0\x1e\0\4"),
        good + b"x",
        good[:-1],
        good[:40],
    ]

    assert read_plain(good, reading.section, reading) is not None
    assert [read_plain(one, reading.section, reading) for one in others] == [None] * len(others)


def test_only_the_chain_that_was_asked_for_is_kept() -> None:
    """DNS-92: records of others, of other types and in the additional section do not come through."""
    asked = ask("web.a")
    made = answer(
        asked,
        ["bank.c. 30 IN A 6.6.6.6", *RECORDS, "web.a. 30 IN A 6.6.6.6", "other.b. 20 IN TXT evil"],
        ["a. 30 IN NS ns.evil."],
        ["bank.c. 30 IN A 6.6.6.6"],
    )
    found = kept(asked, made)

    text = answer_bytes(read_question(asked), found.code, found.tail, found.answers, found.authority)

    ours = dns.message.from_wire(text)
    assert "6.6.6.6" not in ours.to_text()
    assert "evil" not in ours.to_text()
    assert [one.to_text() for one in ours.answer] == [
        "web.a. 30 IN CNAME other.b.",
        "other.b. 20 IN A 10.0.0.1\nother.b. 20 IN A 10.0.0.2",
    ]


def test_an_empty_answer_lives_by_its_soa() -> None:
    """DNS-52: the lesser of TTL and minimum; an SOA of a zone that is not above the name says nothing."""
    asked = ask("x.default.svc.cluster.local")
    foreign = SOA.replace("cluster.local. 30", "evil. 30")

    lives = [kept(asked, answer(asked, [], [one] if one else [], code=3)).life_s for one in (SOA, foreign, "")]

    assert lives == [5, None, None]


def test_records_of_other_names_are_written_without_compression() -> None:
    """DNS-92: what has to be taken apart says the same afterwards, for each type with names in its data."""
    asked = ask("a.example", "MX")
    made = answer(asked, ["b.example. 9 IN TXT x", "a.example. 9 IN MX 10 mail.a.example."])
    found = kept(asked, made)

    text = answer_bytes(read_question(asked), 0, found.tail, found.answers, 0)

    assert dns.message.from_wire(text).answer[0].to_text() == "a.example. 9 IN MX 10 mail.a.example."


@pytest.mark.parametrize(
    "tail",
    [
        b"\xc0\x20" + b"\0\1\0\1\0\0\0\5\0\4\1\2\3\4",
        b"\xc0\x1d" + b"\0\1\0\1\0\0\0\5\0\4\1\2\3\4",
        b"\xff\xff" + b"\0\1\0\1\0\0\0\5\0\4\1\2\3\4",
        b"\xc0\x0c" + b"\0\1\0\1\0\0\0\5\xff\4\1\2\3\4",
        b"\xc0\x0c" + b"\0\5\0\1\0\0\0\5\0\2\xc0\x29",
        b"\xc0\x0c" + b"\0\6\0\1\0\0\0\5\0\4\0\0\0\0",
        b"\xc0\x0c" + b"\0\1\0\1\0\0",
        b"\x80" + b"\0\1\0\1\0\0\0\5\0\4\1\2\3\4",
    ],
)
def test_answers_that_cannot_be_are_discarded(tail: bytes) -> None:
    """DNS-91: pointers forward, to themselves, far away; data beyond the packet; an SOA without numbers; a cut one."""
    asked = ask("a.b.example", options=False)
    made = asked[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + asked[12:] + tail

    with pytest.raises(Malformed):
        read_answer(made)


def test_a_chain_of_pointers_costs_no_more_than_its_length() -> None:
    """DNS-91: 64 KiB of pointers, each to the one before."""
    asked = ask("a.b", options=False)
    made = bytearray(asked[:2] + b"\x81\x80\0\1\x03\xff\0\0\0\0" + asked[12:])
    last = 12
    while len(made) < 16000:
        at = len(made)
        made += (0xC000 | last).to_bytes(2, "big") + b"\0\1\0\1\0\0\0\5\0\4\1\2\3\4"
        last = at
    began_s = time.process_time()

    with pytest.raises(Malformed):
        read_answer(bytes(made))

    assert time.process_time() - began_s < 1.0


def test_errors_and_cut_answers_are_read_by_dnspython() -> None:
    """DNS-59."""
    asked = question("a.b", id_=9)

    cut, error = dns.message.from_wire(cut_bytes(asked)), dns.message.from_wire(error_bytes(asked, 2, 22))

    assert (bool(cut.flags & dns.flags.TC), cut.answer, cut.id) == (True, [], 9)
    assert (error.rcode(), error.options[0].to_text()) == (dns.rcode.SERVFAIL, "EDE 22 (No Reachable Authority)")


@given(NAMES, st.integers(0, 2**128 - 1))
def test_another_spelling_is_the_same_question(name: str, dice: int) -> None:
    """DNS-92, 0x20."""
    section = question(name, "HTTPS").section

    found = spelled(section, dice)

    assert found.lower()[:-4] == section.lower()[:-4]
    assert found[-4:] == section[-4:]


def mutated(corpus: list[bytes], dice: random.Random) -> bytes:
    one = bytearray(dice.choice(corpus))
    for _ in range(dice.randrange(1, 6)):
        at = dice.randrange(len(one))
        match dice.randrange(4):
            case 0:
                one[at] = dice.randrange(256)
            case 1:
                one[at] ^= 1 << dice.randrange(8)
            case 2:
                del one[at : at + dice.randrange(1, 8)]
            case _:
                one[at:at] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 4)))
        if not one:
            return b""
    return bytes(one)


def test_200_000_mutated_packets_raise_nothing_but_malformed() -> None:
    """DNS-90, DNS-91: and what dnspython calls well formed beyond doubt is read."""
    asked = ask("web.default.svc.cluster.local")
    questions = [asked, ask("a.b", "TXT", options=False), ask("x.y.z", is_dnssec=True)]
    answers = [
        answer(asked, [], [SOA], code=3),
        answer(ask("web.a"), RECORDS),
        answer(ask("a.b", "MX"), ["a.b. 1 IN MX 1 c."]),
        answer(asked, ["web.default.svc.cluster.local. 30 IN A 10.0.0.1"]),
        answer(ask("web.a", options=False), ["web.a. 30 IN A 10.0.0.1", "web.a. 30 IN A 10.0.0.2"]),
    ]
    reading = [read_question(one) for one in (asked, ask("web.a"), ask("a.b", "MX"))]
    dice = random.Random(20)

    for _ in range(100_000):
        with suppress(Malformed):
            read_question(mutated(questions, dice))
        message = mutated(answers, dice)
        asked_one = reading[dice.randrange(3)]
        plain = read_plain(message, asked_one.section, asked_one) if len(message) >= 12 and message[2] & 0x80 else None
        with suppress(Malformed):
            whole = keep(message, read_answer(message), asked_one)
            assert plain in (None, whole)
            plain = None
        assert plain is None


def test_types_without_names_are_shown_as_they_are() -> None:
    """RFC 3597."""
    assert [data_text(1, b"\1\2\3\4"), data_text(999, b"\xff"), data_text(16, b"\2\x1b[")] == [
        "1.2.3.4",
        "ff",
        "'\\x1b['",
    ]
