"""Kernel sources, read as data; see the header comment of each file."""
