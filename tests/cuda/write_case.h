/* write_case.h - one case of writing and reading pages: a layer with matrices, sequences with windows, a step that
   writes pages, and what the CPU makes of it. The program says how the kernels are run, by three functions: those of
   write_kernels.h, or its own. */
#ifndef OSCAR_TEST_WRITE_CASE_H
#define OSCAR_TEST_WRITE_CASE_H

/* What a case looks like. metric: 0 none, 1 positive definite, 2 any symmetric numbers. mixed: 1 rows of many kinds,
   2 pages with a row as far from their mean as from 0; wrong: 1 some rows are bad, 2 so long that scales leave fp16 */
typedef struct write_shape {
    int kv_heads, k_dim, v_dim, k_bits, v_bits, k_clip, v_clip, k_group, v_group, k_kind, v_kind, folded;
    int mean, page_mean, metric, page, window_type, row_type, sink, recent, drafts, entries, before, rows, mixed, wrong;
} write_shape;

enum { WRITE_ENTRIES = 3, WRITE_LAYER = 5 };

/* A sequence: all rows so far and of the step, and what the step does. */
typedef struct write_sequence {
    float *k, *v;              /* [position][head][dim]; as the row type, what came before as the windows hold them */
    int64_t before, rows, history_before, history;
} write_sequence;

typedef struct write_case {
    write_shape shape;
    oscar_layout layout;
    oscar__cu_plan plan;
    oscar_pair *k_pair, *v_pair;
    float *k_to, *k_dual, *k_mean, *k_metric, *v_to, *v_dual, *k_limit, *v_limit;
    oscar_cu_constants constants;
    write_sequence sequence[WRITE_ENTRIES];
    oscar_cu_entry entry[WRITE_ENTRIES + 1];
    unsigned tables[256];
    int ring, pages, slots, most_pages, bad;
    long long stride[4];
    void *k_rows, *v_rows;      /* of the step, in the row type */
    unsigned char *windows[2][2], *pool[2];   /* [side][0: the kernel's, 1: what is expected] */
    size_t window_bytes[2], pool_bytes, row_bytes[2];
    oscar_cu_status status;
    unsigned seed;
} write_case;

/* The constants of a case are known; a step is run (what: 1 pages, 2 windows, 3 both); rows of pages are read into
   rows, or with windows = 1 into the windows of the case. stride: as of write_case; rows: of k and v. 0: it went
   well. */
static void write_set(const oscar__cu_plan *plan);
static int write_run_step(write_case *c, int what);
static int write_run_read(write_case *c, int type, int windows, oscar_cu_rows *items, int count, void *k, void *v,
                          const long long *stride, int rows);

static const write_shape write_fixed[] = {
    /* heads k   v   bits   clip  group   kind  f mean pm metric page types sink recent drafts entries before rows */
    { 2, 128, 128, 2, 2, 0, 0, 0, 0, 2, 2, 0, 1, 1, 1, 64, 2, 2, 4, 8, 1, 1, 75, 1, 1, 0 },
    { 1, 64, 64, 2, 2, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 64, 3, 3, 5, 70, 4, 2, 138, 4, 1, 1 },
    { 2, 32, 48, 4, 4, 0, 1, 16, 16, 1, 0, 0, 1, 1, 2, 128, 1, 1, 0, 0, 1, 1, 127, 1, 1, 0 },
    { 2, 16, 16, 4, 2, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 64, 2, 1, 3, 1, 16, 1, 60, 16, 0, 1 },
    { 1, 48, 80, 16, 4, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 64, 3, 2, 7, 64, 1, 1, 300, 200, 1, 0 },
    { 1, 96, 112, 2, 16, 0, 0, 32, 0, 2, 0, 0, 0, 1, 1, 64, 2, 2, 64, 16, 2, 3, 142, 2, 1, 1 },
    { 1, 32, 528, 2, 2, 0, 0, 0, 0, 2, 0, 0, 0, 1, 1, 128, 2, 2, 1, 3, 1, 1, 131, 1, 1, 0 },
    { 1, 32, 32, 2, 2, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 64, 1, 1, 4, 8, 1, 1, 75, 1, 2, 0 },
    { 2, 32, 48, 2, 4, 0, 1, 0, 16, 1, 0, 0, 0, 0, 1, 64, 1, 1, 4, 8, 1, 1, 75, 1, 1, 2 },
    { 1, 48, 32, 4, 2, 1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 64, 1, 1, 4, 8, 1, 1, 75, 1, 0, 2 }
};

/* -- memory, rows -- */

static void *write_new(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 128, bytes ? bytes : 128)) abort();
    memset(p, 0xa5, bytes);
    return p;
}

static float *write_floats(size_t count) { return (float *)write_new(count * sizeof(float)); }

