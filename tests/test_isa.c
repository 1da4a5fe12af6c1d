/* test_isa.c - versions, result texts, and instruction sets: each one of this build is forced in turn and must write
   the same bytes as the scalar code and attend within the tolerance of the manual. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"

enum { HEADS = 2, Q_HEADS = 4, TOKENS = 64, QUERIES = 2 };

static void test_version(void)
{
    TEST("the version of the implementation is the macro's");
    CHECK(oscar_version() == OSCAR_VERSION);
    CHECK(OSCAR_VERSION == OSCAR_VERSION_MAJOR * 10000 + OSCAR_VERSION_MINOR * 100 + OSCAR_VERSION_PATCH);
}

static void test_result_text(void)
{
    static const int outside[] = { -1, OSCAR_RESULT_COUNT, OSCAR_RESULT_COUNT + 1, 10000, INT32_MAX, INT32_MIN };
    int i, j;
    TEST("every result has a sentence of its own");
    for (i = 0; i < OSCAR_RESULT_COUNT; i++) {
        const char *text = oscar_result_text((oscar_result)i);
        CHECK_MSG(text && text[0], ("    result %d\n", i));
        for (j = 0; j < i; j++)
            CHECK_MSG(strcmp(text, oscar_result_text((oscar_result)j)) != 0, ("    results %d and %d\n", i, j));
    }
    CHECK(strcmp(oscar_result_text(OSCAR_OK), "ok") == 0);

    TEST("values out of range have a text that no result has");
    for (i = 0; i < (int)(sizeof outside / sizeof outside[0]); i++) {
        const char *text = oscar_result_text((oscar_result)outside[i]);
        CHECK_MSG(text && text[0], ("    result %d\n", outside[i]));
        for (j = 0; j < OSCAR_RESULT_COUNT; j++)
            CHECK_MSG(strcmp(text, oscar_result_text((oscar_result)j)) != 0, ("    %d and %d\n", outside[i], j));
    }

    TEST("X-macro and enum have the same order and count");
    {
#define COUNT(name, text) + 1
        int count = 0 OSCAR_RESULTS(COUNT);
#undef COUNT
#define NAME(name, text) name,
        static const oscar_result order[] = { OSCAR_RESULTS(NAME) };
#undef NAME
        CHECK(count == OSCAR_RESULT_COUNT);
        for (i = 0; i < count; i++) CHECK((int)order[i] == i);
    }
}

static void test_names(void)
{
    static const int outside[] = { -1, OSCAR_ISA_COUNT, OSCAR_ISA_COUNT + 1, 10000 };
    int i, j;
    TEST("every instruction set has a name of its own");
    for (i = 0; i < OSCAR_ISA_COUNT; i++) {
        const char *name = oscar_isa_name((oscar_isa)i);
        CHECK_MSG(name && name[0], ("    isa %d\n", i));
        for (j = 0; j < i; j++)
            CHECK_MSG(strcmp(name, oscar_isa_name((oscar_isa)j)) != 0, ("    isa %d and %d\n", i, j));
    }
    TEST("values out of range have a name, too");
    for (i = 0; i < (int)(sizeof outside / sizeof outside[0]); i++) {
        const char *name = oscar_isa_name((oscar_isa)outside[i]);
        CHECK_MSG(name && name[0], ("    isa %d\n", outside[i]));
    }
}

static int in_range(oscar_isa isa) { return (int)isa > OSCAR_ISA_AUTO && (int)isa < OSCAR_ISA_COUNT; }

static void test_force(void)
{
    oscar_isa best = oscar_isa_active();
    int i, available = 0;
    TEST("before anything is forced the one in use is a real one");
    CHECK(in_range(best));
    CHECK(oscar_isa_active() == best);

    TEST("the scalar code is in every build");
    CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
    CHECK(oscar_isa_active() == OSCAR_ISA_SCALAR);

    TEST("AUTO returns to the best one");
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
    CHECK(oscar_isa_active() == best);
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
    CHECK(oscar_isa_active() == best);

    TEST("each one is either forced or ERR_ISA and changes nothing");
    for (i = OSCAR_ISA_SCALAR; i < OSCAR_ISA_COUNT; i++) {
        oscar_isa isa = (oscar_isa)i, before = i % 2 ? OSCAR_ISA_SCALAR : best;
        oscar_result result;
        CHECK(oscar_isa_force(before) == OSCAR_OK);
        result = oscar_isa_force(isa);
        CHECK_MSG(result == OSCAR_OK || result == OSCAR_ERR_ISA, ("    %s: %d\n", oscar_isa_name(isa), (int)result));
        CHECK(oscar_isa_active() == (result == OSCAR_OK ? isa : before));
        available += result == OSCAR_OK;
        if (result == OSCAR_ERR_ISA) SKIP(oscar_isa_name(isa), "not in this build or not on this machine");
    }
    CHECK(available >= 1);
    CHECK(oscar_isa_force(best) == OSCAR_OK);   /* the best one can be forced by name, too */

    TEST("values out of range are refused and change nothing");
    CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
    CHECK(oscar_isa_force((oscar_isa)-1) != OSCAR_OK);
    CHECK(oscar_isa_force(OSCAR_ISA_COUNT) != OSCAR_OK);
    CHECK(oscar_isa_force((oscar_isa)1000) != OSCAR_OK);
    CHECK(oscar_isa_active() == OSCAR_ISA_SCALAR);
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);

    TEST("no 64-bit ARM set on x86, and the other way round");
    CHECK(oscar_isa_force(OSCAR_ISA_NEON) == OSCAR_ERR_ISA || oscar_isa_force(OSCAR_ISA_AVX2) == OSCAR_ERR_ISA);
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
}

