# SPDX-License-Identifier: Apache-2.0
"""The door as a part of the daemon."""
