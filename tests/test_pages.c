/* test_pages.c - page layout, writing and reading, against the plain reading in reference.h. */
#define _POSIX_C_SOURCE 200112L   /* posix_memalign: scratch that is aligned and ends where its allocation ends */
#include "test.h"

#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "reference.h"

static void *aligned(size_t size)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, size ? size : 1)) exit(2);
    memset(p, 0xff, size);
    return p;
}

static unsigned char *filled(size_t size, int value)
{
    unsigned char *p = (unsigned char *)malloc(size);
    memset(p, value, size);
    return p;
}

static int all_equal(const unsigned char *p, size_t size, int value)
{
    size_t i;
    for (i = 0; i < size; i++) if (p[i] != value) return 0;
    return 1;
}

static oscar_view view_of(const void *data, oscar_type type, ptrdiff_t token_stride, ptrdiff_t head_stride)
{
    oscar_view v;
    v.data = data;
    v.type = type;
    v.token_stride = token_stride;
    v.head_stride = head_stride;
    return v;
}

static oscar_out out_of(void *data, oscar_type type, ptrdiff_t token_stride, ptrdiff_t head_stride)
{
    oscar_out o;
    o.data = data;
    o.type = type;
    o.token_stride = token_stride;
    o.head_stride = head_stride;
    return o;
}

static oscar_layer plain_layer(int heads, int dim)
{
    oscar_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.q_heads = layer.kv_heads = heads;
    layer.k_dim = dim;
    return layer;
}

/* Rows [tokens][heads][dim] of a type. drift: a common vector, of that length against noise of length 1. */
static void *make_rows(test_random *random, oscar_type type, int tokens, int heads, int dim, double drift)
{
    void *rows = malloc((size_t)(tokens * heads * dim) * ref_type_size(type));
    int i, h, t;
    for (h = 0; h < heads; h++)
        for (i = 0; i < dim; i++) {
            double common = drift * random_normal(random), size = random_below(random, 20) ? 1 : 8;
            for (t = 0; t < tokens; t++) {
                double x = common + size * random_normal(random);
                if (t % 7 == 3) x = -3 * common + random_normal(random);     /* a row far from the mean */
                ref_put(type, rows, (t * heads + h) * dim + i, (float)x);
            }
        }
    return rows;
}

/* What a comparison needs: a layer with its layout by both, rows, a page by both. */
typedef struct bench {
    oscar_layer layer;
    oscar_layout layout;
    ref_page want;
    void *scratch;
    unsigned char *page, *expected;             /* by the library, by the reference */
} bench;

static int bench_open(bench *b, const oscar_layer *layer, int tokens, oscar_type type)
{
    b->layer = *layer;
    b->want = ref_page_of(layer, tokens ? tokens : 64, type);
    b->page = b->expected = NULL;
    b->scratch = NULL;
    if (oscar_page_layout(layer, tokens, type, NULL, &b->layout) != OSCAR_OK) return 0;
    b->scratch = aligned(b->layout.scratch);
    b->page = filled(b->layout.bytes, 0xa5);
    b->expected = filled(b->want.bytes, 0);
    return b->layout.bytes == b->want.bytes;
}

static void bench_close(bench *b)
{
    free(b->scratch);
    free(b->page);
    free(b->expected);
}

static void check_layout(const ref_page *want, const oscar_layout *got)
{
    CHECK(got->bytes == want->bytes && got->head_bytes == want->head);
    CHECK(got->k_codes == want->k_codes && got->v_codes == want->v_codes);
    CHECK(got->k_scale == want->k_scale && got->k_min == want->k_min);
    CHECK(got->v_scale == want->v_scale && got->v_min == want->v_min);
    CHECK(got->mean == want->mean && got->mean_scale == want->mean_scale);
    CHECK(got->page_tokens == want->tokens && got->window_type == want->type);
    CHECK(got->layer.v_dim == want->layer.v_dim && got->layer.k_bits == want->layer.k_bits);
    if (want->layer.k_bits != 16) CHECK(got->layer.k_group == want->layer.k_group);
    if (want->layer.v_bits != 16) CHECK(got->layer.v_group == want->layer.v_group);
    CHECK(got->head_bytes % 128 == 0 && got->bytes % 128 == 0);
}

