/* test_amx.c - the AMX kernels of attention by emulated tiles (tiles.h), so on every machine with AVX-512: each kernel
   against that of AVX-512 over all shapes, then the tests of test_attend.c. The instructions themselves run in the
   other test programs where the machine has them; test_isa.c says whether it does. */
#define _POSIX_C_SOURCE 200112L
#include "tiles.h"
#define main test_attend_main
#include "test_attend.c"
#undef main

#if defined(OSCAR__HAS_AMX)

/* == KERNELS, ONE BY ONE == */

/* One block of 64 tokens, K or V, and queries for it. Every array ends where it is said to, so that sanitizers see what
   reads beyond. */
typedef struct block {
    int bits, dim, group, groups, count, padded, minima;
    oscar__codes codes;
    unsigned char *code_bytes, *scales, *minimum_bytes, *mean;
    float *x, *step[2], *sum[2], *start, *score[2], *acc[2];
    signed char *limb[2];
} block;

static void *get(size_t size)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, size)) exit(2);
    memset(p, 0, size);
    return p;
}

/* `count` halves below 1, of both signs. */
static unsigned char *random_halves(test_random *random, size_t count)
{
    unsigned char *p = (unsigned char *)get(2 * count);
    size_t i;
    for (i = 0; i < count; i++) {
        p[2 * i] = (unsigned char)random_below(random, 256);
        p[2 * i + 1] = (unsigned char)(random_below(random, 60) + (random_below(random, 3) == 0 ? 128 : 0));
    }
    return p;
}

static void block_open(block *b, test_random *random, int bits, int dim, int group, int count, int minima)
{
    enum { TOKENS = 128 };   /* of the page; the block is its first half */
    size_t d = (size_t)dim, i, code_bytes = 16 * (size_t)bits * d / 2, floats;
    int which;
    memset(b, 0, sizeof *b);
    b->bits = bits;
    b->dim = dim;
    b->group = group;
    b->groups = dim / group;
    b->count = count;
    b->padded = (count + 3) / 4 * 4;
    b->minima = minima;
    b->code_bytes = (unsigned char *)get(code_bytes);
    for (i = 0; i < code_bytes; i++) b->code_bytes[i] = (unsigned char)random_below(random, 256);
    b->scales = random_halves(random, (size_t)b->groups * TOKENS);
    b->minimum_bytes = random_halves(random, (size_t)b->groups * TOKENS);
    b->mean = (unsigned char *)get(d);
    for (i = 0; i < d; i++) b->mean[i] = (unsigned char)random_below(random, 256);
    b->codes.codes = b->code_bytes;
    b->codes.scale = b->scales;
    b->codes.minimum = minima ? b->minimum_bytes : NULL;
    b->codes.centre = bits == 2 ? 1.5f : 7.5f;
    b->codes.bits = bits;
    b->codes.dim = dim;
    b->codes.group = group;
    b->codes.tokens = TOKENS;
    floats = (size_t)b->padded * sizeof(float);
    b->x = (float *)get(floats * d);
    for (i = 0; i < (size_t)count * d; i++) b->x[i] = (float)random_normal(random);
    b->start = (float *)get(2 * floats);
    for (i = 0; i < 2 * (size_t)b->padded; i++) b->start[i] = (float)random_normal(random);
    for (which = 0; which < 2; which++) {
        b->step[which] = (float *)get(floats * (size_t)b->groups);
        b->sum[which] = (float *)get(floats * (size_t)b->groups);
        /* The room that 3.13 gives is larger, and the last row of A may reach 48 bytes into it. */
        b->limb[which] = (signed char *)get(2 * (size_t)b->padded * d + (which ? 48 : 0));
        b->score[which] = (float *)get((size_t)b->padded * 64 * sizeof(float));
        b->acc[which] = (float *)get((size_t)(which ? count : b->padded) * d * sizeof(float));
    }
}

static void block_close(block *b)
{
    int which;
    free(b->code_bytes); free(b->scales); free(b->minimum_bytes); free(b->mean); free(b->x); free(b->start);
    for (which = 0; which < 2; which++) {
        free(b->step[which]); free(b->sum[which]); free(b->limb[which]); free(b->score[which]); free(b->acc[which]);
    }
}

/* The largest difference of two arrays over the largest number of the second. */
static double apart(size_t count, const float *x, const float *y)
{
    double most = 0, size = 1e-30;
    size_t i;
    for (i = 0; i < count; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)y[i]));
        if (x[i] != x[i]) return HUGE_VAL;
    }
    return most / size;
}

