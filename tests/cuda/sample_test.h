/* sample_test.h - what the kernels of sample.h must compute, whoever runs them: the shim, the PTX interpreter, the mock
   driver. Include after sample's code and tests/test.h. */
#ifndef OSCAR_TEST_SAMPLE_TEST_H
#define OSCAR_TEST_SAMPLE_TEST_H

typedef void (*sample_launch)(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic,
                              void **params);

/* -- the kernels as thunks: parameters as cuLaunchKernel takes them -- */

#define SAMPLE_P(T, i) (*(T *)p[i])

static void sample_thunk_reduce(void **p)
{
    oscar_cu_sample_reduce(SAMPLE_P(const float *, 0), SAMPLE_P(int, 1), SAMPLE_P(float *, 2),
                           SAMPLE_P(unsigned *, 3));
}

static void sample_thunk_codes(void **p)
{
    oscar_cu_sample_codes(SAMPLE_P(const float *, 0), SAMPLE_P(unsigned char *, 1), SAMPLE_P(unsigned short *, 2),
                          SAMPLE_P(int, 3));
}

static void sample_thunk_product(void **p)
{
    oscar_cu_sample_product(SAMPLE_P(const unsigned char *, 0), SAMPLE_P(const unsigned char *, 1),
                            SAMPLE_P(int *, 2), SAMPLE_P(int, 3), SAMPLE_P(int, 4));
}

static void sample_thunk_functions(void **p)
{
    oscar_cu_sample_functions(SAMPLE_P(const unsigned *, 0), SAMPLE_P(unsigned *, 1), SAMPLE_P(int, 2),
                              SAMPLE_P(int, 3));
}

static void sample_thunk_words(void **p)
{
    oscar_cu_sample_words(SAMPLE_P(const unsigned *, 0), SAMPLE_P(unsigned *, 1), SAMPLE_P(int, 2),
                          SAMPLE_P(long long, 3));
}

static void sample_thunk_last(void **p)
{
    oscar_cu_sample_last(SAMPLE_P(float *, 0), SAMPLE_P(unsigned *, 1), SAMPLE_P(float *, 2));
}

/* A kernel, and the bytes of its parameters, for who must copy them. */
typedef struct sample_entry { const char *name; shim_kernel thunk; unsigned char bytes[8]; } sample_entry;

static const sample_entry sample_kernels[] = {
    {"oscar_cu_sample_reduce", sample_thunk_reduce, {8, 4, 8, 8}},
    {"oscar_cu_sample_codes", sample_thunk_codes, {8, 8, 8, 4}},
    {"oscar_cu_sample_product", sample_thunk_product, {8, 8, 8, 4, 4}},
    {"oscar_cu_sample_functions", sample_thunk_functions, {8, 8, 4, 4}},
    {"oscar_cu_sample_words", sample_thunk_words, {8, 8, 4, 8}},
    {"oscar_cu_sample_last", sample_thunk_last, {8, 8, 8}}
};

static const sample_entry *sample_find(const char *name)
{
    size_t i;
    for (i = 0; i < sizeof sample_kernels / sizeof sample_kernels[0]; i++)
        if (!strcmp(sample_kernels[i].name, name)) return &sample_kernels[i];
    return NULL;
}

TEST_UNUSED static shim_kernel sample_thunk(const char *name)
{
    const sample_entry *entry = sample_find(name);
    return entry ? entry->thunk : NULL;
}

/* Bytes that parameter i of a kernel points to in the tests below. */
TEST_UNUSED static size_t sample_bytes(const char *name, int i)
{
    static const struct { const char *name; size_t bytes[4]; } sizes[] = {
        {"oscar_cu_sample_reduce", {4000, 0, 4, 4}}, {"oscar_cu_sample_codes", {9 * 512, 9 * 32, 9 * 2, 0}},
        {"oscar_cu_sample_product", {5 * 512, 5 * 256, 512, 0}}, {"oscar_cu_sample_functions", {2400, 2400, 0, 0}},
        {"oscar_cu_sample_words", {2400, 2400, 0, 0}}, {"oscar_cu_sample_last", {28, 4, 4, 0}}
    };
    size_t j = 0;
    while (strcmp(sizes[j].name, name)) j++;
    return i < 4 ? sizes[j].bytes[i] : 0;
}

/* -- expected results -- */

static void sample_run(sample_launch launch, const char *name, unsigned grid, unsigned block, size_t dynamic,
                       void **params)
{
    unsigned g[3] = {1, 1, 1}, b[3] = {1, 1, 1};
    g[0] = grid;
    b[0] = block;
    launch(name, g, b, dynamic, params);
}