/* What one instruction set makes of a page: its bytes, and attention over it. */
typedef struct made {
    oscar_layout layout;
    unsigned char *page;
    float *o, *lse;
} made;

static void make(made *m, const oscar_layer *layer, unsigned seed)
{
    static float k[TOKENS * HEADS * 256], v[TOKENS * HEADS * 256], q[QUERIES * Q_HEADS * 256];
    oscar_view kv = { k, OSCAR_F32, 0, 0 }, vv = { v, OSCAR_F32, 0, 0 };
    oscar_attend_desc desc;
    oscar_page_list list;
    const void *pages[1];
    test_random r;
    void *scratch, *raw;
    int i;
    r.state = seed;
    for (i = 0; i < TOKENS * HEADS * 256; i++) k[i] = (float)(random_normal(&r) + 0.5 * sin(i % layer->k_dim));
    for (i = 0; i < TOKENS * HEADS * 256; i++) v[i] = (float)random_normal(&r);
    for (i = 0; i < QUERIES * Q_HEADS * 256; i++) q[i] = (float)random_normal(&r);

    memset(m, 0, sizeof *m);
    CHECK(oscar_page_layout(layer, TOKENS, OSCAR_BF16, NULL, &m->layout) == OSCAR_OK);
    m->page = (unsigned char *)calloc(1, m->layout.bytes);
    m->o = (float *)calloc((size_t)QUERIES * Q_HEADS * 256, sizeof(float));
    m->lse = (float *)calloc(QUERIES * Q_HEADS, sizeof(float));
    raw = malloc(m->layout.scratch + 64);
    scratch = (char *)raw + (64 - (uintptr_t)raw % 64);
    CHECK(oscar_page_write(&m->layout, &kv, &vv, m->page, scratch) == OSCAR_OK);
    free(raw);

    memset(&desc, 0, sizeof desc);
    memset(&list, 0, sizeof list);
    desc.layout = &m->layout;
    desc.q.data = q;
    desc.queries = QUERIES;
    desc.position = TOKENS;
    pages[0] = m->page;
    list.pages = pages;
    list.count = 1;
    CHECK(oscar_attend_pages(&desc, &list, m->o, m->lse) == OSCAR_OK);
}

static void discard(made *m)
{
    free(m->page);
    free(m->o);
    free(m->lse);
}

/* |o - ref|_2 / |ref|_2, the largest over queries and heads. */
static double relative_error(const made *a, const made *ref)
{
    int dim = ref->layout.layer.v_dim, row, i;
    double worst = 0;
    for (row = 0; row < QUERIES * Q_HEADS; row++) {
        double error = 0, norm = 0;
        for (i = 0; i < dim; i++) {
            double x = (double)a->o[row * dim + i], y = (double)ref->o[row * dim + i];
            error += (x - y) * (x - y);
            norm += y * y;
        }
        worst = fmax(worst, sqrt(error / norm));
    }
    return worst;
}

