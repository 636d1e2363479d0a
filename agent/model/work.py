# SPDX-License-Identifier: Apache-2.0
"""Whose work is done: a caller and what it asked for, a pod, a file. Only to be told, when it takes long."""

from contextvars import ContextVar

WORK: ContextVar[str] = ContextVar("WORK", default="")
