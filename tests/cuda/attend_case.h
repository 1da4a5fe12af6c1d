/* attend_case.h - what a test of attention runs on: a layer, sequences with pages and windows, queries; what the scalar
   code of oscar.h says about them, and what sums in double precision do. The program says what is done when the
   constants of a case are known: case_set. */
#ifndef OSCAR_TEST_ATTEND_CASE_H
#define OSCAR_TEST_ATTEND_CASE_H

enum { CASE_ENTRIES = 16 };

/* Filled by hand or by case_random, then case_build makes the rest. */
typedef struct attend_case {
    oscar_layer layer;               /* without pairs: kinds tell which to make */
    int k_kind, v_kind, mean;        /* kinds as of the text; orthogonal: no dual */
    int orthogonal;
    int page, sink, window, drafts;  /* tokens; most rows of a step */
    oscar_type window_type, row_type;
    int entries, pages[CASE_ENTRIES], recent[CASE_ENTRIES], rows[CASE_ENTRIES];   /* rows 0: padding */
    int total[CASE_ENTRIES];         /* tokens where there are no pages and fewer than the sink has, else 0 */
    int splits, sinks, sm, gaps;     /* sinks: learned sink logits; gaps: strides of q and o that are not dense */
    int metric, cubin, alone;        /* to be compiled only: K has a metric; limits of a device; decode alone */
    double spread;                   /* of the logits */
    double rise;                     /* by how much keys grow from page to page */
    uint64_t seed;

    oscar_layout layout;
    oscar__cu_plan plan;
    oscar__cu_shape shape;
    oscar_pair *k_pairs, *v_pairs;
    float *k_dual, *v_dual, *k_mean;      /* as the kernels take them: [KV head][D][D], [KV head][D] */
    float *to[2];
    int ring, row_count, row_blocks, most_rows, window_splits;
    oscar_cu_entry entry[CASE_ENTRIES];
    unsigned *tables, page_count;
    unsigned char *pool, *window_k, *window_v;
    void *q, *o;
    ptrdiff_t q_token, q_head, o_token, o_head;
    float *sink_logits, *lse, *want_o, *want_lse;
    double *exact_o, *exact_lse;
    float *part_o, *part_lse;
    void *fragments;
    unsigned *sums;
} attend_case;

static void case_set(const oscar__cu_plan *plan);

static size_t case_size(oscar_type type) { return type == OSCAR_F32 ? 4 : 2; }

/* Memory of exactly this size, so that AddressSanitizer sees each overrun; aligned as cuMemAlloc does. */
static void *case_alloc(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 1)) abort();
    memset(p, 0xff, bytes);
    return p;
}

/* A pair of each KV head: F orthogonal, or with columns of different lengths, which B undoes. */
static void case_pair(attend_case *c, test_random *random, int side, int dim, int kind)
{
    int heads = c->layer.kv_heads, h, i, j;
    oscar_pair *pairs = (oscar_pair *)calloc((size_t)heads, sizeof *pairs);
    size_t square = (size_t)dim * (size_t)dim;
    float *to = (float *)case_alloc(square * (size_t)heads * 4);
    float *dual = (float *)case_alloc(square * (size_t)heads * 4);
    double *m = (double *)malloc(square * sizeof *m);
    for (h = 0; h < heads; h++) {
        pairs[h].kind = (oscar_kind)kind;
        pairs[h].dim = dim;
        if (kind != OSCAR_DENSE) continue;
        random_orthogonal(random, dim, m);
        for (i = 0; i < dim; i++)
            for (j = 0; j < dim; j++) {
                double length = c->orthogonal ? 1 : 0.5 + (j % 7) * 0.25;
                to[(size_t)h * square + (size_t)(i * dim + j)] = (float)(m[i * dim + j] * length);
                dual[(size_t)h * square + (size_t)(i * dim + j)] = (float)(m[i * dim + j] / length);
            }
        pairs[h].to = to + (size_t)h * square;
        pairs[h].dual = c->orthogonal ? NULL : dual + (size_t)h * square;
        pairs[h].norm = 2;
        if (!side && c->metric) pairs[h].metric = pairs[h].to;
    }
    free(m);
    if (!side && c->mean) {
        c->k_mean = (float *)case_alloc((size_t)(heads * dim) * 4);
        for (i = 0; i < heads * dim; i++) c->k_mean[i] = (float)random_normal(random);
        for (h = 0; h < heads; h++) pairs[h].mean = c->k_mean + h * dim;
    }
    c->to[side] = to;
    if (side) { c->v_pairs = pairs; c->v_dual = dual; c->layer.v = pairs; }
    else { c->k_pairs = pairs; c->k_dual = dual; c->layer.k = pairs; }
}

