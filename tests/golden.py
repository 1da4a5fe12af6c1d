#!/usr/bin/env python3
"""Writes tests/golden.h: test vectors from a second, independent reading of the format and the maths.

    python3 tests/golden.py > tests/golden.h        (or: python3 tests/golden.py tests/golden.h)

Needs NumPy, and only for IEEE single and double arithmetic on arrays: every operation here is elementwise, in a
fixed order, so the output does not depend on a BLAS or LAPACK build. Nothing is read from the C code. The inputs
come from an integer generator that golden.h repeats in C; both are checked against each other by hashes.

Words as in the manual: D channels a row, G channels a group, P tokens a page, N the largest power of two in D.
"""
import math
import sys
from fractions import Fraction

import numpy as np

F32, F64 = np.float32, np.float64
np.seterr(all="ignore")          # overflow and underflow are part of what is tested

CLIP, UNBIASED = 0, 1
IDENTITY, HADAMARD, DENSE = 0, 1, 2
W_BF16, W_F16, W_F32 = 0, 1, 2


class Numeric(Exception):
    """The row or page must be refused: something is not finite, or overflows fp16."""


# == 1 SINGLE PRECISION ====================================================================================

def fma(a, b, c):
    """Correctly rounded float32 fma. The product is exact in float64; the sum is rounded to odd there, so that the
    second rounding (53 to 24 bits) cannot round twice."""
    p = np.asarray(a, F64) * np.asarray(b, F64)
    q = np.asarray(c, F64) + np.zeros_like(p)
    s = np.atleast_1d(p + q)
    bb = s - p
    err = (p - (s - bb)) + (q - bb)                   # TwoSum: s + err is the exact sum
    bits = s.view(np.int64)
    step = np.where((err > 0) == (s > 0), 1, -1)
    inexact_even = np.isfinite(s) & (err != 0) & ((bits & 1) == 0)
    odd = np.where(inexact_even, bits + step, bits).view(F64)
    return odd.astype(F32).reshape(np.shape(p))


def check_fma():
    """A few thousand awkward sums against exact rationals."""
    state = [7]
    for _ in range(3000):
        a, b, c = (F32(bell(state)) * F32(2.0 ** (draw(state) % 40 - 20)) for _ in range(3))
        if draw(state) % 2:
            c = F32(-float(a) * float(b))             # cancellation: only the rounding error is left
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        assert float(fma(a, b, c)) == float(round_fraction(exact)), (a, b, c)


def round_fraction(x):
    """Fraction to float32, to nearest even, by comparing with both neighbours."""
    near = F32(float(x))
    best = near
    for n in (np.nextafter(near, F32(-np.inf)), np.nextafter(near, F32(np.inf))):
        d0, d1 = abs(Fraction(float(best)) - x), abs(Fraction(float(n)) - x)
        if d1 < d0 or (d1 == d0 and (int(n.view(np.uint32)) & 1) == 0):
            best = n
    return best


def bits32(x):
    return int(np.asarray(x, F32).reshape(1).view(np.uint32)[0])


def from_bits32(u):
    return np.array([u], np.uint32).view(F32)[0]


def half_bits(x):
    """float32 -> fp16, to nearest even, with subnormals; from the bits of the float alone."""
    u = bits32(x)
    sign, exp, man = (u >> 16) & 0x8000, (u >> 23) & 0xff, u & 0x7fffff
    if exp == 0xff:
        return sign | 0x7c00 | (0x200 if man else 0)
    if exp == 0:
        return sign                                   # float subnormals are far below half of 2^-24
    man |= 0x800000
    e = exp - 127
    if e > 15:
        return sign | 0x7c00
    shift = 13 if e >= -14 else 13 + (-14 - e)
    if shift > 25:
        return sign
    q, rest, tie = man >> shift, man & ((1 << shift) - 1), 1 << (shift - 1)
    if rest > tie or (rest == tie and q & 1):
        q += 1
    if e >= -14:
        q += (e + 14) << 10                           # the hidden bit of q carries one more into the exponent
    return sign | min(q, 0x7c00)


def half_value(h):
    """fp16 bits -> float32, exact."""
    sign, exp, man = -1.0 if h & 0x8000 else 1.0, (h >> 10) & 31, h & 0x3ff
    if exp == 31:
        return F32(sign * np.inf)
    return F32(sign * (man * 2.0 ** -24 if exp == 0 else (1024 + man) * 2.0 ** (exp - 25)))


def bf16_bits(x):
    u = bits32(x)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16) & 0xffff


def bf16_value(b):
    return from_bits32(b << 16)


def fp16_round(x):
    """Round to fp16 and back; overflow refuses."""
    h = half_bits(x)
    if (h & 0x7c00) == 0x7c00:
        raise Numeric
    return half_value(h)


def dot(x, y):
    """S(x, y): 16 chains of fma over channels l, l + 16, ..., then the tree 8, 4, 2, 1."""
    p = np.zeros(16, F32)
    for i in range(0, len(x), 16):
        p = fma(x[i:i + 16], y[i:i + 16], p)
    for half in (8, 4, 2, 1):
        p = p[:half] + p[half:2 * half]
    return p[0]


# == 2 INPUTS: A GENERATOR THAT C REPEATS ==================================================================

def draw(state):
    """16 bits of the 32-bit LCG 1664525 s + 1013904223."""
    state[0] = (state[0] * 1664525 + 1013904223) & 0xffffffff
    return state[0] >> 16


def bell(state):
    """Sum of 12 draws about its mean: an integer with standard deviation near 65536."""
    return sum(draw(state) for _ in range(12)) - 393210


def start(seed):
    return [(seed * 2654435761 + 12345) & 0xffffffff]


def scaled(i):
    """Integer below 2^24 in magnitude / 65536, rounded once to bf16."""
    assert abs(i) < 1 << 24
    return bf16_value(bf16_bits(F32(i) / F32(65536)))


KINDS = ["BELL", "FLOAT", "OUTLIER", "ZERO", "NEGZERO", "FIVE", "MINUS_FIVE", "CENT", "THREE_HUNDRED", "ONE_HOT",
         "TIES", "TINY", "SIGNS", "RAMP", "HALVES", "HALVES15", "OFFSET", "MIXED_ZERO",
         "TIED_STEPS", "HALF_ZERO"]


