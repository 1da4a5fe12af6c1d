/* cuda_check.h - a part of bench/cuda.c: the values of a model's kernels before they are timed. */
#ifndef OSCAR_BENCH_CUDA_CHECK_H
#define OSCAR_BENCH_CUDA_CHECK_H

/* == 3 VALUES == */

enum { CHECKED = 3, CHECKED_PAGES = 6 };

/* Tokens of each sequence once the step is appended: pages and a part of one in the ring, a page that the step writes,
   none yet. */
static const int checked_tokens[CHECKED] = { SINK + RECENT + 3 * PAGE + 5, SINK + RECENT + 2 * PAGE, 330 };

/* k, v: rows of a sequence [tokens][KV heads][D]; the last one is that of the step. */
typedef struct checked {
    const model *m;
    unsigned short *k[CHECKED], *v[CHECKED];
    float *q;
    unsigned char *pool;             /* of the host: page i of sequence e has the id that checked_id gives */
    oscar_cuda_entry entries[CHECKED];
    uint32_t ids[CHECKED * 4];
    oscar_cuda_memory memory;
    uint64_t step_k, step_v, step_q, o;
} checked;

static int64_t history_of(int64_t tokens)
{
    return tokens < SINK + RECENT ? 0 : (tokens - SINK - RECENT) / PAGE * PAGE;
}

static int row_of(int64_t position) { return (int)(position < SINK ? position : SINK + (position - SINK) % RING); }

static void fill_sequence(checked *c, int e)
{
    const model *m = c->m;
    int64_t pages = history_of(checked_tokens[e]) / PAGE, i;
    size_t row = (size_t)m->s.kv_heads * (size_t)m->s.dim;
    void *scratch = take(m->layout.scratch);
    oscar_view k, v;
    memset(&k, 0, sizeof k);
    c->k[e] = random_rows((size_t)checked_tokens[e] * row, NULL);
    c->v[e] = random_rows((size_t)checked_tokens[e] * row, NULL);
    k.type = OSCAR_BF16;
    v = k;
    for (i = 0; i < pages; i++) {
        uint32_t id = (uint32_t)(CHECKED_PAGES - 1 - 3 * e - i);
        c->ids[4 * e + i] = id;
        k.data = c->k[e] + (size_t)(SINK + i * PAGE) * row;
        v.data = c->v[e] + (size_t)(SINK + i * PAGE) * row;
        must(oscar_page_write(&m->layout, &k, &v, c->pool + id * m->layout.bytes, scratch), "oscar_page_write");
    }
    c->entries[e].position = checked_tokens[e] - 1;
    c->entries[e].history = pages * PAGE;
    c->entries[e].row = e;
    c->entries[e].rows = 1;
    c->entries[e].slot = (uint32_t)e;
    c->entries[e].table = 4 * e;
    free(scratch);
}

/* Windows as they are before the step, one side; the rest of them is not a number. */
static uint64_t upload_windows(const model *m, unsigned short *const *rows)
{
    size_t row = (size_t)m->s.kv_heads * (size_t)m->s.dim, all = (size_t)CHECKED * SLOT_ROWS * row;
    unsigned short *windows = (unsigned short *)take(2 * all);
    uint64_t at;
    int e;
    memset(windows, 0xff, 2 * all);
    for (e = 0; e < CHECKED; e++) {
        int64_t before = history_of(checked_tokens[e] - 1), p;
        for (p = 0; p < checked_tokens[e] - 1; p++) {
            if (p == SINK) p += before;
            memcpy(windows + ((size_t)e * SLOT_ROWS + (size_t)row_of(p)) * row, rows[e] + (size_t)p * row, 2 * row);
        }
    }
    at = gpu_upload(windows, 2 * all);
    free(windows);
    return at;
}

/* The rows of the step, one side, as float. */
static uint64_t upload_last(const model *m, unsigned short *const *rows)
{
    size_t row = (size_t)m->s.kv_heads * (size_t)m->s.dim;
    float *x = (float *)take(CHECKED * row * sizeof *x);
    uint64_t at;
    int e;
    for (e = 0; e < CHECKED; e++)
        oscar_convert(row, OSCAR_BF16, rows[e] + (size_t)(checked_tokens[e] - 1) * row, OSCAR_F32, x + (size_t)e * row);
    at = gpu_upload(x, CHECKED * row * sizeof *x);
    free(x);
    return at;
}

