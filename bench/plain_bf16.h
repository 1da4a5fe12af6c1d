/* plain_bf16.h - the baseline of bench_attend: decode attention over BF16 pages, in float, as one would write it
   without this library. Included once for each vector width, with

       PLAIN(name)      the name with a suffix
       PLAIN_TARGET     the target attribute, or nothing
       PLAIN_LANES      floats a vector: 4, 8, 16
       PLAIN_BLOCK      vectors of 2 PLAIN_LANES channels that the value loop keeps in registers
       PLAIN_TOKENS     tokens that the key loop keeps in registers

   Four query heads share each row. A bf16 number is the upper half of a float, so a 32-bit word of a row gives the
   float of its even channel by a shift and that of its odd channel by a mask; query and output are kept as even and odd
   halves. While the keys of a page are read its values are fetched into the second cache, and then the keys of the next
   page. Words are little endian. Page of one KV head: keys [PLAIN_PAGE][PLAIN_DIM], then values alike. */

#ifndef PLAIN_BF16_H
#define PLAIN_BF16_H

enum { PLAIN_DIM = 128, PLAIN_HALF = PLAIN_DIM / 2, PLAIN_GROUP = 4, PLAIN_PAGE = 64 };

typedef struct plain_half { float even[PLAIN_HALF], odd[PLAIN_HALF]; } plain_half;

typedef float plain_quad __attribute__((vector_size(16)));

/* Online softmax of the PLAIN_GROUP heads: sums of w and w v relative to e^top. */
typedef struct plain_state {
    float top[PLAIN_GROUP], sum[PLAIN_GROUP];
    plain_half o[PLAIN_GROUP];
} plain_state;

/* What the bench uses of one vector width.
     attend  one KV head over all its pages; q is already scaled; pages points at the head's part of the first page */
typedef struct plain_kernel {
    const char *name;
    void (*attend)(const unsigned char *pages, size_t page_bytes, int page_count, const plain_half *q,
                   plain_state *state);
} plain_kernel;

#if defined(__clang__)
#  define PLAIN_FAST                 /* clang contracts within an expression by itself, or by the pragma below */
#  define PLAIN_CONTRACT _Pragma("clang fp contract(fast)")
#  define PLAIN_UNROLL
#else
#  define PLAIN_FAST __attribute__((optimize("O3", "fp-contract=fast")))
#  define PLAIN_CONTRACT
#  define PLAIN_UNROLL _Pragma("GCC unroll 8")   /* else gcc keeps arrays of vectors in memory */
#endif
/* Lanes of two vectors; a builtin of clang and of gcc since 12. */
#if defined(__clang__) || __GNUC__ >= 12
#  define PLAIN_JOIN __builtin_shufflevector
#  define PLAIN_TOKENS_AVX512 4
#else
#  define PLAIN_TOKENS_AVX512 1
#endif
#define PLAIN_INLINE PLAIN_TARGET static inline __attribute__((always_inline)) PLAIN_FAST

#endif

typedef float PLAIN(lanes) __attribute__((vector_size(4 * PLAIN_LANES)));
typedef uint32_t PLAIN(words) __attribute__((vector_size(4 * PLAIN_LANES)));

