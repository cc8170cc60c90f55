"""Sets Fast Compile up.

python install.py          Installs the packages of requirements.txt that this Python lacks, and builds the CUDA
                           extension where it can. PyTorch is never touched, and a failure stops nothing.
                           ComfyUI-Manager and A1111 run this, A1111 at every launch; so what couldn't be
                           downloaded or built is tried again after a day, or at once with --retry.
python install.py demo     Draws the same pictures eager and fast, side by side, into fast_compile_demo.png.
                           `demo --help` shows its options.
python install.py test     Runs ruff, mypy and the tests. Takes pytest's options.

demo and test make a .venv of their own in this folder the first time. Only the standard library is needed.
"""

# Whatever Python runs this is to get as far as the sentence that says which it needs: no f-string, no flush=.
import os
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))


def main(arguments):
    """Run one of the commands; without an argument the result is 0 whatever happens."""
    command = arguments[0] if arguments else ""
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    if sys.version_info < (3, 10):
        print("Fast Compile needs Python 3.10 or newer; this is {}.{}.".format(*sys.version_info[:2]))
        return 0 if command in ("", "--retry") else 1
    # a Python with a ._pth file, as in Windows portable builds, leaves the script's folder out
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    if command in ("", "--retry") and not arguments[1:]:
        try:
            from fast_compile_installer import host

            host.set_up(again=command != "")
        except (Exception, KeyboardInterrupt) as error:
            print("Fast Compile: set-up was left unfinished: {}: {}".format(type(error).__name__, error))
        return 0
    if command not in ("demo", "test"):
        print("{!r} is not a command.\n\n{}".format(" ".join(arguments), __doc__))
        return 2
    from fast_compile_installer import commands

    return commands.run(command, arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
