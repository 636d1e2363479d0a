# SPDX-License-Identifier: Apache-2.0
"""`--sort-by PATH`: a table in the order of what a path of each object leads to."""

import json
from collections.abc import Sequence

from agent.cli.session import CommandFailed
from agent.kinds.table import Table
from agent.model.exit_codes import USAGE
from agent.model.text.jsonpath import read_path, shown

Place = tuple[int, float, str]
UNSET: Place = (0, 0.0, "")


def ordered_by(table: Table, path: str) -> Table:
    """What has no such value comes first, then numbers, then words; equal ones stay as they were."""
    found = [read_path(path.removeprefix("{").removesuffix("}"), json.loads(row.object)) for row in table.rows]
    if found and not any(found):
        text = f'--sort-by: "{path}" leads to nothing in any of the {len(found)} objects; -o json shows their paths'
        raise CommandFailed(text, USAGE)
    order = sorted(range(len(found)), key=lambda index: _place(found[index]))
    table.rows = [table.rows[index] for index in order]
    return table


def _place(values: Sequence[object]) -> Place:
    if not values or values[0] is None:
        return UNSET
    first = values[0]
    if isinstance(first, int | float):
        return (1, float(first), "")
    return (2, 0.0, shown(first))
