"""Horovod's import names over libhvd: scripts written for Horovod run without an edit.

This is no part of the Horovod project. Every module here only names what package hvd has; docs/horovod.md
tells what differs. It takes the place of Horovod's own package in an environment, and is installed by choice
alone.
"""

import hvd as _hvd
from hvd import _default, _horovod

from .runner import run

__version__ = f"0.28.1+hvd.{_hvd.__version__}"
"""The release of Horovod whose names these are, and the package behind them."""

_horovod.DEFAULTS["join_counts"] = True  # averages after a join are over all ranks
_default.keeps_place = True  # init() after a shutdown() joins again

__all__ = ["run"]