static void test_examples(void)
{
    static const int dims[3] = { 64, 96, 128 };
    static const size_t offsets[3][3] = { { 1024, 3072, 3328 }, { 1536, 4608, 4864 }, { 2048, 6144, 6400 } };
    oscar_layer layer;
    oscar_layout l;
    int i;
    TEST("offsets of the worked examples: K 2 bits, V 4 bits, no page mean");
    for (i = 0; i < 3; i++) {
        layer = plain_layer(3, dims[i]);
        layer.v_bits = 4;
        layer.k_page_mean = -1;
        CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &l) == OSCAR_OK);
        CHECK(l.k_codes == 0 && l.v_codes == offsets[i][0] && l.k_scale == offsets[i][1]);
        CHECK(l.v_scale == l.k_scale + 128 && l.head_bytes == offsets[i][2] && l.bytes == 3 * offsets[i][2]);
        CHECK(l.k_min == OSCAR_ABSENT && l.v_min == OSCAR_ABSENT);
        CHECK(l.mean == OSCAR_ABSENT && l.mean_scale == OSCAR_ABSENT);
    }
    TEST("offsets of the worked examples: with a page mean");
    layer = plain_layer(3, 64);
    layer.v_bits = 4;
    CHECK(oscar_page_layout(&layer, 0, OSCAR_TYPE_DEFAULT, NULL, &l) == OSCAR_OK);
    CHECK(l.page_tokens == 64 && l.window_type == OSCAR_BF16);
    CHECK(l.mean == 9984 && l.mean_scale == 10176 && l.bytes == 10240);
    layer = plain_layer(8, 128);
    layer.v_bits = 4;
    CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &l) == OSCAR_OK);
    CHECK(l.mean == 51200 && l.mean_scale == 52224 && l.bytes == 52352);

    TEST("C10.3 bits a value: 36 bytes a row of 128, 20 of 64 (CLIP); 2.25, 2.125, 2.0625 (UNBIASED)");
    for (i = 64; i <= 256; i *= 2) {
        layer = plain_layer(1, i);
        layer.k_page_mean = -1;
        CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &l) == OSCAR_OK);
        CLOSE((double)l.bytes * 8 / (64.0 * 2 * i), i == 64 ? 2.25 : i == 128 ? 2.125 : 2.0625, 1e-12);
        layer.k_fit = layer.v_fit = OSCAR_CLIP;
        CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &l) == OSCAR_OK);
        CHECK(l.bytes == 64u * 2 * (i == 64 ? 20u : i == 128 ? 36u : 68u));
    }
    TEST("a page mean costs 0.13 bits a key value, and padding");
    layer = plain_layer(64, 128);
    CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &l) == OSCAR_OK);
    CLOSE((double)(l.bytes - l.mean) * 8 / (64.0 * 64 * 128), 0.127, 0.002);
}

static void test_random_layouts(void)
{
    static const int pages[5] = { 0, 64, 128, 192, 640 };
    test_random random = { 41 };
    int i;
    TEST("offsets of 300 random shapes against counting");
    for (i = 0; i < 300; i++) {
        int dk = 16 * (1 + random_below(&random, 64)), other = 16 * (1 + random_below(&random, 64));
        int dv = random_below(&random, 2) ? dk : other;
        int heads = 1 + random_below(&random, 40), tokens = pages[random_below(&random, 5)];
        oscar_type type = (oscar_type)random_below(&random, 4);
        oscar_layer layer = plain_layer(heads, dk);
        oscar_layout got;
        ref_page want;
        layer.v_dim = dv;
        layer.q_heads = heads * (1 + random_below(&random, 5));
        layer.k_bits = 2 << random_below(&random, 2);
        layer.v_bits = 2 << random_below(&random, 2);
        if (random_below(&random, 5) == 0) layer.k_bits = 16;
        if (random_below(&random, 5) == 0) layer.v_bits = 16;
        layer.k_fit = (oscar_fit)random_below(&random, 2);
        layer.v_fit = (oscar_fit)random_below(&random, 2);
        do layer.k_group = 16 * random_below(&random, 65); while (layer.k_group && dk % layer.k_group);
        do layer.v_group = 16 * random_below(&random, 65); while (layer.v_group && dv % layer.v_group);
        layer.k_page_mean = -random_below(&random, 2);
        want = ref_page_of(&layer, tokens ? tokens : 64, type);
        CHECK(oscar_page_layout(&layer, tokens, type, NULL, &got) == OSCAR_OK);
        check_layout(&want, &got);
    }
    TEST("C9.2 zeroed layers of D = 64, 128, 256 have the documented defaults");
    for (i = 64; i <= 256; i *= 2) {
        oscar_layer layer = plain_layer(2, i);
        oscar_layout l;
        CHECK(oscar_page_layout(&layer, 0, OSCAR_TYPE_DEFAULT, NULL, &l) == OSCAR_OK);
        CHECK(l.layer.k_bits == 2 && l.layer.v_bits == 2 && l.layer.v_dim == i);
        CHECK(l.layer.k_fit == OSCAR_UNBIASED && l.layer.v_fit == OSCAR_UNBIASED);
        CHECK(l.layer.k_group == i && l.layer.v_group == i && l.mean != OSCAR_ABSENT);
        CLOSE(l.layer.scale, 1 / sqrt((double)i), 1e-8);
        layer.k_fit = layer.v_fit = OSCAR_CLIP;
        CHECK(oscar_page_layout(&layer, 0, OSCAR_TYPE_DEFAULT, NULL, &l) == OSCAR_OK);
        CLOSE(l.layer.k_clip, 0.96, 0);
        CLOSE(l.layer.v_clip, 0.92, 0);
    }
}

static int log_lines;
static char log_text[512];
static void count_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user; (void)level; (void)code; (void)line;
    log_lines++;
    strncpy(log_text, text, sizeof log_text - 1);
}

