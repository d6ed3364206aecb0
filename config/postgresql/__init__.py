"""Django's PostgreSQL backend, which starts the embedded server at the first connection."""
