"""An experiment on Flower's engine, and fleets that are tried out on a simulated stream."""
