# SPDX-License-Identifier: Apache-2.0
"""Manual pages: made of the help of each command, and read by `man` without a complaint."""

import re
import shutil
import subprocess

import click
import pytest

from agent.cli.main import COMMANDS, cli
from agent.host.main import main as kepd
from scripts.man import page

PROGRAMS = {"kepctl": cli, "kepd": kepd}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_a_page_is_read_without_a_warning(name: str) -> None:
    text = "\n".join(page(name, PROGRAMS[name]))
    command = ["man", "--warnings=all", "-E", "UTF-8", "-Tutf8", "-l", "-"]
    environment = {"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MAN_KEEP_STDERR": "1"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{name} [OPTIONS] COMMAND" in re.sub(".\b", "", done.stdout)


def test_each_command_has_a_section_with_its_own_help() -> None:
    text = "\n".join(page("kepctl", cli))
    context = click.Context(cli)
    shown = {name: cli.get_command(context, name) for name in COMMANDS}

    assert [name for name in COMMANDS if f"\n.SS {name} " not in text and f"\n.SS {name}\n" not in text] == []
    assert [name for name, one in shown.items() if one is None or not one.help] == []