static void upload_case(checked *c)
{
    const model *m = c->m;
    size_t q = (size_t)CHECKED * (size_t)(m->s.kv_heads * m->s.group * m->s.dim);
    unsigned char *pool = (unsigned char *)take(CHECKED_PAGES * m->layout.bytes);
    size_t i;
    c->q = (float *)take(q * sizeof *c->q);
    for (i = 0; i < q; i++) c->q[i] = random_normal();
    memcpy(pool, c->pool, CHECKED_PAGES * m->layout.bytes);
    memset(pool + c->ids[4 + 1] * m->layout.bytes, 0xff, m->layout.bytes);   /* the step writes it */
    c->entries[1].write_first = 1;
    c->entries[1].write_count = 1;
    c->step_k = upload_last(m, c->k);
    c->step_v = upload_last(m, c->v);
    c->step_q = gpu_upload(c->q, q * sizeof *c->q);
    c->o = gpu_alloc(q * sizeof(float));
    c->memory.entries = gpu_upload(c->entries, sizeof c->entries);
    c->memory.tables = gpu_upload(c->ids, sizeof c->ids);
    c->memory.entry_count = c->memory.rows = CHECKED;
    c->memory.entry_rows = c->memory.entry_pages = 1;
    c->memory.pool = gpu_upload(pool, CHECKED_PAGES * m->layout.bytes);
    c->memory.window_k = upload_windows(m, c->k);
    c->memory.window_v = upload_windows(m, c->v);
    c->memory.status = gpu_alloc(32);
    GPU(fill(c->memory.status, 0, 32));
    c->memory.splits = 3;
    c->memory.work = gpu_alloc(oscar_cuda_work_bytes(m->layer, &c->memory));
    free(pool);
}

/* Of results, to compare runs by: the sum of their bits, each turned by its place. */
static unsigned checksum(const float *x, size_t count)
{
    unsigned sum = 0, bits;
    size_t i;
    for (i = 0; i < count; i++) {
        memcpy(&bits, x + i, sizeof bits);
        sum = (sum << 1 | sum >> 31) + bits;
    }
    return sum;
}

/* Whether the step left the pool that the CPU has. */
static int pages_are_equal(const checked *c)
{
    const model *m = c->m;
    size_t bytes = CHECKED_PAGES * m->layout.bytes;
    unsigned char *pool = (unsigned char *)take(bytes);
    uint32_t status[8];
    int equal = 1, e, i;
    GPU(copy_out(pool, c->memory.pool, bytes));
    GPU(copy_out(status, c->memory.status, 32));
    for (e = 0; e < CHECKED; e++)
        for (i = 0; i < history_of(checked_tokens[e]) / PAGE; i++) {
            size_t at = c->ids[4 * e + i] * m->layout.bytes;
            if (memcmp(pool + at, c->pool + at, m->layout.bytes)) equal = 0;
        }
    free(pool);
    return equal && !status[0];
}

/* A sequence on the host. first, last: the exact rows of both ends, SINK and those behind the pages. */
typedef struct host_sequence {
    const float *q;
    oscar_page_list pages;
    const unsigned short *first_k, *first_v, *last_k, *last_v;
    int64_t tokens;
} host_sequence;

/* What the scalar code makes of a sequence. */
static void attend_on_host(const model *m, const host_sequence *s, double *want)
{
    int heads = m->s.kv_heads * m->s.group, d = m->s.dim, i;
    int64_t history = history_of(s->tokens);
    oscar_attend_desc desc;
    oscar_row_span spans[2];
    float *o[2], *lse[2];
    memset(&desc, 0, sizeof desc);
    memset(spans, 0, sizeof spans);
    for (i = 0; i < 2; i++) {
        o[i] = (float *)take((size_t)(heads * d) * sizeof(float));
        lse[i] = (float *)take((size_t)heads * sizeof(float));
        spans[i].position = i ? SINK + history : 0;
        spans[i].count = i ? s->tokens - SINK - history : SINK;
        spans[i].k.type = spans[i].v.type = OSCAR_BF16;
        spans[i].k.data = i ? s->last_k : s->first_k;
        spans[i].v.data = i ? s->last_v : s->first_v;
    }
    desc.layout = &m->layout;
    desc.q.data = s->q;
    desc.queries = 1;
    desc.position = s->tokens - 1;
    must(oscar_attend_pages(&desc, &s->pages, o[0], lse[0]), "oscar_attend_pages");
    must(oscar_attend_rows(&desc, spans, 2, o[1], lse[1]), "oscar_attend_rows");
    oscar_attend_join(2, (const float *const *)o, (const float *const *)lse, 1, heads, d, NULL, o[0], NULL);
    for (i = 0; i < heads * d; i++) want[i] = o[0][i];
    for (i = 0; i < 2; i++) {
        free(o[i]);
        free(lse[i]);
    }
}

