# SPDX-License-Identifier: Apache-2.0
"""Doing it: the one room of this plane that waits, calls, reads a clock, logs or touches a file."""