/* quads[token][4]: the lanes of PLAIN_TOKENS vectors, added down to four numbers each. */
PLAIN_INLINE void PLAIN(fold)(const PLAIN(lanes) *sum, float *quads)
{
#if PLAIN_LANES == 16 && PLAIN_TOKENS == 4
    PLAIN(lanes) low = PLAIN_JOIN(sum[0], sum[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
        + PLAIN_JOIN(sum[0], sum[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    PLAIN(lanes) high = PLAIN_JOIN(sum[2], sum[3], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
        + PLAIN_JOIN(sum[2], sum[3], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    low = PLAIN_JOIN(low, high, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
        + PLAIN_JOIN(low, high, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    memcpy(quads, &low, sizeof low);
#else
    int t, i;
    for (t = 0; t < PLAIN_TOKENS; t++) {
        plain_quad x[PLAIN_LANES / 4];
        memcpy(x, &sum[t], sizeof x);
        for (i = 1; i < PLAIN_LANES / 4; i++) x[0] += x[i];
        memcpy(quads + 4 * t, &x[0], sizeof x[0]);
    }
#endif
}

/* score[head][token] = q . k, PLAIN_TOKENS tokens at a time: per token down to four partial sums, which are added for
   all tokens at the end. */
PLAIN_INLINE void PLAIN(scores)(const unsigned char *k, const plain_half *q, float score[PLAIN_GROUP][PLAIN_PAGE])
{
    PLAIN_CONTRACT
    float part[PLAIN_GROUP][4 * PLAIN_PAGE];
    int t, i, a, b;
    for (t = 0; t < PLAIN_PAGE; t += PLAIN_TOKENS, k += 2 * PLAIN_DIM * PLAIN_TOKENS) {
        PLAIN(lanes) sum[PLAIN_GROUP][PLAIN_TOKENS];
        memset(sum, 0, sizeof sum);
        PLAIN_UNROLL
        for (i = 0; i < PLAIN_HALF; i += PLAIN_LANES) {
            PLAIN_UNROLL
            for (b = 0; b < PLAIN_TOKENS; b++) {
                PLAIN(words) w;
                PLAIN(lanes) even, odd, q_even, q_odd;
                memcpy(&w, k + 2 * PLAIN_DIM * b + 4 * i, sizeof w);
                if (i % 16 == 0)   /* values */
                    __builtin_prefetch(k + 2 * PLAIN_DIM * (PLAIN_PAGE + b) + 4 * i, 0, 2);
                even = (PLAIN(lanes))(w << 16);
                odd = (PLAIN(lanes))(w & 0xffff0000u);
                PLAIN_UNROLL
                for (a = 0; a < PLAIN_GROUP; a++) {
                    memcpy(&q_even, q[a].even + i, sizeof q_even);
                    memcpy(&q_odd, q[a].odd + i, sizeof q_odd);
                    sum[a][b] = even * q_even + sum[a][b];
                    sum[a][b] = odd * q_odd + sum[a][b];
                }
            }
        }
        for (a = 0; a < PLAIN_GROUP; a++) PLAIN(fold)(sum[a], part[a] + 4 * t);
    }
    for (a = 0; a < PLAIN_GROUP; a++)
        for (t = 0; t < PLAIN_PAGE; t++) {
            const float *p = part[a] + 4 * t;
            score[a][t] = (p[0] + p[1]) + (p[2] + p[3]);
        }
}

/* The largest of the page's scores of one head. */
PLAIN_INLINE float PLAIN(largest)(const float *x)
{
    float top[16];
    int t, l;
    for (l = 0; l < 16; l++) top[l] = x[l];
    for (t = 16; t < PLAIN_PAGE; t += 16)
        for (l = 0; l < 16; l++) top[l] = x[t + l] > top[l] ? x[t + l] : top[l];
    for (l = 1; l < 16; l++) top[0] = top[l] > top[0] ? top[l] : top[0];
    return top[0];
}

/* x = e^(x - top) for x <= top; relative error below 3e-7. 2^f by the Taylor series of e^(f log 2), |f| <= 1/2. Returns
   the sum. */
PLAIN_INLINE float PLAIN(weights)(float *x, float top)
{
    PLAIN_CONTRACT
    PLAIN(lanes) sum, more;
    float total = 0;
    int t;
    for (t = 0; t < PLAIN_PAGE; t++) {
        float y = (x[t] - top) * 1.44269504f, whole, f, p, power;
        int32_t bits;
        y = y < -126.0f ? -126.0f : y;
        whole = (y + 12582912.0f) - 12582912.0f;      /* 1.5 * 2^23: rounds to an integer */
        f = y - whole;
        p = 1.5403530e-4f;
        p = p * f + 1.3333558e-3f;
        p = p * f + 9.6181291e-3f;
        p = p * f + 5.5504109e-2f;
        p = p * f + 2.4022651e-1f;
        p = p * f + 6.9314718e-1f;
        p = p * f + 1.0f;
        bits = ((int32_t)whole + 127) * (1 << 23);
        memcpy(&power, &bits, sizeof power);
        x[t] = p * power;
    }
    memcpy(&sum, x, sizeof sum);
    for (t = PLAIN_LANES; t < PLAIN_PAGE; t += PLAIN_LANES) {
        memcpy(&more, x + t, sizeof more);
        sum += more;
    }
    for (t = 0; t < PLAIN_LANES; t++) total += sum[t];
    return total;
}

/* o[head] += sum over tokens of weight v. next: the keys that come next; the first two passes over the tokens fetch
   them, half of the page each. */
PLAIN_INLINE void PLAIN(values)(const unsigned char *v, const unsigned char *next,
                                float weight[PLAIN_GROUP][PLAIN_PAGE], plain_half *o)
{
    PLAIN_CONTRACT
    int t, i, a, b, pass = 0;
    for (i = 0; i < PLAIN_HALF; i += PLAIN_BLOCK * PLAIN_LANES, pass++) {
        PLAIN(lanes) even[PLAIN_GROUP][PLAIN_BLOCK], odd[PLAIN_GROUP][PLAIN_BLOCK];
        for (a = 0; a < PLAIN_GROUP; a++)
            for (b = 0; b < PLAIN_BLOCK; b++) {
                memcpy(&even[a][b], o[a].even + i + b * PLAIN_LANES, sizeof even[a][b]);
                memcpy(&odd[a][b], o[a].odd + i + b * PLAIN_LANES, sizeof odd[a][b]);
            }
        for (t = 0; t < PLAIN_PAGE; t++) {
            for (b = 0; b < PLAIN_DIM && pass < 2; b += 64)
                __builtin_prefetch(next + PLAIN_DIM * (PLAIN_PAGE * pass + t) + b, 0, 2);
            for (b = 0; b < PLAIN_BLOCK; b++) {
                PLAIN(words) w;
                PLAIN(lanes) v_even, v_odd;
                memcpy(&w, v + 2 * PLAIN_DIM * t + 4 * (i + b * PLAIN_LANES), sizeof w);
                v_even = (PLAIN(lanes))(w << 16);
                v_odd = (PLAIN(lanes))(w & 0xffff0000u);
                for (a = 0; a < PLAIN_GROUP; a++) {
                    even[a][b] = v_even * weight[a][t] + even[a][b];
                    odd[a][b] = v_odd * weight[a][t] + odd[a][b];
                }
            }
        }
        for (a = 0; a < PLAIN_GROUP; a++)
            for (b = 0; b < PLAIN_BLOCK; b++) {
                memcpy(o[a].even + i + b * PLAIN_LANES, &even[a][b], sizeof even[a][b]);
                memcpy(o[a].odd + i + b * PLAIN_LANES, &odd[a][b], sizeof odd[a][b]);
            }
    }
}

PLAIN_TARGET PLAIN_FAST static void PLAIN(attend)(const unsigned char *pages, size_t page_bytes, int page_count,
                                                  const plain_half *q, plain_state *state)
{
    float score[PLAIN_GROUP][PLAIN_PAGE];
    int page, a, i;
    for (page = 0; page < page_count; page++) {
        const unsigned char *k = pages + (size_t)page * page_bytes;
        PLAIN(scores)(k, q, score);
        for (a = 0; a < PLAIN_GROUP; a++) {
            float top = PLAIN(largest)(score[a]);
            if (top > state->top[a]) {
                float factor = expf(state->top[a] - top);
                state->top[a] = top;
                state->sum[a] *= factor;
                for (i = 0; i < PLAIN_HALF; i++) {
                    state->o[a].even[i] *= factor;
                    state->o[a].odd[i] *= factor;
                }
            }
            state->sum[a] += PLAIN(weights)(score[a], state->top[a]);
        }
        PLAIN(values)(k + 2 * PLAIN_DIM * PLAIN_PAGE, page + 1 < page_count ? k + page_bytes : k, score, state->o);
    }
}

#undef PLAIN
#undef PLAIN_TARGET
#undef PLAIN_LANES
#undef PLAIN_BLOCK
#undef PLAIN_TOKENS
