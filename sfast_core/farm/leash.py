"""``python leash.py PROGRAM.py OPTIONS``: run a program that ends when who started it ends, however that ends. The standard library alone.

Who starts it holds the other end of its standard input, which the system closes with the last of it. The program's own is empty.
"""

import os
import sys
import threading


def _end_with(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:
        pass
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():  # what it has started, too
        os.killpg(0, 9)
    os._exit(1)


def main() -> None:
    """Hold the leash in a thread, and become the program."""
    program = os.path.abspath(sys.argv[1])
    sys.argv = [program, *sys.argv[2:]]
    sys.path[0] = os.path.dirname(program)
    held = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()

    import runpy  # once this file's folder, whose names are no library's, is no longer looked into

    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
