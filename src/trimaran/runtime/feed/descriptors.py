"""Anonymous files in memory: how one process hands them to another, and how they become memory.

Source:
    unix(7), SCM_RIGHTS and its ETOOMANYREFS; recvmsg(2), MSG_CMSG_CLOEXEC; mmap(2).
"""

import ctypes
import errno
import mmap
import os
import socket
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,  # off_t, on the systems of 64 bits that torch has builds for
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value

_DESCRIPTOR = struct.Struct("i")


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Hand an open file over, or let the other end find none where the system has too many on their way.

    Args:
        connection: to the process that gets it
        descriptor: its number here
    """
    with socket_of(connection) as line:
        try:
            socket.send_fds(line, [b"."], [descriptor])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            line.sendall(b".")


def receive_descriptor(connection: Connection) -> int | None:
    """An open file that the other end hands over; None: the system has no place for it.

    Programs that this process starts do not inherit it.

    Args:
        connection: to the process that sends it

    Raises:
        EOFError, OSError: the other end is gone
    """
    with socket_of(connection) as line:
        # Not socket.recv_fds, which leaves its flags out.
        said, control, _, _ = line.recvmsg(1, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
    if not said:
        raise EOFError
    if not control:
        return None
    (descriptor,) = _DESCRIPTOR.unpack(control[0][2])
    return int(descriptor)


def map_file(descriptor: int, nbytes: int) -> memoryview:
    """A file as memory, until nothing refers to that any more.

    It stays when the descriptor is closed, where Python's own mmap keeps one open; and it is no operation of torch,
    which whoever watches those would see.

    Args:
        descriptor: of the open file
        nbytes: its size [bytes]

    Raises:
        OSError: the process may map no more
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    # At the end of the process the system does it, when nobody can be using it any more.
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")


@contextmanager
def socket_of(connection: Connection) -> Iterator[socket.socket]:
    """The socket that a connection is; it takes no descriptor of its own."""
    line = socket.socket(fileno=connection.fileno())
    try:
        # Where the program has set a time-out for all sockets, this one would no longer wait, and so the connection.
        line.setblocking(True)
        yield line
    finally:
        line.detach()
