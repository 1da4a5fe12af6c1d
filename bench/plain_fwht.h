/* plain_fwht.h - a baseline of bench_rows: the Walsh-Hadamard transform by the method of the FFHT library (Andoni,
   Indyk, Laarhoven, Razenshteyn, Schmidt 2015), written anew: butterflies in 256-bit vectors. Blocks of 64 floats fill
   8 vectors, which go through 6 of the log2 n passes in registers: 3 within each vector by shuffles, 3 between vectors.
   The others join blocks, up to 3 at a time (8 vectors again), in cache. As in FFHT there is no scale 1/sqrt(n): the
   caller would have to multiply. */
#ifndef PLAIN_FWHT_H
#define PLAIN_FWHT_H

#if defined(__x86_64__)
#include <immintrin.h>

#define PLAIN_FWHT __attribute__((target("avx")))
#define PLAIN_FWHT_INLINE PLAIN_FWHT static inline __attribute__((always_inline))

/* The passes with strides 1, 2, 4 within a vector: x shuffled, plus x with the sign of the lower half of each pair. */
PLAIN_FWHT_INLINE __m256 plain_fwht_within(__m256 x)
{
    const __m256 sign1 = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
    const __m256 sign2 = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
    const __m256 sign4 = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
    x = _mm256_add_ps(_mm256_permute_ps(x, 0xb1), _mm256_xor_ps(x, sign1));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0x4e), _mm256_xor_ps(x, sign2));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 1), _mm256_xor_ps(x, sign4));
}

PLAIN_FWHT_INLINE void plain_fwht_butterfly(__m256 *a, __m256 *b)
{
    __m256 sum = _mm256_add_ps(*a, *b);
    *b = _mm256_sub_ps(*a, *b);
    *a = sum;
}

/* The passes between `count` (2, 4, 8) vectors; a constant after inlining, so v stays in registers. */
PLAIN_FWHT_INLINE void plain_fwht_between(__m256 *v, int count)
{
    plain_fwht_butterfly(&v[0], &v[1]);
    if (count < 4) return;
    plain_fwht_butterfly(&v[2], &v[3]);
    if (count == 8) { plain_fwht_butterfly(&v[4], &v[5]); plain_fwht_butterfly(&v[6], &v[7]); }
    plain_fwht_butterfly(&v[0], &v[2]);
    plain_fwht_butterfly(&v[1], &v[3]);
    if (count < 8) return;
    plain_fwht_butterfly(&v[4], &v[6]);
    plain_fwht_butterfly(&v[5], &v[7]);
    plain_fwht_butterfly(&v[0], &v[4]);
    plain_fwht_butterfly(&v[1], &v[5]);
    plain_fwht_butterfly(&v[2], &v[6]);
    plain_fwht_butterfly(&v[3], &v[7]);
}

/* Joins `count` blocks of 64 floats. */
#define PLAIN_FWHT_JOIN(count)                                                              \
    PLAIN_FWHT_INLINE void plain_fwht_join##count(float *x)                                 \
    {                                                                                       \
        __m256 v[count];                                                                    \
        int i, b;                                                                           \
        for (i = 0; i < 64; i += 8) {                                                       \
            for (b = 0; b < count; b++) v[b] = _mm256_loadu_ps(x + 64 * b + i);             \
            plain_fwht_between(v, count);                                                   \
            for (b = 0; b < count; b++) _mm256_storeu_ps(x + 64 * b + i, v[b]);             \
        }                                                                                   \
    }
PLAIN_FWHT_JOIN(2)
PLAIN_FWHT_JOIN(4)
PLAIN_FWHT_JOIN(8)

/* rows x n floats, n = 64, 128, 256, 512; in and out may be the same array. */
PLAIN_FWHT static void plain_fwht(int n, size_t rows, const float *in, float *out)
{
    size_t row;
    int block, i;
    for (row = 0; row < rows; row++, in += n, out += n) {
        for (block = 0; block < n; block += 64) {
            __m256 v[8];
            for (i = 0; i < 8; i++) v[i] = plain_fwht_within(_mm256_loadu_ps(in + block + 8 * i));
            plain_fwht_between(v, 8);
            for (i = 0; i < 8; i++) _mm256_storeu_ps(out + block + 8 * i, v[i]);
        }
        if (n == 128) plain_fwht_join2(out);
        if (n == 256) plain_fwht_join4(out);
        if (n == 512) plain_fwht_join8(out);
    }
}

static int plain_fwht_here(void) { return __builtin_cpu_supports("avx"); }
#else
static void plain_fwht(int n, size_t rows, const float *in, float *out) { (void)n; (void)rows; (void)in; (void)out; }
static int plain_fwht_here(void) { return 0; }
#endif

#endif
