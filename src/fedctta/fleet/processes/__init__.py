"""The processes of a fleet: what they are, who starts them, and who ends them."""
