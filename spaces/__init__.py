"""One folder an op: its root program, templates, constraints and public functions."""
