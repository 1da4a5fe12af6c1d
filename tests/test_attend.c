/* test_attend.c - attention over pages and rows, and joins, against double arithmetic over the same page bytes.

   Every instruction set of this machine runs all of it. Tolerances: 1e-5 for |o - ref| / |ref| and for lse (relative
   where it is large) of the scalar path, 1e-3 of the others, about 1e-2 with OSCAR_PRECISION_LOW. */
#define _POSIX_C_SOURCE 200112L   /* posix_memalign, as in test_pages.c */
#include "test.h"

#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "reference.h"

static double TOLERANCE = 1e-5;

static oscar_view view_of(const void *data, oscar_type type, ptrdiff_t token_stride, ptrdiff_t head_stride)
{
    oscar_view v;
    v.data = data;
    v.type = type;
    v.token_stride = token_stride;
    v.head_stride = head_stride;
    return v;
}

static void *filled(size_t size, int value)
{
    void *p = malloc(size ? size : 1);
    memset(p, value, size);
    return p;
}

/* == A SETUP: pages, rows and queries of one layer == */

enum { PAGES_MAX = 5, SPANS_MAX = 3, SPARE = 3 };

typedef struct setup {
    float *room;                                /* matrices of the pairs */
    oscar_pair pairs[16];
    oscar_layer layer;
    oscar_layout layout;
    ref_page page;
    int page_count, span_count, queries, dk, dv, hq, hkv;
    unsigned char *pool;                        /* page_count + SPARE pages; ids in random order */
    uint32_t ids[PAGES_MAX];
    const void *pointers[PAGES_MAX];
    void *rows_k[SPANS_MAX], *rows_v[SPANS_MAX], *q;
    oscar_page_list list;
    oscar_row_span spans[SPANS_MAX];
    oscar_attend_desc desc;
    int keys;                                   /* what the reference decoded from all of these */
    double *k, *v;
} setup;

/* Values of a type with a stride between rows; returns a view on them. heads x dim a token. */
static oscar_view make_view(test_random *random, int tokens, int heads, int dim, double size, void **memory)
{
    oscar_type type = (oscar_type)random_below(random, 4);
    int gap = random_below(random, 2) * 3, by_head = random_below(random, 2), t, h, i;
    ptrdiff_t token_stride = by_head ? dim + gap : heads * (dim + gap);
    ptrdiff_t head_stride = by_head ? tokens * (dim + gap) : dim + gap;
    size_t values = (size_t)(tokens * heads * (dim + gap));
    *memory = filled(values * ref_type_size(type), 0xff);                    /* NaN in the gaps */
    for (t = 0; t < tokens; t++)
        for (h = 0; h < heads; h++)
            for (i = 0; i < dim; i++)
                ref_put(type, *memory, t * token_stride + h * head_stride + i, (float)(random_normal(random) * size));
    return view_of(*memory, type, token_stride, head_stride);
}

static void write_page(setup *s, test_random *random, unsigned char *page)
{
    int p = s->page.tokens, i, t;
    float *k = (float *)malloc((size_t)(p * s->hkv * s->dk) * sizeof(float));
    float *v = (float *)malloc((size_t)(p * s->hkv * s->dv) * sizeof(float));
    void *scratch = NULL;
    oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
    if (posix_memalign(&scratch, 64, s->layout.scratch)) exit(2);
    for (i = 0; i < s->hkv * s->dk; i++) {
        double common = 0.7 * random_normal(random);
        for (t = 0; t < p; t++)
            k[t * s->hkv * s->dk + i] = (float)(random_normal(random) + (t % 5 ? common : -2 * common));
    }
    for (i = 0; i < p * s->hkv * s->dv; i++) v[i] = (float)random_normal(random);
    CHECK(oscar_page_write(&s->layout, &k_view, &v_view, page, scratch) == OSCAR_OK);
    free(k);
    free(v);
    free(scratch);
}

/* Pages and spans of a layer; the page list starts at `position`, the spans follow, the queries are the last tokens. */
static void setup_fill(setup *s, test_random *random, int tokens, oscar_type type, int page_count, int span_count,
                       int queries, int64_t position)
{
    int i, j, total = 0;
    int64_t at = position;
    s->page = ref_page_of(&s->layer, tokens, type);
    s->page_count = page_count;
    s->span_count = span_count;
    s->queries = queries;
    s->dk = s->page.layer.k_dim;
    s->dv = s->page.layer.v_dim;
    s->hq = s->layer.q_heads;
    s->hkv = s->layer.kv_heads;
    CHECK(oscar_page_layout(&s->layer, tokens, type, NULL, &s->layout) == OSCAR_OK);
    s->pool = (unsigned char *)filled((size_t)(page_count + SPARE) * s->layout.bytes, 0xff);   /* NaN in spare pages */
    for (i = 0; i < page_count; i++) {
        do {
            s->ids[i] = (uint32_t)random_below(random, page_count + SPARE);
            for (j = 0; j < i && s->ids[j] != s->ids[i]; j++) {}
        } while (j < i);
        s->pointers[i] = s->pool + s->ids[i] * s->layout.bytes;
        write_page(s, random, s->pool + s->ids[i] * s->layout.bytes);
    }
    memset(&s->list, 0, sizeof s->list);
    s->list.pages = s->pointers;
    s->list.count = page_count;
    s->list.position = position;
    at += page_count * tokens;
    for (i = 0; i < span_count; i++) {
        int count = i ? random_below(random, 90) : 1 + random_below(random, 70);
        s->spans[i].count = count;
        s->spans[i].position = at + total;
        s->spans[i].k = make_view(random, count, s->hkv, s->dk, 1, &s->rows_k[i]);
        s->spans[i].v = make_view(random, count, s->hkv, s->dv, 1, &s->rows_v[i]);
        total += count;
    }
    memset(&s->desc, 0, sizeof s->desc);
    s->desc.layout = &s->layout;
    s->desc.queries = queries;
    s->desc.position = at + total - queries;
    if (s->desc.position < at) s->desc.position = at;
    s->desc.q = make_view(random, queries, s->hq, s->dk, 1.5, &s->q);
}

static void setup_close(setup *s)
{
    int i;
    for (i = 0; i < s->span_count; i++) { free(s->rows_k[i]); free(s->rows_v[i]); }
    free(s->pool);
    free(s->q);
    free(s->room);
    free(s->k);
    free(s->v);
}

static float *make_room(int hkv, int dk, int dv)
{
    return (float *)malloc((size_t)(hkv * (3 * dk * dk + dk + 2 * dv * dv + dv)) * sizeof(float));
}

