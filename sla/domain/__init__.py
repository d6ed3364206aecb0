"""The rulebook (docs/rules.md) as pure functions: no clock, no I/O, no Django."""
