"""A device: images in, predictions out, adapting in between, and its answers to the server."""