static void setup_random(setup *s, test_random *random, int hkv, int group, int dk, int dv)
{
    static const int widths[6] = { 0, 0, 1, 37, 100, 1000 };
    int tokens = random_below(random, 5) ? 64 : 128, pages = random_below(random, 4);
    int spans = 1 + random_below(random, SPANS_MAX), queries = 1 + random_below(random, 4);
    int position = random_below(random, 100);
    memset(s, 0, sizeof *s);
    s->room = make_room(hkv, dk, dv);
    s->layer = ref_random_layer(random, hkv, group, dk, dv, s->room, s->pairs);
    s->layer.window = widths[random_below(random, 6)];
    if (random_below(random, 4) == 0) s->layer.softcap = 2.5f;
    if (random_below(random, 3) == 0) s->layer.scale = 0.3f;
    setup_fill(s, random, tokens, (oscar_type)random_below(random, 4), pages, spans, queries, position);
}

/* == THE REFERENCE over a setup == */

enum { PAGES = 1, ROWS = 2 };

/* Every key and value of the setup in double, decoded once: [hkv][keys][dim], pages first, then spans. */
static void decode_keys(setup *s)
{
    int head, i, t, x, n;
    for (s->keys = s->page_count * s->page.tokens, i = 0; i < s->span_count; i++) s->keys += (int)s->spans[i].count;
    s->k = (double *)malloc((size_t)(s->hkv * s->keys * s->dk + 1) * sizeof(double));
    s->v = (double *)malloc((size_t)(s->hkv * s->keys * s->dv + 1) * sizeof(double));
    for (head = 0; head < s->hkv; head++) {
        double *k = s->k + head * s->keys * s->dk, *v = s->v + head * s->keys * s->dv;
        for (n = 0, i = 0; i < s->page_count; i++)
            for (t = 0; t < s->page.tokens; t++, n++) {
                const unsigned char *page = s->pool + s->ids[i] * s->page.bytes;
                ref_row_double(&s->page, page, 0, head, t, k + n * s->dk);
                ref_row_double(&s->page, page, 1, head, t, v + n * s->dv);
            }
        for (i = 0; i < s->span_count; i++)
            for (t = 0; t < (int)s->spans[i].count; t++, n++) {
                const oscar_view *kv = &s->spans[i].k, *vv = &s->spans[i].v;
                for (x = 0; x < s->dk; x++) k[n * s->dk + x] = (double)ref_view_value(kv, s->hkv, s->dk, t, head, x);
                for (x = 0; x < s->dv; x++) v[n * s->dv + x] = (double)ref_view_value(vv, s->hkv, s->dv, t, head, x);
            }
    }
}

/* Which keys the query at position `at` sees; parts: PAGES, ROWS or both. */
static void mark_visible(const setup *s, int parts, int64_t at, unsigned char *visible)
{
    int i, t, n = 0;
    int64_t window = s->page.layer.window;
    for (i = 0; i < s->page_count; i++)
        for (t = 0; t < s->page.tokens; t++, n++) {
            int64_t j = s->list.position + i * s->page.tokens + t;
            visible[n] = (parts & PAGES) && !(window > 0 && j <= at - window);
        }
    for (i = 0; i < s->span_count; i++)
        for (t = 0; t < (int)s->spans[i].count; t++, n++) {
            int64_t j = s->spans[i].position + t;
            visible[n] = (parts & ROWS) && j <= at && !(window > 0 && j <= at - window);
        }
}

/* o [queries][hq][dv] and lse [queries][hq] in double over the pages, the rows, or both. */
static void reference_attend(setup *s, int parts, const float *sinks, double *o, double *lse)
{
    int head, query, i, x;
    const oscar_layer *layer = &s->page.layer;
    double q[REF_DIM_MAX];
    unsigned char *visible;
    if (!s->k) decode_keys(s);
    visible = (unsigned char *)malloc((size_t)s->keys + 1);
    for (query = 0; query < s->queries; query++) {
        mark_visible(s, parts, s->desc.position + query, visible);
        for (x = 0; x < s->hq; x++) {
            size_t row = (size_t)(query * s->hq + x);
            head = x * s->hkv / s->hq;
            for (i = 0; i < s->dk; i++) q[i] = (double)ref_view_value(&s->desc.q, s->hq, s->dk, query, x, i);
            ref_attend(s->keys, s->dk, s->dv, q, s->k + head * s->keys * s->dk, s->v + head * s->keys * s->dv, visible,
                       (double)layer->scale, layer->softcap > 0 ? (double)layer->softcap : 0, sinks ? sinks + x : NULL,
                       o + row * (size_t)s->dv, lse + row);
        }
    }
    free(visible);
}

static double worst_o, worst_lse;

/* Compares every row of o and lse with the reference. */
static void compare(const setup *s, const float *o, const float *lse, const double *want_o, const double *want_lse,
                    double tolerance, const char *what)
{
    int row;
    for (row = 0; row < s->queries * s->hq; row++) {
        double error = ref_relative(s->dv, o + row * s->dv, want_o + row * s->dv), off;
        off = want_lse[row] > -HUGE_VAL ? fabs((double)lse[row] - want_lse[row]) / fmax(1, fabs(want_lse[row]))
                                        : (double)lse[row] > -HUGE_VAL ? HUGE_VAL : 0;
        if (lse[row] != lse[row]) off = HUGE_VAL;
        if (error > worst_o) worst_o = error;
        if (off > worst_lse) worst_lse = off;
        CHECK_MSG(error <= tolerance && off <= tolerance,
                  ("    %s row %d: error %g, lse %g against %g; Hq %d, Hkv %d, K %d x %d bits, V %d x %d bits, window "
                   "%d, softcap %g, folded %d, mean %d, pages %d x %d\n", what, row, error, (double)lse[row],
                   want_lse[row], s->hq, s->hkv, s->dk, s->page.layer.k_bits, s->dv, s->page.layer.v_bits,
                   s->layer.window, (double)s->layer.softcap, s->layer.v_folded, ref_has_mean(&s->page.layer),
                   s->page_count, s->page.tokens));
    }
}

typedef struct results { float *o, *lse; double *want_o, *want_lse; } results;

static results results_open(const setup *s)
{
    results r;
    size_t rows = (size_t)(s->queries * s->hq);
    r.o = (float *)filled(rows * (size_t)s->dv * sizeof(float), 0xff);       /* flush: nothing behind the last row */
    r.lse = (float *)filled(rows * sizeof(float), 0xff);
    r.want_o = (double *)malloc(rows * (size_t)s->dv * sizeof(double) + 1);
    r.want_lse = (double *)malloc(rows * sizeof(double) + 1);
    return r;
}