/* The layer is refused with that result (SHAPE; other: ARGUMENT will do too), one sentence, and layout unchanged. */
static void check_refused(const char *what, const oscar_layer *layer, int tokens, oscar_type type, int other)
{
    oscar_hooks hooks;
    oscar_layout before, after;
    oscar_result result;
    memset(&hooks, 0, sizeof hooks);
    memset(&before, 0x5a, sizeof before);
    after = before;
    hooks.log = count_log;
    log_lines = 0;
    result = oscar_page_layout(layer, tokens, type, &hooks, &after);
    CHECK_MSG(result == OSCAR_ERR_SHAPE || (other && result == OSCAR_ERR_ARGUMENT),
              ("    %s: %d\n", what, (int)result));
    CHECK_MSG(log_lines == 1, ("    %s: %d sentences\n", what, log_lines));
    CHECK_MSG(!memcmp(&before, &after, sizeof after), ("    %s: layout was changed\n", what));
    result = oscar_page_layout(layer, tokens, type, NULL, &after);
    CHECK_MSG(result != OSCAR_OK, ("    %s\n", what));
}

static void test_refused_shapes(void)
{
    static const int wrong[8] = { 100, 1, 0, -4, 1 << 20, 8, 1040, -16 }, right[4] = { 80, 96, 16, 1024 };
    static const int bad_pages[6] = { 32, 65, 96, -64, 1, 2147483647 };
    static const int heads[8][2] = { { 33, 2 }, { 3, 2 }, { 1, 2 }, { 0, 1 }, { 1, 0 }, { -2, -1 }, { 4, -2 },
                                     { 65537, 65537 } };
    oscar_layer layer;
    oscar_layout l;
    oscar_pair pairs[2];
    int i;
    TEST("C4.3 head sizes that do not fit are refused with a sentence that states the rule");
    for (i = 0; i < 8; i++) {
        layer = plain_layer(2, wrong[i]);
        check_refused("k_dim", &layer, 64, OSCAR_BF16, 0);
        CHECK_MSG(strstr(log_text, "16") && strstr(log_text, "1024"), ("    %s\n", log_text));
        if (wrong[i] == 0) continue;
        layer = plain_layer(2, 64);
        layer.v_dim = wrong[i];
        check_refused("v_dim", &layer, 64, OSCAR_BF16, 0);
    }
    for (i = 0; i < 4; i++) {
        layer = plain_layer(2, right[i]);
        CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &l) == OSCAR_OK);
    }
    TEST("C5.5 head counts that do not divide are refused");
    for (i = 0; i < 8; i++) {
        layer = plain_layer(heads[i][1], 64);
        layer.q_heads = heads[i][0];
        check_refused("heads", &layer, 64, OSCAR_BF16, 0);
    }
    TEST("page sizes, groups, bits, fits and types that do not exist are refused");
    layer = plain_layer(1, 64);
    for (i = 0; i < 6; i++) check_refused("page", &layer, bad_pages[i], OSCAR_BF16, 0);
    check_refused("window type", &layer, 64, (oscar_type)9, 1);
    for (i = 0; i < 14; i++) {
        layer = plain_layer(1, 64);
        if (i == 0) layer.k_group = 24;
        if (i == 1) layer.v_group = 48;
        if (i == 2) layer.k_group = 128;
        if (i == 3) layer.v_group = -16;
        if (i == 4) layer.k_bits = 3;
        if (i == 5) layer.v_bits = 8;
        if (i == 6) layer.k_bits = -2;
        if (i == 7) layer.k_fit = (oscar_fit)2;
        if (i == 8) layer.k_clip = (double)NAN;
        if (i == 9) layer.scale = NAN;
        if (i == 10) layer.softcap = INFINITY;
        if (i == 11) layer.window = -2;
        if (i == 12) layer.v_fit = (oscar_fit)-1;
        if (i == 13) layer.v_clip = (double)NAN;
        check_refused("field", &layer, 64, OSCAR_BF16, 1);
    }
    TEST("pairs that do not fit are refused");
    for (i = 0; i < 5; i++) {
        static const float metric[64 * 64];
        float mean[64] = { 0 };
        memset(pairs, 0, sizeof pairs);
        layer = plain_layer(2, 64);
        pairs[0].dim = pairs[1].dim = 64;
        if (i == 0) { pairs[1].dim = 128; layer.k = pairs; }
        if (i == 1) { pairs[1].kind = OSCAR_DENSE; layer.k = pairs; }          /* no matrix */
        if (i == 2) { pairs[0].mean = mean; layer.v = pairs; }                 /* V has no mean */
        if (i == 3) { pairs[1].kind = (oscar_kind)7; layer.v = pairs; }
        if (i == 4) { pairs[1].metric = metric; layer.v = pairs; }             /* nor a metric */
        check_refused("pair", &layer, 64, OSCAR_BF16, 1);
    }
    CHECK(oscar_page_layout(NULL, 64, OSCAR_BF16, NULL, &l) == OSCAR_ERR_ARGUMENT);
    layer = plain_layer(2, 64);
    CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, NULL) == OSCAR_ERR_ARGUMENT);
}

/* Reads tokens first .. first + count - 1 in one type, at a random stride, and compares with the reference, row by row.
   Returns the number of values that differ. Between and around the rows nothing may be written. */
