# SPDX-License-Identifier: Apache-2.0
"""What people and load balancers see of Services."""