/* Rows like keys: an outlying channel, a drift that tokens share, and now and then a row far from it. */
static void case_rows(test_random *random, size_t rows, int heads, int dim, float *out)
{
    size_t r;
    int h, i;
    for (r = 0; r < rows; r++)
        for (h = 0; h < heads; h++) {
            double alone = random_below(random, 8) == 0;
            for (i = 0; i < dim; i++)
                *out++ = (float)(random_normal(random) * (i % 13 == 3 ? 2 : 1) + (alone ? 0 : sin(i * 0.7 + h) * 1.5));
        }
}

static void case_put(oscar_type type, const float *in, size_t n, void *out)
{
    oscar_convert(n, OSCAR_F32, in, type, out);
}

/* The pages of an entry, at places of the pool that are mixed. */
static void case_pages(attend_case *c, test_random *random, int e)
{
    size_t k_values = (size_t)(c->layout.layer.kv_heads * c->layout.layer.k_dim) * (size_t)c->page;
    size_t v_values = (size_t)(c->layout.layer.kv_heads * c->layout.layer.v_dim) * (size_t)c->page;
    float *k = (float *)malloc(k_values * 4), *v = (float *)malloc(v_values * 4);
    void *scratch = NULL, *page = NULL;
    size_t i;
    int p;
    if (posix_memalign(&scratch, 64, c->layout.scratch) || posix_memalign(&page, 64, c->layout.bytes)) abort();
    for (p = 0; p < c->pages[e]; p++) {
        oscar_view kv, vv;
        unsigned id = c->tables[c->entry[e].table + p];
        memset(&kv, 0, sizeof kv);
        case_rows(random, (size_t)c->page, c->layout.layer.kv_heads, c->layout.layer.k_dim, k);
        case_rows(random, (size_t)c->page, c->layout.layer.kv_heads, c->layout.layer.v_dim, v);
        for (i = 0; c->rise > 0 && i < k_values; i++) k[i] *= (float)(0.25 + c->rise * p);
        if (p % 5 == 4) memset(k, 0, k_values * 4);   /* scales of 0 */
        if (p % 7 == 6) memset(v, 0, v_values * 4);
        vv = kv;
        kv.data = k;
        vv.data = v;
        if (oscar_page_write(&c->layout, &kv, &vv, page, scratch)) { puts("oscar_page_write failed"); abort(); }
        memcpy(c->pool + (size_t)id * c->layout.bytes, page, c->layout.bytes);
    }
    free(k);
    free(v);
    free(scratch);
    free(page);
}

/* Window rows of token p: place in the windows. */
static size_t case_place(const attend_case *c, int64_t p)
{
    return (size_t)(p < c->sink ? p : c->sink + (p - c->sink) % c->ring);
}

