# SPDX-License-Identifier: Apache-2.0
"""The process: what runs in it, its tree of tasks, its own pages and API."""
