#!/usr/bin/env python3
"""Writes tests/quant/goldens/weights.bin: random valid weights of every format, as gguf.quants and MLX decode them.

Needs: pip install numpy gguf 'mlx[cpu]'. Deterministic: the same versions write the same file.

The file is a sequence of records: one text line
    format rows cols bits group scale_type data_row_bytes scale_row_bytes has_biases
and then the bytes of data [rows, data_row_bytes], scales and biases [rows, scale_row_bytes] each (if any), and the
expected values, float32 [rows, cols].
"""
import pathlib

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as G
from gguf.quants import dequantize

mx.set_default_device(mx.cpu)
rng = np.random.default_rng(20240607)
OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/quant/goldens/weights.bin"

# Where the f16 fields of a block are. Everything else may be any bytes.
F16_FIELDS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}


def write(out, name, rows, cols, data, expected, bits=0, group=0, scale_type="none", scales=None, biases=None):
    expected = np.ascontiguousarray(expected, dtype=np.float32)
    assert expected.shape == (rows, cols) and not np.isnan(expected).any()
    scale_bytes = 0 if scales is None else scales.view(np.uint8).reshape(rows, -1).shape[1]
    data = np.ascontiguousarray(data).view(np.uint8).reshape(rows, -1)
    out.write(f"{name} {rows} {cols} {bits} {group} {scale_type} {data.shape[1]} {scale_bytes} "
              f"{int(biases is not None)}\n".encode())
    for part in (data, scales, biases, expected):
        if part is not None:
            out.write(np.ascontiguousarray(part).tobytes())


def half_floats(count):
    """Positive, negative, subnormal, zero and the largest finite halves."""
    special = np.array([0x0001, 0x8001, 0x03ff, 0x83ff, 0x0000, 0x8000, 0x7bff, 0xfbff, 0x0400, 0x3c00], np.uint16)
    ordinary = rng.normal(0, 0.02, count).astype(np.float16).view(np.uint16)
    return np.where(rng.random(count) < 0.3, rng.choice(special, count), ordinary)


def write_gguf(out):
    for name, fields in F16_FIELDS.items():
        kind = G[name]
        block_cols, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        rows, blocks = (6, 7) if block_cols == 32 else (6, 1)
        data = rng.integers(0, 256, (rows, blocks, block_bytes), dtype=np.uint8)
        # Extreme codes and scales: all bits of the first row clear, of the second set.
        data[0], data[1] = 0x00, 0xff
        for field in fields:
            halves = half_floats(rows * blocks).reshape(rows, blocks, 1)
            halves[:2, 0] = np.float16(-0.3).view(np.uint16)
            data[:, :, field:field + 2] = halves.view(np.uint8)
        data = data.reshape(rows, -1)
        write(out, name, rows, blocks * block_cols, data, dequantize(data, kind))


def write_affine(out):
    rows = 2
    for group in (32, 64, 128):
        for bits in (2, 3, 4, 5, 6, 8):
            cols = 3 * group if group == 32 else 2 * group
            words = rng.integers(0, 2**32, (rows, cols * bits // 32), dtype=np.uint64).astype(np.uint32)
            words[0, 0], words[1, -1] = 0xffffffff, 0
            scales = rng.normal(0, 0.02, (rows, cols // group)).astype(np.float32)
            biases = rng.normal(0, 0.2, (rows, cols // group)).astype(np.float32)
            kind = ("f32", "f16", "bf16")[(bits + group // 32) % 3]
            if kind == "f16":
                stored = scales.astype(np.float16), biases.astype(np.float16)
                scales, biases = (a.astype(np.float32) for a in stored)
            elif kind == "bf16":
                stored = tuple((a.view(np.uint32) >> 16).astype(np.uint16) for a in (scales, biases))
                scales, biases = ((a.astype(np.uint32) << 16).view(np.float32) for a in stored)
            else:
                stored = scales, biases
            expected = mx.dequantize(mx.array(words), mx.array(scales), mx.array(biases), group_size=group, bits=bits,
                                     mode="affine", dtype=mx.float32)
            write(out, "affine", rows, cols, words, np.array(expected), bits, group, kind, *stored)


def write_microscaling(out):
    rows = 6
    # The smallest exponents, the largest that is not NaN, and ordinary ones.
    exponents = np.concatenate([[0, 1, 2, 254, 253, 127], rng.integers(90, 140, 18)]).astype(np.uint8)
    e4m3 = np.array([b for b in range(256) if b & 0x7f != 0x7f], np.uint8)  # all but the two NaN
    nibbles = rng.integers(0, 256, (rows, 64), np.uint8)
    write_mlx(out, "mxfp4", 4, 32, 128, nibbles, exponents.reshape(rows, 4))
    write_mlx(out, "mxfp8", 8, 32, 128, rng.choice(e4m3, (rows, 128)), exponents.reshape(rows, 4))
    # 21 groups of 16: the last step of 32 columns is half empty.
    nibbles = rng.integers(0, 256, (rows, 168), np.uint8)
    write_mlx(out, "nvfp4", 4, 16, 336, nibbles, rng.choice(e4m3, (rows, 21)))


def write_mlx(out, mode, bits, group, cols, data, scales):
    expected = mx.dequantize(mx.array(np.ascontiguousarray(data).view(np.uint32)), mx.array(scales), group_size=group,
                             bits=bits, mode=mode, dtype=mx.float32)
    write(out, mode, len(data), cols, data, np.array(expected), bits, group, "e4m3" if group == 16 else "e8m0", scales)


def main():
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with open(OUT, "wb") as out:
        write_gguf(out)
        write_affine(out)
        write_microscaling(out)
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
