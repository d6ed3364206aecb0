"""Reads of the books; nothing here writes. Every read runs in a tenant scope (fleet.tenancy)."""
