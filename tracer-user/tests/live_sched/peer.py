"""A process to be traced: does one thing that threads do with each other, and says what it did.

    peer.py MODE

prints a line once it may be traced, waits for a line, does it, prints what it did as JSON, and waits
for the end of its input. It never sleeps to wait for a thread: it looks until the kernel says that
the thread is in its call.
"""

import ctypes
import json
import os
import select
import socket
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
READ, RECVFROM, WAIT4, FUTEX, CLOCK_NANOSLEEP, EPOLL_WAIT = 0, 45, 61, 202, 230, 232
PPOLL, EPOLL_PWAIT2, FUTEX_WAITV, FUTEX_WAIT2 = 271, 441, 449, 455
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, FUTEX_WAIT_BITSET_PRIVATE = 128, 129, 137


class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class Waitv(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
    ]


class Futex:
    def __init__(self):
        self.word = ctypes.c_uint32(0)
        self.address = ctypes.addressof(self.word)

    def wait(self, operation=FUTEX_WAIT_PRIVATE, timeout=None):
        timeout = None if timeout is None else ctypes.byref(timeout)
        word = ctypes.byref(self.word)
        return LIBC.syscall(FUTEX, word, operation, 0, timeout, None, -1)

    def wake(self):
        self.word.value = 1
        return LIBC.syscall(FUTEX, ctypes.byref(self.word), FUTEX_WAKE_PRIVATE, 1)


class Sleeper(threading.Thread):
    """A thread that goes to sleep in a call of the number, its first argument being `first`."""

    def __init__(self, number, first, what):
        super().__init__()
        self.number, self.first, self.what = number, first, what
        self.start()

    def run(self):
        self.what()

    def asleep(self):
        asleep(self.native_id, self.number, self.first)
        return self


def asleep(tid, number, first):
    wanted = [str(number), hex(first & (1 << 64) - 1)]
    while True:
        with open(f"/proc/self/task/{tid}/syscall" if tid else "/dev/null") as file:
            if file.read().split()[:2] == wanted:
                return


def go(**facts):
    print(json.dumps(facts), flush=True)
    sys.stdin.readline()


def done(**facts):
    print(json.dumps({"main": threading.get_native_id(), **facts}), flush=True)
    sys.stdin.read()


def handoff():
    futex = Futex()
    go()
    sleeper = Sleeper(FUTEX, futex.address, futex.wait).asleep()
    futex.wake()
    sleeper.join()
    done(address=futex.address, sleeper=sleeper.native_id)


def late():
    futex = Futex()
    sleeper = Sleeper(FUTEX, futex.address, futex.wait).asleep()
    read, write = os.pipe()
    reader = Sleeper(READ, read, lambda: os.read(read, 1)).asleep()
    go()
    futex.wake()
    sleeper.join()
    os.write(write, b"x")
    reader.join()
    done(address=futex.address, sleeper=sleeper.native_id, reader=reader.native_id)


