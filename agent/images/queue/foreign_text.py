# SPDX-License-Identifier: Apache-2.0
"""Cuts out of an error's text what other people chose, so that the rest can be looked at.

An image may be called `web:429`, a certificate may be valid for "no space left on device", and a registry may answer
with any sentence. None of that says why a pull failed.
"""

import re

CUT = "…"
# Whatever comes behind these words is the other end's, to the end of the text.
_SAID_BY_OTHERS = re.compile(r"(server message|x509|malformed [\w ]{1,80}|response body):.*", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)', re.DOTALL)
_NAMED = re.compile(
    r"\[(?:manifests|blobs) [^\]]{0,300}\]|(?<=\bmanifest )\S+(?= in\b)|(?<=\blookup )\S+|(?<=\bhost )\S+"
)
_WORD = re.compile(r"\S+")
_OF_GO = frozenset({"net/http", "i/o"})


def own_words(text: str) -> str:
    """What is left of a runtime's error without quotes, references, addresses, and what servers said."""
    text = _SAID_BY_OTHERS.sub(r"\1:", text)
    text = _NAMED.sub(CUT, _QUOTED.sub(CUT, text))
    return _WORD.sub(lambda found: _own_word(found[0]), text)


def _own_word(word: str) -> str:
    """References, addresses, paths and digests have a slash, an @, or a colon with something behind it."""
    inner = word.rstrip(":")
    if inner in _OF_GO or not any(sign in inner for sign in "/:@"):
        return word
    return CUT + word[len(inner) :]