static float *write_normal(test_random *r, size_t count, double scale)
{
    float *x = write_floats(count);
    size_t i;
    for (i = 0; i < count; i++) x[i] = (float)(random_normal(r) * scale);
    return x;
}

/* A row of one of several kinds. common: what rows of this head have in common. */
static void write_row(test_random *r, int mixed, int dim, const float *common, float *x)
{
    int kind = mixed ? random_below(r, 14) : 0, i;
    double scale = kind == 1 ? 1e-6 : kind == 2 ? 30 : kind == 3 ? 1e-39 : 1;
    for (i = 0; i < dim; i++) x[i] = (float)(random_normal(r) * scale + (kind < 8 ? (double)common[i] * scale : 0));
    if (kind == 9) memset(x, 0, (size_t)dim * sizeof *x);
    for (i = 0; kind == 10 && i < dim; i++) x[i] = 0.75f;
    for (i = 0; kind == 11 && i < dim; i++) x[i] = i == 3 ? -2.0f : 0.0f;
    for (i = 0; kind == 12 && i < dim; i++) x[i] = (float)random_below(r, 3) - 1.0f;
    for (i = 0; kind == 13 && i < dim; i++) x[i] = -0.0f;
}

/* Value of a row whose page has the mean 127.5, which fp16 metadata keep exactly: 6 of a page is as far from it as
   from 0. */
static float write_level(const write_shape *s, int64_t position)
{
    int64_t inside = position < s->sink ? 0 : (position - s->sink) % s->page;
    return inside == 6 ? 63.75f : inside == 7 ? 191.25f : 127.5f;
}

/* Makes a row bad: not finite, or too long. */
static void write_spoil(test_random *r, int dim, float *x)
{
    int kind = random_below(r, 4), i;
    for (i = 0; kind == 3 && i < dim; i++) x[i] = 31000.0f;
    if (kind < 3) x[random_below(r, dim)] = kind == 0 ? (float)NAN : kind == 1 ? -(float)HUGE_VAL : (float)HUGE_VAL;
}

static float *write_rows(test_random *r, const write_case *c, int is_k, int64_t tokens, int64_t before)
{
    const write_shape *s = &c->shape;
    int dim = is_k ? s->k_dim : s->v_dim, h, i;
    size_t row = (size_t)s->kv_heads * (size_t)dim;
    float *x = write_floats((size_t)tokens * row), *common = write_normal(r, row, 1.5);
    int64_t t;
    for (t = 0; t < tokens; t++) {
        for (h = 0; h < s->kv_heads; h++) {
            float *one = x + (size_t)t * row + (size_t)h * (size_t)dim;
            write_row(r, s->mixed, dim, common + (size_t)h * (size_t)dim, one);
            for (i = 0; s->mixed == 2 && i < dim; i++) one[i] = write_level(s, t);
            for (i = 0; s->wrong == 2 && t % 3 == 0 && i < dim; i++) one[i] *= 1e6f;
            if (s->wrong == 1 && random_below(r, 60) == 0) write_spoil(r, dim, one);
        }
        oscar__round_to((oscar_type)(t < before ? s->window_type : s->row_type), x + (size_t)t * row, row);
    }
    free(common);
    return x;
}

/* -- the layer -- */

/* Symmetric: I / 2 and a few squares, or any numbers. */
static float *write_metric(test_random *r, int dim, int any)
{
    float *m = write_floats((size_t)dim * (size_t)dim), *v = write_normal(r, (size_t)dim * 6, 1 / sqrt((double)dim));
    int i, j, k;
    for (i = 0; i < dim; i++)
        for (j = 0; j <= i; j++) {
            double sum = any ? random_normal(r) : i == j ? 0.5 : 0;
            for (k = 0; k < 6; k++) sum += (double)(v[k * dim + i] * v[k * dim + j]) * 3 * (k + 1);
            m[i * dim + j] = m[j * dim + i] = (float)sum;
        }
    free(v);
    return m;
}

