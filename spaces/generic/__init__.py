"""Templates for any op; no op of its own."""
