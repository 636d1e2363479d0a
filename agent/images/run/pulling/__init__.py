# SPDX-License-Identifier: Apache-2.0
"""One pull, from the wish to its outcome."""