static int compare_read(const bench *b, test_random *random, int first, int count, oscar_type type, int is_v)
{
    int heads = b->want.layer.kv_heads, dim = is_v ? b->want.layer.v_dim : b->want.layer.k_dim, t, h, i, differ = 0;
    int gap = random_below(random, 3) * 5, by_head = random_below(random, 3) == 0;
    ptrdiff_t token_stride = by_head ? dim + gap : (ptrdiff_t)heads * (dim + gap);
    ptrdiff_t head_stride = by_head ? (ptrdiff_t)count * (dim + gap) : dim + gap;
    size_t each = ref_type_size(type), values = (size_t)(heads * count * (dim + gap)), touched = 0, kept = 0;
    unsigned char *raw = filled(values * each + 1, 0xa5), *data = raw + random_below(random, 2);
    oscar_out out = out_of(data, type, gap || by_head ? token_stride : 0, gap || by_head ? head_stride : 0);
    oscar_result result = oscar_page_read(&b->layout, b->page, first, count, is_v ? NULL : &out, is_v ? &out : NULL,
                                          b->scratch);
    CHECK(result == OSCAR_OK);
    for (t = 0; t < count; t++)
        for (h = 0; h < heads; h++) {
            float want[REF_DIM_MAX];
            ref_row_float(&b->want, b->expected, is_v, h, first + t, type, want);
            for (i = 0; i < dim; i++) differ += ref_get(type, data, t * token_stride + h * head_stride + i) != want[i];
            touched += (size_t)dim * each;
            memset(data + (size_t)(t * token_stride + h * head_stride) * each, 0xa5, (size_t)dim * each);
        }
    kept = (size_t)all_equal(raw, values * each + 1, 0xa5);
    CHECK_MSG(touched && kept, ("    %d rows, gap %d: something between the rows was written\n", count, gap));
    free(raw);
    return differ;
}

static const char *describe(const ref_page *p)
{
    static char text[200];
    snprintf(text, sizeof text, "heads %d, K %d x %d bits, fit %d, group %d, V %d x %d bits, fit %d, group %d, folded "
             "%d, P %d, type %d, mean %d", p->layer.kv_heads, p->layer.k_dim, p->layer.k_bits, (int)p->layer.k_fit,
             p->layer.k_group, p->layer.v_dim, p->layer.v_bits, (int)p->layer.v_fit, p->layer.v_group,
             p->layer.v_folded, p->tokens, (int)p->type, ref_has_mean(&p->layer));
    return text;
}

static int with_mean, without_mean;             /* rows of both choices that the comparison has seen */

static void count_signs(const bench *b)
{
    int h, t, g;
    if (!ref_has_mean(&b->want.layer)) return;
    for (h = 0; h < b->want.layer.kv_heads; h++)
        for (t = 0; t < b->want.tokens; t++) {
            int sign = ref_sign(&b->want, b->page, h, t);
            if (sign) without_mean++;
            else with_mean++;
            for (g = 1; g < b->want.layer.k_dim / b->want.layer.k_group; g++) {
                size_t at = (size_t)h * b->want.head + b->want.k_scale + 2 * (size_t)(g * b->want.tokens + t);
                CHECK((b->page[at + 1] >> 7) == sign);
            }
        }
}

/* Writes one page with both and compares the bytes; then reads it back. */
static void compare_page(bench *b, test_random *random, const oscar_view *k, const oscar_view *v)
{
    oscar_result result = oscar_page_write(&b->layout, k, v, b->page, b->scratch);
    int ok = ref_page_write(&b->want, k, v, b->expected);
    size_t i;
    CHECK_MSG(result == (ok ? OSCAR_OK : OSCAR_ERR_NUMERIC), ("    result %d, %s\n", (int)result, describe(&b->want)));
    if (result != OSCAR_OK) { CHECK(all_equal(b->page, b->want.bytes, 0xa5)); return; }
    if (!ok) return;
    for (i = 0; i < b->want.bytes && b->page[i] == b->expected[i]; i++) {}
    CHECK_MSG(i == b->want.bytes,
              ("    byte %d of %d is %02x, not %02x (head part %d): %s\n", (int)i, (int)b->want.bytes,
               b->page[i % b->want.bytes], b->expected[i % b->want.bytes], (int)b->want.head, describe(&b->want)));
    if (i < b->want.bytes) return;
    count_signs(b);
    for (i = 0; i < 4; i++) {
        int first = random_below(random, b->want.tokens), count = 1 + random_below(random, b->want.tokens - first);
        oscar_type type = (oscar_type)random_below(random, 4);
        int is_v = random_below(random, 2), differ;
        if (b->want.tokens * b->want.layer.k_dim > 8192 && count > 8) count = 8;
        differ = compare_read(b, random, first, count, type, is_v);
        CHECK_MSG(differ == 0, ("    %d values of %c differ, type %d: %s\n", differ, is_v ? 'V' : 'K', (int)type,
                                describe(&b->want)));
    }
}

