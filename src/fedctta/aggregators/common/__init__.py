"""What several server methods share."""
