/* test_kernels.c - the write path on every instruction set of this machine: transforms, encoded rows and pages have the
   bytes, and the refusals, that the scalar code gives, over random shapes and rows of every kind. */
#define _POSIX_C_SOURCE 200112L   /* posix_memalign */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"

static float random_float(test_random *r) { return (float)random_normal(r); }

/* `count` bytes, aligned to 64, with nothing behind them: sanitizers see a kernel that goes too far. */
static void *get(size_t count)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, count)) exit(2);
    memset(p, 0xa5, count);
    return p;
}

/* Calls check(isa) for each instruction set but the scalar one. */
static void on_each(void (*check)(const char *name))
{
    int i;
    for (i = OSCAR_ISA_SCALAR + 1; i < OSCAR_ISA_COUNT; i++) {
        if (oscar_isa_force((oscar_isa)i) != OSCAR_OK) continue;
        check(oscar_isa_name((oscar_isa)i));
    }
    (void)oscar_isa_force(OSCAR_ISA_AUTO);
}

/* Runs what follows on the scalar code, then on the one that was in use. */
static oscar_isa scalar_first(void)
{
    oscar_isa isa = oscar_isa_active();
    CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
    return isa;
}

/* == ROWS OF EVERY KIND == */

enum { PLAIN, ZERO, SIGNED_ZERO, DENORMAL, TINY, LARGE, HUGE_ROW, SPARSE, TIES, CONSTANT, MIXED, NOT_FINITE, KINDS };

static void fill_row(test_random *r, int kind, int dim, float *x)
{
    static const float ties[6] = { -1.5f, -0.5f, 0.5f, 1.5f, 1.0f, -1.0f };
    float scale = kind == DENORMAL ? 1e-41f : kind == TINY ? 1e-22f : kind == LARGE ? 1e4f
                : kind == HUGE_ROW ? 1e18f : 1;
    int i;
    for (i = 0; i < dim; i++) {
        float value = random_float(r) * scale;
        if (kind == ZERO) value = 0;
        if (kind == SIGNED_ZERO) value = random_below(r, 2) ? 0.0f : -0.0f;
        if (kind == SPARSE && random_below(r, 8)) value = random_below(r, 2) ? 0.0f : -0.0f;
        if (kind == TIES) value = ties[random_below(r, 6)];
        if (kind == CONSTANT) value = -0.75f;
        if (kind == MIXED) value *= (float)exp(10.0 * random_normal(r));
        x[i] = value;
    }
    if (kind == NOT_FINITE) x[random_below(r, dim)] = random_below(r, 2) ? (float)NAN : -(float)INFINITY;
}

static int pick_kind(test_random *r, int plain)
{
    return random_below(r, 4) < plain ? PLAIN : random_below(r, NOT_FINITE);
}

static const int dims[] = { 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 512, 1024 };
enum { DIM_COUNT = sizeof dims / sizeof dims[0] };

/* A divisor of dim that a group may have. */
static int pick_group(test_random *r, int dim)
{
    int group;
    if (random_below(r, 2)) return dim;
    do group = 16 * (1 + random_below(r, dim / 16)); while (dim % group);
    return group;
}

/* Symmetric, positive on the diagonal, with no other promise. */
static void fill_metric(test_random *r, int dim, float *m)
{
    int i, j;
    for (i = 0; i < dim; i++) {
        for (j = 0; j < i; j++) m[i * dim + j] = m[j * dim + i] = random_float(r) * 0.3f / (float)sqrt((double)dim);
        m[i * dim + i] = 0.6f + 0.5f * fabsf(random_float(r));
    }
}

/* == TRANSFORMS == */

static void check_fwht(const char *name)
{
    test_random r = { 11 };
    int n, i;
    for (n = 2; n <= 1024; n += 2) {
        int rows = 1 + n / 2 % 3, count = n * rows;
        size_t bytes = (size_t)count * 4;
        float *x = (float *)get(bytes), *a = (float *)get(bytes), *b = (float *)get(bytes);
        oscar_isa isa;
        for (i = 0; i < count; i++) x[i] = n % 3 ? random_float(&r) : (float)(random_below(&r, 3) - 1) * 0.0f;
        CHECK(oscar_fwht(n, (size_t)rows, x, a) == OSCAR_OK);
        isa = scalar_first();
        CHECK(oscar_fwht(n, (size_t)rows, x, b) == OSCAR_OK);
        CHECK(oscar_isa_force(isa) == OSCAR_OK);
        CHECK_MSG(!memcmp(a, b, bytes), ("    %s, n = %d\n", name, n));
        CHECK(oscar_fwht(n, (size_t)rows, x, x) == OSCAR_OK);
        CHECK_MSG(!memcmp(x, b, bytes), ("    %s, n = %d, in place\n", name, n));
        free(x); free(a); free(b);
    }
}

