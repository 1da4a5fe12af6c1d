/* bandwidth.h - what the machine gives: bytes a second from a level of cache or from memory, cycles a second, float
   multiply-adds a second. Include it after bench.h. What is measured in the same run is what other figures are to be
   held against.

       bench_reader r = { data, bytes, threads };   a case with run = bench_read and argument = &r
       bench_clock_hz()                             of one core, by a chain of additions
       bench_fma_rate()                             float multiply-adds a second of one core, in the widest vectors

   Reading is an OR of all words in the widest vectors of the machine, 8 of them at a time. */
#ifndef BENCH_BANDWIDTH_H
#define BENCH_BANDWIDTH_H

#if defined(__clang__)
#  define BANDWIDTH_FAST
#else
#  define BANDWIDTH_FAST __attribute__((optimize("O3")))
#endif

/* == READING == */

/* Every part reads its share of the bytes, `passes` times. apart: the share of a part is all of `bytes`, its own, which
   lies `bytes` further on, so that it stays in a cache of one core. */
typedef struct bench_reader {
    const void *data;
    size_t bytes;             /* a multiple of 512 */
    int threads, passes, apart;
    uint64_t sum[BENCH_THREADS_MAX];
} bench_reader;

/* OR of all words; bytes: a multiple of 512. */
#define BANDWIDTH_READ(name, words, target, lanes)                                  \
    typedef uint32_t words __attribute__((vector_size(4 * lanes)));                 \
    target BANDWIDTH_FAST static uint64_t name(const void *data, size_t bytes)      \
    {                                                                               \
        const unsigned char *p = (const unsigned char *)data, *end = p + bytes;     \
        words sum[8], w;                                                            \
        uint64_t result[lanes / 2];                                                 \
        int l;                                                                      \
        memset(sum, 0, sizeof sum);                                                 \
        for (; p < end; p += sizeof sum)                                            \
            for (l = 0; l < 8; l++) {                                               \
                memcpy(&w, p + (size_t)l * sizeof w, sizeof w);                     \
                sum[l] |= w;                                                        \
            }                                                                       \
        for (l = 1; l < 8; l++) sum[0] |= sum[l];                                   \
        memcpy(result, &sum[0], sizeof result);                                     \
        for (l = 1; l < lanes / 2; l++) result[0] |= result[l];                     \
        return result[0];                                                           \
    }

/* Eight chains of multiply-adds, enough to hide a latency of 4 cycles; returns how many were done. */
#define BANDWIDTH_FMA(name, floats, target, lanes)                                                          \
    typedef float floats __attribute__((vector_size(4 * lanes)));                                           \
    target BANDWIDTH_FAST static double name(int rounds)                                                    \
    {                                                                                                       \
        floats a = { 1 }, b = a, c = a, d = a, e = a, f = a, g = a, h = a, x = a * 0.5f, y = a;             \
        int i;                                                                                              \
        for (i = 0; i < rounds; i++) {                                                                      \
            BANDWIDTH_STEP(a) BANDWIDTH_STEP(b) BANDWIDTH_STEP(c) BANDWIDTH_STEP(d)                         \
            BANDWIDTH_STEP(e) BANDWIDTH_STEP(f) BANDWIDTH_STEP(g) BANDWIDTH_STEP(h)                         \
        }                                                                                                   \
        a += b + c + d + e + f + g + h;                                                                     \
        return a[0] > 1e30f ? 0 : 8.0 * lanes * rounds;                                                     \
    }

#define BANDWIDTH_SSE
#define BANDWIDTH_STEP(a) a = a * x + y;      /* may be a product and a sum */
BANDWIDTH_READ(bandwidth_read, bandwidth_words, BANDWIDTH_SSE, 4)
BANDWIDTH_FMA(bandwidth_fma, bandwidth_floats, BANDWIDTH_SSE, 4)
#undef BANDWIDTH_STEP

#if defined(__x86_64__)
#define BANDWIDTH_AVX2 __attribute__((target("avx2,fma")))
#define BANDWIDTH_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define BANDWIDTH_STEP(a) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(a) : "v"(x), "v"(y));
BANDWIDTH_READ(bandwidth_read_avx2, bandwidth_words_avx2, BANDWIDTH_AVX2, 8)
BANDWIDTH_FMA(bandwidth_fma_avx2, bandwidth_floats_avx2, BANDWIDTH_AVX2, 8)
BANDWIDTH_READ(bandwidth_read_avx512, bandwidth_words_avx512, BANDWIDTH_AVX512, 16)
BANDWIDTH_FMA(bandwidth_fma_avx512, bandwidth_floats_avx512, BANDWIDTH_AVX512, 16)
#undef BANDWIDTH_STEP
#endif

/* Floats in the widest vectors: 4, 8, 16. */
BENCH_UNUSED static int bandwidth_lanes(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return 16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 8;
#endif
    return 4;
}

static void bench_read_part(void *argument, int part, int parts)
{
    bench_reader *r = (bench_reader *)argument;
    size_t blocks = r->bytes / 512, first = blocks * (size_t)part / (size_t)parts * 512;
    size_t end = blocks * ((size_t)part + 1) / (size_t)parts * 512;
    int pass = 0, lanes = bandwidth_lanes();
    uint64_t sum = 0;
    if (r->apart) {
        first = (size_t)part * r->bytes;
        end = first + r->bytes;
    }
    do {
        const unsigned char *p = (const unsigned char *)r->data + first;
        __asm__ volatile("" : "+r"(p) : : "memory");   /* each pass reads again */
#if defined(__x86_64__)
        if (lanes == 16) sum |= bandwidth_read_avx512(p, end - first);
        if (lanes == 8) sum |= bandwidth_read_avx2(p, end - first);
#endif
        if (lanes == 4) sum |= bandwidth_read(p, end - first);
    } while (++pass < r->passes);
    r->sum[part] = sum;
}

BENCH_UNUSED static void bench_read(void *argument)
{
    bench_reader *r = (bench_reader *)argument;
    bench_parallel(r->threads, bench_read_part, r);
}

/* == CYCLES == */

enum { BANDWIDTH_TRIES = 9 };

/* An addition of two registers takes one cycle everywhere, and its result is needed by the next one. The fastest of
   some tries: what is in the way only slows it down. */
BENCH_UNUSED static double bench_clock_hz(void)
{
    enum { ROUNDS = 400000 };
    uint64_t x = 1, y = 3;
    double best = 0;
    int try, i;
    for (try = 0; try < BANDWIDTH_TRIES; try++) {
        double start = bench_now(), rate;
        for (i = 0; i < ROUNDS; i++) {
#define BANDWIDTH_ADD x += y; __asm__ volatile("" : "+r"(x), "+r"(y));
            BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD
            BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD
            BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD BANDWIDTH_ADD
#undef BANDWIDTH_ADD
        }
        rate = 20.0 * ROUNDS / (bench_now() - start);
        if (rate > best) best = rate;
    }
    return best;
}

BENCH_UNUSED static double bench_fma_rate(void)
{
    enum { ROUNDS = 200000 };
    int lanes = bandwidth_lanes(), try;
    double best = 0;
    for (try = 0; try < BANDWIDTH_TRIES; try++) {
        double start = bench_now(), done = 0, rate;
#if defined(__x86_64__)
        if (lanes == 16) done = bandwidth_fma_avx512(ROUNDS);
        if (lanes == 8) done = bandwidth_fma_avx2(ROUNDS);
#endif
        if (lanes == 4) done = bandwidth_fma(ROUNDS);
        rate = done / (bench_now() - start);
        if (rate > best) best = rate;
    }
    return best;
}

#endif
