# SPDX-License-Identifier: Apache-2.0
"""Whatever the number of threads, two heaps of the C library serve them, and free pages can go back."""

import subprocess
import sys

PROGRAM = """
import ctypes, sys, threading
from agent.kit.memory import give_back_pages, share_heaps

if "shared" in sys.argv:
    share_heaps()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.fopen.restype, library.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
library.malloc_info.argtypes, library.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
all_there = threading.Barrier(12)

def allocate():
    all_there.wait()
    library.malloc(5000)
    all_there.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
give_back_pages()
out = library.fopen(b"/dev/stdout", b"w")
library.malloc_info(0, out)
library.fclose(out)
"""


def heaps(*words: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


def test_threads_share_two_heaps() -> None:
    assert heaps() > 2
    assert heaps("shared") == 2