def row(d, kind, seed):
    s = start(seed)
    constant = {"ZERO": 0.0, "NEGZERO": -0.0, "FIVE": 5.0, "MINUS_FIVE": -5.0, "CENT": 0.01, "THREE_HUNDRED": 300.0}
    x = np.zeros(d, F32)
    step = F32(1024 + seed * 37 % 1024) / F32(2048)
    for i in range(d):
        v = bell(s)
        if kind == "BELL":
            x[i] = scaled(v)
        elif kind == "FLOAT":
            x[i] = F32(v) / F32(49999)
        elif kind == "OUTLIER":
            x[i] = scaled(v * 16 + 655360 if i % 11 == 3 else v)
        elif kind in constant:
            x[i] = F32(constant[kind])
        elif kind == "ONE_HOT":
            x[i] = F32(7 if i == d // 3 else 0)
        elif kind == "TIES":
            x[i] = F32(v % 5 - 2)
        elif kind == "TINY":
            x[i] = F32(v) / F32(49999) * F32(1e-20)
        elif kind == "SIGNS":
            x[i] = F32(-1 if i % 2 else 1)
        elif kind == "RAMP":
            x[i] = F32(i - d // 2)
        elif kind == "HALVES":
            x[i] = F32(0.5 * (i % 7))
        elif kind == "HALVES15":
            x[i] = F32(0.5 * (i * 13 % 31))
        elif kind == "OFFSET":
            x[i] = scaled(v + 655360)
        elif kind == "MIXED_ZERO":
            x[i] = F32(-7 if i == d // 3 else -0.0 if i % 2 else 0.0)
        elif kind == "TIED_STEPS":                    # quotients by the scale of CLIP 4 bits are exact halves
            x[i] = step * F32(i * 13 % 31)
        elif kind == "HALF_ZERO":
            x[i] = F32(0) if i < d // 2 else F32(v) / F32(49999)
    return x


METRICS = ["NONE", "USUAL", "STEEP", "ZERO", "NEGATIVE", "WILD", "HUGE"]


def metric(d, kind, seed):
    """M [d][d]. USUAL: half as many directions as channels, of unequal weight, and a part of the identity; each entry
    is a quotient of whole numbers, rounded once. STEEP: few directions, some of them very heavy, so that rounding
    shows in the codes. WILD is not even symmetric; with HUGE the sums overflow."""
    if kind == "NONE":
        return None
    if kind == "ZERO":
        return np.zeros((d, d), F32)
    s = start(seed)
    if kind in ("WILD", "HUGE"):
        gain = F32(1e37 if kind == "HUGE" else 1)
        return np.array([[F32(bell(s)) / F32(49999) * gain for _ in range(d)] for _ in range(d)], F32)
    total = np.zeros((d, d), np.int64)
    steep = kind == "STEEP"
    for k in range(d // (4 if steep else 2)):
        y = np.array([draw(s) % 15 - 7 for _ in range(d)], np.int64)
        total += (1 << (15 - k % 16 if steep else k % 6)) * np.outer(y, y)
    total += 50 * d * np.eye(d, dtype=np.int64)
    assert np.abs(total).max() < 1 << 24
    return total.astype(F32) / F32(-98 * d if kind == "NEGATIVE" else 98 * d + 3)


STYLES = ["PLAIN", "DRIFT", "PAIRS", "ROUGH", "STEADY"]


def page_row(d, style, seed, head, token):
    """One row of one head and token. DRIFT: some channels have a large common offset and gain, a few tokens are far
    away on the other side. PAIRS: tokens cancel two by two. ROUGH: full floats, for the F32 window. STEADY: all tokens
    alike, the page mean over its scale is a whole number in every channel."""
    source = token & ~1 if style == "PAIRS" else token
    noise = start(seed + 7919 * head + 104729 * (source + 1000))
    common = start(seed + 7919 * head + 99)
    negate = (style == "DRIFT" and token & 7 == 5) or (style == "PAIRS" and token & 1)
    step = F32(128 + seed % 128) / F32(256)
    x = np.zeros(d, F32)
    for i in range(d):
        v, c = bell(noise), bell(common)
        if style == "DRIFT":
            v = v * 3 + c * 8 if i % 5 == 0 else v + c // 2
        if style == "STEADY":
            x[i] = step * (F32(127.5) if i == 0 else F32(i * 37 % 255 - 127))
        else:
            x[i] = F32(v) / F32(49999) if style == "ROUGH" else scaled(v)
    return -x if negate else x


def page_rows(d, style, seed, heads, tokens):
    """[token][head][channel]"""
    return np.array([[page_row(d, style, seed, h, t) for h in range(heads)] for t in tokens], F32)


# == 3 BIT REVERSAL, HADAMARD, TRANSFORMS ==================================================================

def bitrev(i, n):
    r = 0
    while n > 1:
        r, i, n = r * 2 + (i & 1), i >> 1, n >> 1
    return r


def power_of_two_part(d):
    return d & -d


def perm(d):
    """Column j of H P is column perm[j] of H."""
    p = [0] * d
    for i in range(d):
        p[bitrev(i, d)] = d - 1 - i
    return p


def deal(d):
    """Column of the eigenvector of rank i (0: largest eigenvalue), D no power of two."""
    n = power_of_two_part(d)
    nb = d // n
    return [(i % nb) * n + bitrev(i // nb, n) for i in range(d)]


def hadamard_signs(d):
    """Block-diagonal Sylvester matrix: +1, -1, and 0 between blocks."""
    n = power_of_two_part(d)
    h = np.zeros((d, d), int)
    for i in range(d):
        for j in range(d):
            if i // n == j // n:
                h[i, j] = -1 if bin((i % n) & (j % n)).count("1") & 1 else 1
    return h


def inv_root(n):
    """The float nearest 1 / sqrt(n)."""
    f = F32(1.0 / math.sqrt(n))
    target = Fraction(1, n)                           # f is nearest if no midpoint lies between f and the root
    lo = (Fraction(float(np.nextafter(f, F32(0)))) + Fraction(float(f))) / 2
    hi = (Fraction(float(np.nextafter(f, F32(2)))) + Fraction(float(f))) / 2
    assert lo * lo < target < hi * hi
    return f


def butterfly(x):
    """Unscaled, strides 1, 2, 4, ... inside blocks of N; last axis."""
    x = np.array(x, F32)
    d = x.shape[-1]
    n = power_of_two_part(d)
    s = 1
    while s < n:
        v = x.reshape(-1, d // (2 * s), 2, s)
        v = np.stack([v[:, :, 0] + v[:, :, 1], v[:, :, 0] - v[:, :, 1]], axis=2)
        x = v.reshape(x.shape)
        s *= 2
    return x


def fwht(x):
    return butterfly(x) * inv_root(power_of_two_part(np.shape(x)[-1]))


def chain(x, m):
    """Rows of x times the matrix m, each output one chain of fma over the inputs from +0."""
    out = np.zeros(x.shape[:-1] + (m.shape[1],), F32)
    for i in range(m.shape[0]):
        out = fma(x[..., i:i + 1], m[i], out)
    return out


def dense_pair(d):
    """A pair F, B = F^-T that is no rotation and has full float mantissas: a_i H_ij b_j and H_ij / (a_i b_j)."""
    root = math.sqrt(power_of_two_part(d))
    h = hadamard_signs(d)
    f, b = np.zeros((d, d), F32), np.zeros((d, d), F32)
    for i in range(d):
        for j in range(d):
            g = (1.0 + i / 100.0) * (1.0 + j / 77.0)
            f[i, j] = F32(h[i, j] * g / root)
            b[i, j] = F32(h[i, j] / (g * root))
    return f, b


class Transform:
    def __init__(self, kind, d, mean=None):
        self.kind, self.d = kind, d
        self.mean = np.zeros(d, F32) if mean is None else mean
        self.f, self.b = dense_pair(d) if kind == DENSE else (None, None)

    def forward(self, x):
        x = x - self.mean
        if self.kind == DENSE:
            return chain(x, self.f)
        return fwht(x) if self.kind == HADAMARD else x

    def back(self, x):
        if self.kind == DENSE:
            return chain(x, self.b.T) + self.mean
        if self.kind == HADAMARD:
            return fma(butterfly(x), inv_root(power_of_two_part(self.d)), np.broadcast_to(self.mean, x.shape))
        return x + self.mean

    def matrix64(self, which):
        """F or B in double, as the float values in use."""
        if self.kind == DENSE:
            return (self.f if which == "F" else self.b).astype(F64)
        if self.kind == HADAMARD:
            return hadamard_signs(self.d) / math.sqrt(power_of_two_part(self.d))
        return np.eye(self.d)


# == 4 THE ROW CODEC =======================================================================================

T2 = [F32(v) for v in ("0.79656", "0.945915", "1.115184", "1.29441")]
T4 = [F32(v) for v in ("0.26816", "0.31844", "0.375424", "0.43576")]


def clip_threshold(x, ratio):
    """tau; ratio <= 0 is off, which keeps everything."""
    magnitudes = np.sort(np.abs(x))
    if ratio <= 0:
        return magnitudes[-1]
    return magnitudes[min(math.floor(ratio * len(x)), len(x) - 1)]


def encode_clip_group(x, bits, meta32):
    steps = F32(3 if bits == 2 else 15)
    keep = (lambda v: F32(v)) if meta32 else fp16_round
    lo = x.min() + F32(0)
    s = (x.max() - lo + F32(0)) / steps                # + 0: mixed zeros give no negative scale, its sign bit is taken
    if not (np.isfinite(lo) and np.isfinite(s)):
        raise Numeric
    lo, s = keep(lo), keep(s)
    if s == 0:
        return np.zeros(len(x), int), s, lo
    e = x - lo
    if bits == 2:
        c = sum((e >= F32(k) * s).astype(int) for k in (0.5, 1.5, 2.5))
    else:
        c = np.trunc(np.minimum(np.maximum(e / s + F32(0.5), F32(0)), F32(15))).astype(int)
    return c, s, lo


def levels(x, t, bits):
    """u for a threshold (2 bits) or a step (4 bits) t."""
    if bits == 2:
        return ((x >= -t).astype(int) + (x >= 0) + (x >= t)).astype(F32) - F32(1.5)
    return np.minimum(np.maximum(np.floor(x / t) + F32(0.5), F32(-7.5)), F32(7.5))


def encode_unbiased_group(x, bits):
    """Codes and the scale before it is rounded."""
    xx = dot(x, x)
    if not np.isfinite(xx):
        raise Numeric
    r = np.sqrt(xx / F32(len(x)))
    best = None
    for a in (T2 if bits == 2 else T4):
        t = r * a
        if not t > 0:
            return np.zeros(len(x), int), F32(0)
        u = levels(x, t, bits)
        d, e = dot(x, u), dot(u, u)
        score = d * d / e
        if best is None or score > best[0]:
            best = (score, d, u)
    s = xx / best[1]
    if not np.isfinite(s):
        raise Numeric
    return (best[2] + half_range(bits)).astype(int), F32(s)


def half_range(bits):
    return F32(1.5 if bits == 2 else 7.5)


REFINED = {"changed": 0, "kept": 0, "same": 0}       # how many rows took which way


def refine(x, codes, scales, bits, group, m, meta32):
    """UNBIASED with a metric: codes and scales, unrounded, for which the error is small under m."""
    d = len(x)
    spread = lambda s: np.repeat(np.array(s, F32), group)
    live = spread(scales) > 0
    u = np.where(live, codes.astype(F32) - half_range(bits), F32(0))
    s = list(scales)
    z = chain(x[None, :], m)[0]
    for _ in range(2):
        gradient = chain((spread(s) * u)[None, :], m)[0] - z
        for c in range(d):
            scale = s[c // group]
            r = scale * m[c, c]
            if not (scale > 0 and r > 0):
                continue
            t = np.floor(u[c] - gradient[c] / r) + F32(0.5)
            t = min(t, half_range(bits)) if t > -half_range(bits) else -half_range(bits)
            step = scale * (t - u[c])
            if step < 0 or step > 0:
                u[c] = t
                gradient = fma(step, m[c], gradient)
        for g in range(d // group):
            part = slice(g * group, (g + 1) * group)
            below = dot(u[part], z[part])
            if scales[g] > 0:
                s[g] = dot(x[part], z[part]) / below if below > 0 else F32(0)
    top = F32(np.finfo(F32).max if meta32 else 65504)
    if not all(b == 0 or (a >= F32(0.5) * b and a <= F32(2) * b and a <= top) for a, b in zip(s, scales)):
        REFINED["kept"] += 1
        return codes, scales
    refined = np.where(live, u + half_range(bits), F32(0)).astype(int)
    REFINED["changed" if np.any(refined != codes) else "same"] += 1
    return refined, s


def encode(x, fit, bits, group, ratio, meta32=False, m=None):
    """Codes of all channels, scale and minimum of each group (no minima for UNBIASED)."""
    if not np.all(np.isfinite(x)):
        raise Numeric
    if fit == CLIP and ratio > 0:
        tau = clip_threshold(x, ratio)
        x = np.minimum(np.maximum(x, -tau), tau)
    codes, scales, minima = [], [], []
    for g in range(0, len(x), group):
        part = x[g:g + group]
        if fit == CLIP:
            c, s, lo = encode_clip_group(part, bits, meta32)
            minima.append(lo)
        else:
            c, s = encode_unbiased_group(part, bits)
        codes.append(c)
        scales.append(s)
    codes = np.concatenate(codes)
    if fit == UNBIASED:
        if m is not None:
            codes, scales = refine(x, codes, scales, bits, group, m, meta32)
        scales = [F32(s) if meta32 else fp16_round(s) for s in scales]
    return codes, scales, minima


def decode(codes, scales, minima, bits, group):
    out = np.zeros(len(codes), F32)
    for g, s in enumerate(scales):
        c = codes[g * group:(g + 1) * group].astype(F32)
        if minima:
            out[g * group:(g + 1) * group] = fma(c, s, minima[g])
        else:
            out[g * group:(g + 1) * group] = (c - half_range(bits)) * s
    return out


def pack_row(codes, bits):
    per = 8 // bits
    return bytes(sum(int(codes[i + k]) << (bits * k) for k in range(per)) for i in range(0, len(codes), per))


# == 5 PAGES ===============================================================================================

class Layer:
    """Shape and choices of one layer; sides are 'k' and 'v'."""

    def __init__(self, name, heads, dk, dv, kb, vb, kfit=UNBIASED, vfit=UNBIASED, gk=0, gv=0, clip_k=0.0, clip_v=0.0,
                 kind_k=HADAMARD, kind_v=HADAMARD, k_mean=False, page_mean=True, tokens=64, window=W_BF16,
                 style_k="DRIFT", style_v="PLAIN", seed=0, full=False, layout_only=False, metric_k="NONE"):
        self.name, self.heads, self.tokens, self.window = name, heads, tokens, window
        self.d, self.bits = {"k": dk, "v": dv}, {"k": kb, "v": vb}
        self.fit, self.group = {"k": kfit, "v": vfit}, {"k": gk or dk, "v": gv or dv}
        self.clip, self.kind = {"k": clip_k, "v": clip_v}, {"k": kind_k, "v": kind_v}
        self.style, self.seed = {"k": style_k, "v": style_v}, seed
        self.page_mean = page_mean and kb != 16
        self.full, self.layout_only, self.k_mean = full, layout_only, k_mean
        self.k_means = [row(dk, "OFFSET" if h else "BELL", seed + 500 + h) if k_mean else None for h in range(heads)]
        self.metric_k = metric_k
        self.metrics = [metric(dk, metric_k, seed + 600 + h) for h in range(heads)]

    def transform(self, side, head):
        return Transform(self.kind[side], self.d[side], self.k_means[head] if side == "k" else None)

    def rows(self, side, tokens=None):
        return page_rows(self.d[side], self.style[side], self.seed + (0 if side == "k" else 50000), self.heads,
                         range(self.tokens) if tokens is None else tokens)


def element_bytes(window):
    return 4 if window == W_F32 else 2


def up128(n):
    return (n + 127) // 128 * 128


def layout(layer):
    """Offsets within a head's part (-1: absent), then of the whole page."""
    at, o = 0, {}
    for side in "kv":
        o[side + "_codes"] = at
        width = 8 * element_bytes(layer.window) if layer.bits[side] == 16 else layer.bits[side]
        at += layer.tokens * layer.d[side] * width // 8
    for side in "kv":
        groups = layer.d[side] // layer.group[side]
        quantised = layer.bits[side] != 16
        for kind, there in (("scales", quantised), ("minima", quantised and layer.fit[side] == CLIP)):
            o[f"{side}_{kind}"] = at if there else -1
            at += 2 * layer.tokens * groups if there else 0
    o["head_bytes"] = up128(at)
    at = layer.heads * o["head_bytes"]
    o["mean_bytes"] = o["mean_scales"] = -1
    if layer.page_mean:
        o["mean_bytes"], o["mean_scales"] = at, at + layer.heads * layer.d["k"]
        at = up128(o["mean_scales"] + 2 * layer.heads)
    o["page_bytes"] = at
    return o


def put_code(page, base, side, d, bits, token, c, code):
    """One code into its tile; base: the side's codes of this head."""
    w = 32 // bits
    tile, t = token // 16, token % 16
    if side == "k":
        word, i = (c // w) * 16 + t, c % w
    else:
        word, i = (t // w) * d + c, t % w
    tile_bytes = 16 * d * bits // 8
    page[base + tile * tile_bytes + word * 4 + i % 4] |= int(code) << (bits * (i // 4))


def put16(page, at, value):
    page[at], page[at + 1] = value & 0xff, value >> 8


def page_mean(x):
    """x: the P transformed rows of a head. Returns n (one a channel) and the rounded scale."""
    tokens = len(x)
    z = np.zeros(x.shape[1], F32)
    for t in range(tokens):
        z = fma(x[t], F32(1.0 / tokens), z)
    if not np.all(np.isfinite(z)):
        raise Numeric
    s = fp16_round(np.abs(z).max() / F32(127.5))
    if s == 0:
        return np.full(x.shape[1], 0.5, F32), s
    return np.minimum(np.maximum(np.floor(z / s) + F32(0.5), F32(-127.5)), F32(127.5)), s


def store_exact(page, base, layer, x):
    """A 16-bit side: rows as given, [token][D], in the window type."""
    values = [bf16_bits(v) if layer.window == W_BF16 else half_bits(v) if layer.window == W_F16 else bits32(v)
              for v in x.reshape(-1)]
    size = element_bytes(layer.window)
    page[base:base + size * len(values)] = b"".join(v.to_bytes(size, "little") for v in values)


class Page:
    """Bytes of a page, and what a reader sees: per side and head the decoded rows before the way back."""

    def __init__(self, layer):
        self.layer, self.o = layer, layout(layer)
        self.bytes = bytearray(self.o["page_bytes"])
        self.decoded, self.kept, self.mean_scale = {}, [], []
        for side in "kv":
            rows = layer.rows(side)
            for h in range(layer.heads):
                self.write_side(side, h, rows[:, h])

    def write_side(self, side, h, x):
        layer, o = self.layer, self.o
        part = h * o["head_bytes"]
        if layer.bits[side] == 16:
            store_exact(self.bytes, part + o[side + "_codes"], layer, x)
            self.decoded[side, h] = x
            return
        x = layer.transform(side, h).forward(x)
        mean = None
        if side == "k" and layer.page_mean:
            mean = page_mean(x)
            at = o["mean_bytes"] + h * layer.d["k"]
            self.bytes[at:at + layer.d["k"]] = bytes(int(v + F32(127.5)) for v in mean[0])
            put16(self.bytes, o["mean_scales"] + 2 * h, half_bits(mean[1]))
            self.mean_scale.append(half_bits(mean[1]))
        self.decoded[side, h] = np.array([self.write_row(side, h, t, x[t], mean) for t in range(layer.tokens)])

    def write_row(self, side, h, t, x, mean):
        layer, o, d = self.layer, self.o, self.layer.d[side]
        part, sign = h * o["head_bytes"], 0
        less = False
        if mean is not None:
            y = fma(-mean[0], mean[1], x)
            yy, xx = dot(y, y), dot(x, x)
            if not (np.isfinite(yy) and np.isfinite(xx)):
                raise Numeric
            less = bool(yy < xx)
            x, sign = (y, 0) if less else (x, 0x8000)
            self.kept.append(less)
        fit, bits, group = layer.fit[side], layer.bits[side], layer.group[side]
        m = layer.metrics[h] if side == "k" else None
        codes, scales, minima = encode(x, fit, bits, group, layer.clip[side], False, m)
        for c in range(d):
            put_code(self.bytes, part + o[side + "_codes"], side, d, bits, t, c, codes[c])
        for kind, values, flag in (("scales", scales, sign), ("minima", minima, 0)):
            for g, v in enumerate(values):
                at = part + o[f"{side}_{kind}"] + 2 * (g * layer.tokens + t)
                put16(self.bytes, at, half_bits(v) | flag)
        out = decode(codes, scales, minima, bits, group)
        return fma(mean[0], mean[1], out) if less else out

    def read(self, side):
        """[token][head][D] in float, as page_read gives it."""
        layer = self.layer
        if layer.bits[side] == 16:
            return layer.rows(side)
        heads = [layer.transform(side, h).back(self.decoded[side, h]) for h in range(layer.heads)]
        return np.stack(heads, axis=1)


# == 6 DOUBLE PRECISION: EIGENVECTORS, COMPOSITION =========================================================

def product(a, b):
    """a b, summed in a fixed order (no BLAS)."""
    out = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        out = out + a[:, k:k + 1] * b[k:k + 1, :]
    return out


def second_moment(x, weights=None):
    """sum of w x^T x over rows / sum of w."""
    w = [1.0] * len(x) if weights is None else weights
    out = np.zeros((x.shape[1], x.shape[1]))
    for xi, wi in zip(x, w):
        out = out + wi * (xi[:, None] * xi[None, :])
    return out / math.fsum(w)


def canonical(v):
    """Columns with their component of largest magnitude positive; the choice must be clear in these tests."""
    for j in range(v.shape[1]):
        order = np.sort(np.abs(v[:, j]))
        assert order[-1] - order[-2] > 1e-5, "sign of an eigenvector is not well defined: change the seed"
        if v[np.argmax(np.abs(v[:, j])), j] < 0:
            v[:, j] = -v[:, j]
    return v


def eigh(a):
    """Cyclic Jacobi. Eigenvalues ascending, eigenvectors as columns with canonical signs."""
    a = np.array((a + a.T) / 2)
    n = len(a)
    v = np.eye(n)
    for _ in range(30):
        off = max(abs(a[p, q]) for p in range(n) for q in range(p + 1, n))
        if off < 1e-17 * np.abs(a).max():
            break
        for p in range(n):
            for q in range(p + 1, n):
                rotate(a, v, p, q)
    w = np.diag(a).copy()
    order = sorted(range(n), key=lambda i: w[i])
    w, v = w[order], v[:, order]
    assert min(w[1:] - w[:-1]) > 1e-7 * w[-1], "eigenvalues too close: change the seed"
    return w, canonical(v)


def rotate(a, v, p, q):
    if a[p, q] == 0:
        return
    theta = (a[q, q] - a[p, p]) / (2 * a[p, q])
    t = (1.0 if theta >= 0 else -1.0) / (abs(theta) + math.sqrt(theta * theta + 1))
    c = 1 / math.sqrt(t * t + 1)
    s = t * c
    for m in (a, v):
        mp, mq = m[:, p].copy(), m[:, q].copy()
        m[:, p], m[:, q] = c * mp - s * mq, s * mp + c * mq
    ap, aq = a[p].copy(), a[q].copy()
    a[p], a[q] = c * ap - s * aq, s * ap + c * aq
    a[p, q] = a[q, p] = 0.0


def cholesky(a):
    n = len(a)
    low = np.zeros((n, n))
    for j in range(n):
        low[j, j] = math.sqrt(a[j, j] - math.fsum(low[j, :j] * low[j, :j]))
        for i in range(j + 1, n):
            low[i, j] = (a[i, j] - math.fsum(low[i, :j] * low[j, :j])) / low[j, j]
    return low


def solve_upper(low, b):
    """low^-T b"""
    n = len(low)
    x = np.zeros_like(b)
    for i in reversed(range(n)):
        acc = b[i].copy()
        for k in range(i + 1, n):
            acc = acc - low[k, i] * x[k]
        x[i] = acc / low[i, i]
    return x


def mix(columns):
    """columns (in ascending order of their eigenvalues) times H P, or dealt and times block-diagonal H."""
    d = columns.shape[1]
    n = power_of_two_part(d)
    h = hadamard_signs(d) / math.sqrt(n)
    if n == d:
        return product(columns, h[:, perm(d)])
    dealt = np.zeros_like(columns)
    for rank, column in enumerate(deal(d)):
        dealt[:, column] = columns[:, d - 1 - rank]
    return product(dealt, h)


def compose_oscar(c):
    w, u = eigh(c)
    return w, mix(u)


def regularised(c):
    d = len(c)
    return c + 1e-4 * math.fsum(np.diag(c)) / d * np.eye(d)


def compose_balanced(cx, cw, power=0.25):
    """mu, F, B"""
    d = len(cx)
    cx, cw = regularised(cx), regularised(cw)
    low = cholesky(cx)
    mu, v = eigh(product(product(low.T, cw), low))
    q = mu ** power
    scale = math.sqrt(d / math.fsum(q * q))
    f = scale * mix(solve_upper(low, v) * q)
    b = mix(product(low, v) / q) / scale
    assert abs(math.fsum(np.diag(product(product(f.T, cx), f))) - d) < 1e-9 * d
    assert np.abs(product(f.T, b) - np.eye(d)).max() < 1e-9
    return mu, f, b


def compose_metric(b, cw):
    """M of the pair with this B"""
    d = len(b)
    m = product(product(b.T, regularised(cw)), b)
    return m * d / math.fsum(np.diag(m)) + np.eye(d) / 2


def calibration_rows(d, tokens, seed):
    """q of two query heads, k and v of one KV head; bf16 values. Channels differ in size and are correlated."""
    q = np.array([[page_row(d, "PLAIN", seed + 1, x, t) for x in range(2)] for t in range(tokens)], F32)
    k = np.array([page_row(d, "DRIFT", seed + 2, 0, t) for t in range(tokens)], F32)
    v = np.array([page_row(d, "PLAIN", seed + 3, 0, t) for t in range(tokens)], F32)
    gain = np.array([F32(2.0 ** (i * 5 % 4)) for i in range(d)], F32)   # powers of two: still bf16 values
    return (q * gain).astype(F64), k.astype(F64), (v * gain[::-1]).astype(F64)


def attention_weights(q, k, sink, recent):
    """w of keys [token] and of queries [token][head]: p (1 - p) over the pairs that history would hold."""
    tokens, heads, d = q.shape
    wk, wq = [0.0] * tokens, np.zeros((tokens, heads))
    for x in range(heads):
        for i in range(tokens):
            logit = [math.fsum(q[i, x] * k[j]) / math.sqrt(d) for j in range(i + 1)]
            top = max(logit)
            e = [math.exp(v - top) for v in logit]
            total = math.fsum(e)
            for j in range(sink, i - recent + 1):
                p = e[j] / total
                wk[j] += p * (1 - p)
                wq[i, x] += p * (1 - p)
    return wk, wq


def rope(x, shift):
    """Rows moved by `shift` positions: base 10000, channels i and i + D/2 form a pair."""
    half = x.shape[-1] // 2
    out = np.array(x)
    for i in range(half):
        angle = shift * 10000.0 ** (-i / half)
        c, s = math.cos(angle), math.sin(angle)
        out[..., i], out[..., i + half] = c * x[..., i] - s * x[..., i + half], s * x[..., i] + c * x[..., i + half]
    return out


SHIFTS = (37, 500)


def weighted_mean(x, w):
    return np.array([math.fsum(x[:, i] * w) for i in range(x.shape[1])]) / math.fsum(w)


def calibrate(d, tokens, seed, sink, recent):
    """All pairs of one (layer, KV head)."""
    q, k, v = calibration_rows(d, tokens, seed)
    flat = q.reshape(-1, d)
    cq, ck, cv = second_moment(flat), second_moment(k), second_moment(v)
    m = weighted_mean(k, np.ones(tokens))
    w = np.array([math.fsum(product(kt[None, :], cq)[0] * kt) for kt in k])
    w = w * (tokens / math.fsum(w))
    out = {"m": m, "oscar_k": compose_oscar(cq), "oscar_v": compose_oscar(second_moment(v, w) * math.fsum(w) / tokens),
           "oscar_k_self": compose_oscar(ck), "oscar_v_self": compose_oscar(cv),
           "balanced_k": compose_balanced(ck - np.outer(m, m), cq), "balanced_v": compose_balanced(cv, np.eye(d)),
           "u_k": eigh(cq), "refined_k": compose_balanced(ck - np.outer(m, m), cq, 0.2)}
    out["refined_k_m"] = compose_metric(out["refined_k"][2], cq)
    out["oscar_k_m"] = compose_metric(out["oscar_k"][1], cq)
    wk, wq = attention_weights(q, k, sink, recent)
    wk = np.array(wk)
    wq = wq.reshape(-1)
    out["m_attention"], out["attention_k"] = balanced_of(flat, k, wq, wk)
    refined = balanced_of(flat, k, wq, wk, 0.2)[1]
    out["attention_k_m"] = compose_metric(refined[2], second_moment(flat, wq))
    moved_q, moved_k = [np.concatenate([x] + [rope(x, s) for s in SHIFTS]) for x in (flat, k)]
    copies = 1 + len(SHIFTS)
    out["m_rope"], out["rope_k"] = balanced_of(moved_q, moved_k, np.tile(wq, copies), np.tile(wk, copies))
    return out


def balanced_of(q, k, wq, wk, power=0.25):
    """Weighted mean key, and the BALANCED pair about it."""
    m = weighted_mean(k, wk)
    return m, compose_balanced(second_moment(k, wk) - np.outer(m, m), second_moment(q, wq), power)


# == 7 ATTENTION IN DOUBLE =================================================================================

def final_logit(x, scale, softcap):
    x = x * scale
    return softcap * math.tanh(x / softcap) if softcap > 0 else x


def softmax_part(logits, values, dv):
    """(o, lse) over a list of logits and value rows; None marks a masked key."""
    pairs = [(x, v) for x, v in zip(logits, values) if x is not None]
    if not pairs:
        return np.zeros(dv), -math.inf
    top = max(x for x, _ in pairs)
    e = [math.exp(x - top) for x, _ in pairs]
    total = math.fsum(e)
    o = np.array([math.fsum(ei * v[i] for ei, (_, v) in zip(e, pairs)) for i in range(dv)]) / total
    return o, top + math.log(total)


def join(parts, sink_logit, dv):
    """Parts (o, lse); a learned sink logit is one more part with value 0."""
    parts = [p for p in parts if p[1] > -math.inf]
    if sink_logit is not None:
        parts = parts + [(np.zeros(dv), sink_logit)]
    if not parts:
        return np.zeros(dv), -math.inf
    top = max(l for _, l in parts)
    w = [math.exp(l - top) for _, l in parts]
    total = math.fsum(w)
    return sum(wi * o for wi, (o, _) in zip(w, parts)) / total, top + math.log(total)


def page_part(page, head, q, first, at, scale, softcap, window):
    """One query over one page whose first token has position `first`; the query stands at position `at`."""
    layer = page.layer
    tk, tv = layer.transform("k", head), layer.transform("v", head)
    kd, vd = page.decoded["k", head].astype(F64), page.decoded["v", head].astype(F64)
    if layer.bits["k"] == 16:
        qt, qm = q, 0.0
    else:
        qt, qm = product(q[None, :], tk.matrix64("B"))[0], math.fsum(q * tk.mean.astype(F64))
    logits = [final_logit(math.fsum(qt * kd[t]) + qm, scale, softcap) if visible(first + t, at, window) else None
              for t in range(layer.tokens)]
    o, lse = softmax_part(logits, vd, layer.d["v"])
    if layer.bits["v"] != 16:
        o = product(o[None, :], tv.matrix64("B").T)[0]
    return o, lse


def visible(j, i, window):
    return j <= i and (window <= 0 or j > i - window)


def rows_part(q, k, v, positions, at, scale, softcap, window):
    logits = [final_logit(math.fsum(q * k[n]), scale, softcap) if visible(p, at, window) else None
              for n, p in enumerate(positions)]
    return softmax_part(logits, v, v.shape[1])


# == 8 C TEXT ==============================================================================================

OUT = []
FIT_NAMES = ("GOLDEN_CLIP", "GOLDEN_UNBIASED")


def emit(text=""):
    OUT.append(text)


def fnv(data, h=0xcbf29ce484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return h


def fnv_floats(x):
    return fnv(np.ascontiguousarray(x, F32).astype("<f4").tobytes())


def fnv_bf16(x):
    return fnv(b"".join(bf16_bits(v).to_bytes(2, "little") for v in np.asarray(x).reshape(-1)))


def wrap(items, indent="    ", sep=",", width=118):
    """Items joined with separators into lines of at most `width` columns."""
    lines, line = [], indent
    for n, item in enumerate(items):
        piece = item + (sep if n + 1 < len(items) else "")
        if len(line) + len(piece) + 1 > width and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += piece + " "
    lines.append(line.rstrip())
    return lines


def comment(prose):
    """A C comment, wrapped."""
    lines = wrap(("/* " + prose + " */").split(), indent="   ", sep="")
    OUT.extend([lines[0].strip()] + lines[1:])


def array(kind, name, dims, items, meaning):
    comment(meaning)
    emit(f"GOLDEN_DATA {kind} {name}{dims} = {{")
    OUT.extend(wrap(items))
    emit("};")
    emit()


def text(s, indent=8, width=104):
    """A C string literal, cut over lines where it is long."""
    pieces = [s[i:i + width] for i in range(0, len(s), width)] or [""]
    return ("\n" + " " * indent).join(f'"{p}"' for p in pieces)


def hex32(values):
    return [f"0x{bits32(v):08x}u" for v in np.asarray(values, F32).reshape(-1)]


def nums(values):
    """Doubles to 9 digits; what is only rounding error beside the largest entry is printed as 0."""
    flat = np.concatenate([np.asarray(v, F64).reshape(-1) for v in values])
    noise = 1e-13 * np.abs(flat[np.isfinite(flat)]).max(initial=0.0)
    out = []
    for v in flat:
        s = f"{float(v):.9g}" if abs(v) > noise else "0"
        out.append("-HUGE_VAL" if v == -math.inf else s if "." in s or "e" in s else s + ".0")
    return out


PRELUDE = r"""/* Golden test vectors. Generated by tests/golden.py, which see: change that, not this file.

   An independent reading of the formats and the maths wrote these values. Long inputs are not listed: golden_row and
   golden_page_row below repeat the generator; GOLDEN_GENERATOR holds hashes that show whether they do.
   Floats are given as their bits. Hashes are FNV-1a 64 over little-endian bytes. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#  define GOLDEN_UNUSED __attribute__((unused))
#else
#  define GOLDEN_UNUSED
#endif
#define GOLDEN_DATA GOLDEN_UNUSED static const     /* a test may use a part of this file without a warning */
#define GOLDEN_CALL GOLDEN_UNUSED static
#define GOLDEN_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

enum { GOLDEN_CLIP, GOLDEN_UNBIASED };
enum { GOLDEN_IDENTITY, GOLDEN_HADAMARD, GOLDEN_DENSE };
enum { GOLDEN_BF16, GOLDEN_F16, GOLDEN_F32 };
enum {
@KINDS@
};
enum { @STYLES@ };
enum {
@METRICS@
};

/* == 1 THE GENERATOR == */

/* 16 bits of a 32-bit linear congruential generator. */
GOLDEN_CALL int32_t golden_draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (int32_t)(*state >> 16);
}

/* Sum of 12 draws about its mean: an integer with standard deviation near 65536. */
GOLDEN_CALL int32_t golden_bell(uint32_t *state)
{
    int32_t sum = -393210;
    int i;
    for (i = 0; i < 12; i++) sum += golden_draw(state);
    return sum;
}

GOLDEN_CALL uint32_t golden_start(int32_t seed) { return (uint32_t)seed * 2654435761u + 12345u; }

GOLDEN_CALL float golden_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

GOLDEN_CALL uint32_t golden_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* i / 65536 rounded once to bf16; |i| < 2^24. */
GOLDEN_CALL float golden_scaled(int32_t i)
{
    uint32_t u = golden_bits((float)i / 65536.0f);
    return golden_float((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

/* A test row: x[d]. */
GOLDEN_CALL void golden_row(float *x, int d, int kind, int32_t seed)
{
    uint32_t state = golden_start(seed);
    float step = (float)(1024 + seed * 37 % 1024) / 2048.0f;
    int i;
    for (i = 0; i < d; i++) {
        int32_t v = golden_bell(&state);
        static const float tiny = 1e-20f;   /* a literal may be wider (FLT_EVAL_METHOD) */
        float small;
        switch (kind) {
        case GOLDEN_ROW_BELL:          x[i] = golden_scaled(v); break;
        case GOLDEN_ROW_FLOAT:         x[i] = (float)v / 49999.0f; break;
        case GOLDEN_ROW_OUTLIER:       x[i] = golden_scaled(i % 11 == 3 ? v * 16 + 655360 : v); break;
        case GOLDEN_ROW_NEGZERO:       x[i] = -0.0f; break;
        case GOLDEN_ROW_FIVE:          x[i] = 5.0f; break;
        case GOLDEN_ROW_MINUS_FIVE:    x[i] = -5.0f; break;
        case GOLDEN_ROW_CENT:          x[i] = 0.01f; break;
        case GOLDEN_ROW_THREE_HUNDRED: x[i] = 300.0f; break;
        case GOLDEN_ROW_ONE_HOT:       x[i] = i == d / 3 ? 7.0f : 0.0f; break;
        case GOLDEN_ROW_TIES:          x[i] = (float)((v % 5 + 5) % 5 - 2); break;
        case GOLDEN_ROW_TINY:          small = (float)v / 49999.0f; x[i] = small * tiny; break;
        case GOLDEN_ROW_SIGNS:         x[i] = i % 2 ? -1.0f : 1.0f; break;
        case GOLDEN_ROW_RAMP:          x[i] = (float)(i - d / 2); break;
        case GOLDEN_ROW_HALVES:        x[i] = 0.5f * (float)(i % 7); break;
        case GOLDEN_ROW_HALVES15:      x[i] = 0.5f * (float)(i * 13 % 31); break;
        case GOLDEN_ROW_OFFSET:        x[i] = golden_scaled(v + 655360); break;
        case GOLDEN_ROW_TIED_STEPS:    x[i] = step * (float)(i * 13 % 31); break;
        case GOLDEN_ROW_HALF_ZERO:     x[i] = i < d / 2 ? 0.0f : (float)v / 49999.0f; break;
        case GOLDEN_ROW_MIXED_ZERO:    x[i] = i == d / 3 ? -7.0f : i % 2 ? -0.0f : 0.0f; break;
        default:                       x[i] = 0.0f; break;
        }
    }
}

/* One row of a page: x[d] of a head and token (tokens before and after the page exist too). DRIFT: some channels have
   a large common offset, a few tokens lie on the other side. PAIRS: tokens cancel two by two. ROUGH: full floats.
   STEADY: all tokens alike, the page mean over its scale is a whole number in every channel. */
GOLDEN_CALL void golden_page_row(float *x, int d, int style, int32_t seed, int head, int token)
{
    int source = style == GOLDEN_PAIRS ? token & ~1 : token;
    uint32_t noise = golden_start(seed + 7919 * head + 104729 * (source + 1000));
    uint32_t common = golden_start(seed + 7919 * head + 99);
    int negate = (style == GOLDEN_DRIFT && (token & 7) == 5) || (style == GOLDEN_PAIRS && (token & 1));
    float step = (float)(128 + seed % 128) / 256.0f;
    int i;
    for (i = 0; i < d; i++) {
        int32_t v = golden_bell(&noise), c = golden_bell(&common);
        int32_t half = (c - ((c % 2 + 2) % 2)) / 2;                       /* floor(c / 2) */
        if (style == GOLDEN_DRIFT) v = i % 5 == 0 ? v * 3 + c * 8 : v + half;
        x[i] = style == GOLDEN_ROUGH ? (float)v / 49999.0f : golden_scaled(v);
        if (style == GOLDEN_STEADY) x[i] = step * (i == 0 ? 127.5f : (float)(i * 37 % 255 - 127));
        if (negate) x[i] = -x[i];
    }
}

/* A metric: m[d][d]. USUAL: half as many directions as channels, of unequal weight, and a part of the identity. STEEP:
   few directions, some of them very heavy, so that rounding shows in the codes. WILD is not even symmetric; with HUGE
   the sums overflow. */
GOLDEN_CALL void golden_metric(float *m, int d, int kind, int32_t seed)
{
    uint32_t state = golden_start(seed);
    static const float huge = 1e37f;        /* a literal may be wider (FLT_EVAL_METHOD) */
    float below = kind == GOLDEN_METRIC_NEGATIVE ? -98.0f * (float)d : (float)(98 * d + 3);
    int32_t y[1024], weight;
    int i, j, k, steep = kind == GOLDEN_METRIC_STEEP;
    for (i = 0; i < d * d; i++) {
        m[i] = 0.0f;
        if (kind != GOLDEN_METRIC_WILD && kind != GOLDEN_METRIC_HUGE) continue;
        m[i] = (float)golden_bell(&state) / 49999.0f;
        if (kind == GOLDEN_METRIC_HUGE) m[i] *= huge;
    }
    if (kind != GOLDEN_METRIC_USUAL && kind != GOLDEN_METRIC_NEGATIVE && !steep) return;
    for (k = 0; k < d / (steep ? 4 : 2); k++) {
        weight = 1 << (steep ? 15 - k % 16 : k % 6);
        for (i = 0; i < d; i++) y[i] = golden_draw(&state) % 15 - 7;
        for (i = 0; i < d; i++)
            for (j = 0; j < d; j++) m[i * d + j] += (float)(weight * y[i] * y[j]);   /* exact */
    }
    for (i = 0; i < d; i++) {
        m[i * d + i] += (float)(50 * d);
        for (j = 0; j < d; j++) m[i * d + j] /= below;
    }
}

/* Sign of the block-diagonal Hadamard matrix of size d: 1, -1, or 0 between blocks. */
GOLDEN_CALL int golden_sign(int d, int i, int j)
{
    int n = d & -d, both = (i % n) & (j % n), parity = 0;
    if (i / n != j / n) return 0;
    for (; both; both &= both - 1) parity ^= 1;
    return parity ? -1 : 1;
}

/* The dense test pair: F[d][d], B[d][d] with F^T B = I, no rotation, full mantissas. */
GOLDEN_CALL void golden_dense_pair(float *f, float *b, int d)
{
    double root = sqrt((double)(d & -d));
    int i, j;
    for (i = 0; i < d; i++) {
        for (j = 0; j < d; j++) {
            double s = (double)golden_sign(d, i, j);
            double left = 1.0 + i / 100.0, right = 1.0 + j / 77.0, g = left * right;
            f[i * d + j] = (float)(s * g / root);
            b[i * d + j] = (float)(s / (g * root));
        }
    }
}

/* Calibration rows of one token: q[2][d] (two query heads), k[d], v[d]. */
GOLDEN_CALL void golden_calibration_token(float *q, float *k, float *v, int d, int32_t seed, int token)
{
    int i;
    golden_page_row(q, d, GOLDEN_PLAIN, seed + 1, 0, token);
    golden_page_row(q + d, d, GOLDEN_PLAIN, seed + 1, 1, token);
    golden_page_row(k, d, GOLDEN_DRIFT, seed + 2, 0, token);
    golden_page_row(v, d, GOLDEN_PLAIN, seed + 3, 0, token);
    for (i = 0; i < d; i++) {
        q[i] *= (float)(1 << (i * 5 % 4));
        q[d + i] *= (float)(1 << (i * 5 % 4));
        v[d - 1 - i] *= (float)(1 << (i * 5 % 4));
    }
}

GOLDEN_CALL uint64_t golden_fnv(const void *data, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t h = 14695981039346656037u;
    size_t i;
    for (i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Hash of floats by their bits, byte order aside. */
GOLDEN_CALL uint64_t golden_fnv_floats(const float *x, size_t count)
{
    uint64_t h = 14695981039346656037u;
    size_t i;
    int k;
    for (i = 0; i < count; i++)
        for (k = 0; k < 32; k += 8) h = (h ^ ((golden_bits(x[i]) >> k) & 255u)) * 1099511628211u;
    return h;
}
"""


def emit_prelude():
    kinds = ", ".join("GOLDEN_ROW_" + k for k in KINDS)
    styles = ", ".join("GOLDEN_" + s for s in STYLES)
    kinds = "\n".join(wrap(kinds.split(", ")))
    metrics = "\n".join(wrap(["GOLDEN_METRIC_" + s for s in METRICS]))
    prelude = PRELUDE.replace("@KINDS@", kinds).replace("@STYLES@", styles).replace("@METRICS@", metrics)
    OUT.extend(prelude.rstrip("\n").split("\n"))
    emit()
    emit("/* Hashes of what the generator gives: golden_row(96, kind, 1), one each kind. */")
    emit("GOLDEN_DATA uint64_t GOLDEN_GENERATOR[] = {")
    OUT.extend(wrap([f"0x{fnv_floats(row(96, k, 1)):016x}u" for k in KINDS]))
    emit("};")
    emit()
    emit("/* golden_page_row(48, style, 2, 1, token) for tokens -3 and 5, one pair each style; then F, B of D = 48. */")
    hashes = [fnv_floats(page_row(48, s, 2, 1, t)) for s in STYLES for t in (-3, 5)]
    hashes += [fnv_floats(m) for m in dense_pair(48)]
    emit("GOLDEN_DATA uint64_t GOLDEN_GENERATOR_PAGES[] = {")
    OUT.extend(wrap([f"0x{h:016x}u" for h in hashes]))
    emit("};")
    emit()
    emit("/* golden_metric(48, metric, 3), one each kind from 1. */")
    emit("GOLDEN_DATA uint64_t GOLDEN_GENERATOR_METRICS[] = {")
    OUT.extend(wrap([f"0x{fnv_floats(metric(48, k, 3)):016x}u" for k in METRICS[1:]]))
    emit("};")
    emit()


HALF_INPUTS = [0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x3f801000, 0x3f803000, 0x3f801001, 0x3f802fff,
               0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x477fe000, 0x477fefff, 0x477ff000, 0x477fffff,
               0x47800000, 0xc77fefff, 0xc77ff000, 0x38800000, 0x387fffff, 0x387fe000, 0x387ff000, 0x387fd000,
               0x38000000, 0x33800000, 0x33000000, 0x33000001, 0x32ffffff, 0x33c00000, 0x33bfffff, 0x33c00001,
               0xb3c00000, 0xb3000000, 0x34200000, 0x34a00000, 0x35123456, 0x37abcdef, 0x7f7fffff, 0x7f7f7fff,
               0x7f7f8000, 0x7f7f0000, 0xff7fffff, 0x7f800000, 0xff800000, 0x00000001, 0x007fffff, 0x00800000,
               0x00008000, 0x00018000, 0x00007fff, 0x00008001, 0x3f7fffff, 0x3f7ff000, 0x3f7fefff, 0x40490fdb,
               0xc02df854, 0x3dcccccd, 0x4b000001, 0x42f6e979, 0x387fc000, 0x38801000, 0x38803000, 0x477fd000]


def emit_halves():
    rows = []
    for u in HALF_INPUTS:
        x = from_bits32(u)
        h = half_bits(x)
        assert h == int(np.array([x], F32).astype(np.float16).view(np.uint16)[0])
        rows.append(f"{{0x{u:08x}u, 0x{h:04x}u, 0x{bf16_bits(x):04x}u}}")
    emit("/* == 2 HALF FLOATS == */")
    emit()
    emit("typedef struct { uint32_t f32; uint16_t f16, bf16; } golden_half;")
    array("golden_half", "GOLDEN_HALF", "[]", rows, "float -> fp16 and bf16: ties, subnormals, overflow edges")
    back = [0, 0x8000, 1, 0x8001, 2, 0x3ff, 0x400, 0x401, 0x83ff, 0x3c00, 0xbc00, 0x3555, 0x7bff, 0xfbff, 0x7c00,
            0xfc00, 0x0155, 0x5640, 0x2e66]
    emit("typedef struct { uint16_t f16; uint32_t f32; } golden_half_back;")
    array("golden_half_back", "GOLDEN_HALF_BACK", "[]",
          [f"{{0x{h:04x}u, 0x{bits32(half_value(h)):08x}u}}" for h in back], "fp16 -> float")


def emit_permutations():
    emit("/* == 3 BIT REVERSAL, PERMUTATIONS, HADAMARD SIGNS == */")
    emit()
    for n in (8, 32):
        array("uint16_t", f"GOLDEN_BITREV_{n}", f"[{n}]", [str(bitrev(i, n)) for i in range(n)], f"bitrev(i) of {n}")
    for n in (8, 16, 64):
        array("uint16_t", f"GOLDEN_PERM_{n}", f"[{n}]", [str(v) for v in perm(n)],
              f"column j of H P is column perm[j] of H, D = {n}")
    for d in (48, 96):
        assert sorted(deal(d)) == list(range(d))
        array("uint16_t", f"GOLDEN_DEAL_{d}", f"[{d}]", [str(v) for v in deal(d)],
              f"D = {d}: column of the eigenvector of rank i (0 = largest eigenvalue)")
    h = hadamard_signs(48)
    emit("/* Block-diagonal H of D = 48 (three blocks of 16): one string a row */")
    emit("GOLDEN_DATA char GOLDEN_SIGNS_48[48][49] = {")
    OUT.extend(wrap(['"' + "".join("0+-"[v] for v in r) + '"' for r in h]))
    emit("};")
    emit()
    for d in (96, 128):
        emit(f"/* Hash of the signs of H, D = {d}, row-major, one byte each: 1, 255 for -1, 0 */")
        emit(f"#define GOLDEN_SIGNS_HASH_{d} 0x{fnv(bytes(int(v) & 255 for v in hadamard_signs(d).reshape(-1))):016x}u")
    emit()


def emit_transforms():
    emit("/* == 4 TRANSFORMS OF ROWS == */")
    emit()
    emit("typedef struct { int n, kind; int32_t seed; const uint32_t *out; } golden_fwht_case;")
    cases = []
    for n, kinds in ((16, ("FLOAT", "OUTLIER", "TINY")), (64, ("FLOAT", "BELL")), (96, ("FLOAT", "OUTLIER")),
                     (128, ("FLOAT", "OFFSET"))):
        for k, kind in enumerate(kinds):
            name = f"golden_fwht_{n}_{k}"
            array("uint32_t", name, f"[{n}]", hex32(fwht(row(n, kind, n + k))), f"fwht of {kind}, n = {n}")
            cases.append(f"{{{n}, GOLDEN_ROW_{kind}, {n + k}, {name}}}")
    array("golden_fwht_case", "GOLDEN_FWHT", "[]", cases, "the butterfly, then one multiplication by 1/sqrt(N)")
    emit("typedef struct { int d, with_mean; int32_t seed; const uint32_t *out; } golden_dense_case;")
    cases = []
    for d, with_mean in ((16, 0), (16, 1), (64, 0), (64, 1), (48, 1)):
        x, m = row(d, "OUTLIER", d), row(d, "OFFSET", d + 1)
        out = Transform(DENSE, d, m if with_mean else None).forward(x)
        name = f"golden_dense_{d}_{with_mean}"
        array("uint32_t", name, f"[{d}]", hex32(out), f"(x - m) F, D = {d}")
        cases.append(f"{{{d}, {with_mean}, {d}, {name}}}")
    array("golden_dense_case", "GOLDEN_DENSE_ROWS", "[]", cases,
          "x = OUTLIER row of seed, m = OFFSET row of seed + 1, F = golden_dense_pair")


def emit_clip():
    emit("/* == 5 CLIP THRESHOLDS (C3.2) == */")
    emit()
    emit("typedef struct { int d, kind; int32_t seed; double ratio; uint32_t tau; } golden_clip_case;")
    rows = []
    for d, kind, seed, ratios in ((128, "BELL", 31, (0.96, 0.92, 0.5, 0.01, 1.0, 2.0, 0.0, -1.0)),
                                  (64, "OUTLIER", 32, (0.96, 0.92, 0.25)), (80, "FLOAT", 33, (0.96, 0.92)),
                                  (96, "FLOAT", 34, (0.96, 0.92)), (16, "RAMP", 35, (0.96, 0.92, 0.0625)),
                                  (128, "TIES", 36, (0.96, 0.5)), (64, "FIVE", 37, (0.96, 0.5))):
        for ratio in ratios:
            tau = clip_threshold(row(d, kind, seed), ratio)
            rows.append(f"{{{d}, GOLDEN_ROW_{kind}, {seed}, {ratio!r}, 0x{bits32(tau):08x}u}}")
    x = np.arange(1, 129, dtype=F32)
    assert clip_threshold(x, 0.96) == 123 and clip_threshold(x, 0.92) == 118 and clip_threshold(x, 1.0) == 128
    array("golden_clip_case", "GOLDEN_CLIPS", "[]", rows, "ratio <= 0 is off: tau is then the largest |x|")


COMBOS = [(CLIP, 2, 0.0), (CLIP, 2, 0.96), (CLIP, 2, 0.92), (CLIP, 4, 0.0), (CLIP, 4, 0.96), (UNBIASED, 2, 0.0),
          (UNBIASED, 4, 0.0)]


def codec_case(d, group, fit, bits, clip, kind, seed, meta32=False, m="NONE"):
    x = row(d, kind, seed)
    codes, scales, minima = encode(x, fit, bits, group, clip, meta32, metric(d, m, seed + 7000))
    meta = [("".join(f"{bits32(v):08x}" if meta32 else f"{half_bits(v):04x}" for v in values))
            for values in (scales, minima)]
    back = decode(codes, scales, minima, bits, group) + F32(0)
    return (f"    {{{d}, {group}, {FIT_NAMES[fit]}, {bits}, {clip!r}, {int(meta32)}, GOLDEN_ROW_{kind}, {seed}, "
            f"GOLDEN_METRIC_{m},\n"
            f"        {text(''.join('%x' % c for c in codes))},\n"
            f"        {text(meta[0])},\n        {text(meta[1])},\n"
            f"        0x{fnv(pack_row(codes, bits)):016x}u, 0x{fnv_floats(back):016x}u}}")


def emit_codec():
    emit("/* == 6 THE ROW CODEC == */")
    emit()
    comment("codes: one hexadecimal digit a channel. scales, minima: the bits of each group's value, 4 digits (fp16) "
            "or 8 (meta32); minima only for CLIP. packed: hash of the packed row (3.3; 4 bits: low nibble first). "
            "decoded: hash of the decoded floats after adding +0 (so a zero counts as +0). clip 0: off. metric: "
            "golden_metric of seed + 7000.")
    emit("typedef struct {")
    emit("    int d, group, fit, bits;")
    emit("    double clip;")
    emit("    int meta32, kind;")
    emit("    int32_t seed;")
    emit("    int metric;")
    emit("    const char *codes, *scales, *minima;")
    emit("    uint64_t packed, decoded;")
    emit("} golden_codec_case;")
    cases = []
    for fit, bits, clip in COMBOS:
        for n, kind in enumerate(KINDS):
            cases.append(codec_case(16, 16, fit, bits, clip, kind, 100 + n))
        for d, groups, kinds in ((64, (64, 32, 16), ("BELL", "OUTLIER", "FLOAT", "TIES")),
                                 (80, (80, 16), ("OUTLIER", "FLOAT")), (96, (96, 48, 32), ("OUTLIER", "FLOAT")),
                                 (128, (128, 64, 32), ("OUTLIER", "FLOAT")), (256, (256, 64), ("FLOAT",))):
            for group in groups:
                for n, kind in enumerate(kinds):
                    cases.append(codec_case(d, group, fit, bits, clip, kind, d + n))
        cases.append(codec_case(64, 32, fit, bits, clip, "OUTLIER", 77, True))
        cases.append(codec_case(96, 48, fit, bits, clip, "FLOAT", 79, True))
        cases.append(codec_case(16, 16, fit, bits, clip, "TINY", 78, True))
    for seed in (193, 522, 800, 854):                 # a reciprocal in place of the division would give other codes
        cases.append(codec_case(64, 64, CLIP, 4, 0.0, "TIED_STEPS", seed))
    cases.append(codec_case(64, 32, CLIP, 2, 0.0, "TIED_STEPS", 310))
    refined_cases(cases)
    emit("GOLDEN_DATA golden_codec_case GOLDEN_CODEC[] = {")
    OUT.extend(",\n".join(cases).split("\n"))
    emit("};")
    emit()
    emit_edges()
    emit_refusals()


def refined_cases(cases):
    """UNBIASED rows with a metric; CLIP takes no notice of one."""
    before = dict(REFINED)
    for bits in (2, 4):
        for n, kind in enumerate(KINDS):
            cases.append(codec_case(16, 16, UNBIASED, bits, 0.0, kind, 100 + n, bool(n % 2), "USUAL"))
        for d, groups, kinds in ((64, (64, 32, 16), ("BELL", "OUTLIER", "FLOAT", "TIES", "ONE_HOT", "HALF_ZERO")),
                                 (80, (80, 16), ("OUTLIER", "FLOAT")), (96, (96, 48), ("OUTLIER", "HALF_ZERO")),
                                 (128, (128, 32), ("OUTLIER", "FLOAT")), (256, (256, 64), ("FLOAT",))):
            for group in groups:
                for n, kind in enumerate(kinds):
                    cases.append(codec_case(d, group, UNBIASED, bits, 0.0, kind, d + n, n % 3 == 1, "USUAL"))
        for n in range(20):
            cases.append(codec_case(64, (64, 32)[n % 2], UNBIASED, bits, 0.0, "FLOAT", 220 + n, n % 3 == 1, "STEEP"))
        for m in METRICS[3:]:
            for n, group in enumerate((64, 32, 16)):
                cases.append(codec_case(64, group, UNBIASED, bits, 0.0, "FLOAT", 200 + n, n == 1, m))
        cases.append(codec_case(64, 64, CLIP, bits, 0.96, "FLOAT", 210, False, "USUAL"))
    assert all(REFINED[k] - before[k] >= 10 for k in REFINED), (REFINED, before)


def edge(bits, seed):
    """Where, as one channel grows float by float, refined codes change: the last float before, and what both give."""
    d, x, channel = 16, row(16, "FLOAT", seed), seed % 16
    m = metric(d, "STEEP", seed + 7000)

    def at(u):
        x[channel] = from_bits32(u)
        codes, scales, _ = encode(x, UNBIASED, bits, d, 0.0, False, m)
        return pack_row(codes, bits), half_bits(scales[0])

    low, high = bits32(F32(0.02)), bits32(F32(2))
    first = at(low)[0]
    if first == at(high)[0]:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle)[0] == first else (low, middle)
    parts = [f"0x{fnv(packed):016x}u, 0x{scale:04x}u" for packed, scale in (at(low), at(high))]
    return f"{{{bits}, {seed}, {channel}, 0x{low:08x}u, " + ", ".join(parts) + "}"


def emit_edges():
    comment("FLOAT rows of 16 channels with metric STEEP of seed + 7000, UNBIASED, fp16. With these bits in one "
            "channel, and with the next float above, codes differ: one rounding in another place, and they would "
            "not. Hash of the codes and bits of the scale of both.")
    emit("typedef struct {")
    emit("    int bits;")
    emit("    int32_t seed;")
    emit("    int channel;")
    emit("    uint32_t at;")
    emit("    uint64_t packed;")
    emit("    uint16_t scale;")
    emit("    uint64_t next_packed;")
    emit("    uint16_t next_scale;")
    emit("} golden_edge;")
    emit("GOLDEN_DATA golden_edge GOLDEN_EDGES[] = {")
    edges = [edge(bits, 8000 + n) for bits in (2, 4) for n in range(40)]
    OUT.extend(f"    {e}," for e in edges if e)
    emit("};")
    emit()


def emit_refusals():
    """Constant rows about the edge of fp16."""
    comment("Rows of 16 times one value (bits given): refused = 1 where an input, a sum, a scale or a minimum is not "
            "finite or overflows fp16. The clip is off.")
    emit("typedef struct { int fit, bits; uint32_t value; int refused; } golden_refusal;")
    items = []
    for fit, bits, values in ((CLIP, 2, (65519.0, 65520.0, -65519.0, -65520.0, 1e25, np.inf, np.nan)),
                              (CLIP, 4, (65519.0, 65520.0, -np.inf)),
                              (UNBIASED, 2, (98200.0, 98400.0, -98200.0, -98400.0, 1e18, 1e25, np.inf, np.nan)),
                              (UNBIASED, 4, (65519.0, 98400.0, 1e6, 1e25))):
        for v in values:
            try:
                encode(np.full(16, v, F32), fit, bits, 16, 0.0)
                refused = 0
            except Numeric:
                refused = 1
            items.append(f"{{{FIT_NAMES[fit]}, {bits}, 0x{bits32(F32(v)) & 0xffffffff:08x}u, {refused}}}")
    array("golden_refusal", "GOLDEN_REFUSALS", "[]", items, "C3.4 and the fp16 edge")
    codes = [0, 1, 2, 3, 3, 2, 1, 0]
    assert pack_row(codes, 2) == bytes([0xe4, 0x1b])
    emit("/* C3.1: codes 0 1 2 3 3 2 1 0, packed with 2 bits; and 0..15 packed with 4 bits. */")
    emit("GOLDEN_DATA uint8_t GOLDEN_PACK2[2] = { %s };" % ", ".join("0x%02x" % b for b in pack_row(codes, 2)))
    emit("GOLDEN_DATA uint8_t GOLDEN_PACK4[8] = { %s };" % ", ".join("0x%02x" % b for b in pack_row(range(16), 4)))
    emit()


LAYERS = [
    Layer("small unbiased, page mean", 1, 16, 16, 2, 2, seed=1000, full=True),
    Layer("small clip, groups, no transform", 2, 16, 32, 2, 4, CLIP, CLIP, 16, 16, 0.96, 0.92, IDENTITY, IDENTITY,
          page_mean=False, seed=1100, full=True),
    Layer("the default shape, plain rows choose both ways", 3, 64, 64, 2, 2, style_k="PLAIN", seed=1200),
    Layer("Dk and Dv differ, V 4 bits", 1, 128, 64, 2, 4, seed=1300),
    Layer("96 channels, clip, groups", 2, 96, 96, 2, 2, CLIP, CLIP, 32, 48, 0.96, 0.92, seed=1400),
    Layer("80 channels, K 4 bits in groups", 2, 80, 64, 4, 2, UNBIASED, CLIP, 16, 0, 0.0, 0.92, seed=1500),
    Layer("K exact", 1, 64, 64, 16, 2, seed=1600),
    Layer("V exact, no page mean", 1, 64, 64, 2, 16, page_mean=False, seed=1700),
    Layer("128 tokens", 2, 64, 32, 4, 4, CLIP, UNBIASED, 0, 0, 0.96, 0.0, tokens=128, seed=1800),
    Layer("dense pairs with mean", 2, 64, 64, 2, 2, kind_k=DENSE, kind_v=DENSE, k_mean=True, seed=1900),
    Layer("no transform but a mean, K clip 4 bits", 2, 32, 32, 4, 2, CLIP, UNBIASED, 16, 0, 0.96, 0.0, IDENTITY,
          IDENTITY, True, seed=2000),
    Layer("mean scale 0: rows cancel", 1, 32, 32, 2, 2, style_k="PAIRS", seed=2100),
    Layer("F32 window, V exact", 2, 64, 48, 2, 16, window=W_F32, style_k="ROUGH", style_v="ROUGH", seed=2200),
    Layer("Hadamard with mean, dense V, clip", 1, 64, 64, 2, 2, CLIP, CLIP, 64, 32, 0.96, 0.92, HADAMARD, DENSE, True,
          seed=2300),
    Layer("192 tokens: 1/P is not exact", 1, 16, 16, 2, 2, tokens=192, style_k="ROUGH", style_v="ROUGH", window=W_F32,
          seed=2400),
    Layer("256 channels", 1, 256, 256, 2, 2, seed=2500),
    Layer("F16 window, K exact", 1, 32, 32, 16, 2, window=W_F16, seed=2600),
    Layer("ties of the page mean", 1, 96, 32, 2, 2, kind_k=IDENTITY, window=W_F32, style_k="STEADY", seed=2676),
    Layer("metric, dense pairs with mean", 2, 64, 64, 2, 2, kind_k=DENSE, kind_v=DENSE, k_mean=True, style_k="PLAIN",
          seed=2700, metric_k="USUAL"),
    Layer("metric, 4 bits in groups, no page mean", 1, 96, 32, 4, 2, gk=48, page_mean=False, seed=2800,
          metric_k="USUAL"),
    Layer("metric, 256 channels, no transform, F32 window", 1, 256, 16, 2, 2, kind_k=IDENTITY, window=W_F32,
          style_k="ROUGH", seed=2900, metric_k="USUAL"),
    Layer("metric of no use, groups", 1, 64, 32, 2, 4, gk=16, seed=3000, metric_k="WILD"),
    Layer("metric and clip", 1, 32, 32, 2, 2, CLIP, UNBIASED, 0, 0, 0.96, 0.0, seed=3100, metric_k="USUAL"),
    Layer("metric, small", 2, 16, 16, 2, 2, seed=3200, metric_k="USUAL", full=True),
    Layer("worked example D = 64", 3, 64, 64, 2, 4, layout_only=True),
    Layer("worked example D = 96", 1, 96, 96, 2, 4, page_mean=False, layout_only=True),
    Layer("worked example D = 128", 8, 128, 128, 2, 4, layout_only=True),
    Layer("both exact", 2, 48, 32, 16, 16, layout_only=True),
    Layer("both exact, F32", 1, 32, 64, 16, 16, window=W_F32, layout_only=True),
    Layer("large, P = 256", 4, 1024, 512, 4, 2, CLIP, UNBIASED, 128, 64, 0.96, 0.0, tokens=256, layout_only=True),
]

OFFSETS = ["k_codes", "v_codes", "k_scales", "k_minima", "v_scales", "v_minima", "head_bytes", "mean_bytes",
           "mean_scales", "page_bytes"]


def check_worked_examples():
    for d, v, meta, size in ((64, 1024, 3072, 3328), (96, 1536, 4608, 4864), (128, 2048, 6144, 6400)):
        o = layout(Layer("", 1, d, d, 2, 4, page_mean=False))
        assert (o["v_codes"], o["k_scales"], o["page_bytes"]) == (v, meta, size)
    for heads, d, want in ((3, 64, (9984, 10176, 10240)), (8, 128, (51200, 52224, 52352))):
        o = layout(Layer("", heads, d, d, 2, 4))
        assert (o["mean_bytes"], o["mean_scales"], o["page_bytes"]) == want


def emit_pages(pages):
    emit("/* == 7 PAGES == */")
    emit()
    comment("A layer and its page. Offsets k_codes to v_minima are within a head's part, -1 where there is none. "
            "Rows: K by golden_page_row(style_k, seed), V by (style_v, seed + 50000), tokens 0 .. P - 1. k_mean: the "
            "mean of head 0 is golden_row(BELL, seed + 500), that of head h > 0 golden_row(OFFSET, seed + 500 + h). "
            "Dense: golden_dense_pair. hash: of the whole page. full: its bytes, or NULL. layout_only: no rows, no "
            "hashes. read_*: page_read of all rows, [token][head][D], as float and as bf16 (an exact side gives the "
            "rows themselves). subtracted: rows of K (of Hkv P) whose sign bit is clear. k_metric: golden_metric of "
            "seed + 600 + h for head h of K.")
    emit("typedef struct {")
    emit("    const char *name;")
    emit("    int heads, dk, dv, k_bits, v_bits, k_fit, v_fit, k_group, v_group;")
    emit("    double clip_k, clip_v;")
    emit("    int k_kind, v_kind, k_mean, k_metric, page_mean, tokens, window, style_k, style_v;")
    emit("    int32_t seed;")
    emit("    int layout_only;")
    emit("    long " + ", ".join(OFFSETS) + ";")
    emit("    int subtracted;")
    emit("    uint64_t hash, read_k_f32, read_v_f32, read_k_bf16, read_v_bf16;")
    emit("    const uint8_t *full;")
    emit("    const uint16_t *mean_scale;")
    emit("} golden_page;")
    emit()
    for n, p in enumerate(pages):
        if p and p.layer.full:
            array("uint8_t", f"golden_page_{n}", f"[{len(p.bytes)}]", ["0x%02x" % b for b in p.bytes],
                  f"all bytes of page {n}")
        if p and p.mean_scale:
            array("uint16_t", f"golden_mean_scale_{n}", f"[{len(p.mean_scale)}]", ["0x%04x" % v for v in p.mean_scale],
                  f"scale of the page mean of each head, page {n}")
    emit("GOLDEN_DATA golden_page GOLDEN_PAGES[] = {")
    for n, (layer, p) in enumerate(zip(LAYERS, pages)):
        emit_page(n, layer, p)
    emit("};")
    emit()


def emit_page(n, layer, p):
    o = layout(layer)
    kinds = ("GOLDEN_IDENTITY", "GOLDEN_HADAMARD", "GOLDEN_DENSE")
    emit(f'    {{"{layer.name}", {layer.heads}, {layer.d["k"]}, {layer.d["v"]}, {layer.bits["k"]}, {layer.bits["v"]},')
    emit(f'     {FIT_NAMES[layer.fit["k"]]}, {FIT_NAMES[layer.fit["v"]]}, {layer.group["k"]}, {layer.group["v"]}, '
         f'{layer.clip["k"]!r}, {layer.clip["v"]!r},')
    emit(f'     {kinds[layer.kind["k"]]}, {kinds[layer.kind["v"]]}, {int(layer.k_mean)}, '
         f'GOLDEN_METRIC_{layer.metric_k}, {int(layer.page_mean)}, {layer.tokens}, '
         f'{("GOLDEN_BF16", "GOLDEN_F16", "GOLDEN_F32")[layer.window]},')
    emit(f'     GOLDEN_{layer.style["k"]}, GOLDEN_{layer.style["v"]}, {layer.seed}, {int(layer.layout_only)},')
    emit("     " + ", ".join(str(o[k]) for k in OFFSETS) + ",")
    if p is None:
        emit("     0, 0, 0, 0, 0, 0, NULL, NULL},")
        return
    k, v = p.read("k"), p.read("v")
    hashes = [fnv(p.bytes), fnv_floats(k), fnv_floats(v), fnv_bf16(k), fnv_bf16(v)]
    emit(f"     {sum(p.kept)}, " + ", ".join(f"0x{h:016x}u" for h in hashes[:3]) + ",")
    emit("     " + ", ".join(f"0x{h:016x}u" for h in hashes[3:]) + ", "
         + (f"golden_page_{n}" if layer.full else "NULL") + ", "
         + (f"golden_mean_scale_{n}" if p.mean_scale else "NULL") + "},")


def emit_reads(pages):
    emit("/* Some rows read back from the pages above, as float bits; is_v: 0 a row of K, 1 of V. */")
    emit("typedef struct { int page, is_v, head, token; const uint32_t *out; } golden_read;")
    cases = []
    for page, side, head, token in ((0, "k", 0, 4), (0, "k", 0, 5), (0, "v", 0, 4), (1, "k", 1, 7), (1, "v", 1, 7),
                                    (2, "k", 2, 33), (4, "k", 1, 63), (5, "k", 1, 21), (5, "v", 0, 2), (9, "k", 1, 12),
                                    (9, "k", 1, 13), (9, "v", 0, 40), (10, "k", 1, 50), (11, "k", 0, 9),
                                    (13, "k", 0, 1), (18, "k", 1, 30), (19, "k", 0, 7)):
        name = f"golden_read_{page}_{side}_{head}_{token}"
        x = pages[page].read(side)[token, head]
        array("uint32_t", name, f"[{len(x)}]", hex32(x), f"page {page}, {side.upper()}, head {head}, token {token}")
        cases.append(f"{{{page}, {int(side == 'v')}, {head}, {token}, {name}}}")
    array("golden_read", "GOLDEN_READS", "[]", cases, "rows to look at when a hash differs")


def matrix(name, m, meaning):
    array("double", name, f"[{m.size}]", nums([m]), meaning)


CALIBRATIONS = [(16, 100, 3000, 4, 16), (48, 160, 3400, 4, 32)]


def emit_compose():
    emit("/* == 8 COMPOSITION == */")
    emit()
    comment("Calibration by golden_calibration_token, tokens 0 .. T - 1 as one chunk from position 0, one KV head, "
            "two query heads. Compare with 1e-6 times the largest entry. Eigenvalues ascend; eigenvectors have "
            "canonical signs. Matrices are row-major; where row_step > 1 only rows 0, row_step, 2 row_step ... are "
            "listed. *attention*: ATTENTION weights with this sink and recent; *rope*: the same with q and k also "
            "moved by 37 and by 500 positions (RoPE base 10000, halves); the others PLAIN. oscar_k: U(C_Q) H P. "
            "oscar_v: U(C_S) H P. *_self: U(C_K), U(C_V), C_K about 0. spectrum_*: of C_Q, C_S, mu. balanced_*, "
            "attention_k_*, rope_*: without a metric, exponent 1/4; refined_k_*: F, B, M with one, exponent 1/5. "
            "attention_k_m: M of the pair with exponent 1/5. oscar_k_m: M of oscar_k.")
    emit("typedef struct {")
    emit("    int d, tokens;")
    emit("    int32_t seed;")
    emit("    int sink, recent, row_step;")
    emit("    const double *m, *u_k, *oscar_k, *oscar_v, *oscar_k_self, *oscar_v_self;")
    emit("    const double *balanced_k_f, *balanced_k_b, *balanced_v_f, *balanced_v_b;")
    emit("    const double *m_attention, *attention_k_f, *attention_k_b, *m_rope, *rope_k_f;")
    emit("    const double *refined_k_f, *refined_k_b, *refined_k_m, *attention_k_m, *oscar_k_m;")
    emit("    const double *spectrum_q, *spectrum_s, *spectrum_balanced;")
    emit("} golden_compose;")
    emit()
    items = []
    for d, tokens, seed, sink, recent in CALIBRATIONS:
        c = calibrate(d, tokens, seed, sink, recent)
        step = 1 if d <= 16 else 8
        parts = [("m", c["m"]), ("u_k", c["u_k"][1]), ("oscar_k", c["oscar_k"][1]), ("oscar_v", c["oscar_v"][1]),
                 ("oscar_k_self", c["oscar_k_self"][1]), ("oscar_v_self", c["oscar_v_self"][1]),
                 ("balanced_k_f", c["balanced_k"][1]), ("balanced_k_b", c["balanced_k"][2]),
                 ("balanced_v_f", c["balanced_v"][1]), ("balanced_v_b", c["balanced_v"][2]),
                 ("m_attention", c["m_attention"]), ("attention_k_f", c["attention_k"][1]),
                 ("attention_k_b", c["attention_k"][2]), ("m_rope", c["m_rope"]), ("rope_k_f", c["rope_k"][1]),
                 ("refined_k_f", c["refined_k"][1]), ("refined_k_b", c["refined_k"][2]),
                 ("refined_k_m", c["refined_k_m"]), ("attention_k_m", c["attention_k_m"]),
                 ("oscar_k_m", c["oscar_k_m"]), ("spectrum_q", c["oscar_k"][0]),
                 ("spectrum_s", c["oscar_v"][0]), ("spectrum_balanced", c["balanced_k"][0])]
        names = []
        for part, value in parts:
            if step > 1 and part in ("u_k", "oscar_k_self", "oscar_v_self", "balanced_v_f", "balanced_v_b", "m_rope",
                                     "rope_k_f", "oscar_k_m"):
                names.append("NULL")
                continue
            names.append(f"golden_{part}_{d}")
            matrix(names[-1], value[::step] if value.ndim == 2 else value, f"{part}, D = {d}")
        items.append(f"{{{d}, {tokens}, {seed}, {sink}, {recent}, {step}, " + ", ".join(names) + "}")
    emit("GOLDEN_DATA golden_compose GOLDEN_COMPOSE[] = {")
    for item in items:
        OUT.extend(wrap(item.split(", "))[:-1] + [wrap(item.split(", "))[-1] + ","])
    emit("};")
    emit()
    emit_c14()


def emit_c14():
    k, v = np.eye(2), np.array([[1.0, 0], [0, 2]])
    w = np.array([kt @ np.diag([4.0, 1.0]) @ kt for kt in k])
    w = w / w.mean()
    c = second_moment(v, w) * w.sum() / 2
    comment("C1.4: K = (1,0), (0,1); V = (1,0), (0,2); C_Q = diag(4, 1), by q = (2,1), (2,-1): weights, diagonal of "
            "C_S")
    emit("GOLDEN_DATA double GOLDEN_C14_WEIGHTS[2] = { %s };" % ", ".join(nums([w])))
    emit("GOLDEN_DATA double GOLDEN_C14_CS[2] = { %s };" % ", ".join(nums([np.diag(c)])))
    emit()


# (softcap, window, learned sink logits)
VARIANTS = [(0.0, 0, False), (4.0, 0, False), (0.0, 11, False), (0.0, 0, True), (4.0, 40, True), (0.0, 3, True)]


def sink_logit(x):
    return 0.5 * x - 1.0


def emit_attention(pages):
    emit("/* == 9 ATTENTION IN DOUBLE == */")
    emit()
    comment("One query a head at the last position over `sink` rows, one golden page and `recent` rows: tokens -sink "
            ".. -1, 0 .. P - 1, P .. P + recent - 1 of the page's generator stand at positions 0, 1, 2, ... page -1: "
            "rows only (the sink rows, then the recent rows; heads 2, Dk 32, Dv 16, K DRIFT seed 4000, V PLAIN seed "
            "54000, P = 0). q of query head x: golden_row(BELL, q_seed + x); query head x reads KV head x * Hkv / Hq."
            " Scale 1/sqrt(Dk). softcap 0, window 0: none. sinks: the learned logit of query head x is 0.5 x - 1 "
            "(else none). Windows hold bf16 rows. o, lse: everything joined, [Hq][Dv], [Hq]; page_o, page_lse: the "
            "page alone, without a sink.")
    emit("typedef struct {")
    emit("    int page, q_heads, sink, recent;")
    emit("    int32_t q_seed;")
    emit("    double softcap;")
    emit("    int window, sinks;")
    emit("    const double *o, *lse, *page_o, *page_lse;")
    emit("} golden_attention;")
    emit()
    items = []
    rows_layer = Layer("", 2, 32, 16, 16, 16, tokens=0, seed=4000)
    for page, q_heads, sink, recent, variants in ((-1, 4, 7, 13, VARIANTS),
                                                  (9, 4, 8, 10, (VARIANTS[0], VARIANTS[4])),
                                                  (5, 2, 3, 5, (VARIANTS[1], VARIANTS[3])),
                                                  (4, 2, 0, 1, (VARIANTS[0],)), (8, 2, 4, 0, (VARIANTS[5],)),
                                                  (6, 2, 2, 2, (VARIANTS[0],)), (7, 1, 0, 3, (VARIANTS[4],)),
                                                  (13, 2, 5, 4, (VARIANTS[0],))):
        layer = rows_layer if page < 0 else LAYERS[page]
        for variant in variants:
            history = pages[page] if page >= 0 else None
            items.append(attention_case(len(items), page, layer, history, q_heads, sink, recent, variant))
    emit("GOLDEN_DATA golden_attention GOLDEN_ATTENTION[] = {")
    OUT.extend("    " + i for i in items)
    emit("};")
    emit()


def attention_case(n, page_index, layer, page, q_heads, sink, recent, variant):
    softcap, window, sinks = variant
    dk, dv, p = layer.d["k"], layer.d["v"], layer.tokens
    tokens = list(range(-sink, 0)) + list(range(p, p + recent))
    k, v = (layer.rows(s, tokens).astype(F64) for s in "kv")
    positions, at = [t + sink for t in tokens], sink + p + recent - 1
    scale, seed = 1 / math.sqrt(dk), 600 + 10 * n
    results = []
    for x in range(q_heads):
        h = x * layer.heads // q_heads
        q = row(dk, "BELL", seed + x).astype(F64)
        rows = rows_part(q, k[:, h], v[:, h], positions, at, scale, softcap, window)
        alone = page_part(page, h, q, sink, at, scale, softcap, window) if page else (np.zeros(dv), -math.inf)
        o, lse = join([rows, alone], sink_logit(x) if sinks else None, dv)
        results.append((o, lse, alone[0], alone[1]))
    names = []
    for i, part in enumerate(("o", "lse", "page_o", "page_lse")):
        if page is None and i >= 2:
            names.append("NULL")
            continue
        names.append(f"golden_attention_{part}_{n}")
        array("double", names[-1], f"[{q_heads * (dv if i % 2 == 0 else 1)}]", nums([r[i] for r in results]),
              f"{part} of attention case {n}")
    return (f"{{{page_index}, {q_heads}, {sink}, {recent}, {seed}, {softcap!r}, {window}, {int(sinks)},\n     "
            + ", ".join(names) + "},")


def main():
    check_fma()
    check_worked_examples()
    pages = [None if l.layout_only else Page(l) for l in LAYERS]
    assert 0 < sum(pages[2].kept) < len(pages[2].kept) and pages[11].mean_scale == [0]
    assert not any(pages[11].kept)
    emit_prelude()
    emit_halves()
    emit_permutations()
    emit_transforms()
    emit_clip()
    emit_codec()
    emit_pages(pages)
    emit_reads(pages)
    emit_compose()
    emit_attention(pages)
    emit("#endif /* GOLDEN_H */")
    body = "\n".join(OUT) + "\n"
    body.encode("ascii")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="\n") as f:
            f.write(body)
    else:
        sys.stdout.write(body)


if __name__ == "__main__":
    main()