static void test_same_bytes(void)
{
    static const struct { int dim, bits, page_mean; oscar_fit fit; int group; } cases[] = {
        { 128, 2, 0, OSCAR_UNBIASED, 0 },  { 64, 2, -1, OSCAR_CLIP, 0 },     { 96, 4, 0, OSCAR_UNBIASED, 48 },
        { 16, 4, 0, OSCAR_CLIP, 16 },      { 256, 2, 0, OSCAR_CLIP, 64 },    { 80, 2, -1, OSCAR_UNBIASED, 0 },
    };
    int c, i, row;
    TEST("every instruction set writes the same page bytes and attends within 1e-3");
    for (c = 0; c < (int)(sizeof cases / sizeof cases[0]); c++) {
        oscar_layer layer;
        made scalar;
        memset(&layer, 0, sizeof layer);
        layer.q_heads = Q_HEADS;
        layer.kv_heads = HEADS;
        layer.k_dim = cases[c].dim;
        layer.k_bits = layer.v_bits = cases[c].bits;
        layer.k_fit = layer.v_fit = cases[c].fit;
        layer.k_group = layer.v_group = cases[c].group;
        layer.k_page_mean = cases[c].page_mean;
        CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
        make(&scalar, &layer, (unsigned)c);
        for (i = OSCAR_ISA_SCALAR; i < OSCAR_ISA_COUNT; i++) {
            const char *name = oscar_isa_name((oscar_isa)i);
            made other;
            if (oscar_isa_force((oscar_isa)i) != OSCAR_OK) continue;
            make(&other, &layer, (unsigned)c);
            CHECK(other.layout.bytes == scalar.layout.bytes);
            CHECK_MSG(memcmp(other.page, scalar.page, scalar.layout.bytes) == 0, ("    %s, case %d\n", name, c));
            CHECK_MSG(relative_error(&other, &scalar) <= 1e-3,
                      ("    %s, case %d: %g\n", name, c, relative_error(&other, &scalar)));
            for (row = 0; row < QUERIES * Q_HEADS; row++) CLOSE(other.lse[row], scalar.lse[row], 1e-3);
            discard(&other);
        }
        discard(&scalar);
    }
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
}

/* == DOUBLE: eigenvectors, calibration == */

enum { MATRIX = 72, WEIGHED = 150 };   /* MATRIX: no power of two; rows of 72 are no whole number of wide vectors */

/* A = X^T X of 4 MATRIX rows whose channels shrink by up to 10^-grade. */
static void make_matrix(int grade, double *a)
{
    test_random r;
    int row, i, j;
    r.state = (uint64_t)grade + 1;
    memset(a, 0, MATRIX * MATRIX * sizeof *a);
    for (row = 0; row < 4 * MATRIX; row++) {
        double x[MATRIX];
        for (i = 0; i < MATRIX; i++) x[i] = random_normal(&r) * pow(10, -grade * (i * 29 % MATRIX) / (double)MATRIX);
        for (i = 0; i < MATRIX; i++) for (j = 0; j < MATRIX; j++) a[i * MATRIX + j] += x[i] * x[j];
    }
}

static void test_same_eigenvectors(void)
{
    static double a[MATRIX * MATRIX], vectors[2][MATRIX * MATRIX], values[2][MATRIX];
    void *scratch = malloc(oscar_eigh_scratch(MATRIX));
    int grade, isa, i;
    TEST("every instruction set finds the same eigenvalues to 1e-12 and vectors to 1e-8, the same ones each time");
    for (grade = 0; grade <= 5; grade += 5) {
        make_matrix(grade, a);
        CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
        CHECK(oscar_eigh(MATRIX, a, vectors[0], values[0], scratch) == OSCAR_OK);
        for (isa = OSCAR_ISA_SCALAR; isa < OSCAR_ISA_COUNT; isa++) {
            static double again[MATRIX * MATRIX], values_again[MATRIX];
            double value = 0, vector = 0;
            if (oscar_isa_force((oscar_isa)isa) != OSCAR_OK) continue;
            CHECK(oscar_eigh(MATRIX, a, vectors[1], values[1], scratch) == OSCAR_OK);
            CHECK(oscar_eigh(MATRIX, a, again, values_again, scratch) == OSCAR_OK);
            CHECK(memcmp(again, vectors[1], sizeof again) == 0 && memcmp(values_again, values[1], MATRIX * 8) == 0);
            for (i = 0; i < MATRIX; i++) value = fmax(value, fabs(values[1][i] / values[0][i] - 1));
            for (i = 0; i < MATRIX * MATRIX; i++) vector = fmax(vector, fabs(vectors[1][i] - vectors[0][i]));
            CHECK_MSG(value <= 1e-12, ("    %s, grade %d: %g\n", oscar_isa_name((oscar_isa)isa), grade, value));
            CHECK_MSG(vector <= 1e-8, ("    %s, grade %d: %g\n", oscar_isa_name((oscar_isa)isa), grade, vector));
        }
    }
    free(scratch);
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
}

