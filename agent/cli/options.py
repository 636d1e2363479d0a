# SPDX-License-Identifier: Apache-2.0
"""Options that many commands share."""

from collections.abc import Callable
from typing import TypeVar

import click

__all__ = ["output_option"]

Command = TypeVar("Command", bound=Callable[..., object])
FORMATS = ("table", "wide", "json", "yaml", "name")


def output_option(*formats: str) -> Callable[[Command], Command]:
    """`-o`; without formats given, all that a list has."""
    choices = formats or FORMATS
    return click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], help=f"Format: {', '.join(choices)}."
    )
