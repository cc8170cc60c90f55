"""Weights that aren't on the device: copied into slots of a ring of its memory while what comes before them is
computed.
"""