/* Sums of one chunk, both passes: dim 48, masked tokens, a window, softcap and a shift of positions. */
static oscar_calib *make_sums(int halves)
{
    static float q[WEIGHED * Q_HEADS * 48], k[WEIGHED * HEADS * 48];
    static unsigned char mask[WEIGHED];
    static const int shift = 1000;
    oscar_calib_desc desc;
    oscar_calib *calib = NULL;
    oscar_chunk chunk;
    oscar_layer layer;
    oscar_rope rope;
    test_random r;
    int i;
    r.state = 7;
    for (i = 0; i < WEIGHED * Q_HEADS * 48; i++) q[i] = (float)random_normal(&r);
    for (i = 0; i < WEIGHED * HEADS * 48; i++) k[i] = (float)random_normal(&r) + 0.5f;
    for (i = 0; i < WEIGHED; i++) mask[i] = i % 11 != 3;
    memset(&desc, 0, sizeof desc);
    memset(&chunk, 0, sizeof chunk);
    memset(&layer, 0, sizeof layer);
    memset(&rope, 0, sizeof rope);
    layer.q_heads = Q_HEADS;
    layer.kv_heads = HEADS;
    layer.k_dim = 48;
    layer.window = halves ? 0 : 70;
    layer.softcap = halves ? 0 : 5;
    rope.halves = halves;
    rope.dims = 44;
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.sums = OSCAR_SUM_Q | OSCAR_SUM_K | OSCAR_SUM_V | OSCAR_SUM_S;
    desc.sink = 5;
    desc.recent = 20;
    desc.ropes = &rope;
    desc.shifts = &shift;
    desc.shift_count = 1;
    desc.shift_weight = 0.5;
    CHECK(oscar_calib_create(&desc, &calib) == OSCAR_OK);
    chunk.tokens = WEIGHED;
    chunk.mask = mask;
    chunk.q.data = q;
    chunk.k.data = chunk.v.data = k;
    CHECK(oscar_calib_add(calib, 0, &chunk) == OSCAR_OK);
    CHECK(oscar_calib_freeze_q(calib) == OSCAR_OK);
    CHECK(oscar_calib_add(calib, 0, &chunk) == OSCAR_OK);
    return calib;
}

static double apart(const double *x, const double *y, int count)
{
    double error = 0, norm = 0;
    int i;
    for (i = 0; i < count; i++) {
        error = fmax(error, fabs(x[i] - y[i]));
        norm = fmax(norm, fabs(y[i]));
    }
    return error / norm;
}

static void test_same_sums(void)
{
    int halves, isa, h;
    TEST("every instruction set sums a chunk's moments to 1e-12");
    for (halves = 0; halves < 2; halves++) {
        oscar_calib *scalar;
        CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
        scalar = make_sums(halves);
        for (isa = OSCAR_ISA_SCALAR; isa < OSCAR_ISA_COUNT; isa++) {
            oscar_calib *other;
            if (oscar_isa_force((oscar_isa)isa) != OSCAR_OK) continue;
            other = make_sums(halves);
            for (h = 0; h < HEADS; h++) {
                const oscar__sums *x = &other->layers[0].heads[h], *y = &scalar->layers[0].heads[h];
                CHECK(apart(x->q, y->q, 48 * 48) < 1e-12 && apart(x->k, y->k, 48 * 48) < 1e-12);
                CHECK(apart(x->v, y->v, 48 * 48) < 1e-12 && apart(x->s, y->s, 48 * 48) < 1e-12);
                CHECK(apart(x->k_first, y->k_first, 48) < 1e-12);
                CLOSE(x->q_weight / y->q_weight, 1, 1e-12);
                CLOSE(x->k_weight / y->k_weight, 1, 1e-12);
            }
            oscar_calib_destroy(other);
        }
        oscar_calib_destroy(scalar);
    }
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
}

static void test_exp(void)
{
    double x[48], worst, sum;
    int isa, i, j;
    TEST("the exponentials of a row to 1e-14, zero for what is masked out");
    for (isa = OSCAR_ISA_SCALAR; isa < OSCAR_ISA_COUNT; isa++) {
        if (oscar_isa_force((oscar_isa)isa) != OSCAR_OK) continue;
        for (worst = 0, i = 0; i < 200; i++) {
            for (j = 0; j < 48; j++) x[j] = j == 7 ? 3 : 3 - i * 3.5 * j / 48.0 - 1e-3 * i;
            x[40] = -HUGE_VAL;
            sum = oscar__kernels_now()->exp_row(48, x);
            CHECK(sum >= 1 && x[40] <= 0);
            for (j = 0; j < 40; j++) {
                double expected = j == 7 ? 1 : exp((3 - i * 3.5 * j / 48.0 - 1e-3 * i) - 3);
                if (expected > 1e-300) worst = fmax(worst, fabs(x[j] / expected - 1));
                else CHECK(x[j] <= 1e-300);
            }
        }
        CHECK_MSG(worst < 1e-14, ("    %s: %g\n", oscar_isa_name((oscar_isa)isa), worst));
    }
    CHECK(oscar_isa_force(OSCAR_ISA_AUTO) == OSCAR_OK);
}

int main(void)
{
    test_version();
    test_result_text();
    test_names();
    test_force();
    test_same_bytes();
    test_same_eigenvectors();
    test_same_sums();
    test_exp();
    return test_end("test_isa");
}