static void write_pairs(write_case *c, test_random *r)
{
    const write_shape *s = &c->shape;
    size_t h, heads = (size_t)s->kv_heads, k = (size_t)s->k_dim, v = (size_t)s->v_dim;
    c->k_pair = (oscar_pair *)calloc(heads, sizeof(oscar_pair));
    c->v_pair = (oscar_pair *)calloc(heads, sizeof(oscar_pair));
    if (!c->k_pair || !c->v_pair) abort();
    c->k_to = write_normal(r, heads * k * k, 1 / sqrt((double)k));
    c->k_dual = write_normal(r, heads * k * k, 1 / sqrt((double)k));
    c->v_to = write_normal(r, heads * v * v, 1 / sqrt((double)v));
    c->v_dual = write_normal(r, heads * v * v, 1 / sqrt((double)v));
    c->k_mean = write_normal(r, heads * k, 0.7);
    c->k_metric = write_floats(heads * k * k);
    c->k_limit = write_floats(heads);
    c->v_limit = write_floats(heads);
    for (h = 0; h < heads; h++) {
        oscar_pair *kp = &c->k_pair[h], *vp = &c->v_pair[h];
        float *metric = write_metric(r, s->k_dim, s->metric == 2);
        memcpy(c->k_metric + h * k * k, metric, k * k * sizeof(float));
        free(metric);
        kp->kind = (oscar_kind)s->k_kind;
        vp->kind = (oscar_kind)s->v_kind;
        kp->dim = s->k_dim;
        vp->dim = s->v_dim;
        kp->norm = vp->norm = s->wrong == 2 ? 1e-4f : 1.0f + 0.25f * (float)h;
        if (s->k_kind == OSCAR_DENSE) { kp->to = c->k_to + h * k * k; kp->dual = c->k_dual + h * k * k; }
        if (s->v_kind == OSCAR_DENSE) { vp->to = c->v_to + h * v * v; vp->dual = c->v_dual + h * v * v; }
        if (s->mean) kp->mean = c->k_mean + h * k;
        if (s->metric) kp->metric = c->k_metric + h * k * k;
        c->k_limit[h] = oscar__cu_limit(kp->norm);
        c->v_limit[h] = oscar__cu_limit(s->folded ? 1.0f : vp->norm);
    }
}

static void write_layout(write_case *c)
{
    const write_shape *s = &c->shape;
    oscar_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.q_heads = layer.kv_heads = s->kv_heads;
    layer.k_dim = s->k_dim;
    layer.v_dim = s->v_dim;
    layer.k_bits = s->k_bits;
    layer.v_bits = s->v_bits;
    layer.k_fit = s->k_clip ? OSCAR_CLIP : OSCAR_UNBIASED;
    layer.v_fit = s->v_clip ? OSCAR_CLIP : OSCAR_UNBIASED;
    layer.k_clip = s->k_clip == 2 ? -1 : s->k_clip == 3 ? 0.5 : 0;
    layer.v_clip = s->v_clip == 2 ? -1 : s->v_clip == 3 ? 0.5 : 0;
    layer.k_group = s->k_group;
    layer.v_group = s->v_group;
    layer.k_page_mean = s->page_mean ? 1 : -1;
    layer.v_folded = s->folded;
    layer.k = c->k_pair;
    layer.v = c->v_pair;
    if (oscar_page_layout(&layer, s->page, (oscar_type)s->window_type, NULL, &c->layout)) abort();
}

static oscar_cuda_options write_options(const write_shape *s)
{
    oscar_cuda_options options;
    memset(&options, 0, sizeof options);
    options.sink = s->sink ? s->sink : -1;
    options.recent = s->recent ? s->recent : -1;
    options.max_draft = s->drafts ? s->drafts : -1;
    options.row_type = (oscar_type)s->row_type;
    return options;
}

/* Constants and shapes as the host makes them. */
static void write_plan(write_case *c)
{
    oscar__cu_limits limits = oscar__cu_limits_of(90, 0);
    oscar_cuda_options options = write_options(&c->shape);
    if (oscar__cu_plan_of(&c->layout, &options, &limits, NULL, &c->plan)) abort();
    if (c->plan.constants.value[OSCAR__CU_RING] != c->ring) abort();
    write_set(&c->plan);
}

/* -- the step -- */

static int64_t write_history(const write_shape *s, int64_t n)
{
    int64_t whole = (n - s->sink - s->recent) / s->page;
    return n < s->sink + s->recent ? 0 : whole * s->page;
}

static int64_t write_place(const write_case *c, int64_t position)
{
    int64_t sink = c->shape.sink;
    return position < sink ? position : sink + (position - sink) % c->ring;
}

/* Rows of the windows as they stood before the step. */
static void write_windows(write_case *c, int is_k)
{
    const write_shape *s = &c->shape;
    int side = !is_k, e;
    size_t dim = (size_t)(is_k ? s->k_dim : s->v_dim), row = dim * (size_t)s->kv_heads;
    size_t each = oscar__type_size((oscar_type)s->window_type);
    c->window_bytes[side] = (size_t)c->slots * (size_t)(s->sink + c->ring) * row * each;
    c->windows[side][0] = (unsigned char *)write_new(c->window_bytes[side]);
    for (e = 0; e < s->entries; e++) {
        const write_sequence *q = &c->sequence[e];
        unsigned char *slot = c->windows[side][0]
                              + (size_t)c->entry[e].slot * (size_t)(s->sink + c->ring) * row * each;
        int64_t p, first = s->sink + q->history_before;
        for (p = 0; p < q->before; p++) {
            if (p >= s->sink && p < first) continue;
            oscar__store((oscar_type)s->window_type, (is_k ? q->k : q->v) + (size_t)p * row, row,
                         slot + (size_t)write_place(c, p) * row * each);
        }
    }
    c->windows[side][1] = (unsigned char *)write_new(c->window_bytes[side]);
    memcpy(c->windows[side][1], c->windows[side][0], c->window_bytes[side]);
}

