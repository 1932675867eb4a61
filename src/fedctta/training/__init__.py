"""Source models and what methods learn beforehand: the only place that trains on labels."""
