# SPDX-License-Identifier: Apache-2.0
"""Names of images, allowlists, rewrite rules and mirrors, beyond what the vectors have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.images.access.grants import allowlist_fault, is_allowed
from agent.images.access.mirrors import EVERYBODY, auth_servers, default_chain, folder_names, read_hosts
from agent.images.queue.rules import RewriteRule, rewritten, rule_fault
from agent.model.images.reference import ReferenceInvalid, default_policy, parse_reference, record_key
from agent.model.images.text import duration_text, quoted

DIGEST = "sha256:" + "ab" * 32
COMPONENT = st.from_regex(r"[a-z0-9]{1,5}([._-][a-z0-9]{1,4})?", fullmatch=True)
HOST = st.sampled_from(["", "docker.io/", "localhost/", "r.example.com/", "r.example.com:5000/", "[2001:db8::1]:5000/"])
TAG = st.one_of(st.just(""), st.from_regex(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}", fullmatch=True))
NAMES = st.builds(
    lambda host, path, tag, digest: host + "/".join(path) + tag + digest,
    HOST, st.lists(COMPONENT, min_size=1, max_size=3), TAG, st.sampled_from(["", f"@{DIGEST}"]),
)  # fmt: skip


@given(NAMES)
def test_what_the_runtime_stores_means_itself(text) -> None:
    """IMG-P04, P06: a normalised name is its own normal form."""
    try:
        reference = parse_reference(text)
    except ReferenceInvalid:
        return

    assert parse_reference(str(reference)).runtime_ref == str(reference)
    assert parse_reference(reference.cri_image).runtime_ref == str(reference)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text) -> None:
    """IMG-P03."""
    for parse in (parse_reference, record_key, default_policy):
        try:
            parse(text)
        except ReferenceInvalid as error:
            assert str(error).startswith("couldn't parse image name ")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a@sha256:" + "a" * 40, "invalid checksum digest length"),
        ("a@sha256:" + "A" * 64, "invalid checksum digest format"),
        ("a@md5:" + "a" * 32, "unsupported digest algorithm"),
        ("a/" + "b" * 260, "repository name must not be more than 255 characters"),
        ("a\nb", "invalid reference format"),
        ("busybox\n", "invalid reference format"),
    ],
)
def test_a_bad_name_says_what_is_bad(text, cause) -> None:
    """IMG-P03, B03: in the kubelet's words."""
    with pytest.raises(ReferenceInvalid) as refused:
        parse_reference(text)

    assert refused.value.cause == cause


def test_texts_look_as_go_prints_them() -> None:
    """IMG-B09."""
    assert quoted('a"b\\c\n\x01é') == '"a\\"b\\\\c\\n\\x01é"'
    assert [duration_text(one) for one in (0.0004, 0.312, 62.5, 3600, -1.5)] == [
        "0s",
        "312ms",
        "1m2.5s",
        "1h0m0s",
        "-1.5s",
    ]


def test_an_allowlist_of_ours_goes_by_the_normalised_name() -> None:
    """IMG-V01: the kubelet compares spellings, we compare images."""
    assert is_allowed("docker.io/library/busybox:1", ["busybox"], is_normalised=True)
    assert is_allowed("busybox", ["docker.io/library/*"], is_normalised=True)
    assert not is_allowed("busybox", ["docker.io/library/*"], is_normalised=False)
    assert not is_allowed("not a name", ["*/*"], is_normalised=True)
    assert allowlist_fault("docker.io/Library") == "failed to parse as an image name: repository name must be lowercase"


def test_the_first_rewrite_rule_that_matches_is_applied_once() -> None:
    """IMG-R03, R04."""
    rules = (
        RewriteRule(match=r"^docker\.io/(.*)", replace=r"mirror.example.com/hub/\1"),
        RewriteRule(match="^mirror", replace="other"),
    )
    target = rewritten(parse_reference("busybox:1"), rules)

    assert target is not None
    assert str(target.reference) == "mirror.example.com/hub/library/busybox:1"
    pinned = rewritten(parse_reference(f"docker.io/x/y@{DIGEST}"), rules)
    assert pinned is not None
    assert str(pinned.reference) == f"mirror.example.com/hub/x/y@{DIGEST}"
    assert rewritten(parse_reference("quay.io/x"), rules) is None
    assert rewritten(parse_reference("docker.io/x"), (RewriteRule(match="x", replace="X"),)) is None


def test_a_rewrite_rule_that_cannot_work_is_named() -> None:
    """IMG-R03."""
    assert "not a regular expression" in rule_fault(RewriteRule(match="(", replace=""))
    assert "does not fit" in rule_fault(RewriteRule(match="a", replace=r"\2"))
    assert rule_fault(RewriteRule(match=r"^a\.io/(.*)", replace=r"b.io/\1")) == ""


