# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz [--seconds 600] [NAME …]`: search each decoder for so long; keep what fails in `found`."""

import argparse
import hashlib
import random
import sys
import time
import traceback

from tests.fuzz.cases import FOLDER
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Target


def search(target: Target, seconds: float) -> int:
    """How many different failures there were."""
    chance = random.Random()
    ends_s = time.process_time() + seconds  # a busy machine must not shorten the search
    tries, slowest_s, failures = 0, 0.0, set()
    while time.process_time() < ends_s:
        data = mutated(target.seeds, chance)
        began_s = time.perf_counter()
        try:
            target.decode(data)
        except target.errors:
            pass
        except Exception as error:  # noqa: BLE001  # whatever it is, that is what is looked for
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = (type(error), place.filename, place.lineno)
            if kind not in failures:
                failures.add(kind)
                path = FOLDER / f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
                path.write_bytes(data)
                print(f"{target.name}: {error!r} at {place.filename}:{place.lineno}, kept as {path.name}", flush=True)
        tries += 1
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
    print(f"{target.name}: {tries} inputs, {len(failures)} failures, {slowest_s * 1000:.0f} ms at most", flush=True)
    return len(failures)


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz")
    asked.add_argument("--seconds", type=float, default=600.0)
    asked.add_argument("names", nargs="*")
    given = asked.parse_args()
    chosen = [one for one in TARGETS if not given.names or one.name in given.names]
    return min(sum(search(one, given.seconds) for one in chosen), 1)


if __name__ == "__main__":
    sys.exit(main())
