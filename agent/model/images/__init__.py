# SPDX-License-Identifier: Apache-2.0
"""Images: their names, pulls and states."""