static void rotate_case(const char *name, test_random *r, int n, int rows)
{
    size_t count = (size_t)(n * rows), i;
    float *x = (float *)get(count * 4), *a = (float *)get(count * 4), *b = (float *)get(count * 4);
    float *m = (float *)get((size_t)(n * n) * 4);
    oscar_isa isa;
    for (i = 0; i < count; i++) x[i] = random_float(r);
    for (i = 0; i < (size_t)(n * n); i++) m[i] = random_float(r);
    CHECK(oscar_rotate(n, (size_t)rows, m, x, a) == OSCAR_OK);
    isa = scalar_first();
    CHECK(oscar_rotate(n, (size_t)rows, m, x, b) == OSCAR_OK);
    CHECK(oscar_isa_force(isa) == OSCAR_OK);
    CHECK_MSG(!memcmp(a, b, count * 4), ("    %s, n = %d, %d rows\n", name, n, rows));
    free(x); free(a); free(b); free(m);
}

static void check_rotate(const char *name)
{
    test_random r = { 12 };
    int n, rows, i;
    for (n = 1; n <= 70; n++)
        for (rows = 1; rows <= 9; rows += n < 16 ? 1 : 4) rotate_case(name, &r, n, rows);
    for (i = 0; i < DIM_COUNT - 1; i++) rotate_case(name, &r, dims[i], 1 + i % 5);
    rotate_case(name, &r, 48, 67);
}

static void check_back(const char *name)
{
    test_random r = { 13 };
    int which, i;
    for (which = 0; which < 2 * (DIM_COUNT - 2); which++) {
        int dim = dims[which / 2];
        size_t square = (size_t)(dim * dim), d = (size_t)dim;
        float *to = (float *)get(square * 4), *dual = (float *)get(square * 4), *mean = (float *)get(d * 4);
        float *x = (float *)get(3 * d * 4), *a = (float *)get(3 * d * 4), *b = (float *)get(3 * d * 4);
        oscar_direction way;
        oscar_pair pair;
        memset(&pair, 0, sizeof pair);
        for (i = 0; i < dim * dim; i++) { to[i] = random_float(&r); dual[i] = random_float(&r); }
        for (i = 0; i < dim; i++) mean[i] = random_float(&r);
        for (i = 0; i < 3 * dim; i++) x[i] = random_float(&r);
        pair.kind = which % 2 ? OSCAR_DENSE : OSCAR_HADAMARD;
        pair.dim = dim;
        if (which % 2) { pair.to = to; pair.dual = dual; }
        pair.mean = which % 4 < 2 ? mean : NULL;
        for (i = 0; i < 2; i++) {
            oscar_isa isa;
            way = i ? OSCAR_BACK : OSCAR_FORWARD;
            CHECK(oscar_transform(&pair, way, 3, x, a) == OSCAR_OK);
            isa = scalar_first();
            CHECK(oscar_transform(&pair, way, 3, x, b) == OSCAR_OK);
            CHECK(oscar_isa_force(isa) == OSCAR_OK);
            CHECK_MSG(!memcmp(a, b, 3 * d * 4), ("    %s, dim %d, %s\n", name, dim, i ? "back" : "forward"));
        }
        free(to); free(dual); free(mean); free(x); free(a); free(b);
    }
}

/* == ROWS == */

