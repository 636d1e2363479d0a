# SPDX-License-Identifier: Apache-2.0
"""When the runtime was at work on the start of pods, by its own log.

Whoever starts a pod waits for it most of the time; what is left is what there is to gain.
"""

import re
from datetime import datetime
from pathlib import Path

CALLS = "RunPodSandbox|CreateContainer|StartContainer"
LINE = re.compile(rf'^time="([^"]+)" level=info msg="({CALLS}) (?:for|within sandbox)(.*)"$', re.MULTILINE)
NANOS = re.compile(r"(\.\d{6})\d*")


class RuntimeLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size

    def outside_s(self, began_s: float, ended_s: float) -> float:
        """How much of that time, which began with this object, none of these calls was under way."""
        with self._path.open("rb") as log:
            log.seek(self._from)
            text = log.read().decode()
        under_way, free_since_s, found_s = 0, began_s, 0.0
        for at, _, rest in LINE.findall(text):
            at_s = datetime.fromisoformat(NANOS.sub(r"\1", at)).timestamp()
            if " returns " in rest:
                under_way -= 1
                free_since_s = at_s
            else:
                found_s += at_s - free_since_s if not under_way else 0.0
                under_way += 1
        return found_s + max(ended_s - free_since_s, 0.0) if not under_way else found_s