/* Tokens of an entry's windows in order, as float rows, and the windows themselves. k, v: [tokens][heads][dim]. */
static void case_windows(attend_case *c, test_random *random, int e, int64_t first, int64_t count, float *k, float *v)
{
    const oscar_layer *l = &c->layout.layer;
    size_t size = case_size(c->window_type);
    size_t kn = (size_t)(l->kv_heads * l->k_dim), vn = (size_t)(l->kv_heads * l->v_dim);
    int64_t i;
    case_rows(random, (size_t)count, l->kv_heads, l->k_dim, k);
    case_rows(random, (size_t)count, l->kv_heads, l->v_dim, v);
    for (i = 0; i < count; i++) {
        size_t row = (size_t)c->entry[e].slot * (size_t)(c->sink + c->ring) + case_place(c, first + i);
        case_put(c->window_type, k + (size_t)i * kn, kn, c->window_k + row * kn * size);
        case_put(c->window_type, v + (size_t)i * vn, vn, c->window_v + row * vn * size);
        oscar_convert(kn, c->window_type, c->window_k + row * kn * size, OSCAR_F32, k + (size_t)i * kn);
        oscar_convert(vn, c->window_type, c->window_v + row * vn * size, OSCAR_F32, v + (size_t)i * vn);
    }
}

static oscar_row_span case_span(const float *k, const float *v, int64_t count, int64_t position)
{
    oscar_row_span span;
    memset(&span, 0, sizeof span);
    span.k.data = k;
    span.v.data = v;
    span.count = count;
    span.position = position;
    return span;
}

/* The answer of oscar.h's scalar code for an entry, whose windows' rows are k, v: first the sink's tokens. */
static void case_reference(attend_case *c, int e, const float *k, const float *v, int sinks, int64_t recent)
{
    const oscar_layer *l = &c->layout.layer;
    const oscar_cu_entry *entry = &c->entry[e];
    size_t values = (size_t)c->rows[e] * (size_t)l->q_heads, kn = (size_t)(l->kv_heads * l->k_dim);
    float *part[4];
    const float *o[2], *lse[2];
    oscar_attend_desc d;
    oscar_page_list list;
    oscar_row_span spans[2];
    int i;
    part[0] = (float *)malloc(values * (size_t)l->v_dim * 4);
    part[1] = (float *)malloc(values * (size_t)l->v_dim * 4);
    part[2] = (float *)malloc(values * 4);
    part[3] = (float *)malloc(values * 4);
    memset(&d, 0, sizeof d);
    memset(&list, 0, sizeof list);
    d.layout = &c->layout;
    d.q.data = (char *)c->q + (ptrdiff_t)entry->row * c->q_token * (ptrdiff_t)case_size(c->row_type);
    d.q.type = c->row_type;
    d.q.token_stride = c->q_token;
    d.q.head_stride = c->q_head;
    d.queries = c->rows[e];
    d.position = entry->position;
    list.pool = c->pool;
    list.ids = c->tables + entry->table;
    list.count = c->pages[e];
    list.position = c->sink;
    spans[0] = case_span(k, v, sinks, 0);
    spans[1] = case_span(k + (size_t)sinks * kn, v + (size_t)sinks * (size_t)(l->kv_heads * l->v_dim), recent,
                         c->sink + entry->history);
    if (oscar_attend_pages(&d, &list, part[0], part[2]) || oscar_attend_rows(&d, spans, 2, part[1], part[3])) {
        puts("the reference failed");
        abort();
    }
    o[0] = part[0];
    o[1] = part[1];
    lse[0] = part[2];
    lse[1] = part[3];
    oscar_attend_join(2, o, lse, c->rows[e], l->q_heads, l->v_dim, c->sink_logits,
                      c->want_o + (size_t)entry->row * (size_t)(l->q_heads * l->v_dim),
                      c->want_lse + (size_t)entry->row * (size_t)l->q_heads);
    for (i = 0; i < 4; i++) free(part[i]);
}

