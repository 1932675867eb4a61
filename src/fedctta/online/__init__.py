"""One device on its own: a model that adapts while it predicts, and watches that this does no harm."""
