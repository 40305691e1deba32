"""The functions of a binding as methods of one object."""

from __future__ import annotations

from typing import Any

import hvd


class HorovodBasics:
    """Package hvd's functions. There is no extension to load, so the path of one has no effect."""

    def __init__(self, pkg_path: str = "", *args: Any):
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name!r}: Horovod's internal functions are not there")
        return getattr(hvd, name)