static void encode_case(const char *name, test_random *r, int dim)
{
    size_t rows = (size_t)(1 + random_below(r, 40)), row, bytes;
    float *x = (float *)get(rows * (size_t)dim * 4), *metric = (float *)get((size_t)(dim * dim) * 4);
    int plain = random_below(r, 5), refused = random_below(r, 4) == 0;
    unsigned char *a, *b;
    oscar_codec c;
    oscar_result result, expected;
    oscar_isa isa;
    memset(&c, 0, sizeof c);
    c.fit = random_below(r, 2) ? OSCAR_CLIP : OSCAR_UNBIASED;
    c.bits = random_below(r, 3) ? 2 : 4;
    c.group = pick_group(r, dim);
    c.clip = random_below(r, 3) ? random_below(r, 100) / 100.0 : -1;
    if (random_below(r, 2)) c.clip = 1 - (1 + random_below(r, 24)) / (double)dim;   /* the largest 24 */
    c.metadata = random_below(r, 3) ? OSCAR_F16 : OSCAR_F32;
    fill_metric(r, dim, metric);
    if (c.fit == OSCAR_UNBIASED && dim <= 128 && random_below(r, 2)) c.metric = metric;
    for (row = 0; row < rows; row++) {
        int kind = refused && random_below(r, 10) == 0 ? NOT_FINITE : pick_kind(r, plain);
        if (!refused && kind == HUGE_ROW && c.metadata == OSCAR_F16) kind = PLAIN;
        if (!refused && kind == MIXED) kind = SPARSE;
        fill_row(r, kind, dim, x + row * (size_t)dim);
    }
    bytes = rows * oscar_row_bytes(&c, dim);
    a = (unsigned char *)get(bytes);
    b = (unsigned char *)get(bytes);
    result = oscar_encode(&c, dim, rows, x, a);
    isa = scalar_first();
    expected = oscar_encode(&c, dim, rows, x, b);
    CHECK(oscar_isa_force(isa) == OSCAR_OK);
    CHECK_MSG(result == expected && !memcmp(a, b, bytes),
              ("    %s: dim %d, fit %d, %d bits, group %d, clip %g, metric %d: %d, expected %d\n", name, dim,
               (int)c.fit, c.bits, c.group, c.clip, c.metric != NULL, (int)result, (int)expected));
    free(x); free(metric); free(a); free(b);
}

static void check_encode(const char *name)
{
    test_random r = { 14 };
    int i;
    for (i = 0; i < 8 * DIM_COUNT; i++)
        if (i < DIM_COUNT || dims[i % DIM_COUNT] <= 128) encode_case(name, &r, dims[i % DIM_COUNT]);
}

/* == PAGES == */

typedef struct page_case {
    oscar_layer layer;
    oscar_pair pairs[2][2];
    float *numbers[8];        /* matrices and means, to free */
    int tokens;
    oscar_type window_type;
    float *k, *v;
} page_case;

static void page_pair(page_case *c, test_random *r, int side, int h, int dim, int metric)
{
    oscar_pair *pair = &c->pairs[side][h];
    float *m = (float *)get((size_t)dim * (size_t)(2 * dim + 1) * 4);
    int i;
    c->numbers[2 * side + h] = m;
    memset(pair, 0, sizeof *pair);
    pair->dim = dim;
    pair->kind = (oscar_kind)random_below(r, 3);
    if (dim > 256 && pair->kind == OSCAR_DENSE) pair->kind = OSCAR_HADAMARD;
    if (pair->kind == OSCAR_DENSE) {
        for (i = 0; i < dim * dim; i++) m[i] = random_float(r) / (float)sqrt((double)dim);
        pair->to = m;
    }
    fill_metric(r, dim, m + dim * dim);
    for (i = 0; i < dim; i++) m[2 * dim * dim + i] = random_float(r);
    if (metric) pair->metric = m + dim * dim;
    if (!side && random_below(r, 2)) pair->mean = m + 2 * dim * dim;
}

