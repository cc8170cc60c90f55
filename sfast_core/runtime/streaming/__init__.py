"""Weights that aren't on the device: copied into a ring of its memory, beside what is computed."""
