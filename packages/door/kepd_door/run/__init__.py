# SPDX-License-Identifier: Apache-2.0
"""What listens, asks the daemon's services, and passes streams on."""