static size_t write_row_bytes(const write_case *c, int is_k, int tokens)
{
    return ((size_t)tokens * (size_t)c->stride[is_k ? 0 : 2] + 64) * oscar__type_size((oscar_type)c->shape.row_type);
}

/* Rows of all entries with gaps between tokens and heads. */
static void *write_step_rows(const write_case *c, int is_k, int tokens)
{
    const write_shape *s = &c->shape;
    size_t dim = (size_t)(is_k ? s->k_dim : s->v_dim), each = oscar__type_size((oscar_type)s->row_type);
    size_t token = (size_t)c->stride[is_k ? 0 : 2], head = (size_t)c->stride[is_k ? 1 : 3], h, t;
    unsigned char *out = (unsigned char *)write_new(write_row_bytes(c, is_k, tokens));
    int e;
    for (e = 0; e < s->entries; e++) {
        const write_sequence *q = &c->sequence[e];
        const float *x = (is_k ? q->k : q->v) + (size_t)q->before * dim * (size_t)s->kv_heads;
        for (t = 0; t < (size_t)q->rows; t++)
            for (h = 0; h < (size_t)s->kv_heads; h++, x += dim)
                oscar__store((oscar_type)s->row_type, x, dim,
                             out + (((size_t)c->entry[e].row + t) * token + h * head) * each);
    }
    return out;
}

static void write_entry(write_case *c, test_random *r, int e, int *row, int *table)
{
    const write_shape *s = &c->shape;
    write_sequence *q = &c->sequence[e];
    oscar_cu_entry *out = &c->entry[e];
    int i;
    q->before = e ? random_below(r, s->before + 1) : s->before;
    q->rows = s->rows;
    q->history_before = write_history(s, q->before);
    q->history = write_history(s, q->before + q->rows);
    if (q->history < q->history_before) q->history = q->history_before;
    q->k = write_rows(r, c, 1, q->before + q->rows, q->before);
    q->v = write_rows(r, c, 0, q->before + q->rows, q->before);
    out->position = q->before;
    out->history = q->history;
    out->write_first = q->history_before / s->page;
    out->write_count = (int)((q->history - q->history_before) / s->page);
    out->row = *row;
    out->rows = (int)q->rows;
    out->slot = (unsigned)((e + 1) % c->slots);
    out->table = *table;
    for (i = 0; i < (int)(q->history / s->page); i++) c->tables[*table + i] = (unsigned)(2 * (*table + i) + 1);
    *table += i;
    *row += (int)q->rows + 1;
    if (out->write_count > c->most_pages) c->most_pages = out->write_count;
}

/* Pairs and layout: all that a compiler needs. */
static write_case *write_case_layout(const write_shape *shape, unsigned seed, test_random *r)
{
    write_case *c = (write_case *)calloc(1, sizeof *c);
    if (!c) abort();
    r->state = seed;
    c->shape = *shape;
    c->seed = seed;
    write_pairs(c, r);
    write_layout(c);
    return c;
}

static write_case *write_case_new(const write_shape *shape, unsigned seed)
{
    test_random r;
    write_case *c = write_case_layout(shape, seed, &r);
    int e, row = 2, table = 1;
    c->ring = shape->recent + shape->page - 1 + (shape->drafts > 1 ? shape->drafts : 1);
    c->slots = shape->entries + 1;
    write_plan(c);
    c->stride[1] = shape->k_dim + 2;
    c->stride[0] = c->stride[1] * shape->kv_heads + 3;
    c->stride[3] = shape->v_dim;
    c->stride[2] = c->stride[3] * shape->kv_heads;
    for (e = 0; e < shape->entries; e++) write_entry(c, &r, e, &row, &table);
    memset(&c->entry[shape->entries], 0, sizeof *c->entry);   /* padding */
    write_windows(c, 1);
    write_windows(c, 0);
    c->k_rows = write_step_rows(c, 1, row);
    c->v_rows = write_step_rows(c, 0, row);
    c->row_bytes[0] = write_row_bytes(c, 1, row);
    c->row_bytes[1] = write_row_bytes(c, 0, row);
    c->pages = 2 * table + 2;
    c->pool_bytes = (size_t)c->pages * c->layout.bytes;
    c->pool[0] = (unsigned char *)write_new(c->pool_bytes);
    c->pool[1] = (unsigned char *)write_new(c->pool_bytes);
    c->constants.k_to = c->k_to;
    c->constants.k_dual = c->k_dual;
    c->constants.k_mean = c->k_mean;
    c->constants.k_metric = c->k_metric;
    c->constants.v_to = c->v_to;
    c->constants.v_dual = c->v_dual;
    c->constants.k_limit = c->k_limit;
    c->constants.v_limit = c->v_limit;
    return c;
}

