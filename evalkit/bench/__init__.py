"""`python -m evalkit bench`: how fast the machine is, and how much of it this project uses."""
