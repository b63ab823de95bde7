"""Small servers for the end-to-end tests: one system call family, or one protocol, each.

    peers.py MODE [ARGUMENT]

prints `listening WHERE PID…` (a port or a path, and the processes that serve) and serves until it
is killed. HTTP modes answer `METHOD PATH` with a body of as many `x` as the last segment of the
path says. Everything is the standard library's; calls that Python has no name for go through
ctypes.
"""

import ctypes
import fcntl
import os
import socket
import ssl
import struct
import sys
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
MSG_WAITFORONE = 0x10000


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.POINTER(Iovec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Mmsghdr(ctypes.Structure):
    _fields_ = [("hdr", Msghdr), ("len", ctypes.c_uint)]


def messages(buffers):
    """One message for each buffer."""
    iovecs = [Iovec(ctypes.addressof(b), ctypes.sizeof(b)) for b in buffers]
    made = (Mmsghdr * len(buffers))()
    for message, iovec in zip(made, iovecs):
        message.hdr.iov = ctypes.pointer(iovec)
        message.hdr.iovlen = 1
    return made, iovecs


def recvmmsg(fd):
    buffers = [ctypes.create_string_buffer(64), ctypes.create_string_buffer(8192)]
    made, _keep = messages(buffers)
    count = LIBC.recvmmsg(fd, made, len(buffers), MSG_WAITFORONE, None)
    if count < 0:
        raise OSError(ctypes.get_errno(), "recvmmsg")
    return b"".join(b.raw[: m.len] for b, m in list(zip(buffers, made))[:count])


def sendmmsg(fd, data):
    middle = len(data) // 2
    buffers = [ctypes.create_string_buffer(part, len(part)) for part in (data[:middle], data[middle:])]
    made, _keep = messages(buffers)
    count = LIBC.sendmmsg(fd, made, len(buffers), 0)
    if count != 2 or sum(m.len for m in made) != len(data):
        raise OSError(ctypes.get_errno(), "sendmmsg")


def readv(fd):
    buffers = [bytearray(10), bytearray(3), bytearray(8192)]
    count = os.readv(fd, buffers)
    return b"".join(bytes(b) for b in buffers)[:count]


def writev(fd, data):
    written = os.writev(fd, [data[:5], data[5:40], data[40:]])
    assert written == len(data)


def recvmsg(connection):
    buffers = [bytearray(7), bytearray(8192)]
    count = connection.recvmsg_into(buffers)[0]
    return b"".join(bytes(b) for b in buffers)[:count]


def peek_then_recv(connection):
    connection.recv(4096, socket.MSG_PEEK)
    return connection.recv(4096)


def send_file(connection, data):
    head, body = data.split(b"\r\n\r\n", 1)
    connection.sendall(head + b"\r\n\r\n")
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        sent = 0
        while sent < len(body):
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, len(body) - sent)


def splice_out(connection, data):
    head, body = data.split(b"\r\n\r\n", 1)
    connection.sendall(head + b"\r\n\r\n")
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.seek(0)
        left = len(body)
        while left:
            filled = os.splice(file.fileno(), writing, min(left, 4096))
            while filled:
                moved = os.splice(reading, connection.fileno(), filled)
                filled -= moved
                left -= moved
    os.close(reading)
    os.close(writing)


class Connection:
    """Bytes of one connection, moved by the calls of `mode`."""

    def __init__(self, mode, connection):
        self.mode, self.connection, self.buffer = mode, connection, b""

    def read(self):
        fd = self.connection.fileno()
        return {
            "read_write": lambda: os.read(fd, 4096),
            "readv_writev": lambda: readv(fd),
            "recvmsg_sendmsg": lambda: recvmsg(self.connection),
            "recvmmsg_sendmmsg": lambda: recvmmsg(fd),
            "peek": lambda: peek_then_recv(self.connection),
        }.get(self.mode, lambda: self.connection.recv(4096))()

    def write(self, data):
        fd = self.connection.fileno()
        {
            "read_write": lambda: os.write(fd, data),
            "readv_writev": lambda: writev(fd, data),
            "recvmsg_sendmsg": lambda: self.connection.sendmsg([data[:9], data[9:30], data[30:]]),
            "recvmmsg_sendmmsg": lambda: sendmmsg(fd, data),
            "sendfile": lambda: send_file(self.connection, data),
            "splice": lambda: splice_out(self.connection, data),
        }.get(self.mode, lambda: self.connection.sendall(data))()

    def more(self):
        data = self.read()
        self.buffer += data
        return bool(data)

    def skip_body(self, length):
        """Reads the body; `splice_in` moves it into a pipe without looking at it."""
        if self.mode == "splice_in":
            reading, writing = os.pipe()
            left = length - len(self.buffer)
            self.buffer = b""
            while left:
                moved = os.splice(self.connection.fileno(), writing, min(left, 65536))
                os.read(reading, moved)
                left -= moved
            os.close(reading)
            os.close(writing)
            return
        while len(self.buffer) < length and self.more():
            pass
        self.buffer = self.buffer[length:]

    def serve(self):
        while True:
            while b"\r\n\r\n" not in self.buffer:
                if not self.more():
                    return
            head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
            first, *lines = head.split(b"\r\n")
            headers = dict(line.lower().split(b": ", 1) for line in lines)
            self.skip_body(int(headers.get(b"content-length", 0)))
            size = int(first.split(b" ")[1].rsplit(b"/", 1)[1])
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
            self.write(answer)
            if self.mode == "shutdown":
                self.connection.shutdown(socket.SHUT_WR)
                while self.read():
                    pass
                return


