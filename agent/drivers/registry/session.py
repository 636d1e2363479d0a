# SPDX-License-Identifier: Apache-2.0
"""HTTP to registries and their token services: one request, one bounded answer.

Owns: the connections, and the deadline for making one; whoever asks has the deadline for the whole.
Never: follows a redirect, keeps a cookie, uses a proxy or a netrc file. The only module here that imports aiohttp:
138 ms and 25 MiB, so whoever needs it imports it late.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from yarl import URL

from agent.drivers.registry.errors import ProbeFailed, RegistryFailed

__all__ = ["RegistryAnswer", "RegistrySession"]

LARGEST_BODY_BYTES = 4 << 20
MOST_CONNECTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswer:
    """What came back. The body is read only where it can be of use."""

    url: str
    status: int
    location: str = ""
    challenges: tuple[str, ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)


class RegistrySession:
    def __init__(self, *, connect_s: float) -> None:
        self._connect_s = connect_s
        self._timeout = aiohttp.ClientTimeout(connect=connect_s)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "kepd", "Accept-Encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None) -> RegistryAnswer:
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
                timeout=self._timeout,
            ) as response:
                return await self._answer(url, response)
        except aiohttp.ConnectionTimeoutError:
            raise RegistryFailed(f"no connection within {self._connect_s:g} s") from None
        except (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch):
            raise RegistryFailed("TLS failed, or the certificate is not trusted") from None
        except aiohttp.ClientConnectorError as error:
            raise RegistryFailed(f"cannot connect: {error.strerror or type(error).__name__}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RegistryFailed(f"the connection broke: {type(error).__name__}") from None
        except ValueError:
            raise ProbeFailed("the request cannot be made: an address or a header is malformed") from None

    @staticmethod
    async def _answer(url: str, response: aiohttp.ClientResponse) -> RegistryAnswer:
        if response.status != HTTPStatus.OK:
            response.close()
            return RegistryAnswer(
                url=url,
                status=response.status,
                location=response.headers.get("Location", ""),
                challenges=tuple(response.headers.getall("WWW-Authenticate", ())),
            )
        body = bytearray()
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > LARGEST_BODY_BYTES:
                response.close()
                raise ProbeFailed(f"the answer is larger than {LARGEST_BODY_BYTES >> 20} MiB")
        return RegistryAnswer(url=url, status=response.status, body=bytes(body))
