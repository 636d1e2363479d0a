# SPDX-License-Identifier: Apache-2.0
"""Credentials: which are tried, in which order, who is left out, and that nobody sees them."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.images.access.dockerconfig import ConfigInvalid, entries_for, read_config_file, read_secret, secret_ring
from agent.images.access.go_json import JsonInvalid, read_json
from agent.images.access.match_key import KeyInvalid, is_match, key_of_entry, parse_key
from agent.images.run.credentials import CredentialSource, NodeConfig, Providers, node_config_paths
from agent.model.images.credential import Credential, PullSecret, SecretId, SecretText, fingerprint
from agent.model.images.pull import PullPolicy, PullRequest
from tests.fakes.clock import FakeClock

SECRET = "hunter2-very-secret"


def secret(name: str, auths: dict, kind: str = "kubernetes.io/dockerconfigjson") -> PullSecret:
    text = json.dumps({"auths": auths})
    return PullSecret(SecretId("ns", name, "uid"), kind, {".dockerconfigjson": SecretText(text)})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ("{a", "invalid character 'a' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("nul", "unexpected end of JSON input"),
        ("nUll", "invalid character 'U' in literal null (expecting 'u')"),
        ("-x", "invalid character 'x' in numeric literal"),
        ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ("1ex", "invalid character 'x' in exponent of numeric literal"),
        ("01", "invalid character '1' after top-level value"),
        ('"\\q"', "invalid character 'q' in string escape code"),
        ('"\\u00g0"', "invalid character 'g' in \\u hexadecimal character escape"),
        ("{} x", "invalid character 'x' after top-level value"),
        ("'", "invalid character '\\'' looking for beginning of value"),
        ("NaN", "invalid character 'N' looking for beginning of value"),
    ],
)
def test_json_errors_are_in_the_words_of_go(text, complaint) -> None:
    """IMG-C11 for the kubelet profile: users compare the messages."""
    with pytest.raises(JsonInvalid) as refused:
        read_json(text.encode())

    assert str(refused.value) == complaint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_valid_json_is_read_as_what_it_is(value, is_ascii) -> None:
    assert (
        read_json(json.dumps(value, ensure_ascii=is_ascii, indent=1).encode("utf-8", "surrogatepass"))
        is not NotImplemented
    )


@given(st.text(alphabet='{}[]":,\\ tfn019.eE-+u', max_size=20))
def test_json_is_refused_exactly_when_python_refuses_it(text) -> None:
    try:
        json.loads(text, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
    except ValueError:
        with pytest.raises(JsonInvalid):
            read_json(text.encode())
    else:
        read_json(text.encode())


@pytest.mark.parametrize(
    ("pattern", "image", "matches"),
    [
        ("*.example.com:5000", "a.example.com:5000/x", True),
        ("a*b.example.com", "aXYb.example.com/x", True),
        ("Registry.example.com", "registry.example.com/x", False),
        ("registry.example.com/%74eam", "registry.example.com/team/x", True),
        ("a b.example.com", "a b.example.com/x", False),
        ("user@registry.example.com", "registry.example.com/x", True),
        ("[2001:db8::1]", "[2001:db8::1]/app", False),
        ("a.example.com?x", "a.example.com/x", True),
        ("**.example.com", "a.example.com/x", True),
    ],
)
def test_patterns(pattern, image, matches) -> None:
    """IMG-C04."""
    assert is_match(pattern, image) is matches


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_pattern_breaks_the_matcher(pattern, image) -> None:
    """IMG-C03: what is no address matches nothing."""
    is_match(pattern, image)
    for parse in (parse_key, key_of_entry):
        try:
            parse(pattern)
        except KeyInvalid as error:
            assert pattern not in str(error) or len(pattern) < 4


def test_one_unreadable_secret_does_not_void_the_others() -> None:
    """IMG-C11; the kubelet's way on request."""
    broken = PullSecret(
        SecretId("ns", "bad"), "kubernetes.io/dockerconfigjson", {".dockerconfigjson": SecretText("{x")}
    )
    good = secret("good", {"a.io": {"username": "u", "password": SECRET}})
    ring = secret_ring([broken, good])

    assert [one.username for one in entries_for("a.io/x", ring.entries)] == ["u"]
    assert [bad.name for bad in ring.bad] == ["bad"]
    with pytest.raises(ConfigInvalid):
        secret_ring([broken, good], is_strict=True)


def test_secrets_of_other_types_and_empty_ones_are_passed_over() -> None:
    """IMG-C01: in silence, also in the kubelet's way."""
    others = [
        PullSecret(SecretId("ns", "tls"), "kubernetes.io/tls", {"tls.key": SecretText("x")}),
        PullSecret(SecretId("ns", "none"), "kubernetes.io/dockerconfigjson", {}),
        PullSecret(
            SecretId("ns", "old"),
            "kubernetes.io/dockercfg",
            {".dockercfg": SecretText(json.dumps({"a.io": {"username": "old", "password": SECRET}}))},
        ),
    ]
    ring = secret_ring(others, is_strict=True)

    assert [one.username for one in entries_for("a.io/x", ring.entries)] == ["old"]
    assert list(ring.bad) == []


