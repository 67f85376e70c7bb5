"""Files and folders on a disk: written as a whole or not at all, checked by their sums, with room for them."""
