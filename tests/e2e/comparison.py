# SPDX-License-Identifier: Apache-2.0
"""Two runs of the same specs, spec by spec."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.e2e.suite import Outcome

Cost = Mapping[str, tuple[float, float]]
NOT_RUN = Outcome("not run", 0.0)
WORDS = 160


@dataclass(frozen=True, slots=True)
class Run:
    """Of one side: outcomes by spec, and by program the processor seconds and MiB of all nodes."""

    name: str
    outcomes: Mapping[str, Outcome]
    cost: Cost


def different(names: Sequence[str], before: Run, after: Run) -> list[tuple[str, Outcome, Outcome]]:
    """Specs whose status is not the same on both sides, or that did not run at all."""
    pairs = ((name, before.outcomes.get(name, NOT_RUN), after.outcomes.get(name, NOT_RUN)) for name in names)
    return [(name, one, other) for name, one, other in pairs if one.status != other.status or NOT_RUN in (one, other)]


def told(names: Sequence[str], before: Run, after: Run) -> str:
    """For people: counts, each difference with its reason, and the cost."""
    lines = []
    for run in (before, after):
        counts = Counter(run.outcomes.get(name, NOT_RUN).status for name in names)
        spent_s = sum(run.outcomes.get(name, NOT_RUN).seconds for name in names)
        listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        lines.append(f"{run.name}: {len(names)} specs: {listed}; {spent_s:.0f} s of specs")
        lines += [f"  {one:<12}{cpu_s:9.1f} s of processor {mib:9.1f} MiB" for one, (cpu_s, mib) in run.cost.items()]
    found = different(names, before, after)
    lines.append(f"{len(names) - len(found)} of {len(names)} have the same status")
    for name, one, other in found:
        lines += [f"- {name}", f"    {before.name}: {_said(one)}", f"    {after.name}: {_said(other)}"]
    return "\n".join(lines)


def _said(one: Outcome) -> str:
    words = " ".join("".join(c if c.isprintable() else " " for c in one.message).split())
    return f"{one.status} {words[:WORDS]}".rstrip()
