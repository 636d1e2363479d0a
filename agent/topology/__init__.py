# SPDX-License-Identifier: Apache-2.0
"""Zone hints and pod spread as the control plane computes them, as pure functions.

Start at `hints/by_cpu.py` (which endpoint serves which zone), `spread/filter.py` (which nodes a pod may go to) and
`hints/zones.py` (for which replica counts hints switch on). `explain/` says why. README.md has the limits.
Never: waits, reads files or the clock, draws random numbers, logs.
"""
