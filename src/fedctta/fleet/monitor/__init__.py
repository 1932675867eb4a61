"""Looks at a fleet from outside: reads the files that a server writes, and shows them to people and to Prometheus."""
