# SPDX-License-Identifier: Apache-2.0
"""Which nodes a pod may go to."""
