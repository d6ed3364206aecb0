"""The whole way, once: a run that survives its failures, and the year that knows it."""
