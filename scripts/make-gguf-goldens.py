#!/usr/bin/env python3
"""scripts/make-gguf-goldens.py: makes tests/golden/gguf/types.gguf, which holds random blocks of every tensor type that
hayloft reads, each beside what the `gguf` package makes of them in f32 (NAME and NAME.f32).

Needs pip install gguf numpy. The same file for the same version of the package; the seed is fixed."""

import pathlib

import gguf
import numpy as np

TYPES = "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "gguf"


def random_blocks(rng, kind):
    """Two rows of random bytes, drawn again until all values are finite: every scale, subnormal ones too, every code."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = 1 if elements == 256 else 64 // elements
    rows = []
    while len(rows) < 2:
        row = rng.integers(0, 256, (1, blocks * size), dtype=np.uint8)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(gguf.dequantize(row, kind)).all():
                rows.append(row)
    return np.concatenate(rows)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(15)
    writer = gguf.GGUFWriter(FOLDER / "types.gguf", "goldens")
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(rng, kind)
        values = gguf.dequantize(blocks, kind).astype(np.float32)
        if kind == gguf.GGMLQuantizationType.F16:
            blocks = blocks.view(np.float16)
            writer.add_tensor(name, blocks)
        else:
            writer.add_tensor(name, blocks, raw_dtype=kind)
        writer.add_tensor(name + ".f32", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
