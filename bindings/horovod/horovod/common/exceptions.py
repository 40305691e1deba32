"""The exceptions by which the run loop goes round, and others of hvd.errors."""

from hvd.errors import HorovodInternalError, HostsUpdatedInterrupt, HvdError, InvalidError, MismatchError  # noqa: F401