static void write_case_free(write_case *c)
{
    int e;
    free(c->k_pair); free(c->v_pair); free(c->k_to); free(c->k_dual); free(c->k_mean); free(c->k_metric);
    free(c->v_to); free(c->v_dual); free(c->k_limit); free(c->v_limit); free(c->k_rows); free(c->v_rows);
    for (e = 0; e < WRITE_ENTRIES; e++) { free(c->sequence[e].k); free(c->sequence[e].v); }
    for (e = 0; e < 2; e++) { free(c->windows[e][0]); free(c->windows[e][1]); free(c->pool[e]); }
    free(c);
}

/* -- what is expected -- */

/* A row as a page gets it, rounded. A bad one, if it is to be quantised, becomes NaN, which the cache's code takes for
   a zero row. */
static void write_expected_row(write_case *c, int is_k, const float *x, int h, float *out)
{
    const write_shape *s = &c->shape;
    size_t dim = (size_t)(is_k ? s->k_dim : s->v_dim), i;
    const oscar_pair *pair = is_k ? &c->k_pair[h] : &c->v_pair[h];
    int bits = is_k ? s->k_bits : s->v_bits, bad;
    float centred[OSCAR__DIM_MAX];
    memcpy(out, x, dim * sizeof(float));
    oscar__round_to((oscar_type)s->window_type, out, dim);
    bad = !oscar__finite(out, dim);
    if (bits != 16) {
        memcpy(centred, out, dim * sizeof(float));
        if (pair->mean) oscar__centre_row((int)dim, out, pair->mean, centred);
        bad = bad || !(oscar__sum_products((int)dim, centred, centred) <= (is_k ? c->k_limit : c->v_limit)[h]);
    }
    c->bad += bad;
    for (i = 0; bad && bits != 16 && i < dim; i++) out[i] = (float)NAN;
}

static void write_expected_page(write_case *c, const write_sequence *q, int64_t index, unsigned char *page)
{
    const write_shape *s = &c->shape;
    int64_t start = s->sink + index * s->page;
    int side, h, t;
    for (side = 0; side < 2; side++) {
        size_t dim = (size_t)(side ? s->v_dim : s->k_dim);
        float *rows = write_floats(oscar__page_floats(dim, s->page));
        for (h = 0; h < s->kv_heads; h++) {
            for (t = 0; t < s->page; t++) {
                size_t at = ((size_t)(start + t) * (size_t)s->kv_heads + (size_t)h) * dim;
                write_expected_row(c, !side, (side ? q->v : q->k) + at, h, rows + (size_t)t * dim);
            }
            if (oscar__page_put(&c->layout, !side, h, OSCAR__SATURATE, rows, page)) abort();
        }
        free(rows);
    }
    oscar__page_pad(&c->layout, page);
}

/* Bytes of a page by oscar_page_write itself, where no row is bad. */
static void write_expected_plain(const write_case *c, const write_sequence *q, int64_t index, unsigned char *page)
{
    const write_shape *s = &c->shape;
    size_t start = (size_t)(s->sink + index * s->page) * (size_t)s->kv_heads;
    oscar_view k, v;
    void *scratch = write_new(c->layout.scratch);
    memset(&k, 0, sizeof k);
    memset(&v, 0, sizeof v);
    k.data = q->k + start * (size_t)s->k_dim;
    v.data = q->v + start * (size_t)s->v_dim;
    if (oscar_page_write(&c->layout, &k, &v, page, scratch)) abort();
    free(scratch);
}

/* Pages of the step. */
static void write_expect_pages(write_case *c)
{
    int e, i;
    for (e = 0; e < c->shape.entries; e++)
        for (i = 0; i < c->entry[e].write_count; i++) {
            int64_t index = c->entry[e].write_first + i;
            unsigned char *page = c->pool[1] + (size_t)c->tables[c->entry[e].table + index] * c->layout.bytes;
            if (c->shape.wrong) write_expected_page(c, &c->sequence[e], index, page);
            else write_expected_plain(c, &c->sequence[e], index, page);
        }
}

