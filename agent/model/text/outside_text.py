# SPDX-License-Identifier: Apache-2.0
"""Text of runtimes, registries and plugins, as kepd may keep it: on one line, printable, bounded, without secrets.

Each driver applies `from_outside` where such a text enters, and nothing does later. Two kinds of secrets go: what looks
like one wherever it stands, and values that the call itself carried. Of those, a short one is found by its place alone:
a password such as `docker` would turn names into stars, and so be guessed.
"""

import base64
import re
from collections.abc import Iterable

from agent.model.finding import printable

STARS = "***"
# Below it a value goes where a rule finds it, up to `ANYWHERE_LENGTH` as a whole word, and beyond that wherever it is.
WORD_LENGTH, ANYWHERE_LENGTH = 8, 20
# A kubelet's status has room for no more, and the rules below cost what they read.
LONGEST_TEXT = 8 << 10

_KEYS = (
    r"(?:[\w-]{0,40}(?:token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key|signature|credentials?|assertion)"
    r"|pwd|sig|x-registry-(?:auth|config)|(?:set-)?cookie)"
)
# What Go writes behind a colon instead of a value: "failed to fetch anonymous token: unexpected status".
_PROSE = (
    r"(?:a|an|the|cannot|could|context|denied|dial|empty|error|expired|failed|forbidden|Get|Head|http|https|invalid"
    r"|malformed|missing|no|not|Post|response|rpc|server|status|unable|unauthorized|unexpected|unknown|was|x509)(?=[\s:]|$)"
)
_LOGIN = r"(?:[^\s\"'<>/@:]{0,200}:[^\s\"'<>]{0,1000}|[^/\s\"'@]{1,1000})@"
_HEADER = rf"\b((?i:(?:proxy-)?authorization)\\?[\"']?\s*[:=]\s*(?!{_PROSE})[\[\\\"']*)"
_RULES = (
    # user:password@, where the password may have @ and / in it; the @ before a digest ends no login.
    (rf"(?i)\b([a-z][a-z0-9+.-]{{0,20}}://){_LOGIN}(?!sha\d+:)", r"\1***@"),
    (r"(?<![\w/:.@-])([\w.+-]{1,200}):[^\s\"'<>/]{1,1000}@(?!sha\d+:)(?=\w)", r"***@"),
    (r"(?i)\b([a-z][a-z0-9+.-]{0,20}://[^\s\"'?<>]{0,2000}\?)[^\s\"'<>]+", r"\1***"),
    (r"(?<=[\w/])\?[\w.%-]{1,100}=[^\s\"'<>]+", "?***"),
    (rf"{_HEADER}(?:[A-Za-z0-9-]{{1,30}}\s+)?[^\s\"',;\]\\]+", r"\1***"),
    (r"\b((?i:basic|bearer))\s+(?=[a-z]*[^a-z\s])[A-Za-z0-9+/=_.~-]{8,}", r"\1 ***"),
    # A quoted value may have anything in it but its quote; the whole may be quoted again.
    (rf"(?i)(?<![\w-])({_KEYS}\\?[\"']?\s*[:=]\s*)(\\?[\"'])(?:(?!\2).)+\2", r"\1\2***\2"),
    (r"(?i)(\bauth\\?[\"']\s*:\s*)(\\?[\"'])(?:(?!\2).)+\2", r"\1\2***\2"),
    (rf"(?i)(?<![\w-])({_KEYS}\\?[\"']?:\s*\[)[^\]]+", r"\1***"),
    (rf"(?i)(?<![\w-])({_KEYS}\\?[\"']?(?:=\s*|:))(?![\s\"'\\])[^\s\"',;&\]}}]+", r"\1***"),
    (rf"(?<![\w/-])((?i:{_KEYS})[\"']?:\s+)(?!{_PROSE})[^\s\"',;&\]}}]+", r"\1***"),
    (r"(?i)(?<![\w-])((?:auth|pass(?:phrase)?)=)[^\s\"',;&]+", r"\1***"),
    # Arguments of programs.
    (rf"(?i)(?<!\S)(--(?:{_KEYS}|pass)\s+)(?!-)[^\s\"']+", r"\1***"),
    (r"(?<!\S)((?:-u|--user)[\s=]+[^\s:\"']{1,200}:)[^\s\"']+", r"\1***"),
    # JSON web tokens, and tokens whose makers gave them a prefix to be found by.
    (r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", STARS),
    (r"\b(?:gh[pousr]_|github_pat_|glpat-|dckr_[po]at_|AKIA|ASIA|xox[abp]-)[\w-]{10,}", STARS),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), replacement) for pattern, replacement in _RULES)


def from_outside(text: str, secrets: Iterable[str] = ()) -> str:
    """The text for logs, events, statuses and state files. `secrets`: what the call that answers so carried."""
    line = printable(" ".join(text[: 2 * LONGEST_TEXT].split())) if not text.isprintable() else text[: 2 * LONGEST_TEXT]
    line = _without_values(line, secrets)
    for pattern, replacement in _COMPILED:
        line = pattern.sub(replacement, line)
    if len(line) <= LONGEST_TEXT and len(text) <= 2 * LONGEST_TEXT:
        return line
    return f"{line[:LONGEST_TEXT]}… ({len(text)} characters)"


def login_values(username: str, *secrets: str) -> list[str]:
    """What of a login must not come back in an answer; a password also as the pair that HTTP makes of it."""
    pairs = [base64.b64encode(f"{username}:{one}".encode("utf-8", "replace")).decode() for one in secrets if one]
    return [*filter(None, secrets), *pairs]


def _without_values(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= ANYWHERE_LENGTH:
            text = text.replace(secret, STARS)
        elif len(secret) >= WORD_LENGTH and secret in text:
            text = re.sub(rf"(?<![\w./+~-]){re.escape(secret)}(?![\w/+~-]|[.=:]\w)", STARS, text)
    return text