static void page_case_fill(page_case *c, test_random *r, int dim, int metric)
{
    oscar_layer *l = &c->layer;
    int side, h, heads = dim > 256 ? 1 : 2, plain = random_below(r, 5), t;
    float offset[1024];
    memset(c, 0, sizeof *c);
    l->q_heads = l->kv_heads = heads;
    l->k_dim = l->v_dim = dim;
    l->k_bits = random_below(r, 3) ? 2 : 4;
    l->v_bits = random_below(r, 5) ? random_below(r, 2) ? 2 : 4 : 16;
    l->k_fit = !metric && random_below(r, 2) ? OSCAR_CLIP : OSCAR_UNBIASED;
    l->v_fit = random_below(r, 2) ? OSCAR_CLIP : OSCAR_UNBIASED;
    l->k_clip = random_below(r, 3) ? 0 : -1;
    l->k_group = pick_group(r, dim);
    l->v_group = pick_group(r, dim);
    l->k_page_mean = random_below(r, 3) ? 1 : -1;
    c->tokens = random_below(r, 3) || dim > 256 ? 64 : 128;
    c->window_type = (oscar_type)random_below(r, 4);
    for (side = 0; side < 2; side++)
        for (h = 0; h < heads; h++) page_pair(c, r, side, h, dim, metric && !side);
    if (random_below(r, 4) || metric) l->k = c->pairs[0];
    if (random_below(r, 2)) l->v = c->pairs[1];
    c->k = (float *)get((size_t)(c->tokens * heads * dim) * 4);
    c->v = (float *)get((size_t)(c->tokens * heads * dim) * 4);
    for (t = 0; t < 1024; t++) offset[t] = random_float(r) * 2;
    for (t = 0; t < c->tokens * heads; t++) {
        int kind = pick_kind(r, plain), i;
        if (kind == HUGE_ROW || kind == MIXED) kind = random_below(r, 300) ? PLAIN : kind;
        fill_row(r, kind, dim, c->k + t * dim);
        fill_row(r, random_below(r, 4) ? PLAIN : random_below(r, LARGE), dim, c->v + t * dim);
        for (i = 0; kind == PLAIN && i < dim; i++) c->k[t * dim + i] += offset[i];
    }
    if (random_below(r, 12) == 0) c->k[random_below(r, c->tokens * heads * dim)] = (float)INFINITY;
    if (random_below(r, 12) == 0) c->v[random_below(r, c->tokens * heads * dim)] = (float)NAN;
}

static void page_case_free(page_case *c)
{
    int i;
    for (i = 0; i < 4; i++) free(c->numbers[i]);
    free(c->k);
    free(c->v);
}

static int page_case_check(const char *name, const page_case *c)
{
    oscar_layout l;
    oscar_view k, v;
    oscar_result result, expected;
    oscar_isa isa;
    unsigned char *a, *b;
    void *scratch;
    memset(&k, 0, sizeof k);
    k.data = c->k;
    v = k;
    v.data = c->v;
    CHECK(oscar_page_layout(&c->layer, c->tokens, c->window_type, NULL, &l) == OSCAR_OK);
    a = (unsigned char *)get(l.bytes);
    b = (unsigned char *)get(l.bytes);
    scratch = get(l.scratch);
    result = oscar_page_write(&l, &k, &v, a, scratch);
    isa = scalar_first();
    expected = oscar_page_write(&l, &k, &v, b, scratch);
    CHECK(oscar_isa_force(isa) == OSCAR_OK);
    CHECK_MSG(result == expected && !memcmp(a, b, l.bytes),
              ("    %s: dim %d, fits %d %d, bits %d %d, groups %d %d, mean %d, metric %d: %d, expected %d\n", name,
               l.layer.k_dim, (int)l.layer.k_fit, (int)l.layer.v_fit, l.layer.k_bits, l.layer.v_bits, l.layer.k_group,
               l.layer.v_group, l.layer.k_page_mean, l.layer.k && l.layer.k[0].metric, (int)result, (int)expected));
    free(a); free(b); free(scratch);
    return result == OSCAR_OK;
}

static void check_pages(const char *name)
{
    test_random r = { 15 };
    int i, written = 0;
    for (i = 0; i < 4 * DIM_COUNT; i++) {
        int dim = dims[i % DIM_COUNT], metric = i / DIM_COUNT % 2;
        page_case c;
        if (i >= DIM_COUNT && dim > 128) continue;
        page_case_fill(&c, &r, dim, metric && dim <= 256);
        written += page_case_check(name, &c);
        page_case_free(&c);
    }
    CHECK_MSG(written > 10, ("    %d pages written\n", written));
}

int main(void)
{
    TEST("Walsh-Hadamard transforms of every even length have the scalar code's bits");
    on_each(check_fwht);
    TEST("dense transforms of every length and number of rows");
    on_each(check_rotate);
    TEST("pairs, forward and back");
    on_each(check_back);
    TEST("encoded rows of every kind, and which rows are refused");
    on_each(check_encode);
    TEST("pages: fits, bits, groups, page mean, metric, window types, and which pages are refused");
    on_each(check_pages);
    return test_end("test_kernels");
}
