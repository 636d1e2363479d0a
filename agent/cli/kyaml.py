# SPDX-License-Identifier: Apache-2.0
"""`-o kyaml`: YAML in which no value depends on its look or its indent, as kubectl has it since KEP-5295.

Braces and brackets, every text in quotes, a comma behind each entry. It is read as YAML, and comments may be added.
"""

import json
import re
from collections.abc import Iterator, Mapping

PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
# What a reader may take for something else than a text.
TAKEN = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def as_kyaml(data: object) -> str:
    return "---\n" + "\n".join(_lines(data, ""))


def _lines(value: object, indent: str) -> Iterator[str]:
    """The first without an indent, for a key may stand before it."""
    if isinstance(value, Mapping) and value:
        yield "{"
        for key, one in value.items():
            first, *rest = _lines(one, f"{indent}  ")
            yield from _entry(f"{indent}  {_key(str(key))}: {first}", rest)
        yield f"{indent}}}"
    elif isinstance(value, list) and value:
        yield "["
        for one in value:
            first, *rest = _lines(one, f"{indent}  ")
            yield from _entry(f"{indent}  {first}", rest)
        yield f"{indent}]"
    else:
        yield json.dumps(value)


def _entry(first: str, rest: list[str]) -> list[str]:
    lines = [first, *rest]
    return [*lines[:-1], f"{lines[-1]},"]


def _key(text: str) -> str:
    return text if PLAIN_KEY.fullmatch(text) and text.lower() not in TAKEN else json.dumps(text)