static void sample_check_reduce(sample_launch launch)
{
    static const int sizes[] = {1, 31, 128, 129, 1000};
    test_random random = {11};
    float x[1000], sum, *px = x, *psum = &sum;
    unsigned negative, *pnegative = &negative;
    int i, j, n;
    void *params[4];
    params[0] = &px;
    params[1] = &n;
    params[2] = &psum;
    params[3] = &pnegative;
    for (j = 0; j < 5; j++) {
        double want = 0;
        unsigned below = 0;
        n = sizes[j];
        for (i = 0; i < n; i++) {
            x[i] = (float)random_normal(&random);
            want += x[i];
            below += x[i] < 0;
        }
        sum = 0;
        negative = 0;
        sample_run(launch, "oscar_cu_sample_reduce", 1, 128, 0, params);
        CLOSE(sum, want, 1e-4);
        CHECK(negative == below);
    }
}

/* Codes and scales of a row, in plain C. */
static void sample_codes_of(const float *x, unsigned char *codes, unsigned short *half)
{
    float top = 0, scale;
    int i;
    for (i = 0; i < 128; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    *half = oscar__cu_float_to_half(top / 1.5f);
    scale = oscar__cu_half_to_float(*half);
    memset(codes, 0, 32);
    for (i = 0; i < 128; i++) {
        int code = (x[i] > -scale) + (x[i] > 0) + (x[i] > scale);
        codes[i / 4] = (unsigned char)(codes[i / 4] | code << 2 * (i % 4));
    }
}

static void sample_check_codes(sample_launch launch)
{
    enum { ROWS = 9 };
    test_random random = {12};
    static const float ties[] = {1.5f, 1.0f, -1.0f, 0.0f, -0.0f};   /* the scale is 1 */
    float x[ROWS * 128], *px = x;
    unsigned char codes[ROWS * 32], *pcodes = codes, want[32];
    unsigned short scales[ROWS], *pscales = scales, half;
    int i, rows = ROWS, wrong = 0;
    void *params[4];
    params[0] = &px;
    params[1] = &pcodes;
    params[2] = &pscales;
    params[3] = &rows;
    for (i = 0; i < ROWS * 128; i++) x[i] = (float)(random_normal(&random) * pow(4, i / 128 - 8));
    for (i = 0; i < 128; i++) x[i] = ties[i % 5];
    memset(codes, 0xee, sizeof codes);
    sample_run(launch, "oscar_cu_sample_codes", (ROWS + 3) / 4, 128, 0, params);
    for (i = 0; i < ROWS; i++) {
        sample_codes_of(x + i * 128, want, &half);
        wrong += memcmp(want, codes + i * 32, 32) != 0 || scales[i] != half;
    }
    CHECK_MSG(wrong == 0, ("    %d rows of %d differ\n", wrong, ROWS));
}

static void sample_check_product(sample_launch launch)
{
    enum { STEPS = 5 };
    static unsigned char a[STEPS * 512] __attribute__((aligned(16))), b[STEPS * 256] __attribute__((aligned(16)));
    test_random random = {13};
    unsigned char *pa = a, *pb = b;
    int c[128], *pc = c, steps = STEPS, is_signed, i, k, wrong = 0;
    void *params[5];
    params[0] = &pa;
    params[1] = &pb;
    params[2] = &pc;
    params[3] = &steps;
    params[4] = &is_signed;
    for (i = 0; i < STEPS * 512; i++) a[i] = (unsigned char)random_u32(&random);
    for (i = 0; i < STEPS * 256; i++) b[i] = (unsigned char)random_u32(&random);
    for (is_signed = 0; is_signed <= 1; is_signed++) {
        sample_run(launch, "oscar_cu_sample_product", 1, 32, 2 * 768, params);
        for (i = 0; i < 128; i++) {
            int want = 0;
            for (k = 0; k < STEPS * 32; k++) {
                int u = a[k / 32 * 512 + i / 8 * 32 + k % 32], v = b[k / 32 * 256 + i % 8 * 32 + k % 32];
                want += (is_signed && u > 127 ? u - 256 : u) * v;
            }
            wrong += want != c[i];
        }
    }
    CHECK_MSG(wrong == 0, ("    %d sums differ\n", wrong));
}

/* What function `which` of sample_functions gives. */
static unsigned sample_function(int which, const unsigned *in, int i, int n)
{
    unsigned x = in[i], y = in[n - 1 - i];
    float f = __uint_as_float(x), g = __uint_as_float(y);
    switch (which) {
    case 0: return __float_as_uint(oscar__cu_half_to_float((unsigned short)x));
    case 1: return oscar__cu_float_to_half(f);
    case 2: return __float_as_uint(f / g);
    case 3: return __float_as_uint(sqrtf(fabsf(f)));
    case 4: return __float_as_uint(fmaf(f, g, f));
    case 5: return oscar__cu_permute(x, y, in[i / 2]);
    case 6: return (unsigned)(__builtin_popcount(x) + 64 * (x ? __builtin_clz(x) : 32));
    case 7: return __float_as_uint(shim_flush(exp2f(shim_flush(f))));
    case 8: return __float_as_uint(shim_flush(log2f(shim_flush(f))));
    case 9: return __float_as_uint(__fsub_rn(__fmul_rn(f, g), f));
    case 10: return __float_as_uint(rintf(f));
    case 11: return __float_as_uint(tanhf(f));
    case 12: return __float_as_uint(expf(f));
    default: return __float_as_uint(logf(fabsf(f)));
    }
}

/* NaNs have no one bit pattern; ex2 and lg2 are approximations on a device, but not where they are emulated. Its
   tanhf, expf and logf are not the host's. */
static int sample_same(int which, unsigned a, unsigned b)
{
    float f = __uint_as_float(a), g = __uint_as_float(b);
    if (which == 1 && (a & 0x7fff) > 0x7c00) return (b & 0x7fff) > 0x7c00;
    if (which == 1 || which == 5 || which == 6) return a == b;
    if (f != f || g != g) return f != f && g != g;
    if (which > 10) return a == b || fabsf(f - g) <= 4e-7f * fabsf(g) + 1e-38f;
    return a == b;
}

static void sample_check_functions(sample_launch launch)
{
    enum { N = 600 };
    static const unsigned edges[] = {
        0, 0x80000000u, 1, 0x80000001u, 0x007fffffu, 0x00800000u, 0x3f800000u, 0xbf800000u, 0x7f7fffffu, 0x7f800000u,
        0xff800000u, 0x7fc00000u, 0x477fe000u, 0x477fefffu, 0x477ff000u, 0x33000000u, 0x33000001u, 0x387fffffu
    };
    test_random random = {14};
    unsigned in[N], out[N], *pin = in, *pout = out;
    int i, n = N, which, wrong;
    void *params[4];
    params[0] = &pin;
    params[1] = &pout;
    params[2] = &n;
    params[3] = &which;
    for (i = 0; i < N; i++) in[i] = random_u32(&random);
    for (i = 0; i < N / 2; i++) in[i] = __float_as_uint((float)random_normal(&random) * 8);
    memcpy(in + 3, edges, sizeof edges);
    memcpy(in + N - 90, edges, sizeof edges);
    for (which = 0; which <= 13; which++) {
        memset(out, 0xee, sizeof out);
        sample_run(launch, "oscar_cu_sample_functions", (N + 63) / 64, 64, 0, params);
        for (wrong = 0, i = 0; i < N; i++)
            if (!sample_same(which, out[i], sample_function(which, in, i, N)) && ++wrong < 4)
                printf("    function %d of %08x: %08x, not %08x\n", which, in[i], out[i],
                       sample_function(which, in, i, N));
        CHECK_MSG(wrong == 0, ("    function %d: %d values differ\n", which, wrong));
    }
}

/* The shim's own run of the text is what others must give: the host's compiler and NVRTC read the same C. */
static void sample_check_words(sample_launch launch)
{
    enum { N = 600 };
    test_random random = {15};
    unsigned in[N], out[N], want[N], *pin = in, *pout = out, *pwant = want;
    int i, n = N, wrong = 0;
    long long factor = 0x12345678;
    void *params[4];
    params[0] = &pin;
    params[1] = &pwant;
    params[2] = &n;
    params[3] = &factor;
    for (i = 0; i < N; i++) in[i] = random_u32(&random) | (i % 3 == 0);
    for (i = 0; i < N; i++) in[i] += (in[i] & 1023) == 512;   /* a division by 0 */
    shim_launch(sample_thunk_words, shim_size((N + 63) / 64, 1, 1), shim_size(64, 1, 1), 0, params);
    params[1] = &pout;
    memset(out, 0xee, sizeof out);
    sample_run(launch, "oscar_cu_sample_words", (N + 63) / 64, 64, 0, params);
    for (i = 0; i < N; i++)
        if (out[i] != want[i] && ++wrong < 4) printf("    word %08x: %08x, not %08x\n", in[i], out[i], want[i]);
    CHECK_MSG(wrong == 0, ("    %d words differ\n", wrong));
}

static void sample_check_last(sample_launch launch)
{
    float part[7], out = 0, *ppart = part, *pout = &out;
    unsigned count = 0, *pcount = &count;
    int time;
    void *params[3];
    params[0] = &ppart;
    params[1] = &pcount;
    params[2] = &pout;
    for (time = 0; time < 2; time++) {
        out = 0;
        memset(part, 0xff, sizeof part);
        sample_run(launch, "oscar_cu_sample_last", 7, 64, 0, params);
        CHECK(out == 28 * 528 && count == 0);   /* thread 0 holds the sum of its warp */
    }
}

static void sample_check(sample_launch launch, const char *who)
{
    char name[96];
    snprintf(name, sizeof name, "sample kernels by the %s", who);
    TEST(name);
    sample_check_reduce(launch);
    sample_check_codes(launch);
    sample_check_product(launch);
    sample_check_functions(launch);
    sample_check_words(launch);
    sample_check_last(launch);
    test_close();   /* the name lies on the stack */
}

#endif
