"""The machine's and the process's: choices on disk, locks, forks, PyTorch's settings, what is prepared ahead."""
