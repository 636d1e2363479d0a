# SPDX-License-Identifier: Apache-2.0
"""Secrets wrapped so that no text shows them by accident: repr, str and format are three stars."""

from typing import Generic, TypeVar

Content = TypeVar("Content")


class Hidden(Generic[Content]):
    """A text, or bytes, that only `reveal` shows."""

    __slots__ = ("_content",)

    def __init__(self, content: Content) -> None:
        self._content = content

    def reveal(self) -> Content:
        """For the one place that sends it."""
        return self._content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden) and bool(self._content == other._content)

    def __hash__(self) -> int:
        return hash(self._content)

    def __bool__(self) -> bool:
        return bool(self._content)

    def __repr__(self) -> str:
        return "***"