/* Which kernels: those of AVX-512 by fours, those of AMX all at once. */
static void block_score(block *b, const oscar__attend_kernels *kernels, int which, float *mean)
{
    int f, j, d = b->dim;
    for (j = 0; j < b->count; j++)
        kernels->limbs(2, d, b->group, j % 4, b->x + j * d, b->limb[which] + j / 4 * 8 * d,
                       b->step[which] + j / 4 * 4 * b->groups, b->sum[which] + j / 4 * 4 * b->groups);
    for (f = 0; f < b->count; f += 4)
        kernels->mean(2, d, b->group, b->mean, b->limb[which] + 2 * f * d, b->step[which] + f * b->groups, mean + f);
    for (f = 0; f < b->count; f += kernels->queries)
        kernels->score(oscar__smaller(b->count - f, kernels->queries), 2, &b->codes, b->limb[which] + 2 * f * d,
                       b->step[which] + f * b->groups, b->sum[which] + f * b->groups, b->start + 2 * f,
                       b->score[which] + f * 64);
}

/* Weights: those of softmax look like squares of numbers; a query may have none. */
static void block_blend(block *b, const oscar__attend_kernels *kernels, int which, const float *weight)
{
    signed char limb[OSCAR__QUERIES / 4][512];
    float step[OSCAR__QUERIES], base[OSCAR__QUERIES];
    int f;
    for (f = 0; f < b->count * b->dim; f++) b->acc[which][f] = b->x[f];
    for (f = 0; f < b->count; f += 4)
        kernels->weigh(oscar__smaller(b->count - f, 4), 2, &b->codes, 0, weight + f * 64, limb[f / 4], step + f,
                       base + f);
    for (f = 0; f < b->count; f += kernels->queries)
        kernels->blend(oscar__smaller(b->count - f, kernels->queries), 2, &b->codes, weight + f * 64, limb[f / 4],
                       step + f, base + f, b->acc[which] + f * b->dim);
}

/* The largest differences of sums, mean products, scores and blends. A mean product is a sum of terms of both signs
   that are larger than itself. */
static double worst_kernel[4];

static void check_block(test_random *random, int bits, int dim, int group, int count, int minima)
{
    const oscar__attend_kernels *avx512 = oscar__kernels_of(OSCAR_ISA_AVX512)->attend;
    const oscar__attend_kernels *amx = oscar__kernels_of(OSCAR_ISA_AMX)->attend;
    float mean[2][OSCAR__QUERIES], *weight;
    block b;
    size_t steps;
    double error[4];
    int i, j;
    block_open(&b, random, bits, dim, group, count, minima);
    steps = (size_t)(b.padded * b.groups);
    weight = (float *)get((size_t)b.padded * 64 * sizeof(float));
    for (j = 0; j < count * 64; j++) {
        float x = (float)random_normal(random);
        weight[j] = random_below(random, 9) == 0 || (count > 1 && j / 64 == 1) ? 0 : x * x;
    }
    amx->begin(count);
    block_score(&b, avx512, 0, mean[0]);
    block_score(&b, amx, 1, mean[1]);
    block_blend(&b, avx512, 0, weight);
    block_blend(&b, amx, 1, weight);
    amx->end();
    CHECK(!memcmp(b.step[0], b.step[1], steps * sizeof(float)));
    error[0] = apart(steps, b.sum[1], b.sum[0]);
    error[1] = apart((size_t)count, mean[1], mean[0]);
    error[2] = apart((size_t)count * 64, b.score[1], b.score[0]);
    error[3] = apart((size_t)(count * dim), b.acc[1], b.acc[0]);
    for (i = 0; i < 4; i++) {
        worst_kernel[i] = fmax(worst_kernel[i], error[i]);
        CHECK_MSG(error[i] < (i == 1 ? 1e-5 : 2e-6),
                  ("    %d bits, dim %d, group %d, %d queries, minima %d: sums %g, mean %g, score %g, blend %g\n", bits,
                   dim, group, count, minima, error[0], error[1], error[2], error[3]));
    }
    free(weight);
    block_close(&b);
}

static void test_blocks(void)
{
    static const int dims[13] = { 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 512, 1024 };
    test_random random = { 211 };
    int i, group, bits, count;
    TEST("limbs, mean, score, weigh and blend give what those of AVX-512 give: every head size, group, width and fit");
    for (i = 0; i < 13; i++)
        for (group = 16; group <= dims[i]; group += 16)
            for (bits = 2; bits <= 4; bits += 2) {
                int most = oscar__smaller(OSCAR__VALUES / dims[i], OSCAR__QUERIES);
                if (dims[i] % group || (dims[i] > 256 && group % 128 && group != 16)) continue;
                check_block(&random, bits, dims[i], group, 1 + random_below(&random, most), 0);
                check_block(&random, bits, dims[i], group, 1 + random_below(&random, most), 1);
            }
    TEST("any number of queries");
    for (count = 1; count <= OSCAR__QUERIES; count++)
        for (bits = 2; bits <= 4; bits += 2) check_block(&random, bits, 128, count % 3 ? 128 : 32, count, count % 2);
    if (getenv("TEST_VERBOSE"))
        printf("  largest differences: sums %.2g, mean %.2g, score %.2g, blend %.2g\n", worst_kernel[0],
               worst_kernel[1], worst_kernel[2], worst_kernel[3]);
}

