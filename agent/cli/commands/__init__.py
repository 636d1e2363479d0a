# SPDX-License-Identifier: Apache-2.0
"""One module per group of commands; each returns data for render.py."""
