"""What an engine has: the cached programs of a module by device and signature, made from a recorded call, proved, run,
and let go.
"""
