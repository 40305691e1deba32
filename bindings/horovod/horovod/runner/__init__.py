"""horovod.run: a function as a job."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence


def run(func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        num_proc: int = 1, min_num_proc: int | None = None, max_num_proc: int | None = None, slots: int |
        None = None, reset_limit: int | None = None, cooldown_range: tuple[float, float] | None = None,
        hosts: str | None = None, hostfile: str | None = None, host_discovery_script: str | None = None,
        start_timeout: float | None = None, ssh_port: int | None = None, ssh_identity_file: str | None = None,
        disable_cache: bool | None = None, output_filename: str | None = None, verbose: bool | None = None,
        use_gloo: bool | None = None, use_mpi: bool | None = None, mpi_args: str | None = None,
        network_interface: str | None = None, network_interfaces: Sequence[str] | None = None,
        executable: str | None = None, np: int | None = None, min_np: int | None = None,
        max_np: int | None = None) -> list[Any]:
    """hvd.run with Horovod's parameters: func(*args, **kwargs) in num_proc workers; its results in rank
    order.

    It runs on this machine: other hosts are a ValueError (start the script by horovodrun there).
    disable_cache, verbose and mpi_args have no effect.
    """
    import hvd

    others = {"hosts": hosts, "hostfile": hostfile, "host_discovery_script": host_discovery_script,
              "ssh_port": ssh_port, "ssh_identity_file": ssh_identity_file}
    for name, value in others.items():
        if value is not None and not (name == "hosts" and all(
                part.partition(":")[0] in ("localhost", "127.0.0.1") for part in value.split(","))):
            raise ValueError(
                f"{name}={value!r}: horovod.run runs on this machine; horovodrun starts scripts on others")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi: expected one of them")
    interfaces = list(network_interfaces or ([network_interface] if network_interface else []))
    options: dict[str, Any] = {
        "min_np": min_num_proc or min_np, "max_np": max_num_proc or max_np, "slots_per_host": slots,
        "reset_limit": reset_limit, "hosts": hosts, "start_timeout": start_timeout,
        "output_directory": output_filename, "interface": interfaces[0] if interfaces else None,
        "backend": "mpi" if use_mpi else None,
    }
    if cooldown_range is not None:
        options["blocklist_cooldown_min"], options["blocklist_cooldown_max"] = map(float, cooldown_range)
    options = {name: value for name, value in options.items() if value is not None}
    return hvd.run(func, args, kwargs, np=np or num_proc, executable=executable, **options)
