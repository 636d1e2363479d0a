# SPDX-License-Identifier: Apache-2.0
"""Asking a container something: its hooks and probes, by command, HTTP, TCP or gRPC."""