static void test_random_pages(void)
{
    static const int dims[12] = { 16, 32, 48, 64, 64, 80, 96, 112, 128, 32, 48, 256 };
    static const int tokens[6] = { 64, 64, 64, 64, 128, 192 };
    test_random random = { 53 };
    int i;
    TEST("page bytes of 400 random layers equal the reference's, and rows read back equal its rows");
    for (i = 0; i < 400; i++) {
        int dk = dims[random_below(&random, i % 20 ? 11 : 12)], other = dims[random_below(&random, 11)];
        int dv = random_below(&random, 2) ? dk : other;
        int heads = 1 + random_below(&random, dk > 96 || dv > 96 ? 1 : 3);
        oscar_type k_type = (oscar_type)random_below(&random, 4), v_type = (oscar_type)random_below(&random, 4);
        float *room = (float *)malloc((size_t)(heads * (3 * dk * dk + dk + 2 * dv * dv + dv)) * sizeof(float));
        oscar_pair pairs[6];
        oscar_layer layer = ref_random_layer(&random, heads, 1 + random_below(&random, 3), dk, dv, room, pairs);
        int p = tokens[random_below(&random, 6)];
        void *k = make_rows(&random, k_type, p, heads, dk, i % 3 ? 1.5 : 0);
        void *v = make_rows(&random, v_type, p, heads, dv, 0);
        oscar_view k_view = view_of(k, k_type, 0, 0), v_view = view_of(v, v_type, 0, 0);
        bench b;
        int opened = bench_open(&b, &layer, p, (oscar_type)random_below(&random, 4));
        CHECK_MSG(opened, ("    %s\n", describe(&b.want)));
        if (opened) {
            check_layout(&b.want, &b.layout);
            compare_page(&b, &random, &k_view, &v_view);
        }
        bench_close(&b);
        free(k);
        free(v);
        free(room);
    }
    CHECK_MSG(with_mean > 2000 && without_mean > 2000, ("    %d rows with, %d without\n", with_mean, without_mean));
}

/* All combinations of widths and fits, once each, at one small shape. */
static void test_combinations(void)
{
    static const int widths[3] = { 2, 4, 16 };
    test_random random = { 59 };
    int i;
    TEST("C3.8 K and V of 2, 4, 16 bits and both fits in all combinations, page mean on and off, three window types");
    for (i = 0; i < 3 * 3 * 2 * 2 * 2 * 3; i++) {
        oscar_layer layer = plain_layer(2, 32);
        void *k = make_rows(&random, OSCAR_F32, 64, 2, 32, 1.5), *v = make_rows(&random, OSCAR_F32, 64, 2, 48, 0);
        oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
        bench b;
        layer.v_dim = 48;
        layer.k_bits = widths[i % 3];
        layer.v_bits = widths[i / 3 % 3];
        layer.k_fit = i / 9 % 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.v_fit = i / 18 % 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.k_page_mean = -(i / 36 % 2);
        CHECK(bench_open(&b, &layer, 64, (oscar_type)(OSCAR_F32 + i / 72)));
        compare_page(&b, &random, &k_view, &v_view);
        bench_close(&b);
        free(k);
        free(v);
    }
}

static void test_zero_mean(void)
{
    test_random random = { 61 };
    float k[64 * 32], v[64 * 32];
    int i, kind, t;
    TEST("page mean: zero keys, keys whose mean is zero, equal keys");
    for (kind = 0; kind < 6; kind++) {
        oscar_layer layer = plain_layer(1, 32);
        oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
        bench b;
        layer.k_fit = kind % 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        for (i = 0; i < 64 * 32; i++) {
            v[i] = (float)random_normal(&random);
            k[i] = kind < 2 ? 0.0f : kind < 4 ? (i / 32 % 2 ? -v[i - 32] : v[i]) : (float)(i % 32) * 0.25f - 3.0f;
        }
        CHECK(bench_open(&b, &layer, 64, OSCAR_F32));
        compare_page(&b, &random, &k_view, &v_view);
        if (kind < 4) {
            CHECK(b.page[b.want.mean_scale] == 0 && b.page[b.want.mean_scale + 1] == 0);   /* scale 0, and n = 0.5 */
            CHECK(all_equal(b.page + b.want.mean, 32, 128));
        }
        for (t = 0; t < 64; t++) CHECK(ref_sign(&b.want, b.page, 0, t) == (kind < 4));      /* also on a zero scale */
        if (kind < 2) for (t = 0; t < 64; t++) CHECK(b.page[b.want.k_scale + 2 * (size_t)t + 1] == 0x80);
        CHECK(all_equal(b.page + b.want.mean_scale + 2, b.want.bytes - b.want.mean_scale - 2, 0));   /* padding */
        bench_close(&b);
    }
}