static void results_close(results *r)
{
    free(r->o);
    free(r->lse);
    free(r->want_o);
    free(r->want_lse);
}

/* Pages by both forms of the list, rows, and their join, each against the reference. */
static void check_setup(setup *s, double tolerance)
{
    results a = results_open(s), b = results_open(s);
    size_t lse_size = (size_t)(s->queries * s->hq) * sizeof(float), o_size = lse_size * (size_t)s->dv;
    oscar_page_list by_id = s->list;
    const float *part_o[2], *part_lse[2];
    CHECK(oscar_attend_pages(&s->desc, &s->list, a.o, a.lse) == OSCAR_OK);
    reference_attend(s, PAGES, NULL, a.want_o, a.want_lse);
    compare(s, a.o, a.lse, a.want_o, a.want_lse, tolerance, "pages");
    by_id.pages = NULL;
    by_id.pool = s->pool;
    by_id.ids = s->ids;
    CHECK(oscar_attend_pages(&s->desc, &by_id, b.o, b.lse) == OSCAR_OK);
    CHECK(!memcmp(a.o, b.o, o_size) && !memcmp(a.lse, b.lse, lse_size));
    CHECK(oscar_attend_rows(&s->desc, s->spans, s->span_count, b.o, b.lse) == OSCAR_OK);
    reference_attend(s, ROWS, NULL, b.want_o, b.want_lse);
    compare(s, b.o, b.lse, b.want_o, b.want_lse, tolerance, "rows");
    part_o[0] = a.o;
    part_o[1] = b.o;
    part_lse[0] = a.lse;
    part_lse[1] = b.lse;
    oscar_attend_join(2, part_o, part_lse, s->queries, s->hq, s->dv, NULL, a.o, a.lse);   /* into the first part */
    reference_attend(s, PAGES | ROWS, NULL, a.want_o, a.want_lse);
    compare(s, a.o, a.lse, a.want_o, a.want_lse, tolerance, "join");
    results_close(&a);
    results_close(&b);
}

static void test_random_setups(void)
{
    static const int dims[10] = { 16, 32, 48, 64, 80, 96, 128, 16, 64, 32 };
    test_random random = { 97 };
    int i;
    TEST("300 random layers, pages and row spans: pages, rows and join against double arithmetic");
    for (i = 0; i < 300; i++) {
        int dk = dims[random_below(&random, 10)], dv = random_below(&random, 2) ? dk : dims[random_below(&random, 10)];
        int hkv = 1 + random_below(&random, dk > 64 || dv > 64 ? 1 : 3), group = 1 + random_below(&random, 4);
        setup s;
        setup_random(&s, &random, hkv, group, dk, dv);
        check_setup(&s, TOLERANCE);
        setup_close(&s);
    }
}

/* A layer of given shape, the rest zeroed: 2 bits, dense pairs with means. */
static void setup_plain(setup *s, test_random *random, int hkv, int group, int dk, int dv, int kind)
{
    int h;
    memset(s, 0, sizeof *s);
    s->room = make_room(hkv, dk, dv);
    s->layer.kv_heads = hkv;
    s->layer.q_heads = hkv * group;
    s->layer.k_dim = dk;
    s->layer.v_dim = dv;
    for (h = 0; h < hkv && kind == OSCAR_DENSE; h++) {
        float *room = s->room + h * (2 * dk * dk + dk + 2 * dv * dv + dv);
        s->pairs[h] = ref_random_pair(random, OSCAR_DENSE, dk, 1, 0, room);
        s->pairs[hkv + h] = ref_random_pair(random, OSCAR_DENSE, dv, 0, 1, room + 2 * dk * dk + dk);
        s->layer.k = s->pairs;
        s->layer.v = s->pairs + hkv;
    }
}

static void test_shapes(void)
{
    static const int shapes[10][2] = { { 16, 16 }, { 64, 64 }, { 80, 80 }, { 96, 96 }, { 128, 128 }, { 256, 256 },
                                       { 192, 128 }, { 128, 64 }, { 512, 16 }, { 1024, 1024 } };
    test_random random = { 101 };
    int i, bits;
    TEST("C4.1 head sizes 16 to 1024, K and V of different size, 2, 4 and 16 bits");
    for (i = 0; i < 10; i++)
        for (bits = 2; bits <= 16; bits += bits == 4 ? 12 : 2) {
            setup s;
            int dk = shapes[i][0], dv = shapes[i][1];
            setup_plain(&s, &random, dk > 512 ? 1 : 2, 2, dk, dv, dk < 256 ? OSCAR_DENSE : OSCAR_HADAMARD);
            s.layer.k_bits = bits;
            s.layer.v_bits = bits == 2 ? 4 : bits == 4 ? 16 : 2;
            setup_fill(&s, &random, 64, OSCAR_BF16, dk > 512 ? 1 : 2, 1, 1, 7);
            check_setup(&s, TOLERANCE);
            setup_close(&s);
        }
    TEST("query heads a KV head from 1 to 16");
    for (i = 1; i <= 16; i++) {
        setup s;
        setup_plain(&s, &random, 1 + i % 3, i, 32, 32, OSCAR_DENSE);
        setup_fill(&s, &random, 64, OSCAR_BF16, 1, 2, 2, 0);
        check_setup(&s, TOLERANCE);
        setup_close(&s);
    }
    TEST("groups smaller than the row, both fits, folded values");
    for (i = 0; i < 16; i++) {
        setup s;
        setup_plain(&s, &random, 2, 2, 64, 96, OSCAR_DENSE);
        s.layer.k_group = i % 2 ? 16 : 32;
        s.layer.v_group = i % 2 ? 48 : 16;
        s.layer.k_fit = i & 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        s.layer.v_fit = i & 4 ? OSCAR_CLIP : OSCAR_UNBIASED;
        s.layer.k_bits = i & 4 ? 4 : 2;
        s.layer.v_bits = i & 2 ? 4 : 2;
        s.layer.v_folded = i >= 8;
        setup_fill(&s, &random, 64, OSCAR_F16, 2, 1, 1, 0);
        check_setup(&s, TOLERANCE);
        setup_close(&s);
    }
    TEST("C4.3 head sizes 100, 1, 0, -4 are refused before attention");
    {
        static const int wrong[4] = { 100, 1, 0, -4 };
        for (i = 0; i < 4; i++) {
            oscar_layer layer;
            oscar_layout layout;
            memset(&layer, 0, sizeof layer);
            layer.q_heads = layer.kv_heads = 1;
            layer.k_dim = wrong[i];
            CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &layout) == OSCAR_ERR_SHAPE);
        }
    }
}

