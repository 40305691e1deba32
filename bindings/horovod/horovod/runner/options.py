"""horovodrun's options, and what each is to hvdrun. Nothing here has an effect outside."""

from __future__ import annotations

import argparse
from typing import Any, Callable, Mapping, NamedTuple, Sequence


class Option(NamedTuple):
    """One option of horovodrun's: its flags, where it stands, and what it is to hvdrun."""

    flags: Sequence[str]
    dest: str
    kind: Any  # of its value: int, float, str; bool: a flag that takes none; False: a flag that says no
    to: str | None = None  # an option of hvdrun's; "key=": of its --set; "": the default; None: without effect
    of: Callable[[Any], Any] = str  # the value, as hvdrun has it
    count: int | None = None  # of values, where they are more than one
    choices: Sequence[str] | None = None

    def words(self, value: Any) -> list[str]:
        if not self.to or value is False:
            return []
        if self.to.endswith("="):
            return ["--set", f"{self.to}{self.of(value)}"]
        if self.kind is bool:
            return self.to.split()
        return [self.to, *map(str, value)] if self.count else [self.to, str(self.of(value))]


def _seconds(value: Any) -> str:
    return f"{value}s"


_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

OPTIONS = (
    Option(("-np", "--num-proc"), "num_proc", int, "--np"),
    Option(("--min-np", "--min-num-proc"), "min_num_proc", int, "--min-np"),
    Option(("--max-np", "--max-num-proc"), "max_num_proc", int, "--max-np"),
    Option(("-H", "--hosts"), "hosts", str, "--hosts"),
    Option(("-hostfile", "--hostfile"), "hostfile", str, "--hostfile"),
    Option(("--host-discovery-script", ), "host_discovery_script", str, "--host-discovery-script"),
    Option(("--slots-per-host", ), "slots", int, "--slots-per-host"),
    Option(("--elastic-timeout", ), "elastic_timeout", int, "--elastic-timeout"),
    Option(("--reset-limit", ), "reset_limit", int, "--reset-limit"),
    Option(("--blacklist-cooldown-range", ), "cooldown_range", int, "--blocklist-cooldown-range", count=2),
    Option(("--output-filename", ), "output_filename", str, "--output-filename"),
    Option(("--start-timeout", ), "start_timeout", int, "start_timeout=", _seconds),
    Option(("--timeline-filename", ), "timeline_filename", str, "--timeline-filename"),
    Option(("--fusion-threshold-mb", ), "fusion_threshold_mb", int, "fusion_threshold=",
           lambda value: int(value) * 1024 * 1024),
    Option(("--stall-check-warning-time-seconds", ), "stall_check_warning_time_seconds", int,
           "stall_warning=", _seconds),
    Option(("--stall-check-shutdown-time-seconds", ), "stall_check_shutdown_time_seconds", int,
           "stall_shutdown=", _seconds),
    Option(("--no-stall-check", ), "no_stall_check", bool, "stall_warning=", lambda value: "0s"),
    Option(("--stall-check", ), "no_stall_check", False, ""),
    Option(("--log-level", ), "log_level", str, "log_level=", lambda value: "error"
           if value.upper() == "FATAL" else value.lower(), choices=_LEVELS),
    Option(("--verbose", ), "verbose", bool, "--verbose"),
    Option(("--mpi", ), "use_mpi", bool, "--backend mpi"),
    Option(("--gloo", ), "use_gloo", bool, ""),  # no MPI, which is so without it, too
    # Of machinery that is not here: there is no cycle, no cache of responses, and nothing to tune.
    Option(("--jsrun", ), "use_jsrun", bool),
    Option(("--disable-cache", ), "disable_cache", bool),
    Option(("--cycle-time-ms", ), "cycle_time_ms", float),
    Option(("--cache-capacity", ), "cache_capacity", int),
    Option(("--hierarchical-allreduce", ), "hierarchical_allreduce", bool),
    Option(("--no-hierarchical-allreduce", ), "hierarchical_allreduce", False),
    Option(("--hierarchical-allgather", ), "hierarchical_allgather", bool),
    Option(("--no-hierarchical-allgather", ), "hierarchical_allgather", False),
    Option(("--torus-allreduce", ), "torus_allreduce", bool),
    Option(("--no-torus-allreduce", ), "torus_allreduce", False),
    Option(("--autotune", ), "autotune", bool),
    Option(("--no-autotune", ), "autotune", False),
    Option(("--autotune-log-file", ), "autotune_log_file", str),
    Option(("--autotune-warmup-samples", ), "autotune_warmup_samples", int),
    Option(("--autotune-steps-per-sample", ), "autotune_steps_per_sample", int),
    Option(("--autotune-bayes-opt-max-samples", ), "autotune_bayes_opt_max_samples", int),
    Option(("--autotune-gaussian-process-noise", ), "autotune_gaussian_process_noise", float),
    Option(("--timeline-mark-cycles", ), "timeline_mark_cycles", bool),
    Option(("--no-timeline-mark-cycles", ), "timeline_mark_cycles", False),
    Option(("--mpi-threads-disable", ), "mpi_threads_disable", bool),
    Option(("--no-mpi-threads-disable", ), "mpi_threads_disable", False),
    Option(("--mpi-args", ), "mpi_args", str),
    Option(("--tcp", ), "tcp_flag", bool),
    Option(("--binding-args", ), "binding_args", str),
    Option(("--num-nccl-streams", ), "num_nccl_streams", int),
    Option(("--thread-affinity", ), "thread_affinity", int),
    Option(("--gloo-timeout-seconds", ), "gloo_timeout_seconds", int),
    Option(("--log-with-timestamp", ), "log_with_timestamp", bool),
    Option(("--log-without-timestamp", "--log-hide-timestamp"), "log_with_timestamp", False),
    Option(("-prefix-timestamp", "--prefix-output-with-timestamp"), "prefix_output_with_timestamp", bool),
)
_OWN = ("nics", "ssh_port", "ssh_identity_file")  # which hvdrun has no single option for

