"""The version alone, for setup scripts that read it."""

from . import __version__  # noqa: F401
