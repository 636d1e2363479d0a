# SPDX-License-Identifier: Apache-2.0
"""What a rehearsed change means for pods that end and images that are pulled: planners of three planes meet here."""
