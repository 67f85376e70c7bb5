"""Files of other projects: released models read and written."""
