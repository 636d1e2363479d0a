# SPDX-License-Identifier: Apache-2.0
"""Answers that are kept: how long, in how much room, and which go first."""