def test_on_the_hub_one_key_counts_and_another_only_if_nothing_else_does() -> None:
    """IMG-C05."""
    auths = {
        "https://index.docker.io/v1/": {"username": "index"},
        "registry-1.docker.io": {"username": "never"},
    }
    hub = {**auths, "docker.io": {"username": "hub"}}

    def users(entries: dict) -> list[str]:
        return [one.username for one in entries_for("docker.io/library/x", secret_ring([secret("s", entries)]).entries)]

    assert users(hub) == ["hub"]
    assert users(auths) == ["index"]


def test_two_spellings_of_one_key_are_tried_in_the_order_of_their_spelling() -> None:
    """IMG-C13."""
    auths = {"https://a.io": {"username": "second"}, "a.io": {"username": "first"}}

    assert [one.username for one in entries_for("a.io/x", secret_ring([secret("s", auths)]).entries)] == [
        "first",
        "second",
    ]


@pytest.mark.parametrize("auth", ["pants!", "====", base64.b64encode(b"nocolon").decode()])
def test_a_bad_auth_field_is_an_error_that_repeats_nothing(auth) -> None:
    """IMG-C02, C21."""
    with pytest.raises(ConfigInvalid) as refused:
        read_secret(secret("s", {"a.io": {"auth": auth}}))

    assert str(refused.value) == "unable to parse auth field, must be formatted as base64(username:password)"


@pytest.mark.parametrize(
    "document", [b"[]", b'{"auths": []}', b'{"auths": {"a": 1}}', b'{"auths": {"a": {"username": 1}}}']
)
def test_a_document_of_another_shape_is_refused(document) -> None:
    with pytest.raises(ConfigInvalid):
        read_config_file(document)


def test_field_names_count_without_regard_to_case_and_nulls_are_nothing() -> None:
    entries = read_config_file(b'{"Auths": {"a.io": {"UserName": "u", "password": null}}, "credsStore": "x"}')

    assert entries[0].credential == Credential(username="u")
    assert read_config_file(b"null") == []


def test_nobody_sees_a_secret_by_accident() -> None:
    """IMG-C10."""
    credential = Credential(username="user-name", password=SecretText(SECRET), source="secret:s")
    pull_secret = secret("s", {"a.io": {"password": SECRET}})
    shown = f"{credential!r} {credential} {[credential]} {pull_secret!r} {SecretText(SECRET)}"

    assert SECRET not in shown
    assert "user-name" not in shown
    assert "***" in shown


def test_a_fingerprint_tells_lists_of_credentials_apart() -> None:
    """IMG-S03: the ordered list counts."""
    one, two = (Credential(username=name, password=SecretText(SECRET)) for name in ("a", "b"))

    assert fingerprint([]) == "public"
    assert len({fingerprint([one]), fingerprint([two]), fingerprint([one, two]), fingerprint([two, one])}) == 4


async def test_the_order_is_pod_then_node_and_the_first_readable_node_file_counts(tmp_path) -> None:
    """IMG-C06, C07."""
    clock = FakeClock()
    broken, good = tmp_path / "config.json", tmp_path / "docker.json"
    broken.write_text("{")
    good.write_text(json.dumps({"auths": {"a.io": {"username": "node", "password": SECRET}}}))
    source = CredentialSource(
        NodeConfig([tmp_path / "none", broken, good], clock=clock), Providers([], tmp_path, {}, clock=clock)
    )
    request = PullRequest(
        image="a.io/x",
        policy=PullPolicy.ALWAYS,
        secrets=(secret("s", {"a.io": {"username": "pod"}}),),
        missing_secrets=("gone",),
    )
    found = await source.find("a.io/x", request)

    assert [one.username for one in found.credentials] == ["pod", "node"]
    assert "gone" in found.sentences[0].text

    good.write_text(json.dumps({"auths": {}}))

    assert len((await source.find("a.io/x", request)).credentials) == 2
    await clock.advance(300)
    assert len((await source.find("a.io/x", request)).credentials) == 1


def test_the_node_file_is_looked_for_where_a_kubelet_looks() -> None:
    """IMG-C07."""
    assert [str(path) for path in node_config_paths("", "/root")] == [
        "/var/lib/kubelet/config.json", "config.json", "/root/.docker/config.json", "/.docker/config.json",
        "/var/lib/kubelet/.dockercfg", ".dockercfg", "/root/.dockercfg", "/.dockercfg",
    ]  # fmt: skip
    assert [str(path) for path in node_config_paths("/x.json", "/root")] == ["/x.json"]
