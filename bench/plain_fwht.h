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

/* The passes with strides 1, 2, 4 within a vector: both elements of each pair are spread over the pair, the second one
   with a minus where it is subtracted. (A shuffle of x and x with the sign of half of it would take fewer steps.) */
PLAIN_FWHT_INLINE __m256 plain_fwht_within(__m256 x)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 first = _mm256_permute_ps(x, 0xa0), second = _mm256_permute_ps(x, 0xf5);
    x = _mm256_addsub_ps(first, _mm256_sub_ps(zero, second));
    first = _mm256_permute_ps(x, 0x44);
    second = _mm256_permute_ps(x, 0xee);
    x = _mm256_add_ps(first, _mm256_blend_ps(second, _mm256_sub_ps(zero, second), 0xcc));
    first = _mm256_permute2f128_ps(x, x, 0x00);
    second = _mm256_permute2f128_ps(x, _mm256_sub_ps(zero, x), 0x31);
    return _mm256_add_ps(first, second);
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