/* The rows that an entry's tokens stand for, [token][head][dim]: of the sink (those of k, v), of pages, of the rest. */
static float *case_tokens(const attend_case *c, int e, int is_k, const float *windows, int sinks, int64_t recent)
{
    const oscar_layer *l = &c->layout.layer;
    const oscar_cu_entry *entry = &c->entry[e];
    size_t token = (size_t)l->kv_heads * (size_t)(is_k ? l->k_dim : l->v_dim);
    float *out = (float *)malloc(((size_t)(sinks + recent + entry->history) * token + 1) * 4);
    void *scratch = case_alloc(c->layout.scratch);
    oscar_out rows;
    int p;
    if (!out) abort();
    memset(&rows, 0, sizeof rows);
    rows.type = OSCAR_F32;
    memcpy(out, windows, (size_t)sinks * token * 4);
    for (p = 0; p < c->pages[e]; p++) {
        const unsigned char *page = c->pool + (size_t)c->tables[entry->table + p] * c->layout.bytes;
        rows.data = out + ((size_t)sinks + (size_t)p * (size_t)c->page) * token;
        if (oscar_page_read(&c->layout, page, 0, c->page, is_k ? &rows : NULL, is_k ? NULL : &rows, scratch)) abort();
    }
    memcpy(out + (size_t)(sinks + entry->history) * token, windows + (size_t)sinks * token, (size_t)recent * token * 4);
    free(scratch);
    return out;
}

/* One row and head in double precision. k, v: tokens 0 .. total - 1; room: total numbers. */
static void case_exact_head(attend_case *c, int e, int row, int head, const float *k, const float *v, double *room)
{
    const oscar_layer *l = &c->layout.layer;
    const oscar_cu_entry *entry = &c->entry[e];
    size_t place = (size_t)(entry->row + row) * (size_t)l->q_heads + (size_t)head, h = (size_t)(head / (l->q_heads
                   / l->kv_heads)), kn = (size_t)l->k_dim, vn = (size_t)l->v_dim, heads = (size_t)l->kv_heads, i;
    int64_t position = entry->position + row, first = 0, t;
    double *o = c->exact_o + place * vn, most = -HUGE_VAL, sum = 0;
    float q[OSCAR__DIM_MAX];
    oscar_convert(kn, c->row_type, (char *)c->q + (size_t)((entry->row + row) * c->q_token + head * c->q_head)
                  * case_size(c->row_type), OSCAR_F32, q);
    if (l->window > 0 && position >= l->window) first = position - l->window + 1;
    for (t = first; t <= position; t++) {
        const float *x = k + ((size_t)t * heads + h) * kn;
        double dot = 0;
        for (i = 0; i < kn; i++) dot += (double)q[i] * x[i];
        dot *= (double)l->scale;
        room[t] = l->softcap > 0 ? (double)l->softcap * tanh(dot / (double)l->softcap) : dot;
        if (room[t] > most) most = room[t];
    }
    if (c->sink_logits && (double)c->sink_logits[head] > most) most = (double)c->sink_logits[head];
    if (c->sink_logits) sum = exp((double)c->sink_logits[head] - most);
    for (i = 0; i < vn; i++) o[i] = 0;
    for (t = first; t <= position; t++) {
        const float *x = v + ((size_t)t * heads + h) * vn;
        double weight = exp(room[t] - most);
        sum += weight;
        for (i = 0; i < vn; i++) o[i] += weight * x[i];
    }
    for (i = 0; i < vn; i++) o[i] /= sum;
    c->exact_lse[place] = most + log(sum);
}

static void case_exact(attend_case *c, int e, const float *k, const float *v, int sinks, int64_t recent)
{
    float *all_k = case_tokens(c, e, 1, k, sinks, recent), *all_v = case_tokens(c, e, 0, v, sinks, recent);
    double *room = (double *)malloc((size_t)(sinks + recent + c->entry[e].history + 1) * sizeof *room);
    int row, head;
    for (row = 0; row < c->rows[e]; row++)
        for (head = 0; head < c->layout.layer.q_heads; head++) case_exact_head(c, e, row, head, all_k, all_v, room);
    free(all_k);
    free(all_v);
    free(room);
}