static void test_windows(void)
{
    test_random random = { 103 };
    int i, w, cap;
    TEST("sliding windows that cut pages partly, wholly, at every tile, with and without softcap and a given scale");
    for (w = 1; w < 400; w += w < 20 ? 3 : 17)
        for (cap = 0; cap < 2; cap++) {
            setup s;
            setup_plain(&s, &random, 1, 2, 32, 16, OSCAR_HADAMARD);
            s.layer.window = w;
            s.layer.softcap = cap ? 1.5f : 0;
            s.layer.scale = cap ? 0.5f : 0;
            setup_fill(&s, &random, w % 2 ? 64 : 128, OSCAR_BF16, 3, 2, 3, 11);
            check_setup(&s, TOLERANCE);
            setup_close(&s);
        }
    TEST("window and softcap of -1 are none");
    for (i = 0; i < 2; i++) {
        setup s;
        setup_plain(&s, &random, 1, 1, 32, 32, OSCAR_HADAMARD);
        s.layer.window = -1;
        s.layer.softcap = -1;
        setup_fill(&s, &random, 64, OSCAR_BF16, 2, 1, 1, 0);
        s.page.layer.window = 0;
        s.page.layer.softcap = 0;
        check_setup(&s, TOLERANCE);
        setup_close(&s);
    }
    TEST("rows are masked causally, pages are not: queries ahead of the last keys");
    for (i = 0; i < 20; i++) {
        setup s;
        setup_plain(&s, &random, 2, 1, 16, 16, OSCAR_HADAMARD);
        setup_fill(&s, &random, 64, OSCAR_BF16, 1, 3, 4, 0);
        s.desc.position = random_below(&random, 64 + (int)s.spans[0].count);
        check_setup(&s, TOLERANCE);
        setup_close(&s);
    }
    TEST("C4.23 positions beyond 2^32");
    {
        setup s;
        setup_plain(&s, &random, 1, 1, 32, 32, OSCAR_HADAMARD);
        s.layer.window = 150;
        setup_fill(&s, &random, 64, OSCAR_BF16, 3, 2, 2, (int64_t)5 << 32);
        check_setup(&s, TOLERANCE);
        setup_close(&s);
    }
}

static void test_heads(void)
{
    test_random random = { 107 };
    setup s;
    int first, count, i, x;
    TEST("a subset of heads gives the outputs of the whole and leaves the others untouched");
    setup_random(&s, &random, 4, 2, 32, 48);
    for (first = 0; first < 4; first++)
        for (count = first ? 1 : 0; first + count <= 4; count++) {
            results whole = results_open(&s), some = results_open(&s);
            results rows = results_open(&s), some_rows = results_open(&s);
            int last = count ? first + count : 4;
            s.desc.head_first = s.desc.head_count = 0;
            CHECK(oscar_attend_pages(&s.desc, &s.list, whole.o, whole.lse) == OSCAR_OK);
            CHECK(oscar_attend_rows(&s.desc, s.spans, s.span_count, rows.o, rows.lse) == OSCAR_OK);
            s.desc.head_first = first;
            s.desc.head_count = count;
            CHECK(oscar_attend_pages(&s.desc, &s.list, some.o, some.lse) == OSCAR_OK);
            CHECK(oscar_attend_rows(&s.desc, s.spans, s.span_count, some_rows.o, some_rows.lse) == OSCAR_OK);
            for (i = 0; i < s.queries; i++)
                for (x = 0; x < 8; x++) {
                    int row = i * 8 + x, inside = x / 2 >= first && x / 2 < last;
                    uint32_t bits[2];
                    memcpy(&bits[0], some.o + row * 48 + 47, 4);
                    memcpy(&bits[1], some.lse + row, 4);
                    if (!inside) { CHECK(bits[0] == 0xffffffffu && bits[1] == 0xffffffffu); continue; }
                    CHECK(!memcmp(some.o + row * 48, whole.o + row * 48, 48 * sizeof(float)));
                    CHECK(!memcmp(some.lse + row, whole.lse + row, sizeof(float)));
                    CHECK(!memcmp(some_rows.o + row * 48, rows.o + row * 48, 48 * sizeof(float)));
                }
            results_close(&whole);
            results_close(&some);
            results_close(&rows);
            results_close(&some_rows);
        }
    setup_close(&s);
}

static int all_zero(const float *x, int n)
{
    int i;
    for (i = 0; i < n; i++) if (!(x[i] == 0)) return 0;
    return 1;
}

static void test_empty(void)
{
    test_random random = { 109 };
    setup s;
    results r, one;
    const float *part_o[3], *part_lse[3];
    float sinks[4] = { 0.5f, -3, 40, 0 };
    double o_before;
    int i;
    TEST("C5.2 parts without keys: o = 0 and lse = -inf; they are neutral in a join");
    setup_plain(&s, &random, 2, 2, 32, 32, OSCAR_DENSE);
    setup_fill(&s, &random, 64, OSCAR_BF16, 2, 1, 1, 100);
    r = results_open(&s);
    one = results_open(&s);
    s.list.count = 0;
    s.list.pages = NULL;
    CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK);
    CHECK(all_zero(r.o, 4 * 32));
    for (i = 0; i < 4; i++) CHECK((double)r.lse[i] == -HUGE_VAL);
    CHECK(oscar_attend_rows(&s.desc, NULL, 0, r.o, r.lse) == OSCAR_OK);
    CHECK(all_zero(r.o, 4 * 32) && (double)r.lse[3] == -HUGE_VAL);
    s.spans[0].count = 0;
    s.spans[0].k.data = s.spans[0].v.data = NULL;
    CHECK(oscar_attend_rows(&s.desc, s.spans, 1, r.o, r.lse) == OSCAR_OK);
    CHECK(all_zero(r.o, 4 * 32) && (double)r.lse[0] == -HUGE_VAL);
    for (i = 0; i < 3; i++) { part_o[i] = r.o; part_lse[i] = r.lse; }
    oscar_attend_join(3, part_o, part_lse, 1, 4, 32, NULL, one.o, one.lse);
    CHECK(all_zero(one.o, 4 * 32));
    for (i = 0; i < 4; i++) CHECK((double)one.lse[i] == -HUGE_VAL);
    oscar_attend_join(0, NULL, NULL, 1, 4, 32, NULL, one.o, one.lse);
    CHECK(all_zero(one.o, 4 * 32) && (double)one.lse[2] == -HUGE_VAL);
    s.list.pages = s.pointers;
    s.list.count = 2;
    CHECK(oscar_attend_pages(&s.desc, &s.list, one.o, one.lse) == OSCAR_OK);
    o_before = (double)one.o[17];
    part_o[1] = one.o;
    part_lse[1] = one.lse;
    oscar_attend_join(3, part_o, part_lse, 1, 4, 32, NULL, one.o, NULL);
    CLOSE(one.o[17], o_before, 1e-7);
    TEST("C5.2 a window that hides every key of the pages");
    s.layout.layer.window = 5;
    s.desc.position = 100 + 128 + 50;
    CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK && all_zero(r.o, 4 * 32));
    for (i = 0; i < 4; i++) CHECK((double)r.lse[i] == -HUGE_VAL);
    TEST("C5.4 a learned sink over no keys: o = 0, lse = its logit");
    oscar_attend_join(1, part_o, part_lse, 1, 4, 32, sinks, r.o, r.lse);
    CHECK(all_zero(r.o, 4 * 32));
    for (i = 0; i < 4; i++) CLOSE(r.lse[i], sinks[i], 1e-6);
    results_close(&r);
    results_close(&one);
    setup_close(&s);
}

