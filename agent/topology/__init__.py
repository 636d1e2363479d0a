# SPDX-License-Identifier: Apache-2.0
"""Zone hints and pod spread as the control plane computes them, as pure functions.

Start at `hints.py` (which endpoint serves which zone), `spread.py` (which nodes a pod may go to) and `zones.py` (for
which replica counts hints switch on). `explain.py` tells why. README.md has the limits.
Never: waits, reads files or the clock, draws random numbers, logs.
"""