static void attend_checked(const checked *c, int e, double *want)
{
    const model *m = c->m;
    int64_t history = history_of(checked_tokens[e]);
    size_t row = (size_t)m->s.kv_heads * (size_t)m->s.dim, last = (size_t)(SINK + history) * row;
    host_sequence s;
    memset(&s, 0, sizeof s);
    s.tokens = checked_tokens[e];
    s.q = c->q + (size_t)e * row * (size_t)m->s.group;
    s.pages.pool = c->pool;
    s.pages.ids = c->ids + 4 * e;
    s.pages.count = history / PAGE;
    s.pages.position = SINK;
    s.first_k = c->k[e];
    s.first_v = c->v[e];
    s.last_k = c->k[e] + last;
    s.last_v = c->v[e] + last;
    attend_on_host(m, &s, want);
}

static void free_checked(checked *c)
{
    const oscar_cuda_memory *memory = &c->memory;
    int e;
    for (e = 0; e < CHECKED; e++) {
        free(c->k[e]);
        free(c->v[e]);
    }
    free(c->q);
    free(c->pool);
    gpu_free(c->step_k); gpu_free(c->step_v); gpu_free(c->step_q); gpu_free(c->o);
    gpu_free(memory->entries); gpu_free(memory->tables); gpu_free(memory->pool); gpu_free(memory->window_k);
    gpu_free(memory->window_v); gpu_free(memory->status); gpu_free(memory->work);
}

/* A step of three sequences, a page included, then its attention; both against the scalar code. */
static int check_oscar(const model *m)
{
    int heads = m->s.kv_heads * m->s.group, d = m->s.dim, e, equal;
    size_t values = (size_t)(CHECKED * heads * d);
    double *want = (double *)take(values * sizeof *want), error;
    float *got = (float *)take(values * sizeof *got);
    unsigned sum;
    oscar_cuda_rows k, v, q, o;
    checked c;
    memset(&c, 0, sizeof c);
    memset(&k, 0, sizeof k);
    v = q = o = k;
    c.m = m;
    c.pool = (unsigned char *)take(CHECKED_PAGES * m->layout.bytes);
    for (e = 0; e < CHECKED; e++) fill_sequence(&c, e);
    upload_case(&c);
    k.data = c.step_k;
    v.data = c.step_v;
    q.data = c.step_q;
    o.data = c.o;
    must(oscar_cuda_write_pages(m->layer, &c.memory, &k, &v, 3, gpu.stream), "oscar_cuda_write_pages");
    must(oscar_cuda_attend_pages(m->layer, &c.memory, &q, 0, &o, 0, gpu.stream), "oscar_cuda_attend_pages");
    GPU(stream_wait(gpu.stream));
    if (bench.spoil == 1) GPU(fill(c.memory.pool + c.ids[4 + 1] * m->layout.bytes, 0x5a, 16));
    if (bench.spoil == 2) GPU(fill(c.o, 0, 16));
    equal = pages_are_equal(&c);
    GPU(copy_out(got, c.o, values * sizeof *got));
    for (e = 0; e < CHECKED; e++) attend_checked(&c, e, want + (size_t)(e * heads * d));
    error = largest_error(got, want, CHECKED * heads, d);
    sum = checksum(got, values);
    free_checked(&c);
    free(want);
    free(got);
    printf("# %s: pages written %s those of the CPU, attention differs by %.2g (at most 1e-3), checksum %08x\n",
           m->name, equal ? "are" : "ARE NOT", error, sum);
    return equal && error <= 1e-3;
}

/* -- the plain kernel, against double -- */

/* The longest sequence has more pages than a warp keeps ids of at a time. */
enum { PLAIN_CHECKED_PAGES = 5, PLAIN_TABLE = 36 };
static const int plain_tokens[CHECKED] = { 35 * PAGE + 37, 2 * PAGE, 3 };

