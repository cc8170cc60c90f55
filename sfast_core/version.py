"""This package's version, which pyproject.toml has too: a test holds that they are one."""

VERSION = "0.1.0"
