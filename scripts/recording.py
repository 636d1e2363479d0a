# SPDX-License-Identifier: Apache-2.0
"""python -m scripts.recording: runs the demonstration, and puts what it prints into the README."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"(?ms)(?<=^```text\n).*?(?=^```$)")


def recorded() -> str:
    command = [sys.executable, "-m", "scripts.demo", "--once"]
    done = subprocess.run(command, cwd=README.parent, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("==>")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(map(str.rstrip, lines))).strip() + "\n"


def shape(text: str) -> list[str]:
    """What is the same in every run: commands, heads of tables, and who did what in which order."""
    steps = ("created", "signal", "Completed", "stopped")
    kept = (line for line in text.splitlines() if line.startswith(("$ ", "NAMESPACE")) or line.endswith(steps))
    return [re.sub(r"[\d.]+ s  |(?<=sandbox )[\d.]+| +", " ", line).strip() for line in kept]


def main() -> None:
    README.write_text(BLOCK.sub(lambda _: recorded(), README.read_text(), count=1))


if __name__ == "__main__":
    main()
