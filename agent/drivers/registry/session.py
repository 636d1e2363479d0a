# SPDX-License-Identifier: Apache-2.0
"""HTTP to registries and their token services: one request, one bounded answer, or a blob in pieces.

Owns: the connections, and the deadline for making one; whoever asks has the deadline for the whole.
Never: follows a redirect, keeps a cookie, uses a proxy or a netrc file. The only module here that imports aiohttp:
138 ms and 25 MiB, so whoever needs it imports it late.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from agent.drivers.registry.errors import ProbeFailed, RegistryFailed

__all__ = ["RegistryAnswer", "RegistrySession", "Take", "Taking"]

Take = Callable[[bytes], Awaitable[None]]

LARGEST_BODY_BYTES = 4 << 20
MOST_CONNECTIONS = 8
SUCCESS, PARTIAL = 200, 206
PIECE_BYTES = 512 << 10
READ_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswer:
    """What came back. The body is read only where it can be of use."""

    url: str
    status: int
    location: str = ""
    challenges: tuple[str, ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Taking:
    """Who takes a blob's bytes, and from which offset on."""

    take: Take
    offset: int = 0


class RegistrySession:
    def __init__(self, *, connect_s: float, user_agent: str) -> None:
        self._connect_s = connect_s
        self._timeout = aiohttp.ClientTimeout(connect=connect_s)
        self._patience = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_read=READ_S)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": user_agent, "Accept-Encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.close()

    async def ask(
        self,
        url: str,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None = None,
        *,
        trust: ssl.SSLContext | bool = True,
        taking: Taking | None = None,
    ) -> RegistryAnswer:
        """GET, or POST of a form. With `taking` a success has no body: it was given away in pieces.

        Raises ProbeFailed and RegistryFailed.
        """
        if self._client.closed:
            raise ProbeFailed("the probe is being stopped")
        if taking is not None:
            headers = {**headers, "Range": f"bytes={taking.offset}-"} if taking.offset else headers
        try:
            request = self._client.request(
                "GET" if form is None else "POST",
                URL(url, encoded=True),
                data=form,
                headers=dict(headers),
                allow_redirects=False,
                ssl=trust,
                timeout=self._timeout if taking is None else self._patience,
            )
            async with request as response:
                if taking is not None and response.status in (SUCCESS, PARTIAL):
                    return await self._give(url, response, taking)
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
    async def _give(url: str, response: aiohttp.ClientResponse, taking: Taking) -> RegistryAnswer:
        # Who does not know ranges sends everything.
        surplus = taking.offset if response.status == SUCCESS else 0
        async for piece in response.content.iter_chunked(PIECE_BYTES):
            if surplus >= len(piece):
                surplus -= len(piece)
                continue
            await taking.take(piece[surplus:])
            surplus = 0
        return RegistryAnswer(url=url, status=SUCCESS)

    @staticmethod
    async def _answer(url: str, response: aiohttp.ClientResponse) -> RegistryAnswer:
        if response.status != SUCCESS:
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
