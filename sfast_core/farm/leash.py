"""``python leash.py PROGRAM.py OPTIONS`` or ``-m MODULE OPTIONS``: a program that ends when who started it ends.

It needs the standard library alone.

Who starts it holds the other end of its standard input, which the system closes with the last of it. The program's own
is empty.
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
    module = sys.argv[2] if sys.argv[1] == "-m" else None
    program = module or os.path.abspath(sys.argv[1])
    sys.argv = [program, *sys.argv[3 if module else 2 :]]
    del sys.path[0]  # this folder's, in which libraries would find names of their own
    if module is None:
        sys.path.insert(0, os.path.dirname(program))
    held = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()

    import runpy

    if module is None:
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
