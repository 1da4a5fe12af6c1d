# peer_numpy.py - NumPy beside the library, called through ctypes, in turn in one run: what a script that calibrates and
# rotates would use. Medians; the library's bytes and errors are the business of the other benchmarks.
#
#     OPENBLAS_NUM_THREADS=1 python3 bench/peer_numpy.py liboscar.so           (make bench-peers)

import ctypes
import sys
import time

import numpy as np

RUNS = 9
oscar = ctypes.CDLL(sys.argv[1])
oscar.oscar_eigh_scratch.restype = ctypes.c_size_t
oscar.oscar_rotate.argtypes = [ctypes.c_int, ctypes.c_size_t] + 3 * [ctypes.c_void_p]


def address(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def check(ok, what):
    if not ok:
        sys.exit("MISMATCH: " + what)


def compare(name, ours, theirs, unit, scale):
    """Times both in turn and prints two figures."""
    times = []
    for _ in range(RUNS + 1):                   # the first one warms up
        row = []
        for call in (ours, theirs):
            start = time.perf_counter()
            call()
            row.append(time.perf_counter() - start)
        times.append(row)
    own, other = np.median(np.array(times[1:]), axis=0)
    print("%-24s ours %10.2f %s  NumPy %10.2f %s" % (name, own * scale, unit, other * scale, unit))
    print("figure %s.over_numpy %.4g 1" % (name, other / own), flush=True)


def eigh(n):
    x = np.random.default_rng(n).standard_normal((4 * n, n))
    a = np.ascontiguousarray(x.T @ x / (4 * n))
    vectors, values = np.empty((n, n)), np.empty(n)
    scratch = np.empty(oscar.oscar_eigh_scratch(n) // 8 + 1)

    def ours():
        check(oscar.oscar_eigh(n, address(a), address(vectors), address(values), address(scratch)) == 0, "oscar_eigh")

    ours()
    check(np.allclose(values, np.linalg.eigvalsh(a), rtol=1e-10), "eigenvalues")
    compare("eigh.D%d" % n, ours, lambda: np.linalg.eigh(a), "us", 1e6)


def rotate(n, rows=4096):
    random = np.random.default_rng(n)
    m = np.linalg.qr(random.standard_normal((n, n)))[0].astype(np.float32)
    x = random.standard_normal((rows, n)).astype(np.float32)
    out, other = np.empty_like(x), np.empty_like(x)

    def ours():
        check(oscar.oscar_rotate(n, rows, address(m), address(x), address(out)) == 0, "oscar_rotate")

    ours()
    check(np.allclose(out, x @ m, atol=1e-4), "rows times a matrix")
    compare("rotate.D%d" % n, ours, lambda: np.matmul(x, m, out=other), "ns a row", 1e9 / rows)


print("# program   peer_numpy.py: NumPy %s, median of %d interleaved runs" % (np.__version__, RUNS))
for size in (64, 128, 256):
    eigh(size)
    rotate(size)