/* Splits the keys of a setup into `parts` pieces: single pages and pieces of spans; joins them in a random order. */
static void check_join(setup *s, test_random *random, int parts, const float *sinks)
{
    results whole = results_open(s), part[16];
    const float *part_o[16], *part_lse[16];
    int64_t page_from = 0;
    int i, j, order[16] = { 0 }, row_from = 0, rows = (int)s->spans[0].count;
    for (i = 0; i < parts; i++) {                                            /* a random order */
        j = random_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (i = 0; i < parts; i++) {
        part[i] = results_open(s);
        if (i < parts / 2 || parts == 1) {                                   /* pages page_from .. to - 1 */
            oscar_page_list list = s->list;
            int left = s->page_count - (int)page_from, last = i == parts / 2 - 1 || parts == 1;
            int64_t to = page_from + (last ? left : random_below(random, left + 1));
            list.pages = s->pointers + page_from;
            list.count = to - page_from;
            list.position = s->list.position + page_from * s->page.tokens;
            CHECK(oscar_attend_pages(&s->desc, &list, part[i].o, part[i].lse) == OSCAR_OK);
            page_from = to;
        } else {
            oscar_row_span span = s->spans[0];
            int to = i == parts - 1 ? rows : row_from + random_below(random, rows - row_from + 1);
            ptrdiff_t k_row = span.k.token_stride * (ptrdiff_t)ref_type_size(span.k.type);
            ptrdiff_t v_row = span.v.token_stride * (ptrdiff_t)ref_type_size(span.v.type);
            span.k.data = (const char *)span.k.data + row_from * k_row;
            span.v.data = (const char *)span.v.data + row_from * v_row;
            span.position += row_from;
            span.count = to - row_from;
            CHECK(oscar_attend_rows(&s->desc, &span, 1, part[i].o, part[i].lse) == OSCAR_OK);
            row_from = to;
        }
    }
    for (i = 0; i < parts; i++) { part_o[i] = part[order[i]].o; part_lse[i] = part[order[i]].lse; }
    reference_attend(s, parts == 1 ? PAGES : PAGES | ROWS, sinks, whole.want_o, whole.want_lse);
    oscar_attend_join(parts, part_o, part_lse, s->queries, s->hq, s->dv, sinks, whole.o, whole.lse);
    compare(s, whole.o, whole.lse, whole.want_o, whole.want_lse, TOLERANCE, "join");
    memset(whole.o, 0xff, sizeof(float));
    oscar_attend_join(parts, part_o, part_lse, s->queries, s->hq, s->dv, sinks, whole.o, NULL);
    compare(s, whole.o, whole.lse, whole.want_o, whole.want_lse, TOLERANCE, "join without lse");
    i = random_below(random, parts);                                         /* into one of the parts, in place */
    oscar_attend_join(parts, part_o, part_lse, s->queries, s->hq, s->dv, sinks, part[i].o, part[i].lse);
    compare(s, part[i].o, part[i].lse, whole.want_o, whole.want_lse, TOLERANCE, "join in place");
    for (i = 0; i < parts; i++) results_close(&part[i]);
    results_close(&whole);
}

static void test_joins(void)
{
    test_random random = { 113 };
    float sinks[8];
    int parts, i, with_sink;
    TEST("C5.4 joins of 1 to 16 parts in any order equal the whole, with a learned sink logit counted once or without");
    for (parts = 1; parts <= 16; parts++)
        for (with_sink = 0; with_sink < 2; with_sink++) {
            setup s;
            setup_plain(&s, &random, 2, 2, 32, 80, OSCAR_DENSE);
            s.layer.softcap = parts % 3 ? 0.0f : 3.0f;
            s.layer.window = parts % 4 ? 0 : 130;
            setup_fill(&s, &random, 64, OSCAR_BF16, 4, 1, 3, 0);
            for (i = 0; i < 4; i++) sinks[i] = (float)random_normal(&random) * 4;
            check_join(&s, &random, parts, with_sink ? sinks : NULL);
            setup_close(&s);
        }
}

/* q and k up to 300: products beyond 1e7; lse and outputs stay finite. */
static void test_large(void)
{
    test_random random = { 127 };
    int i, bits, j;
    TEST("C5.6 large values: entries up to 300, D = 128, products beyond 1e7");
    for (i = 0; i < 6; i++) {
        setup s;
        results r;
        float *q, *k, *v;
        double top = 0;
        void *scratch = NULL;
        bits = i % 3 == 0 ? 2 : i % 3 == 1 ? 4 : 16;
        setup_plain(&s, &random, 1, 2, 128, 128, i < 3 ? OSCAR_HADAMARD : OSCAR_DENSE);
        s.layer.k_bits = bits;
        setup_fill(&s, &random, 64, i % 2 ? OSCAR_F16 : OSCAR_BF16, 1, 1, 1, 0);
        q = (float *)malloc(2 * 128 * sizeof(float));
        k = (float *)malloc(64 * 128 * sizeof(float));
        v = (float *)malloc(64 * 128 * sizeof(float));
        for (j = 0; j < 2 * 128; j++) q[j] = (float)((random_unit(&random) * 2 - 1) * 300);
        for (j = 0; j < 64 * 128; j++) {
            k[j] = (float)((random_unit(&random) * 2 - 1) * 300);
            v[j] = (float)random_normal(&random);
            if (j / 128 == 20) k[j] = q[j % 128] > 0 ? 300.0f : -300.0f;
        }
        {
            oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
            unsigned char *page = s.pool + s.ids[0] * s.layout.bytes;
            if (posix_memalign(&scratch, 64, s.layout.scratch)) exit(2);
            CHECK(oscar_page_write(&s.layout, &k_view, &v_view, page, scratch) == OSCAR_OK);
            free(s.q);
            s.q = q;
            s.desc.q = view_of(q, OSCAR_F32, 0, 0);
            free(s.rows_k[0]);
            free(s.rows_v[0]);
            s.rows_k[0] = k;
            s.rows_v[0] = v;
            s.spans[0].k = k_view;
            s.spans[0].v = v_view;
            s.spans[0].count = 64;
            s.desc.position = 64 + 63;
        }
        check_setup(&s, 10 * TOLERANCE);
        r = results_open(&s);
        reference_attend(&s, PAGES, NULL, r.want_o, r.want_lse);
        for (j = 0; j < 2; j++) top = fmax(top, r.want_lse[j] * sqrt(128));
        CHECK_MSG(top > 2e6, ("    largest product %g\n", top));
        results_close(&r);
        free(scratch);
        setup_close(&s);
    }
}

/* One-hot values make the weights readable in the output. */
static void test_one_hot(void)
{
    test_random random = { 131 };
    setup s;
    results r;
    float *k = (float *)malloc(64 * 64 * sizeof(float)), *v = (float *)calloc(64 * 64, sizeof(float)), weights[64];
    double row[64], top = -HUGE_VAL, sum = 0;
    void *scratch = NULL;
    oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
    int i, t;
    TEST("C5.7 with one-hot values the output is the softmax weights, each in its place");
    setup_plain(&s, &random, 1, 1, 64, 64, OSCAR_HADAMARD);
    setup_fill(&s, &random, 64, OSCAR_BF16, 1, 1, 1, 0);
    for (i = 0; i < 64 * 64; i++) k[i] = (float)random_normal(&random);
    for (t = 0; t < 64; t++) v[t * 64 + t] = 1;
    if (posix_memalign(&scratch, 64, s.layout.scratch)) exit(2);
    CHECK(oscar_page_write(&s.layout, &k_view, &v_view, s.pool + s.ids[0] * s.layout.bytes, scratch) == OSCAR_OK);
    r = results_open(&s);
    CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK);
    for (t = 0; t < 64; t++) {
        double product = 0;
        ref_row_double(&s.page, s.pool + s.ids[0] * s.page.bytes, 0, 0, t, row);
        for (i = 0; i < 64; i++) product += row[i] * (double)ref_view_value(&s.desc.q, 1, 64, 0, 0, i);
        weights[t] = (float)(product / 8);
        top = fmax(top, product / 8);
    }
    for (t = 0; t < 64; t++) sum += exp((double)weights[t] - top);
    for (t = 0; t < 64; t++) CLOSE(r.o[t], exp((double)weights[t] - top) / sum, 0.0006);
    results_close(&r);
    setup_close(&s);
    free(scratch);
    free(k);
    free(v);
}

