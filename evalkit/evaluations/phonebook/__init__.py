"""Look-ups in a phonebook, on the text of a released checkpoint."""