def test_mirrors_come_in_file_order_and_the_registry_last() -> None:
    """IMG-R01."""
    content = b"""
server = "https://upstream.example.com"
[host."http://127.0.0.1:5000"]
  capabilities = ["pull", "resolve"]
[host."mirror.example.com"]
"""
    chain = read_hosts("r.example.com", content, "/certs.d/r.example.com/hosts.toml")

    assert [host.url for host in chain.hosts] == [
        "http://127.0.0.1:5000", "https://mirror.example.com", "https://upstream.example.com",
    ]  # fmt: skip
    assert chain.hosts[0].capabilities == ("pull", "resolve")
    assert folder_names("r.example.com:5000") == ("r.example.com_5000_", "r.example.com:5000", "_default")
    assert default_chain("docker.io").hosts[0].url == "https://registry-1.docker.io"


def test_a_mirror_file_that_cannot_be_read_is_told_and_the_registry_stays() -> None:
    """IMG-R01."""
    chain = read_hosts("r.example.com", b"[host", "hosts.toml")

    assert chain.problem.startswith("cannot be read")
    assert [host.url for host in chain.hosts] == ["https://r.example.com"]


@pytest.mark.parametrize(
    ("registry", "hosts", "url"),
    [
        ("r.io:5000", 'server = "http://r.io:5000"\n[host."http://r.io:5000"]\ncapabilities = ["pull"]', "http://r.io:5000"),
        ("docker.io", "", "https://registry-1.docker.io"),
        ("r.io", 'server = "https://upstream.example.com"', ""),
        ("r.io", '[host."https://m.io"]', ""),
        ("r.io", 'server = "https://r.io"\nca = "/etc/ca.pem"', ""),
        ("r.io", '[host."https://r.io"]\nskip_verify = true', ""),
        ("r.io", 'server = "https://r.io/prefix"', ""),
        ("r.io", "[host", ""),
    ],
)  # fmt: skip
def test_a_hosts_file_that_only_says_how_to_reach_the_registry_is_followed(registry: str, hosts: str, url: str) -> None:
    """IMG-R01: anything more is the runtime's, and sizes are not asked for."""
    assert read_hosts(registry, hosts.encode(), "hosts.toml").only_url == url


@pytest.mark.parametrize(
    ("registry", "hosts", "listed", "servers"),
    [
        ("r.io", "", [], ["https://r.io"]),
        ("docker.io", "", [], ["https://registry-1.docker.io"]),
        ("r.io:5000", '[host."http://m.io:80"]', [], ["https://r.io:5000"]),
        ("r.io", '[host."https://m.io"]', ["m.io"], [EVERYBODY]),
        ("r.io", '[host."https://m.io"]\n[host."https://n.io"]', ["n.io"], ["https://n.io", "https://r.io"]),
    ],
)
def test_credentials_go_to_their_registry_and_to_mirrors_that_are_listed(registry, hosts, listed, servers) -> None:
    """IMG-C09: as addresses, for a runtime takes a bare host for a path."""
    assert list(auth_servers(read_hosts(registry, hosts.encode(), "hosts.toml"), listed)) == servers


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("x", "Always"), ("x:latest", "Always"), ("x:LATEST", "IfNotPresent"), ("x:1", "IfNotPresent"),
        (f"x@{DIGEST}", "IfNotPresent"), (f"x:latest@{DIGEST}", "Always"), ("Not A Name", "IfNotPresent"),
        ("host:5000/x", "Always"),
    ],
)  # fmt: skip
def test_the_policy_of_a_pod_that_says_none_follows_from_the_tag(image, policy) -> None:
    """IMG-P01."""
    assert default_policy(image) == policy


@pytest.mark.parametrize("host", ["host_with_underscore.example.org", "a__b.example.org", "a_b.local"])
def test_a_host_that_the_grammar_takes_for_a_path_is_a_registry_of_its_own(host: str) -> None:
    """FI-22: it read as the registry "", which stands for the whole node. The parts are those of the reference
    library; what is asked is the first of them."""
    parsed = parse_reference(f"{host}/team/app:1")

    assert (parsed.registry, parsed.path, parsed.repo) == ("", f"{host}/team/app", f"{host}/team/app")
    assert (parsed.asked_host, parsed.asked_path) == (host, "team/app")
    assert (str(parsed), parsed.cri_image) == (f"{host}/team/app:1", f"{host}/team/app:1")
    assert parse_reference(f"{host}/app").asked_host == host
    assert parse_reference("r.io/team/app").asked_host == "r.io"
