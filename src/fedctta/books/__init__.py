"""Books of domains: what devices remember of every domain the fleet has met, as sums that can be added up."""
