# SPDX-License-Identifier: Apache-2.0
"""Names after Tab without click and protobuf, whose import is most of what a completion takes.

Answers the commands that name objects most often; None for all else, which goes the usual way (completing.py).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.cli.quick.words import words_and_options
from agent.kinds.kind import DEFAULT_NAMESPACE, Named
from agent.kinds.registry import BY_WORD

VARIABLE = "_KEPCTL_COMPLETE"
LIMIT_S = 0.5
"""Who pressed Tab waits no longer."""
OF_A_KIND = frozenset({"get", "describe", "delete"})
OF_PODS = frozenset({"logs", "exec"})
FLAGS = {
    "exec": frozenset({"-i", "-t", "-it", "-ti", "--stdin", "--tty"}),
    "logs": frozenset({"-f", "--follow", "-p", "--previous", "--timestamps", "--prefix", "--all-containers"}),
}
ONE_NAME = frozenset({"describe", "exec"})
SHOWN = {"bash_complete": "plain,{}", "zsh_complete": "plain\n{}\n_", "fish_complete": "plain,{}"}


class CompletionQuestion(msgspec.Struct, frozen=True):
    """`typed` is the beginning of a name, and `prefix` stands before each name."""

    kind: str
    typed: str
    prefix: str = ""
    namespace: str = ""
    endpoint: str = ""


def asked(environment: Mapping[str, str]) -> CompletionQuestion | None:
    """What a shell asks for, if it is names of a kind."""
    line = _line(environment)
    if line is None:
        return None
    before, typed = line
    command = next((word for word in before if word in OF_A_KIND | OF_PODS or word == "pods"), "")
    found = words_and_options(before, FLAGS.get(command, ()))
    if found is None or typed.startswith("-"):
        return None
    words, options = found
    if not words or words[0] != (command if command != "pods" else "get") or options.keys() - {"namespace", "endpoint"}:
        return None
    kind, prefix, rest = _beginning(words, typed)
    if not kind:
        return None
    return CompletionQuestion(kind, rest, prefix, options.get("namespace", ""), options.get("endpoint", ""))


def _beginning(words: Sequence[str], typed: str) -> tuple[str, str, str]:
    """The kind, what is before each name, and what is typed of one; no kind where no name is meant."""
    command, given = words[0], words[1:]
    is_full = bool(given) and command in ONE_NAME
    if command in OF_PODS:
        return "" if is_full else "pods", "", typed
    kind, slash, rest = typed.partition("/")
    if slash and kind in BY_WORD and not given:
        return kind, f"{kind}/", rest
    if not given or given[0] not in BY_WORD or (is_full and len(given) > 1):
        return "", "", typed
    return given[0], "", typed


def _line(environment: Mapping[str, str]) -> tuple[list[str], str] | None:
    """The whole words before the one that is typed, and that one, as the shell's script hands them over."""
    text, place = environment.get("COMP_WORDS", ""), environment.get("COMP_CWORD", "")
    if environment.get(VARIABLE) not in SHOWN or not _is_plain(text + place):
        return None
    words = text.split()
    if environment[VARIABLE] != "fish_complete":
        at = int(place) if place.isdecimal() else 0
        return (words[1:at], words[at] if at < len(words) else "") if at else None
    words = words[1:]
    return (words[:-1] if place and words[-1:] == [place] else words), place


def _is_plain(text: str) -> bool:
    """Whether words end at spaces alone."""
    return (
        text.isascii() and not any(sign in text for sign in "'\"\\") and all(s.isprintable() or s == "\n" for s in text)
    )


def offered(known: Iterable[Named], namespace: str, typed: str) -> list[str]:
    """Names that begin so; of another namespace with that, unless `namespace` says it."""
    return sorted({name for one in known for name in _words(one, namespace) if name.startswith(typed)})


def _words(one: Named, namespace: str) -> list[str]:
    if not one.namespace or one.namespace == (namespace or DEFAULT_NAMESPACE):
        return one.short.split() or [one.name]
    return [] if namespace else [f"{one.namespace}/{one.name}"]


def completion(environment: Mapping[str, str]) -> str | None:
    """What the shell's script reads; None where the usual way has to be gone."""
    wanted = asked(environment)
    if wanted is None:
        return None
    from agent.cli.quick.rows import quick_rows
    from agent.cli.session import Session
    from agent.kinds.selection import Scope

    paths = Session(endpoint=wanted.endpoint or None).sockets()
    try:
        table = quick_rows(paths[0], BY_WORD[wanted.kind], Scope(), LIMIT_S) if len(paths) == 1 else None
    except TimeoutError:
        return ""
    if table is None:
        return None
    known = (Named(row.namespace, row.name, row.short) for row in table.rows)
    form = SHOWN[environment[VARIABLE]]
    return "\n".join(form.format(wanted.prefix + name) for name in offered(known, wanted.namespace, wanted.typed))
