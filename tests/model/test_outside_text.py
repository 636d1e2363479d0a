# SPDX-License-Identifier: Apache-2.0
"""What becomes of texts of runtimes, registries and plugins where they enter."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drivers.cri.driver import CriRuntime
from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.model.text.outside_text import ANYWHERE_LENGTH, LONGEST_TEXT, from_outside, login_values
from agent.wire.cri import runtime_v1_pb2 as pb

SECRET = "s3cr3tvalue"
SECRET_TEXTS = [
    f"Get https://r.io/v2/x?X-Amz-Signature={SECRET}&X-Amz-Date=1: 403",
    f"GET /v2/x/blobs/y?sig={SECRET} HTTP/1.1",
    f'Authorization: Bearer {SECRET}"',
    f"authorization=Basic {SECRET}, rest",
    f"map[Accept:[x] Authorization:[Basic {SECRET}]]",
    f"https://user:{SECRET}@r.io/v2/",
    f"https://user:p@{SECRET}@r.io/v2/",
    f"https://user:p/{SECRET}@r.io/v2/",
    f"https://{SECRET}@r.io/v2/",
    f"login user:{SECRET}@r.io failed",
    f"token={SECRET}&x=1",
    f"client_secret={SECRET}&x=1",
    f'{{"access_token":"{SECRET}"}}',
    f'{{"auth": "{SECRET}"}}',
    f'{{"auths":{{"r.io":{{"auth":"{SECRET}","email":"x"}}}}}}',
    f'msg="{{\\"identitytoken\\":\\"{SECRET}\\"}}"',
    f'{{"password": "two words, {SECRET}"}}',
    f"X-Registry-Auth: {SECRET}",
    f"X-Registry-Auth:[{SECRET}]",
    f"Set-Cookie: id={SECRET}; Path=/",
    f"password: {SECRET}",
    f"Bearer {SECRET}",
    f"got eyJhbGciOiJI.{SECRET}.{SECRET}",
    f"ghp_{SECRET}",
    f"mount failed: pass={SECRET}",
    f"PASS={SECRET},vers=3",
    f"exec: skopeo --password {SECRET} failed",
    f"exec: x --registry-token {SECRET}",
    f"curl -u user:{SECRET} https://r.io",
    f"curl --user=user:{SECRET} https://r.io",
]


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_what_looks_like_a_secret_goes_and_stays_away(text: str) -> None:
    """IMG-B08, FX-10, FI-12; a second pass finds nothing more to do."""
    once = from_outside(text)

    assert SECRET not in once
    assert from_outside(once) == once


PLAIN_TEXTS = [
    'failed to resolve reference "r.io/x:1": pulling from host r.io failed with status code [x 1]: 404 Not Found',
    "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope",
    'failed to fetch oauth token: Post "https://auth.example/token": dial tcp: lookup auth.example: no such host',
    "failed to fetch anonymous token: unexpected status from GET request to https://auth.example/token: 403 Forbidden",
    'secret "regcred" not found',
    "no basic auth credentials",
    "bearer authentication required",
    "registry.example:5000/team/app:1@sha256:0123456789abcdef: not found",
    "pull https://registry.example/v2/app@sha256:0123456789abcdef: not found",
    'http: server gave HTTP response to HTTPS client; realm="https://auth.example/token"',
]


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_errors_without_secrets_stay_as_they_are(text: str) -> None:
    assert from_outside(text) == text


WORDS = st.text(alphabet=st.characters(blacklist_characters="*", blacklist_categories=("Cs",)), max_size=20)
LONG = st.text(alphabet="abcXYZ019+/=_-.", min_size=ANYWHERE_LENGTH, max_size=60)


@given(LONG, WORDS, WORDS)
def test_a_known_long_secret_stays_nowhere(secret: str, before: str, after: str) -> None:
    """IMG-B08, C10."""
    assert secret not in from_outside(before + secret + after, [secret])


@pytest.mark.parametrize("around", ["{}", "was {} here", "({})", '"{}"', "x={}&y=1", "sent {}.", "{}: refused"])
def test_a_known_word_goes_as_a_whole_word(around: str) -> None:
    """FI-19."""
    assert "hunter2pass" not in from_outside(around.format("hunter2pass"), ["hunter2pass"])


@pytest.mark.parametrize("password", ["docker", "library", "registry", "app"])
def test_a_password_cannot_be_guessed_from_what_turns_into_stars(password: str) -> None:
    """FI-19: a tenant who may read events would see which word of a name is somebody's password."""
    text = "docker.io/library/registry/app:1 and registry.example/app-registry/x: not found"

    assert from_outside(text, [password]) == text


@given(st.text(max_size=300))
def test_the_result_is_one_printable_line(text: str) -> None:
    """FI-12: nothing that a terminal would act on."""
    assert from_outside(text).isprintable()


@pytest.mark.parametrize("piece", ["a.", "://", "a:", 'password:"', "?a=", "x://a:b", "a:b@", "-", '"auth":"'])
def test_a_hostile_text_costs_little_and_has_a_bound(piece: str) -> None:
    assert len(from_outside(piece * (1 << 20))) < LONGEST_TEXT + 100


class Runtime:
    """Says the text to every pull, as a real one says what a registry said."""

    text = ""

    async def pull(self, _request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, self.text)


@asynccontextmanager
async def runtime(folder: Path, text: str) -> AsyncIterator[CriRuntime]:
    server, served = grpc.aio.server(), Runtime()
    served.text = text
    pull = grpc.unary_unary_rpc_method_handler(
        served.pull, pb.PullImageRequest.FromString, pb.PullImageResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("runtime.v1.ImageService", {"PullImage": pull})]
    )
    server.add_insecure_port(f"unix://{folder}/r.sock")
    await server.start()
    driver = CriRuntime(f"unix://{folder}/r.sock")
    try:
        yield driver
    finally:
        await driver.close()
        await server.stop(None)


async def test_a_pull_that_fails_tells_nothing_it_was_given(short_path: Path) -> None:
    """FI-12: redacted where it enters; no cause keeps the text as it came."""
    auth = pb.AuthConfig(username="paul", password="a long password", identity_token="identity-token")
    (pair,) = (one for one in login_values("paul", "a long password") if one != "a long password")
    told = f"docker.io/x: a long password, identity-token {pair} https://cdn.example/x?sig=1\n\x1b[31mnext: not found"
    async with runtime(short_path, told) as driver:
        with pytest.raises(NotFound) as failed:
            await driver.pull_image("docker.io/x", auth)
        with pytest.raises(RuntimeCallFailed) as anonymous:
            await driver.pull_image("docker.io/x")

    assert failed.value.details == "docker.io/x: ***, *** *** https://cdn.example/x?*** ?[31mnext: not found"
    assert failed.value.__cause__ is None
    assert "sig=1" not in anonymous.value.details
