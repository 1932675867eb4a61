"""How parcels get from a device to the server and back."""
