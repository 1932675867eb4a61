"""The server's part of a fleet: rounds, devices, checks and files."""
