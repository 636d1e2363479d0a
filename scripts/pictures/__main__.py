# SPDX-License-Identifier: Apache-2.0
"""python -m scripts.pictures: writes docs/pictures anew. As root it also asks a kepd for the route of a packet anew."""

import json
import os

from scripts.pictures.drawn import FOLDER, pictures
from scripts.pictures.told_route import tell


def main() -> None:
    if os.geteuid() == 0:
        (FOLDER / "route.json").write_text(json.dumps(tell(), indent=1) + "\n")
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
        print(FOLDER / name)


if __name__ == "__main__":
    main()
