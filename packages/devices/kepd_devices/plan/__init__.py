# SPDX-License-Identifier: Apache-2.0
"""Which devices a pod gets, and the reason for each that it does not."""
