# SPDX-License-Identifier: Apache-2.0
"""The large sections of the document, each with its keys."""
