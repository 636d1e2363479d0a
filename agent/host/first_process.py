# SPDX-License-Identifier: Apache-2.0
"""What the first process of a PID namespace owes to the others, as kepd is in a container.

It collects processes whose parents died and passes signals on. The daemon is a child, so that the exit codes of the
programs it starts reach it. Never: does anything where another process is the first.
"""

import os
import signal

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def leave_first_place() -> None:
    """Returns where the daemon goes on: at once, or in a child of this process."""
    if os.getpid() != 1:
        return
    # Nothing may get lost between the fork and the handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child = os.fork()
    if child:
        _stay(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def _stay(child: int) -> None:
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
