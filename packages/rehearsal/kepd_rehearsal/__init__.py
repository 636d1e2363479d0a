# SPDX-License-Identifier: Apache-2.0
"""What a change of a cluster would do, before it is made: `kepctl what-if`."""
