# SPDX-License-Identifier: Apache-2.0
"""Images plane: which pull runs when, who may use an image, what is collected."""