/* == WHAT IT COSTS, WHAT IT LEAVES == */

/* Tile loads, products and stores of one attention over pages. */
typedef struct cost { long loads, dots, stores; } cost;

static cost cost_of(const setup *s, int queries)
{
    results r = results_open(s);
    oscar_attend_desc d = s->desc;
    cost before, after;
    d.queries = queries;
    before.loads = tiles.loads;
    before.dots = tiles.dots;
    before.stores = tiles.stores;
    CHECK(oscar_attend_pages(&d, &s->list, r.o, r.lse) == OSCAR_OK);
    after.loads = tiles.loads - before.loads;
    after.dots = tiles.dots - before.dots;
    after.stores = tiles.stores - before.stores;
    results_close(&r);
    return after;
}

static void test_cost(void)
{
    enum { BLOCKS = 4, STEPS = 4 };   /* D = 128: 4 steps of 32 x 64 codes on each side of a block */
    test_random random = { 223 };
    cost one, four, eight;
    setup s;
    TEST("codes are decoded once for 16 queries: loads of tiles, products and stores are those of the cost model");
    setup_plain(&s, &random, 1, 4, 128, 128, OSCAR_HADAMARD);
    setup_fill(&s, &random, 64, OSCAR_BF16, BLOCKS, 1, 8, 0);
    one = cost_of(&s, 1);
    four = cost_of(&s, 4);
    eight = cost_of(&s, 8);
    CHECK(one.dots == BLOCKS * STEPS * 2 * 2 && one.stores == BLOCKS * (2 + 4) * 2);
    CHECK(one.loads == BLOCKS * (STEPS * (2 + 1) + STEPS * 2 + 1));
    CHECK(four.dots == 2 * one.dots && four.stores == 2 * one.stores);
    CHECK(four.loads == BLOCKS * (STEPS * (2 + 2) + STEPS * 2 + 2));
    CHECK(eight.dots == 2 * four.dots && eight.loads == 2 * four.loads && eight.stores == 2 * four.stores);
    setup_close(&s);
}

static void test_released(void)
{
    test_random random = { 227 };
    long configs = tiles.configs;
    setup s;
    results r;
    TEST("tiles are released after every attention, and not touched where no codes are read");
    CHECK(!tiles.configured);
    setup_plain(&s, &random, 2, 2, 64, 64, OSCAR_HADAMARD);
    setup_fill(&s, &random, 64, OSCAR_BF16, 2, 1, 3, 0);
    r = results_open(&s);
    CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK);
    CHECK(!tiles.configured && tiles.configs > configs);
    configs = tiles.configs;
    CHECK(oscar_attend_rows(&s.desc, s.spans, 1, r.o, r.lse) == OSCAR_OK);
    CHECK(tiles.configs == configs);
    results_close(&r);
    setup_close(&s);
    setup_plain(&s, &random, 1, 1, 64, 64, OSCAR_HADAMARD);
    s.layer.k_bits = s.layer.v_bits = 16;
    setup_fill(&s, &random, 64, OSCAR_BF16, 1, 1, 1, 0);
    r = results_open(&s);
    CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK);
    CHECK(tiles.configs == configs);
    results_close(&r);
    setup_close(&s);
}

static void test_allowed(void)
{
    unsigned seven[4] = { 0, 0, 0, 3u << 24 };
    TEST("AMX is there where processor, system and the process's permission all are");
    CHECK(oscar__amx_allowed(seven, 0xe7) == 0);
    CHECK(oscar__amx_allowed(seven, 0x200e7) == 0);
    seven[3] = 1u << 24;
    CHECK(oscar__amx_allowed(seven, 0x600e7) == 0);
    seven[3] = 3u << 24;
    CHECK(oscar__amx_allowed(seven, 0x600e7) == oscar__amx_allowed(seven, 0x600e7));   /* the system's answer stays */
}

int main(void)
{
    if (oscar_isa_force(OSCAR_ISA_AMX) != OSCAR_OK) {
        SKIP("AMX kernels by emulated tiles", "the machine has no AVX-512");
        return test_end("test_amx");
    }
    test_blocks();
    test_cost();
    test_released();
    test_allowed();
    test_attention();
    return test_end("test_amx");
}

#else

int main(void)
{
    SKIP("AMX kernels by emulated tiles", "not in this build: 64-bit Linux on x86, gcc or clang from 11 on");
    return test_end("test_amx");
}

#endif
