"""What belongs to the machine and the process, whatever the model: measured choices on disk, locks, forks, PyTorch's
settings, what is got ready ahead.
"""
