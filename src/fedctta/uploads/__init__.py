"""What happens to an upload between a client and the server's method: one stage per file."""
