#!/usr/bin/env python3
"""Rotations files against the safetensors package (its NumPy part), both ways.

    python3 tests/safetensors_check.py PATH_OF_TEST_FILES

PATH_OF_TEST_FILES is the built tests/test_files.c. It writes a file that is checked here, and reads one that is written
here. Needs the packages numpy and safetensors: without them it prints `skip ...` and exits with 0.
"""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file
except ImportError as error:
    print(f"skip safetensors_check: {error}")
    print("safetensors_check: 0 passed, 0 failed, 1 skipped")
    sys.exit(0)

passed = failed = 0


def check(condition, text):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"FAILED {text}")


def near(a, b, tolerance=1e-5):
    return np.abs(a - b).max() < tolerance


def check_sample(path):
    """The sample of test_files.c: five layers, two KV heads, K of 32 and V of 48 channels."""
    k, v = (32, 32), (48, 48)
    shapes = {
        "layers.0.k.to": (2, *k), "layers.0.k.mean": (2, 32), "layers.0.k.metric": (2, *k),
        "layers.2.k.to": (1, *k), "layers.2.k.dual": (1, *k), "layers.2.k.mean": (2, 32),
        "layers.2.k.metric": (1, *k), "layers.2.v.to": (2, *v), "layers.2.v.dual": (2, *v),
        "layers.4.k.mean": (2, 32), "layers.4.k.metric": (2, *k), "layers.4.v.to": (1, *v),
    }
    with safe_open(path, framework="numpy") as file:
        check(set(file.keys()) == set(shapes), f"names {sorted(file.keys())}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        metadata = file.metadata()
    for name, shape in shapes.items():
        check(tensors[name].shape == shape and tensors[name].dtype == np.float32, f"shape of {name}")
    for name in ("layers.0.k", "layers.2.k", "layers.2.v", "layers.4.v"):
        to = tensors[name + ".to"].astype(np.float64)
        dual = tensors.get(name + ".dual", tensors[name + ".to"]).astype(np.float64)
        for f, b in zip(to, dual):
            check(near(f.T @ b, np.eye(len(f))), f"{name}: F^T B is the identity")
    for name in ("layers.0.k.metric", "layers.2.k.metric", "layers.4.k.metric"):
        for m in tensors[name]:
            check(np.array_equal(m, m.T) and np.linalg.eigvalsh(m.astype(np.float64)).min() > 0.4, f"{name} as made")
    check(metadata["oscar.version"] == "1.0", "version")
    check(metadata["oscar.layers"] == "5" and metadata["oscar.kv_heads"] == "2", "shape in the metadata")
    check(metadata["oscar.k_kind"] == "dense,,dense,identity,hadamard", "kinds")
    check(metadata["oscar.k_bits"] == "2,16,4,2,2", "bits")
    check(float(metadata["oscar.clip_k"].split(",")[3]) == 0.9, "clip")
    check(metadata["oscar.model"] == 'a "model"\\ \x01 \n of na\u00efve text \U0001f642', "escapes")
    with open(path, "rb") as file:
        check(int.from_bytes(file.read(8), "little") % 8 == 0, "data begin on a multiple of 8 bytes")


def write_foreign(path):
    """What read_foreign of test_files.c expects."""
    eye = np.eye(64, dtype=np.float32)
    tensors = {
        "layers.0.k.to": np.stack([eye, 2 * eye]), "layers.0.k.dual": np.stack([eye, eye / 2]),
        "layers.0.k.mean": np.arange(128, dtype=np.float32).reshape(2, 64),
        "layers.0.k.spectrum": np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64),
        "layers.0.k.metric": (3 * eye)[None],
        "layers.0.v.to": np.roll(np.eye(32, dtype=np.float32), 1, axis=1)[None],
        "extra": np.float32([[1, 2, 3]]),
    }
    metadata = {
        "oscar.version": "1.0", "oscar.compose": "balanced", "oscar.k_kind": "dense,,hadamard",
        "oscar.v_kind": "dense,,", "oscar.k_bits": "4,16,2", "oscar.fit_k": "clip", "oscar.clip_k": str(0.97),
        "oscar.model": 'na\u00efve "quoted"\n',
    }
    save_file(tensors, path, metadata=metadata)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = os.path.join(folder, "ours.safetensors"), os.path.join(folder, "theirs.safetensors")
        check(subprocess.run([program, "write", ours]).returncode == 0, "test_files write")
        check_sample(ours)
        write_foreign(theirs)
        check(subprocess.run([program, "read", theirs]).returncode == 0, "test_files read")
    print(f"safetensors_check: {passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed != 0)


main()
