"""A file system without hard links, as volumes of Databricks are: the kernel refuses them to a whole process tree."""

from __future__ import annotations

import ctypes
import errno
import platform

_CALLS = {"x86_64": (86, 265), "aarch64": (37, 37)}
"""Numbers of link and linkat; the second architecture has no link."""

_LOAD_NUMBER, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def refuse_hard_links() -> None:
    """Let link and linkat fail with ENOTSUP in this process and all that it starts, by a filter of seccomp."""
    link, linkat = _CALLS[platform.machine()]
    instructions = (_Instruction * 5)(
        _Instruction(_LOAD_NUMBER, 0, 0, 0),
        _Instruction(_EQUAL, 1, 0, link),
        _Instruction(_EQUAL, 0, 1, linkat),
        _Instruction(_RETURN, 0, 0, _FAIL | errno.ENOTSUP),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(
        _SECCOMP, _FILTER, ctypes.byref(_Program(len(instructions), instructions))
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")
