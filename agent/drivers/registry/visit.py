# SPDX-License-Identifier: Apache-2.0
"""All requests of one probe: manifests, the redirects on the way, and the one challenge that is answered.

Owns: which request carries what. Credentials go to the registry's own host and to the token service it names, and only
after it asked; a host that it redirects to gets nothing, and its challenge is not answered.
Never: outlives the probe, keeps a token or a cookie, uses a proxy or a netrc file, reads more than a bounded answer.
The only module here that imports aiohttp: 138 ms and 25 MiB, so whoever needs it imports it late.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
import msgspec
from yarl import URL

from agent.drivers.registry.address import followed, origin_of, with_query
from agent.drivers.registry.challenge import Challenge, choose_challenge, read_challenges, token_parameters
from agent.drivers.registry.errors import ProbeFailed, RegistryFailed, check_status
from agent.drivers.registry.manifest_size import ACCEPT
from agent.model.images.credential import Credential, SecretText

MOST_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CLIENT_ID = "kepd"
SENDABLE = re.compile(r"[\x21-\x7e]+")
LARGEST_BODY_BYTES = 4 << 20
MOST_CONNECTIONS = 8


class TokenAnswer(msgspec.Struct, frozen=True):
    """What a token service says; registries differ in the name."""

    token: str = ""
    access_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswer:
    """What came back. The body is read only where it can be of use."""

    url: str
    status: int
    location: str = ""
    challenges: tuple[str, ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)


def open_client(connect_s: float) -> aiohttp.ClientSession:
    """The connections of all visits. Whoever visits has the deadline for the whole."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": CLIENT_ID, "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(connect=connect_s),
        auto_decompress=False,
        trust_env=False,
    )


class Visit:
    def __init__(self, client: aiohttp.ClientSession, base_url: str, path: str, credential: Credential | None) -> None:
        self._client = client
        self._base_url = base_url
        self._origin = origin_of(base_url)
        self._path = path
        self._credential = credential
        self._authorization: SecretText | None = None

    async def manifest(self, wanted: str) -> bytes:
        """What the repository has under a tag or digest. Raises ProbeFailed and RegistryFailed."""
        url = f"{self._base_url}/v2/{self._path}/manifests/{wanted}"
        answer = await self._follow(url)
        is_own = origin_of(answer.url) == self._origin
        if answer.status == HTTPStatus.UNAUTHORIZED and is_own and self._authorization is None:
            self._authorization = await self._authorize(answer)
            answer = await self._follow(url)
        check_status(answer.status, "the registry")
        return answer.body

    async def _follow(self, url: str) -> RegistryAnswer:
        for _ in range(MOST_REDIRECTS + 1):
            headers = {"Accept": ACCEPT}
            if self._authorization is not None and origin_of(url) == self._origin:
                headers["Authorization"] = self._authorization.reveal()
            answer = await self._ask(url, headers)
            if answer.status not in REDIRECTS:
                return answer
            url = followed(url, answer.location)
        raise ProbeFailed(f"the registry redirects more than {MOST_REDIRECTS} times")

    async def _authorize(self, answer: RegistryAnswer) -> SecretText:
        """What to present from now on."""
        challenge = choose_challenge(read_challenges(answer.challenges))
        if challenge is None:
            raise RegistryFailed("the registry requires a login but offers neither Bearer nor Basic")
        if challenge.scheme == "basic":
            basic = self._basic()
            if basic is None:
                raise RegistryFailed("the registry requires a login, but there are no credentials for it")
            return basic
        return await self._token(answer.url, challenge)

    def _basic(self) -> SecretText | None:
        if self._credential is None or not self._credential.username:
            return None
        pair = f"{self._credential.username}:{self._credential.password.reveal()}"
        return SecretText("Basic " + base64.b64encode(pair.encode("utf-8", "replace")).decode())

    async def _token(self, url: str, challenge: Challenge) -> SecretText:
        realm = challenge.parameters.get("realm", "")
        if not realm:
            raise RegistryFailed("the registry requires a token but does not say where to get one")
        answer = await self._ask_token(followed(url, realm), token_parameters(challenge, self._path))
        check_status(answer.status, "the token service")
        try:
            said = msgspec.json.decode(answer.body, type=TokenAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ProbeFailed("the token service's answer cannot be read") from None
        token = said.token or said.access_token
        if SENDABLE.fullmatch(token) is None:
            raise ProbeFailed("the token service's answer holds no token")
        return SecretText(f"Bearer {token}")

    async def _ask_token(self, service: str, pairs: list[tuple[str, str]]) -> RegistryAnswer:
        """An identity token is exchanged by POST, a password is sent with a GET, and nothing is a guest's GET."""
        identity = self._credential.identity_token if self._credential is not None else None
        headers: Mapping[str, str] = {"Accept": "application/json"}
        if identity:
            scope = " ".join(value for name, value in pairs if name == "scope")
            named = {name: value for name, value in pairs if name == "service"}
            form = {"grant_type": "refresh_token", "client_id": CLIENT_ID, "scope": scope}
            return await self._ask(service, headers, {**form, **named, "refresh_token": identity.reveal()})
        basic = self._basic()
        if basic is not None:
            headers = {**headers, "Authorization": basic.reveal()}
        return await self._ask(with_query(service, pairs), headers)

    async def _ask(self, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None) -> RegistryAnswer:
        """GET, or POST of a form. Raises ProbeFailed and RegistryFailed."""
        if self._client.closed:
            raise ProbeFailed("the probe is being stopped")
        try:
            async with self._client.request(
                "GET" if form is None else "POST",
                URL(url, encoded=True),
                data=form,
                headers=dict(headers),
                allow_redirects=False,
            ) as response:
                return await _answer(url, response)
        except aiohttp.ConnectionTimeoutError:
            raise RegistryFailed("no connection in time") from None
        except (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch):
            raise RegistryFailed("TLS failed, or the certificate is not trusted") from None
        except aiohttp.ClientConnectorError as error:
            raise RegistryFailed(f"cannot connect: {error.strerror or type(error).__name__}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RegistryFailed(f"the connection broke: {type(error).__name__}") from None
        except ValueError:
            raise ProbeFailed("the request cannot be made: an address or a header is malformed") from None


async def _answer(url: str, response: aiohttp.ClientResponse) -> RegistryAnswer:
    if response.status != HTTPStatus.OK:
        response.close()
        location, challenges = response.headers.get("Location", ""), response.headers.getall("WWW-Authenticate", ())
        return RegistryAnswer(url=url, status=response.status, location=location, challenges=tuple(challenges))
    body = bytearray()
    while chunk := await response.content.readany():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            response.close()
            raise ProbeFailed(f"the answer is larger than {LARGEST_BODY_BYTES >> 20} MiB")
    return RegistryAnswer(url=url, status=response.status, body=bytes(body))
