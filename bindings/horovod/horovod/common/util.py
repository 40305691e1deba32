"""What programs ask of an installation."""

from contextlib import contextmanager
import os

from hvd import (ccl_built, cuda_built, ddl_built, gloo_built, mpi_built, nccl_built,  # noqa: F401
                 rocm_built)

_FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "keras", "jax": "jax"}


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework of this name is there and served."""
    from importlib.util import find_spec

    return ext_base_name in _FRAMEWORKS and find_spec(_FRAMEWORKS[ext_base_name]) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU."""
    if not extension_available(ext_base_name):
        return False
    if ext_base_name == "torch":
        import torch

        return torch.cuda.is_available()
    if ext_base_name in ("tensorflow", "keras"):
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items, parts: int) -> list:
    """`items` in `parts` runs whose lengths differ by one at most."""
    share, more = divmod(len(items), parts)
    ends = [i * share + min(i, more) for i in range(parts + 1)]
    return [items[begin:end] for begin, end in zip(ends, ends[1:])]


def is_iterable(thing) -> bool:
    try:
        iter(thing)
        return True
    except TypeError:
        return False


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    from packaging import version

    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"expected versions as str, and not {ver!r}, {target!r}")
    if len(target.split(".")) != 3:
        raise ValueError(f"target {target!r}: expected three numbers, such as 1.2.3")
    return version.parse(ver) >= version.parse(target)


@contextmanager
def env(**variables):
    """Environment variables for a block; None: not set."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