/* Pages, windows and expected results of an entry. */
static void case_entry(attend_case *c, test_random *random, int e)
{
    const oscar_layer *l = &c->layout.layer;
    oscar_cu_entry *entry = &c->entry[e];
    int64_t total = c->total[e] ? c->total[e] : c->sink + entry->history + c->recent[e];
    int sinks = total < c->sink ? (int)total : c->sink;
    int64_t recent = total - sinks - entry->history;
    float *k = (float *)malloc(((size_t)(sinks + recent) * (size_t)(l->kv_heads * l->k_dim) + 1) * 4);
    float *v = (float *)malloc(((size_t)(sinks + recent) * (size_t)(l->kv_heads * l->v_dim) + 1) * 4);
    entry->position = total - c->rows[e];
    case_pages(c, random, e);
    case_windows(c, random, e, 0, sinks, k, v);
    case_windows(c, random, e, c->sink + entry->history, recent, k + (size_t)sinks * (size_t)(l->kv_heads * l->k_dim),
                 v + (size_t)sinks * (size_t)(l->kv_heads * l->v_dim));
    case_reference(c, e, k, v, sinks, recent);
    case_exact(c, e, k, v, sinks, recent);
    free(k);
    free(v);
}

/* Queries with a stride between heads and tokens where gaps is set; space for o likewise. */
static void case_queries(attend_case *c, test_random *random)
{
    const oscar_layer *l = &c->layout.layer;
    size_t values, i;
    float *q;
    c->q_head = l->k_dim + 16 * c->gaps;
    c->q_token = l->q_heads * c->q_head + 48 * c->gaps;
    c->o_head = l->v_dim + 16 * c->gaps;
    c->o_token = l->q_heads * c->o_head + 80 * c->gaps;
    values = (size_t)(c->row_count * c->q_token);
    q = (float *)malloc(values * 4);
    for (i = 0; i < values; i++) q[i] = (float)(random_normal(random) * c->spread / 1.4);
    c->q = case_alloc(values * case_size(c->row_type));
    c->o = case_alloc((size_t)(c->row_count * c->o_token) * case_size(c->row_type));
    case_put(c->row_type, q, values, c->q);
    free(q);
}

/* Device memory between the kernels, all 0xff. */
static void case_scratch(attend_case *c)
{
    const oscar_layer *l = &c->layout.layer;
    size_t blocks = (size_t)(c->entries * c->row_blocks), rows = (size_t)c->row_count;
    c->fragments = case_alloc(oscar__cu_fragment_bytes(l, &c->shape, blocks));
    c->sums = (unsigned *)case_alloc(oscar__cu_sum_bytes(l, &c->shape, blocks));
    c->part_o = (float *)case_alloc(oscar__cu_part_o_bytes(l, rows, c->splits, c->window_splits));
    c->part_lse = (float *)case_alloc(oscar__cu_part_lse_bytes(l, rows, c->splits, c->window_splits));
    c->lse = (float *)case_alloc(rows * (size_t)l->q_heads * 4);
}

static void case_expect_nothing(attend_case *c)
{
    size_t values = (size_t)c->row_count * (size_t)c->layout.layer.q_heads, i;
    c->want_o = (float *)calloc(values * (size_t)c->layout.layer.v_dim, 4);
    c->want_lse = (float *)malloc(values * 4);
    c->exact_o = (double *)calloc(values * (size_t)c->layout.layer.v_dim, sizeof(double));
    c->exact_lse = (double *)malloc(values * sizeof(double));
    for (i = 0; i < values; i++) c->exact_lse[i] = c->want_lse[i] = -INFINITY;
}

static oscar_cuda_options case_options(const attend_case *c)
{
    oscar_cuda_options options;
    memset(&options, 0, sizeof options);
    options.sink = c->sink ? c->sink : -1;
    options.recent = c->window ? c->window : -1;
    options.max_draft = c->drafts ? c->drafts : -1;
    options.step_rows = c->drafts > 1 ? c->drafts : 1;
    options.row_type = c->row_type;
    return options;
}

