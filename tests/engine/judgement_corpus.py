"""Streams that are float32 and streams that are not, made here or found on every machine, by name."""

import array
import base64
import gzip
import io
import itertools
import json
import lzma
import math
import pickle
import random
import sqlite3
import struct
import sys
import tarfile
import wave
import zipfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from netoffload.compiled.arrays import Float64Array

ROOT = Path(__file__).parents[2]
LEN = 32768
FloatArray = Float64Array

CYRILLIC = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний. "
CHINESE = "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。"
JAPANESE = "すべてのにんげんはうまれながらにしてじゆうでありかつそんげんとけんりとについてびょうどうである"
GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. "
ENGLISH = "The quick brown fox jumps over the lazy dog. "


def repeated(octets: bytes) -> bytes:
    return octets * (1 + LEN // len(octets))


def texts() -> dict[str, bytes]:
    """Text in many scripts and codes, and text that machines write."""
    chance = random.Random(1)
    numbers = [chance.gauss(0, 1) for _ in range(8000)]
    found: dict[str, bytes] = {}
    languages = (("ru", CYRILLIC), ("zh", CHINESE), ("ja", JAPANESE), ("de", GERMAN), ("en", ENGLISH))
    for name, text in (*languages, ("upper", ENGLISH.upper()), ("digits", "0123456789 31415926535 2718281828 ")):
        for code in ("utf-8", "utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32-be"):
            found[f"{name} {code}"] = repeated(text.encode(code))
    for name, code in (("ru", "koi8-r"), ("ru", "cp1251"), ("de", "latin-1"), ("en", "cp037"), ("ja", "shift-jis")):
        found[f"{name} {code}"] = repeated(dict(languages)[name].encode(code))
    found["csv"] = "".join(f"{a:.4f},{b:.2f}\n" for a, b in itertools.pairwise(numbers)).encode()
    found["csv of zeros"] = repeated(b"0.0\n")
    found["csv of digits"] = "".join(f"{chance.randrange(10)}," for _ in range(20000)).encode()
    found["csv, German"] = "".join(f"{a:.2f};" for a in numbers).replace(".", ",").encode()
    found["json"] = json.dumps(numbers).encode()
    found["json lines"] = "".join(json.dumps({"step": i, "loss": a}) + "\n" for i, a in enumerate(numbers)).encode()
    found["hexadecimal"] = chance.randbytes(LEN).hex().encode()
    found["HEXADECIMAL"] = chance.randbytes(LEN).hex(" ").upper().encode()
    found["base64"] = base64.b64encode(chance.randbytes(LEN))
    found["DNA"] = bytes(chance.choices(b"ACGT", k=LEN))
    found["DNA in lines"] = b"".join(bytes(chance.choices(b"ACGT", k=60)) + b"\n" for _ in range(500))
    found["upper case"] = bytes(chance.choices(b"ABCDEFGHIJK", k=LEN))
    found["binary digits"] = bytes(chance.choices(b"01", k=LEN))
    for character in b" \n\t0159?@ADz~.-=#*\xa0\xc0":
        found[f"repeated {character:#x}"] = repeated(bytes([character]))
    for period in (b"0,1,", b"\r\n", b"=-", b"abcd", b"A B C D ", b"<p>0</p>"):
        found[f"repeated {period!r}"] = repeated(period)
    found["HTTP"] = b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n" + b"X-Pad: 0123456789\r\n" * 2000
    found["Markdown"] = b"".join(path.read_bytes() for path in sorted(ROOT.glob("*.md")))
    found["Python"] = b"".join(path.read_bytes() for path in sorted((ROOT / "netoffload" / "engine").glob("*.py")))
    return found


def sound(sample: int, channels: int, amplitude: float, noise: float = 0.0) -> bytes:
    """PCM: samples of ``sample`` octets, amplitude 0..1."""
    chance = random.Random(2)
    if sample == 1:
        return bytes(128 + round(127 * amplitude * math.sin(i / 20)) for i in range(LEN))
    values = (
        round(
            (2 ** (8 * sample - 1) - 1)
            * amplitude
            * (math.sin(i / (20 + c)) + noise * chance.uniform(-1, 1))
            / (1 + noise)
        )
        for i in range(LEN // sample // channels)
        for c in range(channels)
    )
    return b"".join(value.to_bytes(sample, "little", signed=True) for value in values)


def in_wave(frames: bytes, sample: int, channels: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(sample)
        writer.setframerate(44100)
        writer.writeframes(frames)
    return file.getvalue()


def media() -> dict[str, bytes]:
    """Sound and images, with and without their headers."""
    rng = np.random.default_rng(3)
    found: dict[str, bytes] = {}
    for sample in (1, 2, 3, 4):
        for channels in (1, 2):
            for amplitude in (0.001, 0.03, 0.3, 0.99):
                frames = sound(sample, channels, amplitude, 0.1)
                found[f"sound {8 * sample} bit, {channels} channels, {amplitude}"] = frames
                found[f"WAV {8 * sample} bit, {channels} channels, {amplitude}"] = in_wave(frames, sample, channels)
    found["mu-law"] = bytes(
        ~round(min(127, 16 * math.log2(1 + abs(300 * math.sin(i / 20))))) & 0xFF for i in range(LEN)
    )
    found["silence, A-law"] = repeated(b"\xd5")
    for level in (0, 0x30, 0x40, 0x48, 0x80, 0xA8, 0xB8, 0xC0, 0xFF):
        for noise in (0, 2, 10):
            grey = np.clip(rng.normal(level, noise, LEN), 0, 255).astype(np.uint8)
            found[f"grey {level:#x} ±{noise}"] = grey.tobytes()
            found[f"grey 16 bit {level:#x} ±{noise}"] = (
                grey.astype("<u2") << 8 | rng.integers(0, 256, LEN).astype("<u2")
            ).tobytes()
    slope = (np.arange(LEN) // 7 % 256).astype(np.uint8)
    found["grey slope"] = slope.tobytes()
    found["BGRA"] = np.stack([slope, slope, slope, np.full(LEN, 255, np.uint8)], 1).tobytes()
    rows = b"".join(b"\0" + slope[:300].tobytes() for _ in range(100))
    found["PNG"] = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0d\0\0\0d\x08\2\0\0\0"
        + zlib.crc32(b"").to_bytes(4)
        + zlib.compress(rng.bytes(LEN) + rows)
    )
    found["JPEG"] = b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0\xff\xdb\0C\0" + bytes(range(64)) + rng.bytes(LEN)
    return found


def numbers() -> dict[str, bytes]:
    """Arrays of other types."""
    rng = np.random.default_rng(4)
    count = LEN // 4
    normal = rng.normal(0, 1, count)
    found = {
        f"float64 {name}": np.asarray(values, "<f8").tobytes()
        for name, values in {
            "normal": normal,
            "gradients": normal * 1e-3,
            "from float32": normal.astype(np.float32),
            "ones": np.ones(count),
            "range": np.arange(count),
            "quarters": np.round(normal * 4) / 4,
            "images": rng.integers(0, 256, count) / 255,
            "cents": np.round(normal * 100, 2),
            "sparse": np.where(rng.random(count) < 0.9, 0, normal),
            "one-hot": np.eye(10)[rng.integers(0, 10, count // 10)],
        }.items()
    }
    for scale in (0.05, 1.0, 30.0):
        found[f"float16 {scale}"] = (normal * scale).astype("<f2").tobytes()
    for scale in (1e-6, 1e-3, 1.0, 1e3):
        found[f"bfloat16 {scale}"] = (np.asarray(normal * scale, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    found["float16 in 0..1"] = rng.random(count).astype("<f2").tobytes()
    found["bfloat16 ones"] = repeated(b"\x80\x3f")
    found["float32, big-endian"] = normal.astype(">f4").tobytes()
    found["float64, big-endian"] = normal.astype(">f8").tobytes()
    for width in (1, 2, 4, 8):
        for name, top in (("small", 100), ("large", 2 ** (8 * width - 1) - 1)):
            signed = rng.integers(-top, top, count)
            found[f"int{8 * width} {name}"] = signed.astype(f"<i{width}").tobytes()
    found["int32 range"] = np.arange(count, dtype="<i4").tobytes()
    found["int64 range"] = np.arange(count, dtype="<i8").tobytes()
    found["int32 ids"] = rng.integers(0, 50_000, count).astype("<i4").tobytes()
    found["uint16 depth"] = rng.integers(12000, 17000, 2 * count).astype("<u2").tobytes()
    found["Unix times"] = (1_700_000_000 + np.arange(count)).astype("<u4").tobytes()
    found["pointers"] = (0x7F12_3456_0000 + 48 * np.arange(count)).astype("<u8").tobytes()
    found["records"] = b"".join(struct.pack("<Ifff", i, *row) for i, row in enumerate(normal[:3000].reshape(-1, 3)))
    found["length and floats"] = struct.pack("<I", 8000) + normal.astype("<f4").tobytes()
    found["lengths and floats"] = struct.pack("<QQ", 100, 80) + normal.astype("<f4").tobytes()
    return found


def files() -> dict[str, bytes]:
    """Archives, executables and what programs keep."""
    rng = np.random.default_rng(5)
    floats = rng.normal(0, 1, LEN // 4).astype("<f4")
    text = b"".join(texts()[name] for name in ("Python", "Markdown"))
    tar, archive, array_file = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        for path in sorted((ROOT / "netoffload" / "engine").glob("*.py")):
            writer.add(path, path.name)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a.txt", text)
    np.save(array_file, floats)
    header = json.dumps({"w": {"dtype": "F32", "shape": [len(floats)], "data_offsets": [0, floats.nbytes]}}).encode()
    wave_head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + LEN, b"WAVE", b"fmt ", 16, 3, 1, 44100, 176400, 4, 32, b"data", LEN
    )
    database = sqlite3.connect(":memory:")
    database.execute("create table t(a integer, b real, c text)")
    database.executemany("insert into t values(?, ?, ?)", ((i, i / 7, f"row {i}") for i in range(3000)))
    database.commit()
    code = compile((ROOT / "netoffload" / "engine" / "transmit.py").read_bytes(), "transmit.py", "exec")
    return {
        "random": rng.bytes(LEN),
        "gzip": gzip.compress(text, 6),
        "zlib": zlib.compress(text, 1),
        "xz": lzma.compress(text),
        "zip": archive.getvalue(),
        "tar": tar.getvalue(),
        "tar.gz": gzip.compress(tar.getvalue()),
        "zstd": b"\x28\xb5\x2f\xfd\x04\x58" + rng.bytes(LEN),
        "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<< /Type /Catalog >>\nendobj\nstream\n" + rng.bytes(LEN),
        "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"
        + rng.bytes(32)
        + b"\x20"
        + rng.bytes(32)
        + bytes.fromhex("0062130213031301c02cc030009fcca9cca8")
        + b"\x17\x03\x03\x40\0"
        + rng.bytes(LEN),
        "ssh": b"SSH-2.0-OpenSSH_9.6\r\n"
        + b"\0\0\4\x34\6\x14"
        + rng.bytes(16)
        + b"\0\0\0\xe6curve25519-sha256,ecdh-sha2-nistp256" * 20
        + rng.bytes(LEN),
        "pickle": pickle.dumps([{"step": i, "loss": i / 7, "name": str(i)} for i in range(2000)]),
        "pickle of floats": pickle.dumps(floats.tolist()),
        "pickle of an array": pickle.dumps(floats),
        "pyc": b"\xa7\r\r\n" + bytes(12) + __import__("marshal").dumps(code),
        "npy": array_file.getvalue(),
        "safetensors": struct.pack("<Q", len(header)) + header + floats.tobytes(),
        "WAV of float32": wave_head + floats.tobytes(),
        "SQLite": database.serialize(),
        "array of doubles": array.array("d", floats.tolist()).tobytes(),
        "git pack": b"PACK\0\0\0\2\0\0\0\x64" + zlib.compress(text),
        "python": Path(sys.executable).resolve().read_bytes()[: 40 * LEN],
        "ls": Path("/bin/ls").read_bytes(),
    }


@cache
def others() -> dict[str, bytes]:
    """Every stream that is not float32, by name."""
    return {**texts(), **media(), **numbers(), **files()}


@cache
def floats() -> dict[str, FloatArray]:
    """Arrays that are float32, by name."""
    rng = np.random.default_rng(6)
    count = 50_000
    normal = rng.normal(0, 1, count)
    logits = rng.normal(0, 3, (count // 10, 10))
    pixels = (127 + 100 * np.sin(np.arange(count) / 50) + rng.normal(0, 9, count)).clip(0, 255).astype(np.uint8)
    strokes = np.where(np.arange(count) // 6 % 5 == 0, pixels, 0)
    found = {f"N(0, {scale:g})": normal * scale for scale in 10.0 ** np.arange(-8, 4)}
    found |= {f"all {value}": np.full(count, value) for value in (1, 0.5, 0.1, 0.01, 0.001, -0.3, 2, 100)}
    found |= {
        "uniform 0..1": rng.random(count),
        "uniform 0.5..1": rng.random(count) / 2 + 0.5,
        "uniform -1..1": rng.uniform(-1, 1, count),
        "ReLU-sparse": np.where(rng.random(count) < 0.9, 0, normal * 1e-3),
        "very sparse": np.where(rng.random(count) < 0.99, 0, normal * 1e-3),
        "sparse, -0": np.where(rng.random(count) < 0.9, -0.0, normal),
        "squares": (normal * 1e-4) ** 2,
        "second moments": 10 ** rng.uniform(-12, -4, count),
        "one-hot": np.eye(10)[rng.integers(0, 10, count // 10)],
        "log-probabilities": logits - np.log(np.exp(logits).sum(1, keepdims=True)),
        "probabilities": np.exp(logits) / np.exp(logits).sum(1, keepdims=True),
        "a few NaN and inf": np.where(rng.random(count) < 0.03, rng.choice([np.nan, np.inf, -np.inf], count), normal),
        "NaN first": np.where(np.arange(count) < 3, np.nan, normal),
        "control words": np.where(np.arange(count) % 256 == 0, 1 + np.arange(count) // 256, normal * 1e-3),
        "images in 0..1": pixels / 255,
        "images in 0..255": pixels,
        "images, normalised": (pixels / 255 - 0.4734) / 0.2516,
        "strokes": strokes / 255,
        "strokes, normalised": (strokes / 255 - 0.1307) / 0.3081,
        "sum of squares": np.cumsum(normal**2),
        "embedding": np.sin(np.arange(count) / 100),
        "eighths": np.round(normal * 8) / 8,
        "thousandths": np.round(normal * 0.05 * 1024) / 1024,
    }
    return found