static void test_strides(void)
{
    enum { HQ = 6, HKV = 2, D = 48, P = 64 };
    test_random random = { 67 };
    int i, t, h, c;
    TEST("C3.6 slices of a fused QKV buffer, and rows stored [head][token][dim], give the bytes of contiguous rows");
    for (i = 0; i < 12; i++) {
        oscar_type type = (oscar_type)(OSCAR_F32 + i % 3);
        size_t each = ref_type_size(type);
        ptrdiff_t row = (HQ + 2 * HKV) * D;
        void *k = make_rows(&random, type, P, HKV, D, 1), *v = make_rows(&random, type, P, HKV, D, 0);
        unsigned char *fused = filled((size_t)(row * P) * each, 0xff);
        unsigned char *by_head = filled((size_t)(HKV * P * D) * each, 0xff);
        oscar_layer layer = plain_layer(HKV, D);
        oscar_view k_view = view_of(k, type, 0, 0), v_view = view_of(v, type, 0, 0);
        unsigned char *first;
        bench b;
        layer.q_heads = HQ;
        layer.k_bits = i / 3 == 1 ? 4 : i / 3 == 2 ? 16 : 2;
        layer.v_bits = i / 3 == 3 ? 16 : 2;
        for (t = 0; t < P; t++)
            for (h = 0; h < HKV; h++)
                for (c = 0; c < D; c++) {
                    ref_put(type, fused, t * row + HQ * D + h * D + c, ref_get(type, k, (t * HKV + h) * D + c));
                    ref_put(type, fused, t * row + (HQ + HKV) * D + h * D + c, ref_get(type, v, (t * HKV + h) * D + c));
                    ref_put(type, by_head, (h * P + t) * D + c, ref_get(type, k, (t * HKV + h) * D + c));
                }
        CHECK(bench_open(&b, &layer, P, OSCAR_BF16));
        CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
        first = filled(b.layout.bytes, 0);
        k_view = view_of(fused + HQ * D * each, type, row, D);
        v_view = view_of(fused + (HQ + HKV) * D * each, type, row, D);
        CHECK(oscar_page_write(&b.layout, &k_view, &v_view, first, b.scratch) == OSCAR_OK);
        CHECK(!memcmp(first, b.page, b.layout.bytes));
        k_view = view_of(by_head, type, D, P * D);
        memset(first, 0, b.layout.bytes);
        CHECK(oscar_page_write(&b.layout, &k_view, &v_view, first, b.scratch) == OSCAR_OK);
        CHECK(!memcmp(first, b.page, b.layout.bytes));
        bench_close(&b);
        free(first);
        free(fused);
        free(by_head);
        free(k);
        free(v);
    }

    TEST("C3.7 rows and pages at odd addresses give the same bytes and rows");
    for (i = 1; i < 8; i++) {
        oscar_type type = (oscar_type)(OSCAR_F32 + i % 3);
        size_t size = (size_t)(P * D) * ref_type_size(type);
        void *k = make_rows(&random, type, P, 1, D, 1);
        unsigned char *odd = filled(size + 8, 0), *odd_page, *odd_out = filled((size_t)(P * D) * 4 + 8, 0);
        float *out = (float *)malloc((size_t)(P * D) * 4);
        oscar_layer layer = plain_layer(1, D);
        oscar_view even_view = view_of(k, type, 0, 0), odd_view;
        oscar_out even_out = out_of(out, OSCAR_F32, 0, 0), uneven_out;
        bench b;
        if (i > 5) layer.k_bits = layer.v_bits = 16;
        memcpy(odd + i, k, size);
        odd_view = view_of(odd + i, type, 0, 0);
        CHECK(bench_open(&b, &layer, P, OSCAR_BF16));
        odd_page = filled(b.layout.bytes + 8, 0);
        uneven_out = out_of(odd_out + i, OSCAR_F32, 0, 0);
        CHECK(oscar_page_write(&b.layout, &even_view, &even_view, b.page, b.scratch) == OSCAR_OK);
        CHECK(oscar_page_write(&b.layout, &odd_view, &odd_view, odd_page + i, b.scratch) == OSCAR_OK);
        CHECK(!memcmp(odd_page + i, b.page, b.layout.bytes));
        CHECK(oscar_page_read(&b.layout, b.page, 0, P, &even_out, NULL, b.scratch) == OSCAR_OK);
        CHECK(oscar_page_read(&b.layout, odd_page + i, 0, P, &uneven_out, NULL, b.scratch) == OSCAR_OK);
        CHECK(!memcmp(odd_out + i, out, (size_t)(P * D) * 4));
        bench_close(&b);
        free(odd_page);
        free(odd_out);
        free(odd);
        free(out);
        free(k);
    }
}

static void test_bad_rows(void)
{
    static const float bad[4] = { NAN, INFINITY, -INFINITY, 3.4e38f };   /* the last becomes infinite in BF16 and F16 */
    test_random random = { 71 };
    int i, n = 0;
    TEST("C3.4 NaN, inf or overflow in one row: ERR_NUMERIC and not one byte of the page changed");
    for (i = 0; i < 3 * 3 * 4 * 2 * 2; i++) {
        oscar_type type = i % 3 == 0 ? OSCAR_BF16 : i % 3 == 1 ? OSCAR_F16 : OSCAR_F32;
        int in_v = i / 36 % 2, heads = 2, dim = 32, token = random_below(&random, 64), head = random_below(&random, 2);
        float *k = (float *)make_rows(&random, OSCAR_F32, 64, heads, dim, 1);
        float *v = (float *)make_rows(&random, OSCAR_F32, 64, heads, dim, 0);
        oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
        oscar_layer layer = plain_layer(heads, dim);
        float value = bad[i / 9 % 4];
        bench b;
        layer.k_bits = layer.v_bits = i / 3 % 3 == 0 ? 2 : i / 3 % 3 == 1 ? 4 : 16;
        layer.k_fit = layer.v_fit = i / 72 ? OSCAR_CLIP : OSCAR_UNBIASED;
        CHECK(bench_open(&b, &layer, 64, type));
        CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
        memset(b.page, 0xa5, b.layout.bytes);
        (in_v ? v : k)[(token * heads + head) * dim + random_below(&random, dim)] = value;
        if (type == OSCAR_F32 && i / 9 % 4 == 3 && layer.k_bits == 16) {
            CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
        } else {
            CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_ERR_NUMERIC);
            CHECK(all_equal(b.page, b.layout.bytes, 0xa5));
            CHECK(!ref_page_write(&b.want, &k_view, &v_view, b.expected));
            n++;
        }
        bench_close(&b);
        free(k);
        free(v);
    }
    CHECK(n > 130);

    TEST("C3.4 sums, scales and means beyond their range; the same verdict as the reference");
    for (n = 0, i = 0; i < 300; i++) {
        oscar_layer layer = plain_layer(1, 32);
        double size = pow(10, 2 + i % 30 * (i % 30 < 22 ? 0.25 : 1.2));
        float k[64 * 32], v[64 * 32];
        oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
        int j, hot = random_below(&random, 64), equal = i % 4 == 0;
        bench b;
        layer.k_bits = i / 30 % 2 ? 4 : 2;
        layer.v_bits = i / 60 % 2 ? 4 : 2;
        layer.k_fit = i / 120 % 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.v_fit = i / 240 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.k_page_mean = -random_below(&random, 2);
        for (j = 0; j < 64 * 32; j++) {
            v[j] = (float)random_normal(&random);
            k[j] = equal ? (float)fmin(size * (1 + j % 32), 3e38) : v[j];
            if (j / 32 == hot && !equal) (i % 4 == 1 ? k : v)[j] = (float)fmax(-3e38, fmin(3e38, (double)v[j] * size));
        }
        CHECK(bench_open(&b, &layer, 64, OSCAR_F32));
        compare_page(&b, &random, &k_view, &v_view);
        n += ref_page_write(&b.want, &k_view, &v_view, b.expected);
        bench_close(&b);
    }
    CHECK_MSG(n > 30 && n < 270, ("    %d of 300 written\n", n));
}

