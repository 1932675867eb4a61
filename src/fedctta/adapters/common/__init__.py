"""What several client methods share."""
