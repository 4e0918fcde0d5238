"""Say whole lines on stderr, each in parts, and an end without a line's end."""

import os

for part in (b"one ", b"two ", b"three\n") * 20:
    os.write(2, part)
os.write(2, b"end")