def handed_over(mode, connection):
    """The connection under another descriptor, where the mode says so."""
    old = connection.fileno()
    if mode == "dup":
        new = os.dup(old)
    elif mode == "dup2":
        new = os.dup2(old, 200)
    elif mode == "dup3":
        new = os.dup2(old, 201, inheritable=False)
    elif mode == "fcntl_dup":
        new = fcntl.fcntl(old, fcntl.F_DUPFD_CLOEXEC, 202)
    else:
        return connection
    connection.close()
    return socket.socket(fileno=new)


def listen():
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    return listener


def say(where, *pids):
    print("listening", where, *(pids or [os.getpid()]), flush=True)


def accepted(mode, listener):
    if mode != "peer_asked":
        return listener.accept()[0]
    # As libuv does: `accept4` is not to tell who it is, `getpeername` does.
    connection = socket.socket(fileno=LIBC.accept4(listener.fileno(), None, None, 0))
    connection.getpeername()
    return connection


def plain(mode):
    listener = listen()
    say(listener.getsockname()[1])
    while True:
        connection = handed_over(mode, accepted(mode, listener))
        Connection(mode, connection).serve()
        if mode == "close_range":
            fd = connection.detach()
            os.closerange(fd, fd + 1)
        else:
            connection.close()


def passed(mode):
    """The process that accepts hands the connection to another one."""
    listener = listen()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        listener.close()
        ours.close()
        while True:
            message, fds, _, _ = socket.recv_fds(theirs, 16, 1)
            if not message:
                return
            connection = socket.socket(fileno=fds[0])
            Connection(mode, connection).serve()
            connection.close()
    say(listener.getsockname()[1], os.getpid(), child)
    while True:
        connection = listener.accept()[0]
        socket.send_fds(ours, [b"here"], [connection.fileno()])
        connection.close()


def forking(mode):
    """A process for each connection."""
    listener = listen()
    say(listener.getsockname()[1])
    while True:
        connection = listener.accept()[0]
        if os.fork() == 0:
            Connection(mode, connection).serve()
            os._exit(0)
        connection.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = listen()
    say(listener.getsockname()[1])
    while True:
        connection = listener.accept()[0]
        try:
            wrapped = context.wrap_socket(connection, server_side=True)
            Connection("tls", wrapped).serve()
            wrapped.close()
        except OSError:
            connection.close()


def unix(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    say(path)
    while True:
        connection = listener.accept()[0]
        Connection("unix", connection).serve()
        connection.close()


def http2(_mode):
    """Answers the preface with SETTINGS, and every PING."""
    listener = listen()
    say(listener.getsockname()[1])
    while True:
        connection = listener.accept()[0]
        buffer = b""
        while len(buffer) < 24:
            buffer += connection.recv(4096)
        connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        buffer = buffer[24:]
        while True:
            while len(buffer) >= 9:
                length = struct.unpack(">I", b"\0" + buffer[:3])[0]
                if len(buffer) < 9 + length:
                    break
                if buffer[3] == 6:
                    connection.sendall(b"\x00\x00\x08\x06\x01\x00\x00\x00\x00" + buffer[9 : 9 + 8])
                buffer = buffer[9 + length :]
            data = connection.recv(4096)
            if not data:
                break
            buffer += data
        connection.close()


def upgrade(_mode):
    """Switches protocols and echoes from then on."""
    listener = listen()
    say(listener.getsockname()[1])
    while True:
        connection = listener.accept()[0]
        buffer = b""
        while b"\r\n\r\n" not in buffer:
            buffer += connection.recv(4096)
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        )
        while data := connection.recv(4096):
            connection.sendall(data)
        connection.close()


def loads_later(library):
    """Serves without the driver until a request asks for `/load/…`, then loads it and calls it."""
    listener = listen()
    say(listener.getsockname()[1])
    driver = None
    while True:
        connection = listener.accept()[0]
        buffer = b""
        while b"\r\n\r\n" not in buffer:
            buffer += connection.recv(4096)
        if driver is None:
            driver = ctypes.CDLL(library)
            driver.cuInit(0)
            context = ctypes.c_void_p()
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            device = ctypes.c_uint64()
            assert driver.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(65536)) == 0
        data = (ctypes.c_char * 4096)()
        assert driver.cuMemcpyHtoD_v2(device, data, ctypes.c_size_t(4096)) == 0
        assert driver.cuMemcpyDtoH_v2(data, device, ctypes.c_size_t(2048)) == 0
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        connection.close()


def main():
    mode = sys.argv[1]
    argument = sys.argv[2] if len(sys.argv) > 2 else mode
    special = {
        "tls": tls,
        "unix": unix,
        "http2": http2,
        "upgrade": upgrade,
        "fork": forking,
        "fd_passing": passed,
        "loads_later": loads_later,
    }
    special.get(mode, plain)(argument)


if __name__ == "__main__":
    main()