/* Two keys with the same huge channel of opposite sign: the clip hides it and the mean cancels, S(x, x) is infinite. */
static void test_hidden_sum(void)
{
    test_random random = { 83 };
    oscar_layer layer = plain_layer(1, 64);
    float k[64 * 64];
    oscar_view view = view_of(k, OSCAR_F32, 0, 0);
    bench b;
    int i;
    TEST("C3.4 an infinite sum that the clip hides is refused where a page mean needs it, accepted where none does");
    for (i = 0; i < 64 * 64; i++) k[i] = (float)random_normal(&random);
    k[5] = 1e20f;
    k[64 + 5] = -1e20f;
    layer.k_fit = layer.v_fit = OSCAR_CLIP;
    layer.k = NULL;
    for (i = 0; i < 2; i++) {
        oscar_pair pair;
        memset(&pair, 0, sizeof pair);
        pair.dim = 64;
        pair.kind = OSCAR_IDENTITY;
        layer.k = layer.v = &pair;
        layer.k_page_mean = -i;
        CHECK(bench_open(&b, &layer, 64, OSCAR_BF16));
        compare_page(&b, &random, &view, &view);
        CHECK(ref_page_write(&b.want, &view, &view, b.expected) == i);
        bench_close(&b);
    }
}

static void test_read_arguments(void)
{
    test_random random = { 73 };
    oscar_layer layer = plain_layer(2, 32);
    void *k = make_rows(&random, OSCAR_F32, 64, 2, 32, 1);
    oscar_view view = view_of(k, OSCAR_F32, 0, 0);
    float out[64 * 64], both[64 * 64];
    oscar_out o = out_of(out, OSCAR_F32, 0, 0), p = out_of(both, OSCAR_F32, 0, 0);
    bench b;
    int first, count;
    CHECK(bench_open(&b, &layer, 64, OSCAR_BF16));
    TEST("page_read of any sub-range equals the same rows of the whole page; K and V in one call or in two");
    CHECK(oscar_page_write(&b.layout, &view, &view, b.page, b.scratch) == OSCAR_OK);
    CHECK(oscar_page_read(&b.layout, b.page, 0, 64, &o, NULL, b.scratch) == OSCAR_OK);
    for (first = 0; first < 64; first += 3)
        for (count = 1; first + count <= 64; count += 5) {
            memset(both, 0xa5, sizeof both);
            CHECK(oscar_page_read(&b.layout, b.page, first, count, &p, NULL, b.scratch) == OSCAR_OK);
            CHECK(!memcmp(both, out + first * 64, (size_t)count * 64 * sizeof(float)));
            CHECK(all_equal((unsigned char *)(both + count * 64), (size_t)(64 - count) * 64 * sizeof(float), 0xa5));
        }
    {
        float v_alone[64 * 64], v_both[64 * 64];
        oscar_out va = out_of(v_alone, OSCAR_F32, 0, 0), vb = out_of(v_both, OSCAR_F32, 0, 0);
        CHECK(oscar_page_read(&b.layout, b.page, 0, 64, NULL, &va, b.scratch) == OSCAR_OK);
        CHECK(oscar_page_read(&b.layout, b.page, 0, 64, &p, &vb, b.scratch) == OSCAR_OK);
        CHECK(!memcmp(both, out, sizeof out) && !memcmp(v_alone, v_both, sizeof v_both));
    }
    TEST("page_read and page_write refuse what is not there");
    memset(both, 0xa5, sizeof both);
    CHECK(oscar_page_read(&b.layout, b.page, -1, 2, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&b.layout, b.page, 0, 65, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&b.layout, b.page, 60, 5, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&b.layout, b.page, 3, -1, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&b.layout, b.page, 2147483647, 2, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&b.layout, NULL, 0, 1, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(NULL, b.page, 0, 1, &p, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_read(&b.layout, b.page, 64, 0, &p, NULL, b.scratch) == OSCAR_OK);
    CHECK(all_equal((unsigned char *)both, sizeof both, 0xa5));
    memset(b.page, 0xa5, b.layout.bytes);
    CHECK(oscar_page_write(NULL, &view, &view, b.page, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_write(&b.layout, NULL, &view, b.page, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_write(&b.layout, &view, NULL, b.page, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_page_write(&b.layout, &view, &view, NULL, b.scratch) == OSCAR_ERR_ARGUMENT);
    view.data = NULL;
    CHECK(oscar_page_write(&b.layout, &view, &view, b.page, b.scratch) == OSCAR_ERR_ARGUMENT);
    CHECK(all_equal(b.page, b.layout.bytes, 0xa5));
    bench_close(&b);
    free(k);
}

static void test_values(void)
{
    test_random random = { 79 };
    float k[64 * 64], v[64 * 64], out[64 * 64];
    oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
    oscar_out o = out_of(out, OSCAR_F32, 0, 0);
    oscar_layer layer = plain_layer(1, 64);
    bench b;
    int i, t, bits;
    TEST("C5.7 one-hot values come back in their place, whatever the keys are");
    for (i = 0; i < 64 * 64; i++) {
        k[i] = (float)random_normal(&random);
        v[i] = i / 64 == i % 64 ? 1.0f : 0.0f;
    }
    CHECK(bench_open(&b, &layer, 64, OSCAR_BF16));
    CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
    CHECK(oscar_page_read(&b.layout, b.page, 0, 64, NULL, &o, b.scratch) == OSCAR_OK);
    for (i = 0; i < 64 * 64; i++) CLOSE(out[i], v[i], 0.0005);
    bench_close(&b);

    TEST("the way back undoes the way in: dense pairs at 2, 4 and 16 bits, plain space");
    for (bits = 2; bits <= 16; bits += bits == 4 ? 12 : 2) {
        float *room = (float *)malloc((2 * 64 * 64 + 64) * sizeof(float));
        oscar_pair pair = ref_random_pair(&random, OSCAR_DENSE, 64, 1, 0, room);
        double error = 0, length = 0;
        layer.k = &pair;
        layer.k_bits = bits;
        for (i = 0; i < 64 * 64; i++) k[i] = (float)random_normal(&random) + pair.mean[i % 64] * 3;
        CHECK(bench_open(&b, &layer, 64, OSCAR_BF16));
        CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
        CHECK(oscar_page_read(&b.layout, b.page, 0, 64, &o, NULL, b.scratch) == OSCAR_OK);
        for (i = 0; i < 64 * 64; i++) {
            error += pow((double)out[i] - (double)k[i], 2);
            length += pow((double)k[i], 2);
            if (bits == 16) CHECK(out[i] == ref_round(OSCAR_BF16, k[i]));
        }
        CHECK_MSG(sqrt(error / length) < (bits == 2 ? 0.5 : bits == 4 ? 0.15 : 0.003), ("    %d bits: %g\n", bits,
                                                                                       sqrt(error / length)));
        bench_close(&b);
        free(room);
    }
    TEST("a page mean makes drifting keys closer");
    {
        double error[2] = { 0, 0 };
        layer = plain_layer(1, 64);
        for (i = 0; i < 64 * 64; i++) k[i] = (float)random_normal(&random) * 0.3f + (float)(i % 64 % 7) - 3.0f;
        for (bits = 0; bits < 2; bits++) {
            layer.k_page_mean = -bits;
            CHECK(bench_open(&b, &layer, 64, OSCAR_BF16));
            CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
            CHECK(oscar_page_read(&b.layout, b.page, 0, 64, &o, NULL, b.scratch) == OSCAR_OK);
            for (t = 0; t < 64 * 64; t++) error[bits] += pow((double)out[t] - (double)k[t], 2);
            bench_close(&b);
        }
        CHECK_MSG(error[0] < error[1] / 4, ("    %g with, %g without\n", error[0], error[1]));
    }
    TEST("rows too large for the output type become its largest finite value");
    layer = plain_layer(1, 64);
    layer.k_bits = layer.v_bits = 16;
    for (i = 0; i < 64 * 64; i++) k[i] = v[i] = i % 2 ? 1e30f : -1e30f;
    CHECK(bench_open(&b, &layer, 64, OSCAR_BF16));
    CHECK(oscar_page_write(&b.layout, &k_view, &v_view, b.page, b.scratch) == OSCAR_OK);
    {
        uint16_t half[64 * 64];
        oscar_out h = out_of(half, OSCAR_F16, 0, 0);
        CHECK(oscar_page_read(&b.layout, b.page, 0, 64, &h, NULL, b.scratch) == OSCAR_OK);
        for (i = 0; i < 64 * 64; i++) CHECK(half[i] == (i % 2 ? 0x7bff : 0xfbff));
    }
    bench_close(&b);
}

int main(void)
{
    test_examples();
    test_random_layouts();
    test_refused_shapes();
    test_combinations();
    test_random_pages();
    test_zero_mean();
    test_strides();
    test_bad_rows();
    test_hidden_sum();
    test_read_arguments();
    test_values();
    return test_end("test_pages");
}