static void write_expect(write_case *c)
{
    const write_shape *s = &c->shape;
    int e, side;
    write_expect_pages(c);
    for (e = 0; e < s->entries; e++) {
        const write_sequence *q = &c->sequence[e];
        const oscar_cu_entry *entry = &c->entry[e];
        int64_t p;
        for (p = q->before; p < q->before + q->rows; p++)
            for (side = 0; side < 2 && (p < s->sink || p >= s->sink + q->history); side++) {
                size_t row = (size_t)s->kv_heads * (size_t)(side ? s->v_dim : s->k_dim);
                size_t each = oscar__type_size((oscar_type)s->window_type);
                size_t at = ((size_t)entry->slot * (size_t)(s->sink + c->ring) + (size_t)write_place(c, p)) * row;
                const float *x = (side ? q->v : q->k) + (size_t)p * row;
                float rounded[OSCAR__DIM_MAX];
                int h;
                oscar__store((oscar_type)s->window_type, x, row, c->windows[side][1] + at * each);
                for (h = 0; h < s->kv_heads; h++)   /* counts the bad ones */
                    write_expected_row(c, !side, x + (size_t)h * (row / (size_t)s->kv_heads), h, rounded);
            }
    }
}

/* -- comparisons -- */

/* Whether the value of a type that byte i is in is a NaN. */
static int write_is_nan(oscar_type type, const unsigned char *bytes, size_t i)
{
    const unsigned char *at = bytes + i - i % oscar__type_size(type);
    unsigned half = (at[0] | (unsigned)at[1] << 8) & 0x7fffu;
    float value;
    if (type == OSCAR_F16) return half > 0x7c00u;
    if (type == OSCAR_BF16) return half > 0x7f80u;
    memcpy(&value, at, sizeof value);
    return value != value;
}

/* Where two areas differ, or -1. A NaN that came out of a conversion may have any bits; type: of such values, DEFAULT
   where there are none. */
static long write_difference(const unsigned char *a, const unsigned char *b, size_t bytes, oscar_type type)
{
    size_t i;
    for (i = 0; i < bytes; i++)
        if (a[i] != b[i] && (!type || !write_is_nan(type, a, i) || !write_is_nan(type, b, i))) return (long)i;
    return -1;
}

/* type: of values among these bytes. */
static int write_compare(const write_case *c, const char *what, int type, const void *a, const void *b, size_t bytes)
{
    oscar_type of_nans = c->shape.wrong ? (oscar_type)type : OSCAR_TYPE_DEFAULT;
    long at = write_difference((const unsigned char *)a, (const unsigned char *)b, bytes, of_nans);
    if (at < 0) return 0;
    printf("%s: byte %ld of %ld differs (page bytes %ld)\n", what, at, (long)bytes, (long)c->layout.bytes);
    return -1;
}

static int write_compare_status(const write_case *c)
{
    const oscar_cu_status *s = &c->status;
    if (!s->claimed == !c->bad) {
        if (!s->claimed) return 0;
        if (s->layer == WRITE_LAYER && s->head >= 0 && s->head < c->shape.kv_heads && s->kind >= 0 && s->kind < 4)
            return 0;
    }
    printf("status: claimed %u, layer %i, head %i, kind %i, where %i rows are bad\n", s->claimed, s->layer, s->head,
           s->kind, c->bad);
    return -1;
}

/* Rows first .. of a page, as oscar_page_read gives them: [token][head][dim]. */
static unsigned char *write_read_expected(const write_case *c, unsigned id, int first, int count, int type, int is_k)
{
    size_t dim = (size_t)(is_k ? c->shape.k_dim : c->shape.v_dim), each = oscar__type_size((oscar_type)type);
    unsigned char *rows = (unsigned char *)write_new((size_t)count * (size_t)c->shape.kv_heads * dim * each);
    void *scratch = write_new(c->layout.scratch);
    oscar_out out;
    memset(&out, 0, sizeof out);
    out.data = rows;
    out.type = (oscar_type)type;
    if (oscar_page_read(&c->layout, c->pool[1] + (size_t)id * c->layout.bytes, first, count, is_k ? &out : NULL,
                        is_k ? NULL : &out, scratch))
        abort();
    free(scratch);
    return rows;
}