/* Constants and shapes as the host makes them. 0 where no block of the grid fits. */
static int case_plan(attend_case *c)
{
    oscar__cu_limits limits = oscar__cu_limits_of(c->cubin || c->sm < 80 ? c->sm : 90, c->seed % 4 == 3 && !c->cubin);
    oscar_cuda_options options = case_options(c);
    limits.sm = c->sm;
    if (oscar__cu_plan_of(&c->layout, &options, &limits, NULL, &c->plan)) return 0;
    if (c->plan.constants.value[OSCAR__CU_RING] != c->ring) abort();
    c->shape = c->plan.shape;
    case_set(&c->plan);
    return 1;
}

/* Pairs and layout: all that a compiler needs. */
static void case_layout(attend_case *c, test_random *random)
{
    random->state = c->seed;
    if (!c->layer.v_dim) c->layer.v_dim = c->layer.k_dim;
    case_pair(c, random, 0, c->layer.k_dim, c->k_kind);
    case_pair(c, random, 1, c->layer.v_dim, c->v_kind);
    if (oscar_page_layout(&c->layer, c->page, c->window_type, NULL, &c->layout)) { puts("bad layer"); abort(); }
}

/* Everything from the case's fields. Returns 0 where no block of the grid fits. */
static int case_build(attend_case *c)
{
    test_random random;
    size_t window_rows;
    int e, p;
    case_layout(c, &random);
    c->ring = c->window + c->page - 1 + (c->drafts > 1 ? c->drafts : 1);
    c->most_rows = c->drafts > 1 ? c->drafts : 1;
    if (!case_plan(c)) return 0;
    c->row_blocks = oscar__cu_row_blocks(&c->layout.layer, &c->shape, c->most_rows);
    c->window_splits = oscar__cu_window_splits(&c->shape, c->sink + c->ring);
    for (e = 0; e < c->entries; e++) {
        memset(&c->entry[e], 0, sizeof c->entry[e]);
        c->entry[e].history = (long long)c->pages[e] * c->page;
        c->entry[e].row = c->row_count;
        c->entry[e].rows = c->rows[e];
        c->entry[e].slot = (unsigned)(c->entries - 1 - e);
        c->entry[e].table = (int)c->page_count;
        c->row_count += c->rows[e] ? c->rows[e] : 1;   /* a row of padding that no entry has */
        c->page_count += (unsigned)c->pages[e];
    }
    c->tables = (unsigned *)case_alloc(c->page_count * 4);
    for (p = 0; p < (int)c->page_count; p++) c->tables[p] = c->page_count - 1 - (unsigned)p;
    c->pool = (unsigned char *)case_alloc(c->page_count * c->layout.bytes);
    window_rows = (size_t)c->entries * (size_t)(c->sink + c->ring) * (size_t)c->layer.kv_heads;
    window_rows *= case_size(c->window_type);
    c->window_k = (unsigned char *)case_alloc(window_rows * (size_t)c->layout.layer.k_dim);
    c->window_v = (unsigned char *)case_alloc(window_rows * (size_t)c->layout.layer.v_dim);
    case_queries(c, &random);
    if (c->sinks) {
        c->sink_logits = (float *)case_alloc((size_t)c->layer.q_heads * 4);
        for (p = 0; p < c->layer.q_heads; p++) c->sink_logits[p] = (float)random_normal(&random);
    }
    case_expect_nothing(c);
    for (e = 0; e < c->entries; e++) if (c->rows[e]) case_entry(c, &random, e);
    case_scratch(c);
    return 1;
}

static void case_free(attend_case *c)
{
    free(c->k_pairs); free(c->v_pairs); free(c->k_dual); free(c->v_dual); free(c->k_mean); free(c->to[0]);
    free(c->to[1]); free(c->tables); free(c->pool); free(c->window_k); free(c->window_v); free(c->q); free(c->o);
    free(c->sink_logits); free(c->lse); free(c->want_o); free(c->want_lse); free(c->exact_o); free(c->exact_lse);
    free(c->part_o); free(c->part_lse); free(c->fragments); free(c->sums);
}

/* -- comparison -- */