def timeouts():
    futex, absolute = Futex(), Futex()
    go()
    futex.wait(timeout=Timespec(0, 5_000_000))
    end = time.monotonic_ns() + 50_000_000
    absolute.wait(FUTEX_WAIT_BITSET_PRIVATE, Timespec(end // 10**9, end % 10**9))
    nothing = select.epoll()
    nothing.poll(0)
    nothing.poll(0.003)
    refused = Futex()
    refused.word.value = 7
    refused.wait()
    time.sleep(0.002)
    done(relative=futex.address, absolute=absolute.address, refused=refused.address)


def waits():
    """Every way to wait for two milliseconds, or until a point in time that is not past already."""
    go()
    read, write = os.pipe()
    os.write(write, b"x")
    os.read(read, 1)
    poll = select.poll()
    poll.register(read, select.POLLIN)
    poll.poll(2)
    select.select([read], [], [], 0.002)
    nothing, short = select.epoll(), Timespec(0, 2_000_000)
    pollfd = (ctypes.c_int * 2)(read, select.POLLIN)
    LIBC.syscall(PPOLL, pollfd, 1, ctypes.byref(short), None, 8)
    short = Timespec(0, 2_000_000)
    events = ctypes.create_string_buffer(12)
    LIBC.syscall(EPOLL_PWAIT2, nothing.fileno(), events, 1, ctypes.byref(short), None, 8)
    one, many = Futex(), Futex()

    def soon():
        end = time.monotonic_ns() + 50_000_000
        return ctypes.byref(Timespec(end // 10**9, end % 10**9))

    every = ctypes.c_uint64(0xFFFFFFFF)
    LIBC.syscall(FUTEX_WAIT2, ctypes.byref(one.word), ctypes.c_uint64(0), every, 2 | 128, soon(), 1)
    list = (Waitv * 1)(Waitv(0, many.address, 2 | 128, 0))
    LIBC.syscall(FUTEX_WAITV, list, 1, 0, soon(), 1)
    LIBC.syscall(CLOCK_NANOSLEEP, 1, 1, soon(), None)
    done(one=one.address, many=many.address)


def copies():
    """A pair of sockets and a copy of a descriptor."""
    go()
    here, there = socket.socketpair()
    reader = Sleeper(RECVFROM, there.fileno(), lambda: there.recv(9)).asleep()
    copy = os.dup(here.fileno())
    os.write(copy, b"abc")
    reader.join()
    done(reader=reader.native_id)


def pipe():
    go()
    read, write, reader = pipe_once()
    os.set_blocking(read, False)
    try:
        os.read(read, 1)
    except BlockingIOError:
        pass
    done(read=read, write=write, reader=reader.native_id)


def pipe_once():
    read, write = os.pipe()
    reader = Sleeper(READ, read, lambda: os.read(read, 1)).asleep()
    os.write(write, b"x")
    reader.join()
    return read, write, reader


def close():
    without_writer(os.close)


def replace():
    nothing = os.open("/dev/null", os.O_RDONLY)
    without_writer(lambda write: os.dup2(nothing, write))


def without_writer(end):
    go()
    read, write = os.pipe()
    reader = Sleeper(READ, read, lambda: os.read(read, 1)).asleep()
    end(write)
    reader.join()
    done(read=read, reader=reader.native_id)


def eventfd():
    go()
    event = os.eventfd(0)
    epoll = select.epoll()
    epoll.register(event, select.EPOLLIN)
    watcher = Sleeper(EPOLL_WAIT, epoll.fileno(), epoll.poll).asleep()
    os.eventfd_write(event, 1)
    watcher.join()
    epoll.unregister(event)
    done(event=event, epoll=epoll.fileno(), watcher=watcher.native_id)


def preempted():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rival = os.fork()
    while rival == 0:
        pass
    go()

    def switches():
        with open("/proc/self/status") as file:
            return int(file.read().split("nonvoluntary_ctxt_switches:")[1])

    enough = switches() + 3
    while switches() < enough:
        for _ in range(100_000):
            pass
    os.kill(rival, 9)
    os.waitpid(rival, 0)
    done()


def yields():
    futex = Futex()
    go()
    futex.wake()
    for _ in range(1000):
        os.sched_yield()
    futex.wake()
    done()


def birth():
    go()
    child = threading.Thread(target=threading.get_native_id)
    child.start()
    child.join()
    done(child=child.native_id)


def death():
    go()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        wanted = [str(WAIT4), hex(os.getpid())]
        while True:
            with open(f"/proc/{parent}/syscall") as file:
                if file.read().split()[:2] == wanted:
                    os._exit(0)
    os.waitpid(child, 0)
    done(child=child)


def crowd():
    """Many threads and processes that come and go; at the end a thread begins the program anew."""
    go()
    for _ in range(20):
        threads = [threading.Thread(target=os.getpid) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    again = [sys.executable, __file__, "again"]
    threading.Thread(target=os.execv, args=(sys.executable, again)).start()
    threading.Event().wait()


def again():
    pipe_once()
    done()


globals()[sys.argv[1]]()
