# SPDX-License-Identifier: Apache-2.0
"""What single kinds need of the door beside what all have."""
