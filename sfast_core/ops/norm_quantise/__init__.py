"""A diffusion transformer's norm and modulation, rotated and quantised to 8 bits, in one pass over the tokens."""
