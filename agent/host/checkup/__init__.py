# SPDX-License-Identifier: Apache-2.0
"""What `kepctl doctor` says of the node around kepd. `surroundings` looks, `network` judges what CNI has."""
