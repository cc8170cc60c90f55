"""What belongs to the machine and the process, not to a model: measured choices on disk, locks, forks, PyTorch's
settings, and what is prepared ahead.
"""
