# SPDX-License-Identifier: Apache-2.0
"""What failures are called, what users read about them, and how long the next try waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.images.queue.backoff import BackoffRules, BackoffTable
from agent.images.queue.errors import (
    KUBELET_CURVE,
    MEANINGS,
    NETWORK_CURVE,
    AttemptFailure,
    Deed,
    classify,
    failure_of,
    joined,
    own_words,
)
from agent.images.view import texts
from agent.model.images.pull import ErrorClass

HEAD = 'failed to pull and unpack image "r.io/x:1": failed to resolve reference "r.io/x:1": '


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("pulling from host r.io failed with status code [manifests 1]: 401 Unauthorized", "UNKNOWN", "auth"),
        ("unexpected status from HEAD request to https://r.io/v2/x/manifests/1: 403 Forbidden", "UNKNOWN", "auth"),
        ("pull access denied, repository does not exist or may require authorization: denied", "UNKNOWN", "auth"),
        ("failed to authorize: failed to fetch anonymous token: insufficient_scope", "UNKNOWN", "auth"),
        ("r.io/x:1: not found", "NOT_FOUND", "notfound"),
        ("unexpected status from GET request to https://r.io/v2/x/blobs/y: 404 Not Found", "UNKNOWN", "notfound"),
        ("status code [manifests 1]: 429 Too Many Requests - Server message: toomanyrequests", "UNKNOWN", "rate"),
        ('Head "https://r.io/v2/": dial tcp: lookup r.io on 10.0.0.1:53: no such host', "UNKNOWN", "dns"),
        ('Head "https://r.io/v2/": dial tcp 10.0.0.1:443: connect: connection refused', "UNKNOWN", "net"),
        ('Head "https://r.io/v2/": net/http: TLS handshake timeout', "UNKNOWN", "net"),
        ('Get "https://r.io/v2/": EOF', "UNKNOWN", "net"),
        ('Head "/v2/x?hop=10": stopped after 10 redirects', "UNKNOWN", "net"),
        ('Head "https://r.io": tls: failed to verify certificate: x509: unknown authority', "UNKNOWN", "tls"),
        ("failed to copy: write /var/lib/containerd/ingest/data: no space left on device", "UNKNOWN", "nospace"),
        ("no match for platform in manifest: not found", "NOT_FOUND", "platform"),
        ("failed commit on ref layer: unexpected commit digest sha256:a, expected sha256:b", "UNKNOWN", "corrupt"),
        ("failed commit on ref layer: 10 failed size validation: 9 != 10: failed precondition", "UNKNOWN", "corrupt"),
        ("wrong diff id calculated on extraction", "UNKNOWN", "corrupt"),
        ("image verifier cosign blocked pull of r.io/x:1 with digest sha256:a for reason: no", "UNKNOWN", "verifier"),
        ("SignatureValidationFailed: no signature", "UNKNOWN", "verifier"),
        ("status code [manifests 1]: 500 Internal Server Error", "UNKNOWN", "5xx"),
        ("status code [manifests 1]: 503 Service Unavailable", "UNKNOWN", "5xx"),
        ("RegistryUnavailable: down", "UNKNOWN", "5xx"),
        ("context canceled", "CANCELLED", "timeout"),
        ("no progress for 10m0s (2 of 9 layers, 45%)", "UNKNOWN", "timeout"),
        ("connection error: desc = transport", "UNAVAILABLE", "runtime"),
        ("failed to prepare extraction snapshot: dial unix /run/s.sock: connection refused", "UNKNOWN", "runtime"),
        ("failed to pull r.io/csi-snapshotter:1: 429 Too Many Requests", "UNKNOWN", "rate"),
        ("something else", "UNKNOWN", "unknown"),
    ],
)  # fmt: skip
def test_failures_have_classes(text, code, expected) -> None:
    """IMG-B06."""
    assert classify(AttemptFailure(text, code)) == expected
    if not text.startswith(("RegistryUnavailable", "Signature", "no progress")):
        assert classify(AttemptFailure(HEAD + text, code)) == expected


def test_the_code_unknown_is_left_out_and_others_stay() -> None:
    """IMG-B04."""
    assert str(AttemptFailure("boom")) == "boom"
    assert str(AttemptFailure("gone", "NOT_FOUND")) == "rpc error: code = NotFound desc = gone"
    assert str(AttemptFailure("x", "CANCELLED")) == "rpc error: code = Canceled desc = x"


def test_failures_of_several_credentials_are_joined_without_duplicates() -> None:
    """IMG-B04."""
    assert joined([AttemptFailure("a")]) == "a"
    assert joined([AttemptFailure("a"), AttemptFailure("b"), AttemptFailure("a")]) == "[a, b]"
    assert joined([AttemptFailure("a"), AttemptFailure("a")]) == "a"


def test_a_registry_that_is_down_and_a_bad_signature_have_their_own_reasons() -> None:
    """IMG-B03, B04."""
    down = failure_of("x", [AttemptFailure("RegistryUnavailable: no route")])
    unsigned = failure_of("x", [AttemptFailure("SignatureValidationFailed: no signature")])

    assert (down.reason, down.message) == (
        "RegistryUnavailable", "image pull failed for x because the registry is unavailable: no route",
    )  # fmt: skip
    assert (unsigned.reason, unsigned.message) == (
        "SignatureValidationFailed", "image pull failed for x because the signature validation failed: no signature",
    )  # fmt: skip


NAMES = ("web:429", "x/429/retry-after:999999", "h:5000/too-many-requests/toomanyrequests:eof", "a/no-such-host:EOF")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("{full}: not found", "NOT_FOUND", "notfound"),
        ("{full}: not found", "UNKNOWN", "notfound"),
        ("{name}: not found", "UNKNOWN", "notfound"),
        ("unexpected status from HEAD request to https://{full}: 404 Not Found", "UNKNOWN", "notfound"),
        ("reading manifest EOF in {full}: manifest unknown", "UNKNOWN", "notfound"),
        ("failed with status code [manifests 429]: 401 Unauthorized", "UNKNOWN", "auth"),
        ("pulling {full}: 403 Forbidden - Server message: toomanyrequests: 429 EOF", "UNKNOWN", "auth"),
        ('Head "https://{full}": x509: certificate is valid for no space left on device, not r.io', "UNKNOWN", "tls"),
        ('Get "https://{full}": malformed MIME header line: no space left on device', "UNKNOWN", "unknown"),
        ("lookup eof.r.io on 10.0.0.1:53: no such host", "UNKNOWN", "dns"),
    ],
)
def test_a_name_that_somebody_chose_decides_nothing(name, text, code, expected) -> None:
    failure = AttemptFailure(HEAD.replace("r.io/x:1", name) + text.format(full=f"r.io/{name}", name=name), code)

    assert classify(failure) == expected
    assert failure_of(name, [failure]).hold_s is None


def test_no_registry_is_left_alone_for_more_than_an_hour() -> None:
    text = "unexpected status: 429 Too Many Requests, Retry-After: 999999"

    assert failure_of("x", [AttemptFailure(text)]).hold_s == 3600


def test_a_long_text_is_cut_in_time_that_grows_with_it() -> None:
    """A server may answer with any text; none of it is looked at more than a few times."""
    for piece in ('"', '\\"', "a/b:c ", "a:", ":/", "x509", "[manifests ", "lookup ", "status "):
        assert own_words(piece * (40_000 // len(piece))) is not None


@pytest.mark.parametrize(
    ("text", "hold_s"), [("429 Too Many Requests", 60), ("status: 429 Too Many Requests, Retry-After: 7", 7)]
)
def test_a_registry_that_wants_a_pause_says_how_long(text, hold_s) -> None:
    """IMG-B06."""
    assert failure_of("x", [AttemptFailure(text)]).hold_s == hold_s


def test_the_sentences_are_the_kubelets_letter_by_letter() -> None:
    """IMG-B03, B09."""
    said = [
        texts.pulling("X"),
        texts.pulled("X", 39.356, 49.356, 41901587),
        *texts.failed("X", "E", "ErrImagePull"),
        *texts.backed_off("X"),
        texts.never_present("X"),
        texts.bad_name("X", 'couldn\'t parse image name "X": ..'),
        texts.inspect_failed("X", "E"),
        texts.secrets_missing(["a", "b"]),
        texts.queued("X", 3, "2 of 2 slots busy"),
        texts.progress("X", "45% (1.2GiB of 2.7GiB)", "3 of 9 layers unpacked", 40.4),
    ]

    assert [one.text for one in said] == [
        'Pulling image "X"',
        'Successfully pulled image "X" in 39.356s (49.356s including waiting). Image size: 41901587 bytes.',
        'Failed to pull image "X": E',
        "Error: ErrImagePull",
        'Back-off pulling image "X"',
        "Error: ImagePullBackOff",
        'Container image "X" is not present with pull policy of Never',
        'Failed to apply default image tag "X": couldn\'t parse image name "X": ..',
        'Failed to inspect image "X": E',
        "Unable to retrieve some image pull secrets (a, b); attempting to pull the image may not succeed.",
        'Waiting to pull image "X": position 3, 2 of 2 slots busy',
        'Pulling image "X": 45% (1.2GiB of 2.7GiB), 3 of 9 layers unpacked, about 40s left',
    ]
    assert texts.back_off_message("X", "ErrImagePull", "E") == 'Back-off pulling image "X": ErrImagePull: E'
    assert texts.present("X").text == 'Container image "X" already present on machine and can be accessed by the pod'


def test_every_kind_of_failure_has_one_meaning() -> None:
    """IMG-B06, P11: what would fail for every pod alike is no outage, and only a full disk has room made."""
    assert MEANINGS.keys() == set(ErrorClass)
    assert not [kind for kind, one in MEANINGS.items() if one.is_outage and one.deed is Deed.SHARED_PAUSE]
    assert [kind for kind, one in MEANINGS.items() if one.deed is Deed.MAKE_ROOM] == [ErrorClass.NO_SPACE]


def test_pauses_of_the_network_begin_short_and_jitter() -> None:
    """IMG-B06."""
    table = BackoffTable()

    assert BackoffRules().curve(ErrorClass.NET) is NETWORK_CURVE
    assert BackoffRules().curve(ErrorClass.AUTH) is KUBELET_CURVE
    assert table.fail("k", 0, NETWORK_CURVE, luck=0.5) == pytest.approx(2.2)
    assert table.fail("k", 3, NETWORK_CURVE, luck=0) == 4
    assert [table.fail("k", 4 + step, NETWORK_CURVE, luck=1) for step in range(9)][-1] == 300


def test_a_reset_lets_the_next_attempt_go_at_once() -> None:
    """IMG-B05."""
    table = BackoffTable()
    table.fail("uid_a", 0)
    table.reset("uid_a")

    assert not table.is_waiting("uid_a", 1)
    assert table.fail("uid_a", 1) == 10


@given(st.lists(st.tuples(st.floats(0, 2000), st.booleans()), max_size=20))
def test_a_pause_is_never_longer_than_the_cap_nor_shorter_than_the_start(steps) -> None:
    """IMG-B01."""
    table = BackoffTable()
    for now_s, _ in sorted(steps):
        assert 10 <= table.fail("k", now_s) <= 300
        assert table.is_waiting("k", now_s)
