# SPDX-License-Identifier: Apache-2.0
"""Which zone each endpoint serves, and for which numbers of replicas."""
