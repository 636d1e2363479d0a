# SPDX-License-Identifier: Apache-2.0
"""Texts: what comes from outside, what must not be told, paths into values."""
