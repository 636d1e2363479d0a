# SPDX-License-Identifier: Apache-2.0
"""Traces of calls through the proxy."""