# Sections of the configuration file, and what their entries are called above.
_SECTIONS = {
    "params": "", "library_options": "", "timeline": "timeline_", "logging": "log_", "autotune": "autotune_",
    "stall_check": "stall_check_",
}


def parser(version: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="horovodrun", allow_abbrev=False, description=(
        "Starts a job as Horovod's horovodrun does: its options under their names, carried out by hvdrun."))
    made.add_argument("-v", "--version", action="version", version=version)
    made.add_argument("-cb", "--check-build", action="store_true",
                      help="no job, but which backends can be used")
    made.add_argument("--config-file", help="YAML file of options; those of the command line come first")
    made.add_argument("-p", "--ssh-port", type=int, help="port of ssh on the other hosts")
    made.add_argument("-i", "--ssh-identity-file", help="private key for ssh")
    made.add_argument("--network-interfaces", "--network-interface", action="append", dest="nics",
                      help="interface for the workers' data")
    for option in OPTIONS:
        action: dict[str, Any] = {"dest": option.dest, "default": None}
        if option.kind is bool:
            action["action"] = "store_true"
        elif option.kind is False:
            action["action"] = "store_false"
        else:
            action.update(type=option.kind, nargs=option.count, choices=option.choices)
        meant = {None: "accepted, without effect", "": "the default"}.get(option.to, f"hvdrun's {option.to}")
        made.add_argument(*option.flags, **action, help=meant)
    made.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return made


def merge(given: argparse.Namespace, config: Mapping[str, Any]) -> None:
    """Puts what a configuration file says where the command line says nothing. ValueError: what it can't
    mean."""
    known = {option.dest for option in OPTIONS}
    found: dict[str, Any] = {}
    for section, entries in config.items():
        if section == "controller":
            if str(entries).lower() not in ("gloo", "mpi"):
                raise ValueError(f"controller: {entries}: expected gloo or mpi")
            if not given.use_gloo and not given.use_mpi:
                found[f"use_{str(entries).lower()}"] = True
        elif section in _SECTIONS and isinstance(entries, Mapping):
            for entry, value in entries.items():
                dest = _SECTIONS[section] + entry
                if entry == "enabled" and section in ("autotune", "stall_check"):
                    dest, value = ("autotune", value) if section == "autotune" else ("no_stall_check",
                                                                                     not value)
                found[dest] = value
        elif section in known | {*_OWN}:
            found[section] = entries
        else:
            raise ValueError(f"{section}: expected one of controller, {', '.join(_SECTIONS)}")
    for dest, value in found.items():
        if dest not in known | {*_OWN}:
            raise ValueError(f"{dest}: no such entry")
        if getattr(given, dest) is None and value is not None:
            setattr(given, dest, value)


def translate(given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """hvdrun's words for these options, and the flags that have no effect. ValueError: what can't be meant.
    """
    words: list[str] = []
    idle: list[str] = []
    done: set[str] = set()
    for option in OPTIONS:
        value = getattr(given, option.dest)
        if value is None or option.dest in done:
            continue
        done.add(option.dest)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
            raise ValueError(f"{option.flags[-1]} {value}: expected 0 or more")
        if option.dest == "reset_limit" and value == 0:
            raise ValueError("--reset-limit 0: expected 1 or more; without it there is no limit")
        if option.to is not None:
            words += option.words(value)
        elif value is not False:
            idle.append(option.flags[-1])
    if given.use_gloo and given.use_mpi:
        raise ValueError("--gloo and --mpi: expected one of them")
    interfaces = [name for entry in given.nics or [] for name in entry.split(",") if name]
    if interfaces:
        words += ["--network-interface", interfaces[0]]
        idle += [f"--network-interfaces {name}" for name in interfaces[1:]]
    if given.ssh_port is not None or given.ssh_identity_file is not None:
        ssh = ["ssh", "-o", "BatchMode=yes"]
        if given.ssh_port is not None:
            ssh += ["-p", str(given.ssh_port)]
        if given.ssh_identity_file is not None:
            if any(c.isspace() for c in given.ssh_identity_file):
                raise ValueError(
                    f"--ssh-identity-file {given.ssh_identity_file!r}: expected a path without blanks")
            ssh += ["-i", given.ssh_identity_file]
        words += ["--agent", " ".join([*ssh, "{host}"])]
    return words, idle