/* Two items of one page to plain rows. */
static int write_check_rows(write_case *c, test_random *r, unsigned id, int type)
{
    const write_shape *s = &c->shape;
    int first = random_below(r, s->page), count = 1 + random_below(r, s->page - first), result, side;
    size_t each = oscar__type_size((oscar_type)type);
    long long stride[4];
    unsigned char *out[2], *want[2];
    oscar_cu_rows items[2];
    memset(items, 0, sizeof items);
    items[0].page = items[1].page = id;
    items[0].first = first;
    items[0].count = count / 2;
    items[1].first = first + count / 2;
    items[1].count = count - count / 2;
    items[1].row = count / 2;
    for (side = 0; side < 2; side++) {
        stride[2 * side + 1] = side ? s->v_dim : s->k_dim;
        stride[2 * side] = stride[2 * side + 1] * s->kv_heads;
        out[side] = (unsigned char *)write_new((size_t)count * (size_t)stride[2 * side] * each);
        want[side] = write_read_expected(c, id, first, count, type, !side);
    }
    result = write_run_read(c, type, 0, items, 2, out[0], out[1], stride, count);
    for (side = 0; side < 2; side++) {
        size_t bytes = (size_t)count * (size_t)stride[2 * side] * each;
        if (!result) result = write_compare(c, side ? "read V" : "read K", type, out[side], want[side], bytes);
        free(out[side]);
        free(want[side]);
    }
    return result;
}

/* A cut: the first rows of page `index` go back to the ring of slot 0. */
static int write_check_cut(write_case *c, test_random *r, unsigned id, int64_t index)
{
    const write_shape *s = &c->shape;
    int count = 1 + random_below(r, s->page - 1), side, t, result;
    oscar_cu_rows item;
    long long stride[4] = { 0, 0, 0, 0 };
    memset(&item, 0, sizeof item);
    item.position = s->sink + index * s->page;
    item.page = id;
    item.count = count;
    item.slot = 0;
    for (side = 0; side < 2; side++) {
        unsigned char *rows = write_read_expected(c, id, 0, count, s->window_type, !side);
        size_t row = (size_t)s->kv_heads * (size_t)(side ? s->v_dim : s->k_dim)
                     * oscar__type_size((oscar_type)s->window_type);
        for (t = 0; t < count; t++)
            memcpy(c->windows[side][1] + (size_t)write_place(c, item.position + t) * row, rows + (size_t)t * row, row);
        free(rows);
    }
    result = write_run_read(c, 1, 1, &item, 1, c->windows[0][0], c->windows[1][0], stride, 0);
    for (side = 0; side < 2 && !result; side++)
        result = write_compare(c, side ? "cut, V" : "cut, K", s->window_type, c->windows[side][0],
                               c->windows[side][1], c->window_bytes[side]);
    return result;
}

/* The step in one launch, or in two where it has more rows than drafts; then reading. 0 if all bytes are right. */
static int write_case_run(write_case *c)
{
    int fused = c->shape.rows <= (c->shape.drafts > 1 ? c->shape.drafts : 1), e, side, result;
    test_random r = { c->seed };
    write_expect(c);
    if (fused) result = write_run_step(c, 3);
    else {
        result = write_run_step(c, 1);
        if (!result) result = write_run_step(c, 2);
    }
    if (!result) result = write_compare(c, "pages", c->shape.window_type, c->pool[0], c->pool[1], c->pool_bytes);
    for (side = 0; side < 2 && !result; side++)
        result = write_compare(c, side ? "windows of V" : "windows of K", c->shape.window_type, c->windows[side][0],
                               c->windows[side][1], c->window_bytes[side]);
    if (!result && c->shape.wrong) result = write_compare_status(c);
    else if (!result && c->status.claimed) result = write_compare_status(c);
    for (e = 0; e < c->shape.entries && !result; e++) {
        const oscar_cu_entry *entry = &c->entry[e];
        int type = 1 + random_below(&r, 3);
        unsigned id;
        if (!entry->write_count) continue;
        id = c->tables[entry->table + entry->write_first];
        result = write_check_rows(c, &r, id, c->shape.wrong == 2 ? OSCAR_F16 : type);   /* which has no such values */
        if (!result) result = write_check_cut(c, &r, id, entry->write_first);
        break;
    }
    return result;
}

/* The first page of the step, read by the instruction set of now, against what the scalar code reads. */
static int write_isa_reads(const write_case *c, oscar_isa isa, unsigned id)
{
    int type = 1 + (int)(c->seed % 3), is_k, result = 0;
    if (c->shape.wrong == 2) type = OSCAR_F16;
    for (is_k = 0; is_k < 2 && !result; is_k++) {
        size_t bytes = (size_t)c->shape.page * (size_t)c->shape.kv_heads * oscar__type_size((oscar_type)type)
                       * (size_t)(is_k ? c->shape.k_dim : c->shape.v_dim);
        unsigned char *got = write_read_expected(c, id, 0, c->shape.page, type, is_k), *want;
        (void)oscar_isa_force(OSCAR_ISA_SCALAR);
        want = write_read_expected(c, id, 0, c->shape.page, type, is_k);
        (void)oscar_isa_force(isa);
        result = write_compare(c, oscar_isa_name(isa), type, got, want, bytes);
        free(got);
        free(want);
    }
    return result;
}

