"""The same methods across machines: devices that adapt on their own, and a server on Flower."""
