# SPDX-License-Identifier: Apache-2.0
"""Observation, attached to what the daemon has."""