/* Output error of a page against exact attention, with given widths. */
static double output_error(test_random *random, int k_bits, int v_bits)
{
    enum { D = 64, QUERIES = 16 };
    static float k[64 * D], v[64 * D], q[QUERIES * D], o[QUERIES * D], exact[QUERIES * D], lse[QUERIES];
    oscar_layer layer;
    oscar_layout layout;
    oscar_attend_desc desc;
    oscar_page_list list;
    oscar_row_span span;
    oscar_view k_view = view_of(k, OSCAR_F32, 0, 0), v_view = view_of(v, OSCAR_F32, 0, 0);
    double want[QUERIES * D];
    void *scratch = NULL, *page = NULL;
    const void *pages[1];
    int i;
    memset(&layer, 0, sizeof layer);
    memset(&list, 0, sizeof list);
    memset(&desc, 0, sizeof desc);
    memset(&span, 0, sizeof span);
    layer.q_heads = layer.kv_heads = 1;
    layer.k_dim = D;
    layer.k_bits = k_bits;
    layer.v_bits = v_bits;
    CHECK(oscar_page_layout(&layer, 64, OSCAR_F32, NULL, &layout) == OSCAR_OK);
    if (posix_memalign(&scratch, 64, layout.scratch) || posix_memalign(&page, 64, layout.bytes)) exit(2);
    for (i = 0; i < 64 * D; i++) {
        k[i] = (float)random_normal(random);
        v[i] = (float)random_normal(random);
    }
    for (i = 0; i < QUERIES * D; i++) q[i] = (float)random_normal(random) * 3;    /* logits of deviation 3 */
    CHECK(oscar_page_write(&layout, &k_view, &v_view, page, scratch) == OSCAR_OK);
    desc.layout = &layout;
    desc.q = view_of(q, OSCAR_F32, 0, 0);
    desc.queries = QUERIES;
    desc.position = 64;
    pages[0] = page;
    list.pages = pages;
    list.count = 1;
    span.k = k_view;
    span.v = v_view;
    span.count = 64;
    CHECK(oscar_attend_pages(&desc, &list, o, lse) == OSCAR_OK);
    CHECK(oscar_attend_rows(&desc, &span, 1, exact, lse) == OSCAR_OK);
    for (i = 0; i < QUERIES * D; i++) want[i] = (double)exact[i];
    free(scratch);
    free(page);
    return ref_relative(QUERIES * D, o, want);
}

static void test_apart(void)
{
    test_random random = { 137 };
    double k_error = 0, v_error = 0, both = 0;
    int i;
    TEST("C3.8 K and V set apart: exact K with 2-bit V and the reverse; the error of K is the larger one");
    for (i = 0; i < 10; i++) {
        k_error += output_error(&random, 2, 16);
        v_error += output_error(&random, 16, 2);
        both += output_error(&random, 16, 16);
    }
    CHECK_MSG(k_error > v_error && v_error > 0 && both < 1e-5, ("    K %g, V %g, exact %g\n", k_error, v_error, both));
}

