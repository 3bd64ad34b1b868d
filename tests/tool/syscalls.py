"""Stopping a program at the calls with which it changes files, to end it there or to look at their order (ptrace)."""

import ctypes
import os
import platform
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
# TRACESYSGOOD, TRACECLONE, TRACEEXEC, EXITKILL: threads are followed, and nothing outlives the test.
_OPTIONS = 1 | 8 | 16 | 0x100000
_WALL = 0x40000000

_NUMBERS = {
    "x86_64": {"write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74, "fdatasync": 75,
               "ftruncate": 77, "rename": 82, "mkdir": 83, "link": 86, "unlink": 87, "openat": 257, "mkdirat": 258,
               "unlinkat": 263, "renameat": 264, "linkat": 265, "sync_file_range": 277, "fallocate": 285, "pwritev": 296,
               "renameat2": 316, "copy_file_range": 326},
    "aarch64": {"mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "ftruncate": 46, "fallocate": 47, "openat": 56,
                "write": 64, "writev": 66, "pwrite64": 68, "pwritev": 70, "sendfile": 71, "fsync": 82, "fdatasync": 83,
                "sync_file_range": 84, "renameat2": 276, "copy_file_range": 285},
}
_NAMES = {number: name for name, number in _NUMBERS.get(platform.machine(), {}).items()}
_AT_FDCWD = -100


def available():
    """ptrace is forbidden in some containers."""
    if not _NAMES:
        return False
    try:
        return trace(["/bin/true"], lambda call: True)[0] == 0
    except OSError:
        return False


class Call:
    """A call that a thread is about to make. `name` is without at, 64 and the like: write, fsync, rename, open …"""

    def __init__(self, pid, name, arguments):
        self.pid, self.arguments = pid, arguments
        at = name in ("openat", "mkdirat", "unlinkat", "renameat", "renameat2", "linkat")
        self.name = {"pwrite64": "write", "writev": "write", "pwritev": "write", "fdatasync": "fsync", "renameat2": "rename",
                     "copy_file_range": "write", "sendfile": "write"}.get(name, name[:-2] if at else name)
        a = arguments
        self.flags = 0
        self.path = self.to = None
        if self.name in ("rename", "link"):
            self.path = self._path(a[0], a[1]) if at else self._path(_AT_FDCWD, a[0])
            self.to = self._path(a[2], a[3]) if at else self._path(_AT_FDCWD, a[1])
        elif self.name in ("open", "mkdir", "unlink"):
            self.path = self._path(a[0], a[1]) if at else self._path(_AT_FDCWD, a[0])
            if self.name == "open":
                self.flags = a[2] if at else a[1]
        else:
            self.path = self._descriptor(a[2] if name == "copy_file_range" else a[0])

    def changes_files(self):
        if self.name == "open":
            return bool(self.flags & os.O_CREAT)
        if self.name == "write":
            return self.path.startswith("/") and not self.path.startswith("/dev/")
        return True

    def _descriptor(self, number):
        try:
            return os.readlink(f"/proc/{self.pid}/fd/{number}")
        except OSError:
            return f"descriptor {number}"

    def _path(self, folder, address):
        text = b""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            while b"\0" not in text:
                try:
                    memory.seek(address + len(text))
                    text += memory.read(256 - (address + len(text)) % 256)  # never across a page
                except OSError:
                    break
        path = os.fsdecode(text.split(b"\0")[0])
        if path.startswith("/"):
            return os.path.normpath(path)
        folder = ctypes.c_int(folder & 0xFFFFFFFF).value
        base = os.readlink(f"/proc/{self.pid}/cwd") if folder == _AT_FDCWD else self._descriptor(folder)
        return os.path.normpath(os.path.join(base, path))

    def __repr__(self):
        return f"{self.name} {self.path}" + (f" → {self.to}" if self.to else "")


def _ptrace(request, pid, address=0, data=0):
    result = _libc.ptrace(request, pid, address, data)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request}: {os.strerror(error)}")
    return result


def _entered(pid):
    """(number, arguments) of the call that a thread enters; None where it leaves one."""
    buffer = ctypes.create_string_buffer(88)
    size = _ptrace(_GET_SYSCALL_INFO, pid, len(buffer), ctypes.addressof(buffer))
    if size < 80 or buffer.raw[0] != 1:
        return None
    number, *arguments = struct.unpack_from("<7Q", buffer.raw, 24)
    return number, arguments


def trace(command, before, env=None):
    """Runs a command. before(Call) is asked at every call of the table that changes files, or opens one: False kills the
    program there. Returns (exit code, stdout and stderr)."""
    env = dict(env or os.environ)
    # LeakSanitizer wants to trace the program itself, and fails it where it cannot.
    env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"), "detect_leaks=0"]))
    read_end, write_end = os.pipe()
    main = os.fork()
    if main == 0:
        try:
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.execve(command[0], command, env)
        finally:
            os._exit(127)
    os.close(write_end)
    os.set_blocking(read_end, False)
    said = b""

    def listen():
        nonlocal said
        try:
            while block := os.read(read_end, 65536):
                said += block
        except BlockingIOError:
            pass

    try:
        os.waitpid(main, _WALL)
        _ptrace(_SETOPTIONS, main, 0, _OPTIONS)
        _ptrace(_SYSCALL, main)
        threads, code, executed = {main}, None, False
        while code is None:
            listen()  # a full pipe would stop the program for good
            pid, status = os.waitpid(-1, _WALL)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if pid == main:
                    code = os.waitstatus_to_exitcode(status)
                continue
            delivered = 0
            stopped_by = os.WSTOPSIG(status)
            if stopped_by == signal.SIGTRAP | 0x80:
                entered = _entered(pid) if executed else None
                if entered and entered[0] in _NAMES:
                    if not before(Call(pid, _NAMES[entered[0]], entered[1])):
                        os.kill(main, signal.SIGKILL)
                        continue
            elif status >> 16:
                executed = executed or status >> 16 == 4  # PTRACE_EVENT_EXEC
            elif stopped_by == signal.SIGSTOP and pid not in threads:
                threads.add(pid)  # how a new thread begins
            else:
                delivered = stopped_by
            try:
                _ptrace(_SYSCALL, pid, 0, delivered)
            except OSError as e:
                if e.errno != 3:  # ESRCH: it was killed meanwhile
                    raise
        listen()
        return code, said.decode("utf-8", "backslashreplace")
    finally:
        os.close(read_end)


def trace_until(command, at, env=None):
    """Runs a command and kills it before the call number `at` that changes a file; None: never. Returns those calls so far,
    the exit code, and stdout and stderr."""
    calls = []

    def before(call):
        if call.changes_files():
            calls.append(call)
            return at is None or len(calls) <= at
        return True

    return (calls, *trace(command, before, env))