/* One query head. pages [id][KV head][2][64][D] */
static void plain_in_double(const model *m, const float *pages, const uint32_t *ids, int tokens, int kv_head,
                            const float *q, double *o)
{
    int d = m->s.dim, t, i;
    double *weight = (double *)take((size_t)tokens * sizeof *weight), top = -1e300, sum = 0;
    for (i = 0; i < d; i++) o[i] = 0;
    for (t = 0; t < tokens; t++) {
        const float *k = pages + ((size_t)ids[t / PAGE] * (size_t)m->s.kv_heads + (size_t)kv_head) * (size_t)(128 * d);
        weight[t] = 0;
        for (i = 0; i < d; i++) weight[t] += (double)q[i] * k[t % PAGE * d + i];
        weight[t] /= sqrt((double)d);
        if (weight[t] > top) top = weight[t];
    }
    for (t = 0; t < tokens; t++) {
        const float *v = pages + ((size_t)ids[t / PAGE] * (size_t)m->s.kv_heads + (size_t)kv_head) * (size_t)(128 * d)
                       + 64 * d;
        double w = exp(weight[t] - top);
        sum += w;
        for (i = 0; i < d; i++) o[i] += w * v[t % PAGE * d + i];
    }
    for (i = 0; i < d; i++) o[i] /= sum;
    free(weight);
}

static double plain_error(const model *m, const plain_call *call, const double *want, int splits, unsigned *sum)
{
    plain_call c = *call;
    size_t values = (size_t)(CHECKED * m->s.kv_heads * m->s.group * m->s.dim);
    float *got = (float *)take(values * sizeof *got);
    double error;
    c.splits = splits;
    launch_plain(m, &c);
    GPU(stream_wait(gpu.stream));
    if (bench.spoil == 3) GPU(fill(c.o, 0, 16));
    GPU(copy_out(got, c.o, values * sizeof *got));
    error = largest_error(got, want, CHECKED * m->s.kv_heads * m->s.group, m->s.dim);
    *sum = checksum(got, values);
    free(got);
    return error;
}

/* P is rounded to BF16 before it meets V: relative errors of 2^-9. */
static int check_plain(const model *m)
{
    uint32_t ids[CHECKED * PLAIN_TABLE];
    int heads = m->s.kv_heads * m->s.group, d = m->s.dim, e, h;
    size_t row = (size_t)d, page = (size_t)m->s.kv_heads * 128 * row, all = PLAIN_CHECKED_PAGES * page;
    size_t values = (size_t)(CHECKED * heads) * row;
    float *pages = (float *)take(all * sizeof *pages), *q = (float *)take(values * sizeof *q);
    unsigned short *pages_bf16 = random_rows(all, pages), *q_bf16 = random_rows(values, q);
    double *want = (double *)take(values * sizeof *want), one, some;
    unsigned sum;
    plain_call c;
    memset(&c, 0, sizeof c);
    for (e = 0; e < CHECKED * PLAIN_TABLE; e++) ids[e] = (uint32_t)((3 + 2 * e) % PLAIN_CHECKED_PAGES);
    for (e = 0; e < CHECKED; e++)
        for (h = 0; h < heads; h++)
            plain_in_double(m, pages, ids + PLAIN_TABLE * e, plain_tokens[e], h / m->s.group,
                            q + (size_t)(e * heads + h) * row, want + (size_t)(e * heads + h) * row);
    c.tables = gpu_upload(ids, sizeof ids);
    c.lengths = gpu_upload(plain_tokens, sizeof plain_tokens);
    c.pool = gpu_upload(pages_bf16, 2 * all);
    c.q = gpu_upload(q_bf16, 2 * values);
    c.part_o = gpu_alloc(4 * values * sizeof(float));
    c.part_lse = gpu_alloc((size_t)(4 * CHECKED * heads) * sizeof(float));
    c.o = gpu_alloc(values * sizeof(float));
    c.table_stride = PLAIN_TABLE;
    c.batch = CHECKED;
    one = plain_error(m, &c, want, 1, &sum);
    some = plain_error(m, &c, want, 4, &sum);
    gpu_free(c.tables); gpu_free(c.lengths); gpu_free(c.pool); gpu_free(c.q); gpu_free(c.part_o);
    gpu_free(c.part_lse); gpu_free(c.o);
    free(pages); free(q); free(pages_bf16); free(q_bf16); free(want);
    printf("# %s: the BF16 kernel differs by %.2g, in splits %.2g (at most 8e-3), checksum %08x; %d warps, %d stages\n",
           m->name, one, some, sum, m->warps, m->stages);
    return one <= 8e-3 && some <= 8e-3;
}

static int check_model(const model *m)
{
    int oscar = check_oscar(m), plain = check_plain(m);
    fflush(stdout);
    return oscar && plain;
}

#endif
