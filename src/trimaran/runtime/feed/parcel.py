"""What a worker gets when it starts; where it is not forked, in memory.

`multiprocessing` writes what a new process gets into a pipe of which its parent holds both ends, so that a parent whose
child dies before it has read waits for ever, where a pipe does not hold it all. So only a descriptor goes that way, and
the value lies in an anonymous file in memory. It is pickled while the process is started, for locks and shared values
of `multiprocessing` can be pickled at no other time.
"""

import errno
import os
import pickle
from multiprocessing import reduction
from typing import Any

_SYSTEM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EFBIG}
"""What the system lacks, and no fault of the value."""


class Unsendable(Exception):
    """A value cannot be pickled; its cause says why."""


class Parcel:
    """A value for one process that is about to start.

    Args:
        value: that it gets
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._file = -1

    def __reduce__(self) -> tuple[Any, ...]:
        self._file = os.memfd_create("trimaran-parcel", os.MFD_CLOEXEC)
        with open(self._file, "wb", closefd=False) as file:
            try:
                reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self._value)
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _SYSTEM:
                    raise
                raise Unsendable from error
        return Sent, (reduction.DupFd(self._file),)

    def open(self) -> Any:
        """The value, in a process that was forked."""
        return self._value

    def close(self) -> None:
        """The process has been started, and has what it needs."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Sent:
    """A parcel, in a process that was not forked.

    Args:
        file: its descriptor, as `multiprocessing` hands it to a new process
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def open(self) -> Any:
        """The value.

        Raises:
            Exception: whatever an object raises that is unpickled, or a module that is imported for it
        """
        with os.fdopen(self._file.detach(), "rb") as file:
            # The parent's end has been written to.
            file.seek(0)
            return pickle.load(file)  # noqa: S301 from the process that started this one
