"""What ``install.py`` does, in pieces. Standard library only; the name is unique because hosts put this repository on
sys.path.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
