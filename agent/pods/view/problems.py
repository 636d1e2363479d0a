# SPDX-License-Identifier: Apache-2.0
"""What is wrong with pods now, by their names, for the one line that the plane says of itself."""

from agent.pods.plan.remembered import Memory

MOST_TOLD = 5


class PodProblems:
    """Those without problems have no entry. `notes` are wrong with one container alone, such as its image."""

    def __init__(self) -> None:
        self._problems: dict[str, list[str]] = {}
        self._notes: dict[str, list[str]] = {}

    def clear(self) -> None:
        self._problems.clear()
        self._notes.clear()

    def forget(self, key: str) -> None:
        self._problems.pop(key, None)
        self._notes.pop(key, None)

    def look_at(self, key: str, memory: Memory, unsaved: str = "") -> None:
        """`unsaved` is why its record could not be written."""
        notes = [f"{key}: {name}: {one.message}" for name, one in memory.containers.items() if one.reason]
        self.forget(key)
        texts = [f"its record cannot be written, so a restart forgets what came since: {unsaved}"] if unsaved else []
        if problems := [*([memory.message] if memory.reason else []), *texts]:
            self._problems[key] = [f"{key}: {text}" for text in problems]
        if notes:
            self._notes[key] = notes

    @property
    def listed(self) -> list[str]:
        return [text for texts in self._problems.values() for text in texts]

    @property
    def notes(self) -> list[str]:
        return [text for texts in self._notes.values() for text in texts]


def first_of(texts: list[str]) -> list[str]:
    return texts if len(texts) <= MOST_TOLD else [*texts[:MOST_TOLD], f"and {len(texts) - MOST_TOLD} more"]
