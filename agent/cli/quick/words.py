# SPDX-License-Identifier: Apache-2.0
"""The words and options of short commands, read without click. What is not known here is left to click."""

from collections.abc import Collection, Sequence

WITH_VALUE = {
    "--endpoint": "endpoint", "-n": "namespace", "--namespace": "namespace", "-o": "output", "--output": "output",
    "-l": "selector", "--selector": "selector",
}  # fmt: skip


def words_and_options(arguments: Sequence[str], flags: Collection[str] = ()) -> tuple[list[str], dict[str, str]] | None:
    """None where there is an option that is not known, without its value, or twice. `flags` may stand and say
    nothing."""
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        name, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word in ("-A", "--all-namespaces"):
            options["everywhere"] = "yes"
        elif name in WITH_VALUE:
            given = value if sign else next(rest, "")
            if not given or WITH_VALUE[name] in options:
                return None
            options[WITH_VALUE[name]] = given
        elif word.startswith("-") and word not in flags:
            return None
        elif word not in flags:
            words.append(word)
    if words[:1] == ["pods"]:
        words.insert(0, "get")
    return words, options