static void test_refused(void)
{
    test_random random = { 139 };
    setup s;
    results r;
    oscar_attend_desc d;
    oscar_page_list list;
    oscar_row_span span;
    int i;
    static const int heads[4][2] = { { 33, 2 }, { 3, 2 }, { 1, 2 }, { 0, 1 } };
    TEST("C5.5 query heads not divisible by KV heads are refused");
    for (i = 0; i < 4; i++) {
        oscar_layer layer;
        oscar_layout layout;
        memset(&layer, 0, sizeof layer);
        layer.q_heads = heads[i][0];
        layer.kv_heads = heads[i][1];
        layer.k_dim = 64;
        CHECK(oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &layout) == OSCAR_ERR_SHAPE);
    }
    TEST("arguments out of range: ERR_ARGUMENT, nothing written");
    setup_plain(&s, &random, 2, 1, 16, 16, OSCAR_HADAMARD);
    setup_fill(&s, &random, 64, OSCAR_BF16, 1, 1, 1, 0);
    r = results_open(&s);
    for (i = 0; i < 16; i++) {
        oscar_result result;
        float *o = r.o, *lse = r.lse;
        const oscar_page_list *pages = &list;
        const oscar_attend_desc *desc = &d;
        d = s.desc;
        list = s.list;
        if (i == 0) d.layout = NULL;
        if (i == 1) d.q.data = NULL;
        if (i == 2) d.q.type = (oscar_type)17;
        if (i == 3) d.queries = -1;
        if (i == 4) d.head_first = 3;
        if (i == 5) d.head_first = -1;
        if (i == 6) d.head_count = 3;
        if (i == 7) { d.head_first = 1; d.head_count = 2; }
        if (i == 8) d.head_count = -1;
        if (i == 9) o = NULL;
        if (i == 10) lse = NULL;
        if (i == 11) pages = NULL;
        if (i == 12) list.count = -1;
        if (i == 13) { list.pages = NULL; list.pool = s.pool; }
        if (i == 14) { list.pages = NULL; list.ids = s.ids; }
        if (i == 15) desc = NULL;
        result = oscar_attend_pages(desc, pages, o, lse);
        CHECK_MSG(result == OSCAR_ERR_ARGUMENT, ("    case %d: %d\n", i, (int)result));
        if (i < 11) result = oscar_attend_rows(desc, s.spans, 1, o, lse);
        CHECK_MSG(result == OSCAR_ERR_ARGUMENT, ("    case %d, rows: %d\n", i, (int)result));
    }
    for (i = 0; i < 6; i++) {
        oscar_result result;
        span = s.spans[0];
        if (i == 0) span.count = -1;
        if (i == 1) span.k.data = NULL;
        if (i == 2) span.v.data = NULL;
        if (i == 3) span.k.type = (oscar_type)-1;
        result = oscar_attend_rows(&s.desc, i == 4 ? NULL : &span, i == 5 ? -1 : 1, r.o, r.lse);
        CHECK_MSG(result == OSCAR_ERR_ARGUMENT, ("    span case %d: %d\n", i, (int)result));
    }
    {
        uint32_t bits[2];
        memcpy(&bits[0], r.o, 4);
        memcpy(&bits[1], r.lse, 4);
        CHECK(bits[0] == 0xffffffffu && bits[1] == 0xffffffffu);
        d = s.desc;
        d.queries = 0;
        CHECK(oscar_attend_pages(&d, &s.list, r.o, r.lse) == OSCAR_OK);
        memcpy(&bits[0], r.o, 4);
        CHECK(bits[0] == 0xffffffffu);
    }
    results_close(&r);
    setup_close(&s);
}

/* == VECTORS: what only they do == */

/* Rows of a layer behind Hadamard transforms, and queries of such a size that logits have deviation 1: queries have 1.5
   and keys 1.3. */
static void test_low(void)
{
    static const int shapes[6][3] = { { 64, 2, 2 }, { 128, 2, 2 }, { 128, 4, 4 }, { 256, 2, 4 }, { 96, 2, 2 },
                                      { 128, 4, 2 } };
    test_random random = { 149 };
    enum { COUNT = 36 };
    double worst = 0, squares = 0;
    int i, j;
    TEST("OSCAR_PRECISION_LOW: 1e-2 over all heads, as a root mean square, and little more for any");
    for (i = 0; i < COUNT; i++) {
        setup s;
        results r;
        double error;
        int dim = shapes[i % 6][0], k_bits = shapes[i % 6][1], v_bits = shapes[i % 6][2];
        setup_plain(&s, &random, 1, 1 + i % 4, dim, dim, OSCAR_HADAMARD);
        s.layer.k_bits = k_bits;
        s.layer.v_bits = v_bits;
        s.layer.k_fit = i % 5 ? OSCAR_UNBIASED : OSCAR_CLIP;
        s.layer.v_fit = i % 7 ? OSCAR_UNBIASED : OSCAR_CLIP;
        s.layer.scale = (float)(0.51 / sqrt(s.layer.k_dim));
        setup_fill(&s, &random, 64, OSCAR_BF16, 5, 1, 16 / (1 + i % 4), 0);
        s.desc.precision = OSCAR_PRECISION_LOW;
        r = results_open(&s);
        CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK);
        reference_attend(&s, PAGES, NULL, r.want_o, r.want_lse);
        error = ref_relative(s.queries * s.hq * s.dv, r.o, r.want_o);
        if (error > worst) worst = error;
        squares += error * error;
        CHECK_MSG(error <= 1.25e-2, ("    D %d, %d and %d bits: %g\n", s.dk, k_bits, v_bits, error));
        for (j = 0; j < s.queries * s.hq; j++) CLOSE(r.lse[j], r.want_lse[j], 2e-2);
        s.desc.precision = (oscar_precision)3;
        CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_ERR_ARGUMENT);
        results_close(&r);
        setup_close(&s);
    }
    CHECK_MSG(sqrt(squares / COUNT) <= 1e-2, ("    root mean square %g\n", sqrt(squares / COUNT)));
    if (getenv("TEST_VERBOSE"))
        printf("  low precision: largest error %.2g, root mean square %.2g\n", worst, sqrt(squares / COUNT));
}

/* Whatever goes together with a query: its result is the same to the bit. */
static void test_alone(void)
{
    test_random random = { 151 };
    int i, query;
    TEST("the result of a query does not depend on the others of the call");
    for (i = 0; i < 12; i++) {
        setup s;
        results all, one;
        setup_plain(&s, &random, 1, 1 + i % 4, 48, 80, OSCAR_DENSE);
        s.layer.window = i % 3 ? 0 : 70 + i;
        s.layer.softcap = i % 5 ? 0.0f : 5.0f;
        s.layer.k_fit = i % 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        setup_fill(&s, &random, 64, OSCAR_BF16, 3, 2, 9, 0);
        all = results_open(&s);
        one = results_open(&s);
        for (query = 0; query < 2; query++) {
            int rows = query, j;
            oscar_attend_desc d = s.desc;
            if (rows) CHECK(oscar_attend_rows(&d, s.spans, 2, all.o, all.lse) == OSCAR_OK);
            else CHECK(oscar_attend_pages(&d, &s.list, all.o, all.lse) == OSCAR_OK);
            for (j = 0; j < 9; j++) {
                size_t at = (size_t)(j * s.hq), values = (size_t)s.hq;
                d.queries = 1;
                d.position = s.desc.position + j;
                d.q.data = (const char *)s.desc.q.data
                           + (ptrdiff_t)j * s.desc.q.token_stride * (ptrdiff_t)ref_type_size(d.q.type);
                if (rows) CHECK(oscar_attend_rows(&d, s.spans, 2, one.o, one.lse) == OSCAR_OK);
                else CHECK(oscar_attend_pages(&d, &s.list, one.o, one.lse) == OSCAR_OK);
                CHECK(!memcmp(one.lse, all.lse + at, values * sizeof(float)));
                CHECK(!memcmp(one.o, all.o + at * (size_t)s.dv, values * (size_t)s.dv * sizeof(float)));
            }
        }
        results_close(&all);
        results_close(&one);
        setup_close(&s);
    }
}

