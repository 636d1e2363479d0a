# SPDX-License-Identifier: Apache-2.0
"""Words of other programs are answered with what serves here, and never by the nearest word of another class."""

import re

import click
import pytest

from agent.cli.main import ALIASES, COMMANDS, _hoisted, cli
from agent.cli.objects import foreign
from agent.kinds.registry import BY_WORD
from tests.host.forked_kepctl import forked_kepctl

TEXTS = sorted({*foreign.COMMANDS.values(), *foreign.KINDS.values(), *foreign.FLAGS.values()})
LINES = sorted({line.strip() for text in TEXTS for line in re.findall(r"kepctl [^;]*", text)})


def parsed(line: str) -> click.Context:
    """What click makes of a line, without doing it. Raises UsageError."""
    context = cli.make_context("kepctl", _hoisted(line.split()[1:]))
    command: click.Command = cli
    while isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("line", LINES)
def test_what_the_table_offers_is_a_line_that_kepctl_takes(line: str) -> None:
    try:
        parsed(line)
    except click.exceptions.Exit as done:
        assert done.exit_code == 0


def test_no_word_of_the_table_is_one_of_kepctl() -> None:
    assert not foreign.COMMANDS.keys() & (COMMANDS.keys() | ALIASES.keys() | {"help"})
    assert not foreign.KINDS.keys() & BY_WORD.keys()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("stop web", "here it is: kepctl delete pod NAME; what that would do: kepctl plan stop NAME"),
        ("start web", "one that ended: kepctl restart POD"),
        ("taint", "kepctl cordon"),
        ("rmi web", "kepctl gc --dry-run"),
        ("journalctl", "kepctl node-logs kepd; of a pod: kepctl logs POD"),
        ("svc", "it is a kind: kepctl get services"),
        ("pdos", 'did you mean "pods"?'),
        ("get hpa", "kepctl scale deploy"),
        ("get xy", "kinds are holds"),
        ("create namespace x", "kepctl apply -f FILE"),
        ("describe hpa web", "kepctl scale deploy"),
        ("explain hpa web", "kepctl scale deploy"),
        ("set image deploy/web a=b", "kepctl edit deploy NAME"),
        ("config get-contexts", "kepctl --endpoint SOCKET status"),
        ("inspect pod web", "kepctl describe pod NAME"),
        ("drain --ignore-daemonsets", "leave it out: kepctl drain"),
        ("get pods --kubeconfig x", "kepctl --endpoint SOCKET status"),
        ("get pods --wach", "--watch"),
    ],
)
def test_a_word_of_another_program_is_answered_with_what_serves(line: str, says: str) -> None:
    done = forked_kepctl(*line.split())

    assert says in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("words", ["help", "help get", "help rollout status"])
def test_help_is_a_word_too(words: str) -> None:
    asked, usual = forked_kepctl(*words.split()), forked_kepctl(*words.split()[1:], "--help")

    assert (asked.returncode, asked.stdout) == (0, usual.stdout)
