# SPDX-License-Identifier: Apache-2.0
"""kepd or kepctl of this tree with one kind more: the folder `more` lies beside the others."""

import sys
from pathlib import Path

import agent.kinds

agent.kinds.__path__.append(str(Path(__file__).with_name("more")))

if __name__ == "__main__":
    program = sys.argv.pop(1)
    if program == "kepd":
        from agent.host.main import main as kepd

        kepd()
    else:
        from agent.cli.start import main as kepctl

        kepctl()