/* After write_case_run: the same pages by each instruction set that there is, against those of the scalar code. */
static int write_check_isas(write_case *c)
{
    unsigned char *want = c->pool[1];
    int isa, e, result = 0;
    for (isa = OSCAR_ISA_SCALAR + 1; isa < OSCAR_ISA_COUNT && !result; isa++) {
        if (oscar_isa_force((oscar_isa)isa)) continue;
        c->pool[1] = (unsigned char *)write_new(c->pool_bytes);
        write_expect_pages(c);
        result = write_compare(c, oscar_isa_name((oscar_isa)isa), c->shape.window_type, c->pool[1], want,
                               c->pool_bytes);
        free(c->pool[1]);
        c->pool[1] = want;
        for (e = 0; e < c->shape.entries && !c->entry[e].write_count; e++) {}
        if (!result && e < c->shape.entries)
            result = write_isa_reads(c, (oscar_isa)isa, c->tables[c->entry[e].table + c->entry[e].write_first]);
    }
    (void)oscar_isa_force(OSCAR_ISA_SCALAR);
    return result;
}

static void write_describe(const write_case *c, char *text)
{
    const write_shape *s = &c->shape;
    sprintf(text, "{ %i, %i, %i, %i, %i, %i, %i, %i, %i, %i, %i, %i, %i, "
            "%i, %i, %i, %i, %i, %i, %i, %i, %i, %i, %i, %i, %i } seed %u", s->kv_heads, s->k_dim, s->v_dim, s->k_bits,
            s->v_bits, s->k_clip, s->v_clip, s->k_group, s->v_group, s->k_kind, s->v_kind, s->folded, s->mean,
            s->page_mean, s->metric, s->page, s->window_type, s->row_type, s->sink, s->recent, s->drafts, s->entries,
            s->before, s->rows, s->mixed, s->wrong, c->seed);
}

/* -- random shapes -- */

static int write_random_dim(test_random *r)
{
    static const int dims[] = { 16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 144, 320, 512, 64, 128, 1024, 16, 80, 528 };
    int i = random_below(r, 19);
    if (dims[i] > 256 && random_below(r, 3)) i = random_below(r, 9);
    return dims[i];
}

static int write_random_group(test_random *r, int dim)
{
    int group = 16 * (1 + random_below(r, dim / 16));
    return random_below(r, 3) || dim % group ? 0 : group;
}

static void write_shape_random(test_random *r, write_shape *s)
{
    static const int bits[] = { 2, 2, 2, 4, 4, 16 };
    int any;
    s->kv_heads = 1 + random_below(r, 2);
    s->k_dim = write_random_dim(r);
    s->v_dim = random_below(r, 2) ? s->k_dim : write_random_dim(r);
    s->k_bits = bits[random_below(r, 6)];
    s->v_bits = bits[random_below(r, 6)];
    s->k_clip = random_below(r, 2) * (1 + random_below(r, 3));
    s->v_clip = random_below(r, 2) * (1 + random_below(r, 3));
    s->k_group = write_random_group(r, s->k_dim);
    s->v_group = write_random_group(r, s->v_dim);
    s->k_kind = random_below(r, 3);
    s->v_kind = random_below(r, 3);
    s->folded = random_below(r, 4) == 0;
    s->mean = random_below(r, 2);
    s->page_mean = random_below(r, 3) > 0;
    any = s->k_clip ? 0 : random_below(r, 4);
    s->metric = any == 3 ? 1 : any;
    s->page = 64 << (random_below(r, 6) + 2) / 4;   /* 64, 64, 128, 128, 128, 128 */
    if (random_below(r, 6) == 0) s->page = 256;
    if (random_below(r, 8) == 0) s->page = 192;
    if (s->k_dim > 256 || s->v_dim > 256) s->page = 64;
    s->window_type = 1 + random_below(r, 3);
    s->row_type = 1 + random_below(r, 3);
    s->sink = random_below(r, 40) * random_below(r, 2);
    s->recent = random_below(r, 50);
    s->drafts = random_below(r, 3) * 8;
    s->entries = 1 + random_below(r, 2) * random_below(r, 3);
    s->rows = random_below(r, 3) ? 1 + random_below(r, s->drafts > 1 ? s->drafts : 1) : random_below(r, 2 * s->page);
    s->before = s->sink + s->recent + s->page * (1 + random_below(r, 2)) - 1;
    s->before -= random_below(r, s->rows > 1 ? s->rows : 1);
    if (s->before < 0) s->before = 0;
    s->mixed = random_below(r, 4) > 0;
    s->wrong = random_below(r, 4) == 0;
}

#endif
