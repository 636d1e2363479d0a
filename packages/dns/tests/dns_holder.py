# SPDX-License-Identifier: Apache-2.0
"""A program that starts another with sockets, as a service manager does.

Those begin at the third descriptor, and the process has to be the one that they were made for.
"""

HOLDER = (
    "import fcntl,os,sys\n"
    "fds=[int(one) for one in sys.argv[1].split(',') if one]\n"
    "high=[fcntl.fcntl(one,fcntl.F_DUPFD,100) for one in fds]\n"
    "for place,one in enumerate(high): os.dup2(one,3+place)\n"
    "os.environ.update(LISTEN_PID=str(os.getpid()),LISTEN_FDS=str(len(fds)))\n"
    "os.execv(sys.executable,[sys.executable,*sys.argv[2:]])\n"
)
