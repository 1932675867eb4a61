"""Published tables and figures, and how they are run and compared."""
