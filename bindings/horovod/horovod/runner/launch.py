"""The command horovodrun: Horovod's options, carried out by hvdrun."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Sequence

from .. import __version__
from . import options

# Variables that Horovod's launcher reads where the option is not given.
_VARIABLES = {
    "HOROVOD_START_TIMEOUT": ("start_timeout", int), "HOROVOD_ELASTIC_TIMEOUT": ("elastic_timeout", int)
}


def read_config(path: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ValueError("--config-file needs the package PyYAML (pip install pyyaml)") from None
    try:
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--config-file {path}: {error}") from error
    if not isinstance(config, Mapping):
        raise ValueError(
            f"--config-file {path}: expected sections of options, and not {type(config).__name__}")
    return config


def command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """hvdrun's arguments for horovodrun's, and the flags without effect. Wrong ones end with status 2, as
    argparse does."""
    parser = options.parser(__version__)
    given = parser.parse_args(arguments)
    try:
        for name, (dest, kind) in _VARIABLES.items():
            if environment.get(name) and getattr(given, dest) is None:
                try:
                    setattr(given, dest, kind(environment[name]))
                except ValueError:
                    raise ValueError(f"{name}={environment[name]}: expected a number of seconds") from None
        if given.config_file:
            options.merge(given, read_config(given.config_file))
        words, idle = options.translate(given)
    except ValueError as error:
        parser.error(str(error))
    if given.check_build:
        return ["--check-build"], []
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("no command: expected a program and its arguments after the options")
    if given.num_proc is None:
        parser.error("-np: expected the number of workers")
    return [*words, "--", *command], idle


def run_commandline() -> None:
    """horovodrun: becomes hvdrun."""
    from hvd import hvdrun

    words, idle = command_line(sys.argv[1:], os.environ)
    if idle:
        print(f"horovodrun: without effect here: {', '.join(idle)}", file=sys.stderr, flush=True)
    program = hvdrun()
    try:
        os.execvp(program, [program, *words])
    except OSError as error:
        sys.exit(f"horovodrun: {program}: {error.strerror}")


if __name__ == "__main__":
    run_commandline()
