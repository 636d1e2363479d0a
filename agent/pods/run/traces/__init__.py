# SPDX-License-Identifier: Apache-2.0
"""Traces of pods while they start and end."""
