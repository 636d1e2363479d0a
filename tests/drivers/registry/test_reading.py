# SPDX-License-Identifier: Apache-2.0
"""The pure parts: addresses, challenges, manifests."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.drivers.registry.address import default_base_url, followed, origin_of, with_query
from agent.drivers.registry.challenge import Challenge, choose_challenge, read_challenges, token_parameters
from agent.drivers.registry.errors import ProbeFailed
from agent.drivers.registry.manifest_size import total_bytes
from agent.model.images.manifest import read_document
from agent.model.images.platform import node_platform


@pytest.mark.parametrize(
    ("registry", "expected"),
    [
        ("docker.io", "https://registry-1.docker.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("reg.lan:5000", "https://reg.lan:5000"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
        ("localhost:5000", "http://localhost:5000"),
        ("127.9.9.9", "http://127.9.9.9"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("localhost.example.com", "https://localhost.example.com"),
    ],
)
def test_default_address_is_plain_on_loopback_only(registry: str, expected: str) -> None:
    assert default_base_url(registry) == expected


@pytest.mark.parametrize("base_url", ["", "reg.lan", "ftp://reg.lan", "https://", "https://a:b@reg.lan", "https://h:x"])
def test_base_address_that_is_none_is_refused(base_url: str) -> None:
    with pytest.raises(ProbeFailed):
        origin_of(base_url)


@pytest.mark.parametrize(
    ("url", "link", "expected"),
    [
        ("https://a/v2/x", "https://b/y?z=1#w", "https://b/y?z=1"),
        ("https://a/v2/x", "/y", "https://a/y"),
        ("http://127.0.0.1:1/x", "http://localhost:2/y", "http://localhost:2/y"),
        ("http://127.0.0.1:1/x", "https://b/y", "https://b/y"),
    ],
)
def test_places_to_go(url: str, link: str, expected: str) -> None:
    assert followed(url, link) == expected


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://a/x", "http://a/x"),
        ("https://a/x", "http://127.0.0.1:10250/pods"),
        ("http://a/x", "http://a/y"),
        ("https://a/x", "https://u@b/"),
        ("https://a/x", "https://b/ HTTP/1.1"),
        ("https://a/x", "https://b/\u00e4"),
        ("https://a/x", "https://[b"),
        ("https://a/x", "unix:///run/x"),
    ],
)
def test_places_nobody_goes_to(url: str, link: str) -> None:
    """A registry far away does not make this node call its own services, or send anything in plain."""
    with pytest.raises(ProbeFailed):
        followed(url, link)


def test_query_is_added_to_what_is_there() -> None:
    assert (
        with_query("https://a/t?x=1", [("scope", "repository:a/b:pull")])
        == "https://a/t?x=1&scope=repository%3Aa%2Fb%3Apull"
    )
    assert with_query("https://a/t", []) == "https://a/t"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            ['Bearer realm="https://a/t",service="s",scope="repository:x:pull,push"'],
            [Challenge("bearer", {"realm": "https://a/t", "service": "s", "scope": "repository:x:pull,push"})],
        ),
        (["Bearer realm=https://a/t, service=s"], [Challenge("bearer", {"realm": "https://a/t", "service": "s"})]),
        (['BASIC Realm="a \\"b\\""'], [Challenge("basic", {"realm": 'a "b"'})]),
        (
            ['Negotiate, Basic realm="x", Bearer realm="y" , service = "z"'],
            [
                Challenge("negotiate"),
                Challenge("basic", {"realm": "x"}),
                Challenge("bearer", {"realm": "y", "service": "z"}),
            ],
        ),
        (["Negotiate abc==", "Basic"], [Challenge("negotiate", {"abc": "="}), Challenge("basic")]),
        (['Bearer realm="first",realm="second"'], [Challenge("bearer", {"realm": "first"})]),
        (['Bearer realm="open'], [Challenge("bearer")]),
        ([""], []),
    ],
)
def test_challenges_are_read(headers: list[str], expected: list[Challenge]) -> None:
    assert read_challenges(headers) == expected


@given(st.lists(st.text(alphabet='Bearsic realm="\\,;=:/x \t', max_size=60), max_size=3))
def test_any_header_is_read_to_an_end(headers: list[str]) -> None:
    for challenge in read_challenges(headers):
        assert challenge.scheme == challenge.scheme.lower() != ""


def test_token_is_preferred_to_a_password() -> None:
    both = [Challenge("basic"), Challenge("digest"), Challenge("bearer")]

    assert choose_challenge(both) == Challenge("bearer")
    assert choose_challenge([Challenge("digest")]) is None


def test_scopes_are_told_one_by_one_and_default_to_reading() -> None:
    asked = Challenge("bearer", {"service": "s", "scope": "repository:a:pull repository:b:pull"})

    assert token_parameters(asked, "x") == [
        ("service", "s"),
        ("scope", "repository:a:pull"),
        ("scope", "repository:b:pull"),
    ]
    assert token_parameters(Challenge("bearer"), "x/y") == [("scope", "repository:x/y:pull")]


def test_blob_that_is_in_a_manifest_twice_is_fetched_once() -> None:
    layer = '{"digest":"sha256:aa","size":7}'
    document = read_document(f'{{"config":{{"digest":"sha256:cc","size":1}},"layers":[{layer},{layer}]}}'.encode())

    assert total_bytes(document) == 8


def test_machines_have_the_names_that_images_use() -> None:
    machines = ("x86_64", "aarch64", "armv7l", "i686", "s390x", "ppc64le", "riscv64")

    assert [node_platform(machine).architecture for machine in machines] == [
        "amd64", "arm64", "arm", "386", "s390x", "ppc64le", "riscv64",
    ]  # fmt: skip


@given(st.binary(max_size=200))
@example(b'"\xff"')
def test_no_content_makes_reading_fail_otherwise(content: bytes) -> None:
    document = read_document(content)
    assert document is None or total_bytes(document) is not None or document.manifests is not None