/* One number of a row is not finite: queries that see the row get what is not finite, the others the same as before to
   the bit, whatever goes together with them. */
static void test_hidden(void)
{
    test_random random = { 163 };
    int i, j, x;
    TEST("a row that is not finite does not reach the queries that it is hidden from");
    for (i = 0; i < 48; i++) {
        setup s;
        results before, after;
        int in_k = i % 3 == 0, span, t, channel;
        const oscar_view *view;
        int64_t position;
        float bad = i % 3 == 2 ? HUGE_VALF : (float)NAN;
        setup_plain(&s, &random, 1, 1 + i % 4, 48, 80, OSCAR_DENSE);
        s.layer.window = i % 2 ? 0 : 3 + random_below(&random, 40);
        s.layer.softcap = i % 5 ? 0.0f : 5.0f;
        setup_fill(&s, &random, 64, OSCAR_BF16, 1, 3, 9, 0);
        before = results_open(&s);
        after = results_open(&s);
        CHECK(oscar_attend_rows(&s.desc, s.spans, 3, before.o, before.lse) == OSCAR_OK);
        for (span = 2; span > 0 && s.spans[span].count == 0; span--) {}
        t = (int)s.spans[span].count;
        t -= 1 + random_below(&random, t < 12 ? t : 12);
        position = s.spans[span].position + t;
        channel = random_below(&random, in_k ? 48 : 80);
        view = in_k ? &s.spans[span].k : &s.spans[span].v;
        ref_put(view->type, in_k ? s.rows_k[span] : s.rows_v[span], t * view->token_stride + channel, bad);
        CHECK(oscar_attend_rows(&s.desc, s.spans, 3, after.o, after.lse) == OSCAR_OK);
        for (j = 0; j < 9; j++)
            for (x = 0; x < s.hq; x++) {
                int64_t at = s.desc.position + j;
                int sees = position <= at && !(s.layer.window > 0 && position <= at - s.layer.window);
                size_t row = (size_t)(j * s.hq + x), size = 80 * sizeof(float);
                const float *o = after.o + row * 80;
                if (sees) CHECK(!(o[channel] - o[channel] == 0));
                else CHECK_MSG(!memcmp(o, before.o + row * 80, size) && !memcmp(&after.lse[row], &before.lse[row], 4),
                               ("    case %d, query %d, window %d\n", i, j, s.layer.window));
            }
        results_close(&before);
        results_close(&after);
        setup_close(&s);
    }
}

/* Queries of zeros, of NaN, of infinities, and so large that one key takes all. */
static void test_extremes(void)
{
    static const double sizes[5] = { 0, 1e-30, 1e-6, 1e4, 1e12 };
    test_random random = { 157 };
    int i, j, rows, bad;
    float *q;
    TEST("tied logits, tiny and huge ones; NaN and infinity give NaN");
    for (i = 0; i < 8; i++) {
        setup s;
        results r;
        setup_plain(&s, &random, 1, 3, 64, 64, OSCAR_HADAMARD);
        setup_fill(&s, &random, 64, OSCAR_BF16, 2, 1, 1, 0);
        r = results_open(&s);
        free(s.q);
        s.q = q = (float *)malloc(3 * 64 * sizeof(float));
        s.desc.q = view_of(q, OSCAR_F32, 0, 0);
        for (j = 0; j < 3 * 64; j++) q[j] = (float)(random_normal(&random) * (i < 5 ? sizes[i] : 1));
        for (bad = 0; bad < 3 && i >= 5; bad++)
            q[bad * 64 + 5] = i == 5 ? (float)NAN : i == 6 ? HUGE_VALF : -HUGE_VALF;
        for (rows = 0; rows < 2; rows++) {
            if (rows) CHECK(oscar_attend_rows(&s.desc, s.spans, 1, r.o, r.lse) == OSCAR_OK);
            else CHECK(oscar_attend_pages(&s.desc, &s.list, r.o, r.lse) == OSCAR_OK);
            reference_attend(&s, rows ? ROWS : PAGES, NULL, r.want_o, r.want_lse);
            for (j = 0; j < 3; j++) {
                double off = fabs((double)r.lse[j] - r.want_lse[j]);
                if (i < 5)
                    CHECK_MSG(off <= fmax(1e-3, 1e-4 * fabs(r.want_lse[j])),
                              ("    case %d: %g against %g\n", i, (double)r.lse[j], r.want_lse[j]));
                if (i < 3) CHECK(ref_relative(64, r.o + j * 64, r.want_o + j * 64) <= 1e-3);
                if (i < 5) CHECK(r.o[j * 64] - r.o[j * 64] == 0);
                else if (!rows) CHECK(r.o[j * 64 + 7] != r.o[j * 64 + 7] && r.lse[j] != r.lse[j]);
            }
        }
        results_close(&r);
        setup_close(&s);
    }
}

/* Everything above of the instruction set in use. */
static void test_attention(void)
{
    TOLERANCE = oscar_isa_active() == OSCAR_ISA_SCALAR ? 1e-5 : 1e-3;
    worst_o = worst_lse = 0;
    test_random_setups();
    test_shapes();
    test_windows();
    test_heads();
    test_empty();
    test_joins();
    test_large();
    test_one_hot();
    test_apart();
    test_low();
    test_alone();
    test_hidden();
    test_extremes();
    if (getenv("TEST_VERBOSE"))
        printf("  %s: largest error: outputs %.2g, lse %.2g\n", oscar_isa_name(oscar_isa_active()), worst_o, worst_lse);
}

int main(void)
{
    int isa;
    TEST("the scalar path is there");
    CHECK(oscar_isa_force(OSCAR_ISA_SCALAR) == OSCAR_OK);
    test_refused();
    for (isa = OSCAR_ISA_SCALAR; isa < OSCAR_ISA_COUNT; isa++) {
        if (oscar_isa_force((oscar_isa)isa) != OSCAR_OK) continue;
        test_attention();
    }
    return test_end("test_attend");
}
