# SPDX-License-Identifier: Apache-2.0
"""What a registry asks for before it answers: the `WWW-Authenticate` header.

Source of behaviour: RFC 7235 section 2.1; distribution `docs/content/spec/auth/token.md`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
SCHEME = re.compile(rf"[\s,]*({WORD})(?=[\s,]|$)")
# A value without quotes may hold what the grammar forbids there: registries do write addresses so.
PARAMETER = re.compile(rf'[\s,]*({WORD})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))(?=[\s,]|$)')
QUOTED_PAIR = re.compile(r"\\(.)")
PREFERENCE = ("bearer", "basic")


class Challenge(msgspec.Struct, frozen=True):
    """One way in. Names are in lower case."""

    scheme: str
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)


def read_challenges(headers: Iterable[str]) -> list[Challenge]:
    """All challenges; reading a header ends at the first thing in it that is none."""
    challenges: list[Challenge] = []
    for header in headers:
        place = 0
        current: dict[str, str] | None = None
        while place < len(header):
            parameter = PARAMETER.match(header, place) if current is not None else None
            if parameter is not None and current is not None:
                name, quoted, plain = parameter.groups()
                current.setdefault(name.lower(), plain or QUOTED_PAIR.sub(r"\1", quoted or ""))
                place = parameter.end()
            elif (scheme := SCHEME.match(header, place)) is not None:
                current = {}
                challenges.append(Challenge(scheme[1].lower(), current))
                place = scheme.end()
            else:
                break
    return challenges


def choose_challenge(challenges: Sequence[Challenge]) -> Challenge | None:
    """The one to answer: a token before a password."""
    return next((one for scheme in PREFERENCE for one in challenges if one.scheme == scheme), None)


def token_parameters(challenge: Challenge, path: str) -> list[tuple[str, str]]:
    """What to tell the token service. Without a scope of the registry, to read this repository."""
    service = challenge.parameters.get("service", "")
    scopes = challenge.parameters.get("scope", "").split() or [f"repository:{path}:pull"]
    return [*([("service", service)] if service else []), *(("scope", scope) for scope in scopes)]
