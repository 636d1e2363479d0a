# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import kinds
from agent.config.kinds import ValueKind, Wrong


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10.0), ("1m30s", 90.0), ("200ms", 0.2), ("0s", 0.0), ("1.5h", 5400.0), ("2d", 172800)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert seconds == kinds.DURATION.read(text)


@given(st.integers(min_value=0, max_value=10_000_000))
def test_a_shown_duration_reads_back(seconds: int) -> None:
    assert seconds == kinds.DURATION.read(kinds.DURATION.show(float(seconds)))


@given(st.integers(min_value=0, max_value=2**50))
def test_a_shown_size_reads_back(size: int) -> None:
    assert size == kinds.SIZE.read(kinds.SIZE.show(size))


@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        (kinds.BOOL, "no", "'no' is not true or false"),
        (kinds.DURATION, 10, '10 is not a duration with a unit, such as "10s" or "1m30s"'),
        (kinds.DURATION, "-5s", "'-5s' is not at least 0s"),
        (kinds.SIZE, "2GB", '\'2GB\' is not a size such as "10Mi" or "2Gi"'),
        (kinds.integer(0, 9), True, "True is not a whole number from 0 to 9"),
        (kinds.number(0, 1), 2, "2 is not a number from 0 to 1"),
        (kinds.PATH, "etc/kepd", "'etc/kepd' is not an absolute path"),
        (kinds.ADDRESS, "localhost:80", "host:port with an IP address"),
        (kinds.ADDRESS, "1.2.3.4:99999999999", "host:port with an IP address"),
        (kinds.IP, "010.0.0.1", "is not an IP address"),
        (kinds.CIDR, "10.0.0.1/8", "with no host bits set"),
        (kinds.DNS_NAME, "Node_1", "a DNS name in lower case"),
        (kinds.ENDPOINT, "tcp://1.2.3.4", "a unix socket"),
        (kinds.ENDPOINT, "unix:///" + "x" * 120, "within the 107 bytes"),
        (kinds.choice("nftables", "iptables"), "nftable", 'did you mean "nftables"?'),
        (kinds.either("auto", kinds.integer(0)), "atuo", 'and not "auto"'),
        (kinds.list_of(kinds.IP, "IP addresses"), ["1.2.3.4", "x"], "item 1: 'x' is not an IP address"),
        (kinds.map_of(kinds.integer(0, 9), "plane: level"), {"pods": 12}, "pods: 12 is not"),
        (kinds.record_of(priority=kinds.integer(0), period=kinds.DURATION), {"priority": 1}, "period is missing"),
        (kinds.TEXT, "a\nb", "one line of at most 4096 printable signs"),
        (kinds.TEXT, "a\x1b[2J", "one line of at most 4096 printable signs"),
        (kinds.TEXT, "x" * 5000, "one line of at most 4096 printable signs"),
        (kinds.GROUP, "-1", "a group name, a gid up to 4294967294, or empty"),
        (kinds.GROUP, "4294967295", "a group name, a gid up to 4294967294, or empty"),
        (kinds.GROUP, "a b", "a group name"),
        (kinds.SERVICE_NAME, "kube-dns", "a Service, such as kube-system/kube-dns"),
        (kinds.SERVICE_NAME, "../..", "a Service, such as kube-system/kube-dns"),
        (kinds.MAYBE_SERVICE_NAME, "a/b/c", "or empty"),
        (kinds.MAYBE_LABEL, "x" * 64, "a label's value, or empty"),
        (kinds.MAYBE_INTERFACE, "..", "the name of an interface"),
        (kinds.MAYBE_INTERFACE, "a/b", "the name of an interface"),
        (kinds.MAYBE_INTERFACE, "sixteen-signs-xx", "the name of an interface"),
    ],
)
def test_a_wrong_value_is_told_what_would_be_right(kind: ValueKind, value: object, complaint: str) -> None:
    with pytest.raises(Wrong) as wrong:
        kind.read(value)

    assert complaint in str(wrong.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(ANYTHING)
def test_no_value_makes_a_kind_fail_otherwise(value: object) -> None:
    for kind in (
        kinds.BOOL, kinds.DURATION, kinds.SIZE, kinds.ADDRESS, kinds.IP, kinds.CIDR, kinds.ENDPOINT, kinds.CPU,
        kinds.PATH, kinds.DNS_NAME, kinds.choice("a"), kinds.either("auto", kinds.integer(0)), kinds.number(0, 1),
        kinds.list_of(kinds.BOOL, "x"), kinds.map_of(kinds.BOOL, "x"), kinds.record_of(a=kinds.BOOL),
    ):  # fmt: skip
        try:
            kind.show(kind.read(value))
        except Wrong as wrong:
            assert "\n" not in str(wrong)
