# SPDX-License-Identifier: Apache-2.0
"""Callers that take what they can get, at each door of a real daemon, and a witness of what is left for the others."""
