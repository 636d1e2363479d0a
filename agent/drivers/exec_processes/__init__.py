# SPDX-License-Identifier: Apache-2.0
"""Processes that were started inside containers beside their own."""
