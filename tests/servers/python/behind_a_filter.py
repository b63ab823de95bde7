"""A process behind a seccomp filter that lets everything pass, until standard input ends."""

import ctypes
import sys

libc = ctypes.CDLL(None)
# BPF_RET | BPF_K with SECCOMP_RET_ALLOW.
code = (ctypes.c_uint64 * 1)(0x7FFF000000000006)


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("code", ctypes.c_void_p)]


program = Program(1, ctypes.addressof(code))
# PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
print("ready", flush=True)
sys.stdin.read()
