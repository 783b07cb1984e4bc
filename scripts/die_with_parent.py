"""Become another program, one that ends when its parent does.

    python die_with_parent.py PARENT_PID SIGNAL USER_ID GROUP_ID PROGRAM ARGUMENT...

A USER_ID of -1 keeps the user. Only Linux has the signal; elsewhere the program just runs.

This is a program and not a `preexec_fn`, because Python code between fork and exec may
deadlock when the parent has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, death_signal: int, user: int, group: int, command: list[str]) -> None:
    if user != -1:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    if sys.platform == "linux":
        # After the change of user, because that change would clear it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            sys.exit("The parent ended before its program began.")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would hand that on
    os.execv(command[0], command)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    parent, death_signal, user, group = map(int, sys.argv[1:5])
    become(parent, death_signal, user, group, sys.argv[5:])
