"""hvd for LightGBM, the stock wheel: its distributed training over libhvd, and elastic training.
docs/lightgbm.md is the manual.

    import hvd.lightgbm as hvd
    hvd.init()
    booster = hvd.elastic_train({"objective": "regression"}, data, num_boost_round=100)
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

import lightgbm

from .._abi import LIBRARY_PATH
from .._default import (abort, allgather_object, barrier, broadcast_object, context, init, is_initialized,
                        local_rank, local_size, membership, rank, recoveries, shutdown, size)
from .._library import LibraryError
from ..context import Context
from ..elastic import ObjectState
from ..elastic import run as _run
from ..errors import (HorovodInternalError, HostsUpdatedInterrupt, HvdError, InvalidError, MismatchError,
                      marked)

_network: ctypes.CDLL | None = None


def _functions() -> ctypes.CDLL:
    """hvd-lightgbm.so, which lies beside the library's modules."""
    global _network
    if _network is None:
        places = [Path(LIBRARY_PATH).resolve().parent / "hvd" / "1", *(
            Path(place) for place in os.environ.get("HVD_PLUGIN_PATH", "").split(":") if place)]
        found = next((place / "hvd-lightgbm.so" for place in places if (place / "hvd-lightgbm.so").exists()),
                     None)
        if found is None:
            raise LibraryError("no hvd-lightgbm.so found in " + ", ".join(map(str, places)))
        _network = ctypes.CDLL(str(found))
        _network.hvd_lightgbm_use.argtypes = [ctypes.c_void_p]
        _network.hvd_lightgbm_use.restype = None
    return _network


def _call(status: int) -> None:
    if status:
        raise lightgbm.basic.LightGBMError(lightgbm.basic._LIB.LGBM_GetLastError().decode("utf-8", "replace"))


@contextmanager
def network(*, context: Context | None = None) -> Iterator[dict[str, Any]]:
    """Within it LightGBM's distributed training, in this thread, goes over libhvd; what fails there is hvd's
    exception.

    It gives the parameters that data sets and boosters need: {"num_machines": size, "pre_partition": True,
    "tree_learner": "data"}, and none for a rank that is alone. Data sets are made within it. All ranks do the
    same within it, in the same order; it is for one generation.
    """
    chosen = context or globals()["context"]()
    functions, library = _functions(), lightgbm.basic._LIB
    member = chosen.membership()
    address = {name: ctypes.cast(getattr(functions, f"hvd_lightgbm_{name}"), ctypes.c_void_p)
               for name in ("reduce_scatter", "allgather")}
    functions.hvd_lightgbm_use(chosen._handle.pointer)
    try:
        if member.size > 1:
            _call(library.LGBM_NetworkInitWithFunctions(ctypes.c_int(member.size), ctypes.c_int(member.rank),
                                                        address["reduce_scatter"], address["allgather"]))
        yield {} if member.size == 1 else {
            "num_machines": member.size, "pre_partition": True, "tree_learner": "data"
        }
    except lightgbm.basic.LightGBMError as problem:
        error = marked(problem)
        if error is None:
            raise
        raise error from problem
    finally:
        library.LGBM_NetworkFree()
        functions.hvd_lightgbm_use(None)


def elastic_train(params: Mapping[str, Any], data: Callable[[int, int], Any], num_boost_round: int = 100, *,
                  commit_rounds: int = 10, context: Context | None = None,
                  **options: Any) -> lightgbm.Booster:
    """lightgbm.train on all ranks together, through the loss and the arrival of workers: the same booster on
    every rank.

    `data(rank, size)` gives this rank's rows as a lightgbm.Dataset, or a pair of it and a list of validation
    sets; it is called anew in each generation, and all ranks' rows together are the data. The model is
    committed each `commit_rounds` rounds: after a failure the survivors go on from the last commit, after a
    change of hosts from the present round. `options` are lightgbm.train's (callbacks, feval, ...). A tree
    learner other than "data" may be chosen in `params`.
    """
    for name in ("machines", "machine_list_filename", "num_machines", "local_listen_port"):
        if name in params:
            raise InvalidError(f"{name}={params[name]!r}: the machines are the job's ranks; leave it out")
    for name in ("init_model", "valid_sets", "train_set"):
        if name in options:
            raise InvalidError(
                f"{name}: expected none; data(rank, size) gives the sets, and the model begins anew")
    for name, value in (("num_boost_round", num_boost_round), ("commit_rounds", commit_rounds)):
        if not isinstance(value, int) or value < 1:
            raise InvalidError(f"{name} is {value!r}: expected a whole number, 1 or more")
    if not callable(data):
        raise TypeError(f"data: expected a function of (rank, size), and not {type(data).__name__}")
    chosen = context or globals()["context"]()
    state = ObjectState(context=chosen, model="", round=0)

    @_run
    def train(state: ObjectState) -> lightgbm.Booster:
        if state.round >= num_boost_round:
            return lightgbm.Booster(model_str=state.model)
        with network(context=chosen) as distributed:
            given = data(chosen.rank(), chosen.size())
            sets, valid = given if isinstance(given, tuple) else (given, [])
            if not isinstance(sets, lightgbm.Dataset):
                raise TypeError(
                    f"data: expected it to give a lightgbm.Dataset, and not {type(sets).__name__}")
            begin = state.round

            def commit(environment: Any) -> None:
                state.round = begin + environment.iteration - environment.begin_iteration + 1
                if state.round % commit_rounds == 0 or state.round == num_boost_round:
                    state.model = environment.model.model_to_string(num_iteration=-1)
                    state.commit()

            commit.order = 100  # type: ignore[attr-defined]  # after those that may end the training
            booster = lightgbm.train({**distributed, **params}, sets, num_boost_round - begin,
                                     valid_sets=valid,
                                     init_model=lightgbm.Booster(model_str=state.model) if begin else None,
                                     **{**options, "callbacks": [*(options.get("callbacks") or ()), commit]})
            result = lightgbm.Booster(model_str=booster.model_to_string(num_iteration=-1))
            result.best_iteration, result.best_score = booster.best_iteration, booster.best_score
            return result

    try:
        return train(state)
    finally:
        state.close()


__all__ = [
    "HorovodInternalError", "HostsUpdatedInterrupt", "HvdError", "InvalidError", "MismatchError", "abort",
    "allgather_object", "barrier", "broadcast_object", "context", "elastic_train", "init", "is_initialized",
    "local_rank", "local_size", "membership", "network", "rank", "recoveries", "shutdown", "size"
]
