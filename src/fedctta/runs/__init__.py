"""From words to a run: settings, building, one run, many runs side by side, progress."""
