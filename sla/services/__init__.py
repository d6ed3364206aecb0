"""Writes of the books; each is atomic, and none calls anything outside the database."""
