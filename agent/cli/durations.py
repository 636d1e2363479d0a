# SPDX-License-Identifier: Apache-2.0
"""Times and spans as options take them: `10s`, `1h30m`, and where kubectl does so a bare number of seconds."""

from datetime import datetime

import click

from agent.cli.session import CommandFailed
from agent.model.exit_codes import USAGE


class Duration(click.ParamType[float]):
    """In seconds."""

    name = "duration"

    def __init__(self, *, takes_number: bool = False) -> None:
        self._takes_number = takes_number

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            if self._takes_number:
                return float(str(value))
        except ValueError:
            pass
        # Only who is given a duration pays for the import.
        from agent.config.kinds import DURATION

        try:
            return float(str(DURATION.read(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def moment(option: str, given: str, otherwise: str = "") -> float:
    """A time with its zone, in seconds. `otherwise` is what else would be right."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        right = f"expected a time with its zone, such as 2026-01-01T10:00:00Z{otherwise}"
        raise CommandFailed(f'{option}: "{given}" is not valid; {right}', USAGE)
    return found.timestamp()