/* Largest errors so far, of rows in F32: of the kernels against the scalar code, against double precision; and of the
   scalar code against that. */
static struct { double o, lse, exact_o, exact_lse, scalar_o; } worst;

/* |o - want| / |want| */
static double case_distance(int n, const double *o, const double *want)
{
    double error = 0, length = 0;
    int i;
    for (i = 0; i < n; i++) {
        error += (o[i] - want[i]) * (o[i] - want[i]);
        length += want[i] * want[i];
    }
    if (length == 0) return error == 0 ? 0 : INFINITY;
    return sqrt(error / length);
}

static double case_difference(double lse, double want) { return isinf(want) && lse == want ? 0 : fabs(lse - want); }

static void case_note(double *most, double error) { if (!(error <= *most)) *most = error; }

/* One row and head. bound: of the error of o in F32. */
static void case_compare_head(const attend_case *c, const char *name, int row, int head, double bound)
{
    const oscar_layer *l = &c->layout.layer;
    size_t place = (size_t)row * (size_t)l->q_heads + (size_t)head, size = case_size(c->row_type);
    const char *at = (const char *)c->o + (size_t)(row * c->o_token + head * c->o_head) * size;
    const double *exact = c->exact_o + place * (size_t)l->v_dim;
    double o[OSCAR__DIM_MAX], want[OSCAR__DIM_MAX], wide = c->rise > 0 ? 10 : 1;   /* large logits: q counts for more */
    double error, true_error, difference, true_difference;
    int noted = c->rise <= 0 && c->spread < 100;
    double of_lse = wide * 1e-4 * (1 + fabs((double)c->want_lse[place]));
    int i;
    for (i = 0; i < l->v_dim; i++) {
        float value;
        oscar_convert(1, c->row_type, at + (size_t)i * size, OSCAR_F32, &value);
        o[i] = (double)value;
        want[i] = (double)c->want_o[place * (size_t)l->v_dim + (size_t)i];
    }
    error = case_distance(l->v_dim, o, want);
    true_error = case_distance(l->v_dim, o, exact);
    difference = case_difference((double)c->lse[place], (double)c->want_lse[place]);
    true_difference = case_difference((double)c->lse[place], c->exact_lse[place]);
    if (c->row_type == OSCAR_F32 && noted) {
        case_note(&worst.o, error);
        case_note(&worst.exact_o, true_error);
        case_note(&worst.scalar_o, case_distance(l->v_dim, want, exact));
    }
    if (noted) {
        case_note(&worst.lse, difference);
        case_note(&worst.exact_lse, true_difference);
    }
    if (isinf(c->want_lse[place])) of_lse = 0;
    if (c->row_type != OSCAR_F32) bound = c->row_type == OSCAR_F16 ? 1e-3 : 5e-3;
    CHECK_MSG(error <= wide * bound && true_error <= wide * bound && difference <= of_lse && true_difference <= of_lse,
              ("    %s: row %d head %d: error %g, in double precision %g, lse %g for %g, %g\n", name, row, head, error,
               true_error, (double)c->lse[place], (double)c->want_lse[place], c->exact_lse[place]));
}

static void case_compare(const attend_case *c, const char *name, double bound)
{
    int row, head;
    for (row = 0; row < c->row_count; row++)
        for (head = 0; head < c->layout.layer.q_heads; head++) case_compare_head(c, name, row, head, bound);
}

static void case_report(void)
{
    printf("figure cuda.attend.error %.3g ratio\nfigure cuda.attend.lse_error %.3g nats\n", worst.o, worst.lse);
    printf("against double precision: o %.3g, lse %.3g; the scalar code's o %.3g\n", worst.exact_o, worst.exact_lse,
           worst.scalar_o);
}

/* -- cases -- */

static int case_pick(test_random *random, int count, const int *of) { return of[random_below(random, count)]; }

