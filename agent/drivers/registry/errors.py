# SPDX-License-Identifier: Apache-2.0
"""How asking a registry fails: for this image only, or as a registry, which then is left alone for a while.

Never: carries text of a server, a credential, a token or the query of an address; every message is our own words.
"""

from http import HTTPStatus

REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)


class ProbeFailed(Exception):
    """No size of this image; the next image may have more luck."""


class RegistryFailed(ProbeFailed):
    """The registry refuses, is overloaded, broken or out of reach."""


def check_status(status: int, who: str) -> None:
    if status == HTTPStatus.OK:
        return
    told = f"{who} answered with status {status}, expected 200"
    if status in REFUSALS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise RegistryFailed(told)
    raise ProbeFailed(told)
