# SPDX-License-Identifier: Apache-2.0
"""Every decoder of bytes from outside, with what it may answer: a value, or one of its own errors; never anything else.

`targets` lists them; `python -m tests.fuzz --seconds 600` runs each for ten minutes and keeps what fails in `found`.
"""
