# SPDX-License-Identifier: Apache-2.0
"""A program for the machine that asks for a name many times and says how often it was answered."""

NAME = "web.default.svc.cluster.local"
STREAM_FILE = "/root/stream.py"
# Numbers questions, sends so many a second from one socket, and says how many were answered.
STREAM = """
import select, socket, sys, time
count, rate = int(sys.argv[1]), float(sys.argv[2])
labels = "".join(chr(len(one)) + one for one in "NAME".split(".")).encode()
rest = b"\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + labels + b"\\0\\0\\1\\0\\1"
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.setblocking(False)
asking.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)
begun, sent, answered = time.monotonic(), 0, set()
while time.monotonic() < begun + count / rate + 20 and len(answered) < count:
    while sent < min(count, (time.monotonic() - begun) * rate):
        asking.sendto(sent.to_bytes(2, "big") + rest, ("169.254.20.10", 53))
        sent += 1
    if select.select([asking], [], [], 0.002)[0]:
        try:
            while True:
                text = asking.recv(4096)
                if text[3] & 15 == 0:
                    answered.add(text[:2])
        except BlockingIOError:
            pass
print(len(answered), "of", count)
""".replace("NAME", NAME)
