# SPDX-License-Identifier: Apache-2.0
"""Spans of time as options take them: `10s`, `1h30m`, and where kubectl does so a bare number of seconds."""

import click


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
