# SPDX-License-Identifier: Apache-2.0
"""The functions that expressions may call: each says its kinds in one line beside what it does.

`string:startsWith(string) -> bool` is a function of a value, `sets.contains(list(A), list(A)) -> bool` one by itself.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kepd_devices.cel.kinds import CelType, read_kind

LINE = re.compile(r"(?:(?P<of>[^:]+):)?(?P<name>[^(]+)\((?P<arguments>.*)\) -> (?P<result>.+)")
Run = Callable[..., Any]
Made = TypeVar("Made", bound=Run)


class Signature(msgspec.Struct, frozen=True):
    """With the value it is of as its first argument."""

    arguments: tuple[CelType, ...]
    result: CelType
    run: Run


class SignatureTable:
    """Signatures by name; those of values have a colon before it."""

    def __init__(self, *parts: "SignatureTable") -> None:
        self.by_name: dict[str, tuple[Signature, ...]] = {}
        for part in parts:
            for name, signatures in part.by_name.items():
                self.by_name[name] = (*self.by_name.get(name, ()), *signatures)

    def says(self, *lines: str) -> Callable[[Made], Made]:
        """What is decorated runs for each of these."""

        def take(run: Made) -> Made:
            for line in lines:
                self._add(line, run)
            return run

        return take

    def _add(self, line: str, run: Run) -> None:
        found = LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"{line} is no signature")
        arguments = read_kind(f"all({found['arguments']})").of if found["arguments"] else ()
        name = found["name"]
        if found["of"]:
            arguments, name = (read_kind(found["of"]), *arguments), f":{name}"
        made = Signature(arguments, read_kind(found["result"]), run)
        self.by_name[name] = (*self.by_name.get(name, ()), made)
