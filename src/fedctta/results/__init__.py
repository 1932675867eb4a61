"""What is kept of a run, and the numbers in it."""