/* One sequence, one row, D = 128, 2 bits: the plain case. */
static attend_case case_plain(void)
{
    attend_case c;
    memset(&c, 0, sizeof c);
    c.layer.q_heads = 4;
    c.layer.kv_heads = 1;
    c.layer.k_dim = 128;
    c.k_kind = c.v_kind = OSCAR_HADAMARD;
    c.page = 64;
    c.sink = 4;
    c.window = 8;
    c.window_type = OSCAR_BF16;
    c.row_type = OSCAR_F32;
    c.entries = 1;
    c.pages[0] = 3;
    c.recent[0] = 10;
    c.rows[0] = 1;
    c.splits = 2;
    c.sm = 80;
    c.spread = 0.8;
    c.seed = 1;
    return c;
}

/* A divisor of dim that is a multiple of 16. */
static int case_group(test_random *random, int dim)
{
    int g;
    if (random_below(random, 3)) return 0;
    do g = 16 * (1 + random_below(random, dim / 16));
    while (dim % g);
    return g;
}

static void case_random_layer(test_random *random, attend_case *c)
{
    static const int dims[] = {16, 32, 48, 64, 64, 80, 96, 112, 128, 128, 160, 192, 256};
    static const int groups[] = {1, 2, 3, 4, 5, 8, 8, 12, 16}, bits[] = {2, 2, 2, 4, 4, 16};
    oscar_layer *l = &c->layer;
    l->kv_heads = 1 + random_below(random, 3);
    l->q_heads = l->kv_heads * case_pick(random, 9, groups);
    l->k_dim = case_pick(random, 13, dims);
    l->v_dim = random_below(random, 2) ? l->k_dim : case_pick(random, 13, dims);
    l->k_bits = case_pick(random, 6, bits);
    l->v_bits = case_pick(random, 6, bits);
    l->k_fit = random_below(random, 3) ? OSCAR_UNBIASED : OSCAR_CLIP;
    l->v_fit = random_below(random, 3) ? OSCAR_UNBIASED : OSCAR_CLIP;
    l->k_group = case_group(random, l->k_dim);
    l->v_group = case_group(random, l->v_dim);
    l->k_page_mean = random_below(random, 3) ? 0 : -1;
    l->v_folded = random_below(random, 5) == 0;
    if (random_below(random, 4) == 0) l->window = 20 + random_below(random, 300);
    if (random_below(random, 4) == 0) l->softcap = 5;
    c->k_kind = random_below(random, 3);
    c->v_kind = random_below(random, 3);
    c->mean = random_below(random, 2);
    c->orthogonal = random_below(random, 2);
}

/* The case of a seed. */
static attend_case case_random(uint64_t seed)
{
    attend_case c = case_plain();
    test_random random;
    int e;
    random.state = seed * 7919;
    case_random_layer(&random, &c);
    c.page = 64 * (1 + random_below(&random, 4));
    c.sink = random_below(&random, 3) ? random_below(&random, 70) : 0;
    c.window = random_below(&random, 100);
    c.drafts = random_below(&random, 2) ? 0 : 1 + random_below(&random, 4);
    c.window_type = (oscar_type)(1 + random_below(&random, 3));
    c.row_type = random_below(&random, 3) ? OSCAR_F32 : (oscar_type)(2 + random_below(&random, 2));
    c.entries = 1 + random_below(&random, 3);
    for (e = 0; e < c.entries; e++) {
        int most = c.drafts > 1 ? c.drafts : 1;
        c.rows[e] = random_below(&random, 5) ? 1 + random_below(&random, most) : 0;
        c.pages[e] = random_below(&random, 4) ? random_below(&random, 6) : 0;
        c.recent[e] = c.rows[e] + random_below(&random, c.window + c.page);
        if (!c.pages[e] && c.sink > most && random_below(&random, 2))
            c.total[e] = c.rows[e] + random_below(&random, c.sink - most);
    }
    c.splits = 1 + random_below(&random, 4);
    c.sinks = random_below(&random, 3) == 0;
    c.gaps = random_below(&random, 2);
    c.spread = 0.5 + random_unit(&random);
    c.seed = seed;
    return c;
}

#endif
