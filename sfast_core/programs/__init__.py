"""What an engine has of a module: programs by device and signature, made of a recorded call, proved, run, let go."""
