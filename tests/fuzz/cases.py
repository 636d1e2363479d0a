# SPDX-License-Identifier: Apache-2.0
"""Inputs that once failed, one file each: NAME-HASH."""

from pathlib import Path

FOLDER = Path(__file__).with_name("found")
