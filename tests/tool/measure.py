"""measure.py FD LIMITS COMMAND...: runs a command under limits and writes [exit code, peak resident bytes] to FD.

A child begins with the peak of the process that forks it, and a test that holds checkpoints is large. This one is small.
"""

import json
import os
import resource
import signal
import sys

report, limits, command = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
os.set_inheritable(report, False)
pid = os.fork()
if pid == 0:
    try:
        # The interpreter ignores these two, and a program that is started from a shell does not.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.execv(command[0], command)
    finally:
        os._exit(127)
_, status, usage = os.wait4(pid, 0)
os.write(report, json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024]).encode())
