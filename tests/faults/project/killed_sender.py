"""Sends a task again and again; each time it is killed one step later, until it comes to its end.

A step is whatever goes through a socket: connecting, a command, a reply.
"""

import os
import signal
import socket
from itertools import count

from proj import add

STEPS = ("connect", "sendall", "send", "recv", "recv_into")


def die_at(step):
    """This process is killed before its so manyth step."""
    left = iter(range(step))

    def wrapped(original):
        def call(*args, **options):
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)

        return call

    for name in STEPS:
        setattr(socket.socket, name, wrapped(getattr(socket.socket, name)))


def sends(step):
    """Did a process that dies at this step come to its end?"""
    pid = os.fork()
    if pid == 0:
        die_at(step)
        add.apply_async((step, 1), task_id=f"step-{step}")
        os._exit(0)
    return os.WIFEXITED(os.waitpid(pid, 0)[1])


print(next(step for step in count() if sends(step)))
