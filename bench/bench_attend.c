/* bench_attend.c - decode attention of one token: 32 query heads, 8 KV heads, 128 channels, over long contexts.

       bench_attend [--full] [--windows] [TOKENS:LAYERS ...]      tokens as 4096 or 4k, a multiple of 64

   What is compared, on the same rows, all layers in turn as in a decode step, 1 and 2 threads, one after the other in
   every run:
     INT2         the library: K and V of 2 bits, UNBIASED, page mean, Hadamard
     INT2 fast    the same cache with OSCAR_PRECISION_LOW
     BF16 pages   the library: the same code path with k_bits = v_bits = 16
     BF16 plain   the baseline of this bench (plain_bf16.h): float, no library, for the widest vectors of the machine
     read         reading the bytes of the BF16 pages once: what memory gives (bandwidth.h)
   Both caches hold all tokens in pages (no windows); with --windows they keep 64 + 256 exact rows, and figures end in
   `.windows`. int2_over_bf16 is the time of the faster BF16 over that of INT2, fast_over_bf16 over that of INT2 fast;
   int2_over_bf16_at_4gbs is what that would be where each core gets 4 GB/s, as on a loaded server with many cores: a
   side takes its time here or that of its bytes, whichever is longer. Then 64 sequences of 512 tokens at once
   (`512x64`), and several query tokens at once.

   Before timing: bytes and attention of some pages against the plain reading in tests/reference.h; then, of the caches
   that are timed, the first and the last layer against attention in double over the rows that the cache holds. */
#include "bench.h"
#include "bandwidth.h"

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, GROUP = Q_HEADS / KV_HEADS, PAGE = 64, TOKEN = KV_HEADS * DIM };
enum { SOURCE = 1024, CHUNK = 256, QUERIES = 8, THREADS = 2, OUT = Q_HEADS * DIM };
enum { SEQUENCES_MAX = 64, QUERY_ROWS = QUERIES + SEQUENCES_MAX };

/* == THE BASELINE == */

#define PLAIN(name) plain_##name
#define PLAIN_TARGET
#define PLAIN_LANES 4
#define PLAIN_BLOCK 1
#define PLAIN_TOKENS 1
#include "plain_bf16.h"

#if defined(__x86_64__)
#define PLAIN(name) plain_avx2_##name
#define PLAIN_TARGET __attribute__((target("avx2,fma")))
#define PLAIN_LANES 8
#define PLAIN_BLOCK 1
#define PLAIN_TOKENS 1
#include "plain_bf16.h"

#define PLAIN(name) plain_avx512_##name
#define PLAIN_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define PLAIN_LANES 16
#define PLAIN_BLOCK 2
#define PLAIN_TOKENS PLAIN_TOKENS_AVX512
#include "plain_bf16.h"
#endif

static plain_kernel plain_choose(void)
{
    static const plain_kernel narrow = { "128-bit vectors", plain_attend };
#if defined(__x86_64__)
    static const plain_kernel avx2 = { "256-bit vectors", plain_avx2_attend };
    static const plain_kernel avx512 = { "512-bit vectors", plain_avx512_attend };
    if (bandwidth_lanes() == 16) return avx512;
    if (bandwidth_lanes() == 8) return avx2;
#endif
    return narrow;
}

/* == WHAT IS MEASURED == */

/* A cache of the library that holds the tokens. */
typedef struct subject {
    oscar_layer layer;
    oscar_layout layout;
    oscar_cache *cache;
    oscar_seq seqs[SEQUENCES_MAX];
} subject;

/*   tokens     of each sequence
     windows    64 + 256 exact rows
     recent     without windows: exact rows at the end, so that several query tokens can go at once; 0 = none */
typedef struct setup {
    int tokens, layers, sequences, windows, recent;
    char label[32];           /* "4k.32layers", "512x64.1layers" */
    float *k, *v, *q;         /* SOURCE tokens; QUERY_ROWS queries */
    subject int2, bf16;
    plain_kernel plain;
    unsigned char *pages;     /* the baseline's BF16 pages, [layer][sequence][page] */
    size_t pages_bytes;
} setup;

/* What steps attend over; job_names has the names. */
enum { KIND_INT2, KIND_FAST, KIND_PAGES, KIND_PLAIN, KINDS };

/* One case: a decode step over all layers. subject NULL: the baseline, one query for each sequence.
     queries    query tokens at the end of each sequence; 1 unless there is but one sequence */
typedef struct step_job {
    setup *s;
    subject *subject;
    int kind, threads, queries, layer;
    float *part_o[THREADS], *part_lse[THREADS];
    oscar_result results[THREADS];
    float *o;                 /* [layers][rows][Q_HEADS][DIM] */
} step_job;

static oscar_precision precision_of(int kind)
{
    return kind == KIND_FAST ? OSCAR_PRECISION_LOW : OSCAR_PRECISION_HIGH;
}

static int rows_of(const step_job *job) { return job->s->sequences * job->queries; }

/* Row r of a step of a layer asks with query layer % QUERIES + r. */
static const float *query_of(const setup *s, int layer, int row) { return s->q + (layer % QUERIES + row) * OUT; }

/* Where the rows of a chunk of a layer come from: some of the SOURCE tokens, on a page boundary. */
static int source_of(int layer, int sequence, int token)
{
    return (token / CHUNK * 5 + (layer + sequence) * 3) % 13 * PAGE + token % CHUNK;
}

static void library_part(void *argument, int part, int parts)
{
    step_job *job = (step_job *)argument;
    oscar_view q;
    oscar_batch batch[SEQUENCES_MAX];
    int i;
    memset(&q, 0, sizeof q);
    q.data = query_of(job->s, job->layer, 0);
    for (i = 0; i < job->s->sequences; i++) {
        batch[i].seq = job->subject->seqs[i];
        batch[i].row = i;
        batch[i].rows = job->queries;
    }
    job->results[part] = oscar_attend_part(job->subject->cache, job->layer, batch, job->s->sequences, &q, part, parts,
                                           job->part_o[part], job->part_lse[part]);
}

/* One KV head of one sequence by the baseline. */
static void plain_head(const step_job *job, int sequence, int h)
{
    const setup *s = job->s;
    size_t page_bytes = s->bf16.layout.bytes;
    size_t at = ((size_t)job->layer * (size_t)s->sequences + (size_t)sequence) * (size_t)(s->tokens / PAGE);
    plain_half q[PLAIN_GROUP];
    plain_state state;
    int a, i;
    memset(&state, 0, sizeof state);
    for (a = 0; a < GROUP; a++) {
        const float *from = query_of(s, job->layer, sequence) + (h * GROUP + a) * DIM;
        state.top[a] = -HUGE_VALF;
        for (i = 0; i < PLAIN_HALF; i++) {
            q[a].even[i] = from[2 * i] * s->bf16.layout.layer.scale;
            q[a].odd[i] = from[2 * i + 1] * s->bf16.layout.layer.scale;
        }
    }
    s->plain.attend(s->pages + at * page_bytes + (size_t)h * s->bf16.layout.head_bytes, page_bytes, s->tokens / PAGE,
                    q, &state);
    for (a = 0; a < GROUP; a++) {
        float *o = job->o + (job->layer * s->sequences + sequence) * OUT + (h * GROUP + a) * DIM;
        for (i = 0; i < PLAIN_HALF; i++) {
            o[2 * i] = state.o[a].even[i] / state.sum[a];
            o[2 * i + 1] = state.o[a].odd[i] / state.sum[a];
        }
    }
}

static void plain_part(void *argument, int part, int parts)
{
    const step_job *job = (const step_job *)argument;
    int i;
    for (i = part; i < job->s->sequences * KV_HEADS; i += parts) plain_head(job, i / KV_HEADS, i % KV_HEADS);
}

static void run_step(void *argument)
{
    step_job *job = (step_job *)argument;
    int part;
    /* one cache serves both precisions, which change no byte of it: they read the same memory */
    if (job->subject) job->subject->cache->desc.precision = precision_of(job->kind);
    for (job->layer = 0; job->layer < job->s->layers; job->layer++) {
        bench_parallel(job->threads, job->subject ? library_part : plain_part, job);
        if (!job->subject) continue;
        for (part = 0; part < job->threads; part++) bench_ok(job->results[part], "oscar_attend_part");
        oscar_attend_join(job->threads, (const float *const *)job->part_o, (const float *const *)job->part_lse,
                          rows_of(job), Q_HEADS, DIM, NULL, job->o + job->layer * rows_of(job) * OUT, NULL);
    }
}

/* == FILLING == */

static void subject_create(setup *s, subject *out, int bits)
{
    oscar_cache_desc desc;
    oscar_layer *layers = (oscar_layer *)calloc((size_t)s->layers, sizeof(oscar_layer));
    oscar_footprint bytes;
    size_t before = bench_held;
    int i;
    memset(&desc, 0, sizeof desc);
    memset(out, 0, sizeof *out);
    out->layer.q_heads = Q_HEADS;
    out->layer.kv_heads = KV_HEADS;
    out->layer.k_dim = DIM;
    out->layer.k_bits = out->layer.v_bits = bits;
    for (i = 0; i < s->layers; i++) layers[i] = out->layer;
    desc.layers = layers;
    desc.layer_count = s->layers;
    desc.max_sequences = s->sequences;
    desc.max_pages = (int64_t)s->sequences * (s->tokens / PAGE);
    desc.max_draft = -1;
    if (!s->windows) {
        desc.sink = -1;
        desc.recent = s->recent ? s->recent : -1;
    }
    desc.hooks = bench_hooks();
    bench_ok(oscar_cache_bytes(&desc, s->tokens, &bytes), "oscar_cache_bytes");
    bench_ok(oscar_cache_create(&desc, &out->cache), "oscar_cache_create");
    bench_check(bench_held - before == bytes.total, "oscar_cache_bytes against the bytes that were allocated");
    bench_ok(oscar_cache_layout(out->cache, 0, &out->layout), "oscar_cache_layout");
    for (i = 0; i < s->sequences; i++) bench_ok(oscar_cache_open(out->cache, &out->seqs[i]), "oscar_cache_open");
    free(layers);
}

static void subject_append(const setup *s, subject *to, int sequence, int token, int rows)
{
    int layer;
    oscar_batch batch;
    batch.seq = to->seqs[sequence];
    batch.row = 0;
    batch.rows = rows;
    bench_ok(oscar_cache_reserve(to->cache, batch.seq, rows, 0), "oscar_cache_reserve");
    for (layer = 0; layer < s->layers; layer++) {
        oscar_view k, v;
        memset(&k, 0, sizeof k);
        k.data = s->k + source_of(layer, sequence, token) * TOKEN;
        v = k;
        v.data = s->v + source_of(layer, sequence, token) * TOKEN;
        bench_ok(oscar_append(to->cache, layer, &batch, 1, &k, &v), "oscar_append");
    }
}

/* The baseline's pages: the layout of the library's BF16 pages, in memory of the bench. */
static void plain_fill(setup *s)
{
    size_t bytes = s->bf16.layout.bytes, at = 0;
    void *scratch = bench_alloc(s->bf16.layout.scratch);
    int layer, i, token;
    s->pages_bytes = bytes * (size_t)(s->tokens / PAGE) * (size_t)s->layers * (size_t)s->sequences;
    s->pages = (unsigned char *)bench_alloc(s->pages_bytes);
    for (layer = 0; layer < s->layers; layer++)
        for (i = 0; i < s->sequences; i++)
            for (token = 0; token < s->tokens; token += PAGE, at += bytes) {
                oscar_view k, v;
                memset(&k, 0, sizeof k);
                k.data = s->k + source_of(layer, i, token) * TOKEN;
                v = k;
                v.data = s->v + source_of(layer, i, token) * TOKEN;
                bench_ok(oscar_page_write(&s->bf16.layout, &k, &v, s->pages + at, scratch), "oscar_page_write");
            }
    bench_free(scratch, s->bf16.layout.scratch);
}

static void fill(setup *s)
{
    int i, token;
    subject_create(s, &s->int2, 2);
    subject_create(s, &s->bf16, 16);
    for (i = 0; i < s->sequences; i++)
        for (token = 0; token < s->tokens; token += CHUNK) {
            int rows = s->tokens - token < CHUNK ? s->tokens - token : CHUNK;
            subject_append(s, &s->int2, i, token, rows);
            subject_append(s, &s->bf16, i, token, rows);
        }
    plain_fill(s);
}

static void release(setup *s)
{
    oscar_cache_destroy(s->int2.cache);
    oscar_cache_destroy(s->bf16.cache);
    bench_free(s->pages, s->pages_bytes);
}

/* == CHECKS == */

typedef struct reference_head { double top, sum, o[DIM]; } reference_head;

/* Adds rows k, v [rows][KV_HEADS][DIM] to the online softmax of every query head, in double. */
static void reference_add(reference_head *heads, const float *query, const float *k, const float *v, int rows)
{
    int x, t, i;
    for (x = 0; x < Q_HEADS; x++) {
        reference_head *head = &heads[x];
        for (t = 0; t < rows; t++) {
            const float *key = k + (t * KV_HEADS + x / GROUP) * DIM, *value = v + (t * KV_HEADS + x / GROUP) * DIM;
            double logit = 0, weight;
            for (i = 0; i < DIM; i++) logit += (double)query[x * DIM + i] * (double)key[i];
            logit /= sqrt((double)DIM);
            if (logit > head->top) {
                weight = exp(head->top - logit);
                head->top = logit;
                head->sum *= weight;
                for (i = 0; i < DIM; i++) head->o[i] *= weight;
            }
            weight = exp(logit - head->top);
            head->sum += weight;
            for (i = 0; i < DIM; i++) head->o[i] += weight * (double)value[i];
        }
    }
}

/* Attention of the first `tokens` tokens of a sequence in a layer, in double over the rows that the cache holds; of
   BF16 over the rows that went in, rounded by the plain reading. query: [Q_HEADS][DIM]; o alike */
static void reference_layer(const setup *s, const subject *from, int layer, int sequence, int tokens,
                            const float *query, double *o)
{
    static float k[CHUNK * TOKEN], v[CHUNK * TOKEN];
    static reference_head heads[Q_HEADS];
    oscar_out k_out, v_out;
    int token, x, i;
    memset(heads, 0, sizeof heads);
    for (x = 0; x < Q_HEADS; x++) heads[x].top = -HUGE_VAL;
    memset(&k_out, 0, sizeof k_out);
    v_out = k_out;
    k_out.data = k;
    v_out.data = v;
    for (token = 0; token < tokens; token += CHUNK) {
        int rows = tokens - token < CHUNK ? tokens - token : CHUNK;
        const size_t at = (size_t)source_of(layer, sequence, token) * TOKEN;
        if (from->layer.k_bits == 16)
            for (i = 0; i < rows * TOKEN; i++) {
                k[i] = ref_round(OSCAR_BF16, s->k[at + (size_t)i]);
                v[i] = ref_round(OSCAR_BF16, s->v[at + (size_t)i]);
            }
        else
            bench_ok(oscar_fetch(from->cache, layer, from->seqs[sequence], token, rows, &k_out, &v_out),
                     "oscar_fetch");
        reference_add(heads, query, k, v, rows);
    }
    for (x = 0; x < Q_HEADS; x++)
        for (i = 0; i < DIM; i++) o[x * DIM + i] = heads[x].o[i] / heads[x].sum;
}

/* The larger one; NaN is the largest. */
static double larger(double a, double b) { return b > a || b != b ? b : a; }

/* The largest relative error over heads. */
static double worst_head(const float *o, const double *expected)
{
    double worst = 0;
    int x;
    for (x = 0; x < Q_HEADS; x++) worst = larger(worst, ref_relative(DIM, o + x * DIM, expected + x * DIM));
    return worst;
}

/* What the library promises: relative error of an output vector against double over the same codes. */
static double limit_of(int kind, oscar_isa isa)
{
    return kind == KIND_PLAIN ? 1e-4 : isa == OSCAR_ISA_SCALAR ? 1e-5 : kind == KIND_FAST ? 1e-2 : 1e-3;
}

/* That error: the largest one of a head; with OSCAR_PRECISION_LOW, where it is noise of rounding, that of all heads. */
static double error_of(int kind, const float *o, const double *expected)
{
    return kind == KIND_FAST ? ref_relative(OUT, o, expected) : worst_head(o, expected);
}

static double relerr[KINDS][OSCAR_ISA_COUNT];       /* the largest ones */

static const char *const job_names[KINDS] = { "INT2", "INT2 fast", "BF16 pages", "BF16 plain" };

/* What is compared of a step: its first row in the first layer, or its last row in the last layer. */
static void reference_end(const step_job *job, const subject *from, int end, double *o)
{
    const setup *s = job->s;
    int layer = end * (s->layers - 1), row = end * (rows_of(job) - 1);
    reference_layer(s, from, layer, end * (s->sequences - 1), s->tokens - (end ? 0 : job->queries - 1),
                    query_of(s, layer, row), o);
}

static const float *output_end(const step_job *job, int end)
{
    return job->o + ((job->s->layers - 1) * rows_of(job) + rows_of(job) - 1) * end * OUT;
}

/* One step of every job and instruction set, both ends of it: worst[kind][isa] against double over the same rows,
   worst_exact[isa] of INT2 against exact rows. */
static void check_outputs(setup *s, step_job *jobs, int job_count, double worst[KINDS][OSCAR_ISA_COUNT],
                          double *worst_exact)
{
    static double held[2][OUT], exact[2][OUT];
    int i, end;
    for (end = 0; end < 2; end++) {
        reference_end(&jobs[0], &s->int2, end, held[end]);
        reference_end(&jobs[0], &s->bf16, end, exact[end]);
    }
    for (i = 0; i < job_count; i++) {
        int kind = jobs[i].kind;
        oscar_isa isa = OSCAR_ISA_AUTO;
        do {
            if (kind != KIND_PLAIN) isa = bench_next_isa(isa);
            if (kind != KIND_PLAIN && isa == OSCAR_ISA_AUTO) break;
            run_step(&jobs[i]);
            for (end = 0; end < 2; end++) {
                const float *o = output_end(&jobs[i], end);
                worst[kind][isa] = larger(worst[kind][isa],
                                          error_of(kind, o, kind > KIND_FAST ? exact[end] : held[end]));
                if (kind <= KIND_FAST) worst_exact[isa] = larger(worst_exact[isa], ref_relative(OUT, o, exact[end]));
            }
        } while (isa != OSCAR_ISA_AUTO);
    }
}

/* INT2 also against exact attention: with zero-mean values 2 bits leave an error of about 0.55 of the output of all
   heads, wrong codes one of about 1 or more. Jobs of equal query counts. */
static void check_step(setup *s, step_job *jobs, int job_count)
{
    double worst[KINDS][OSCAR_ISA_COUNT] = { { 0 } }, worst_exact[OSCAR_ISA_COUNT] = { 0 };
    int kinds[KINDS] = { 0 }, kind, i;
    oscar_isa isa;
    check_outputs(s, jobs, job_count, worst, worst_exact);
    for (i = 0; i < job_count; i++) kinds[jobs[i].kind] = 1;
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
        for (kind = 0; kind < KIND_PLAIN; kind++) {
            relerr[kind][isa] = larger(relerr[kind][isa], worst[kind][isa]);
            if (kinds[kind])
                bench_close(worst[kind][isa], limit_of(kind, isa), isa, "%s, %s x%d against double over the rows held",
                            s->label, job_names[kind], jobs->queries);
        }
        if (kinds[KIND_INT2] || kinds[KIND_FAST])
            bench_close(worst_exact[isa], 0.75, isa, "%s, INT2 against double over exact rows", s->label);
    }
    if (kinds[KIND_PLAIN])
        bench_close(worst[KIND_PLAIN][OSCAR_ISA_AUTO], limit_of(KIND_PLAIN, OSCAR_ISA_AUTO), OSCAR_ISA_AUTO,
                    "%s, BF16 plain against double", s->label);
}

enum { CHECK_PAGES = 4, CHECK_TOKENS = CHECK_PAGES * PAGE };

/* Attention of every query head in double over the rows that the bytes of the pages stand for. o: [Q_HEADS][DIM] */
static void reference_pages(const ref_page *page, unsigned char *const *bytes, const float *query, double *o)
{
    static double k[CHECK_TOKENS * DIM], v[CHECK_TOKENS * DIM], q[DIM];
    unsigned char visible[CHECK_TOKENS];
    double lse;
    int x, t, i;
    memset(visible, 1, sizeof visible);
    for (x = 0; x < Q_HEADS; x++) {
        for (t = 0; t < CHECK_TOKENS && x % GROUP == 0; t++) {
            ref_row_double(page, bytes[t / PAGE], 0, x / GROUP, t % PAGE, k + t * DIM);
            ref_row_double(page, bytes[t / PAGE], 1, x / GROUP, t % PAGE, v + t * DIM);
        }
        for (i = 0; i < DIM; i++) q[i] = (double)query[x * DIM + i];
        ref_attend(CHECK_TOKENS, DIM, DIM, q, k, v, visible, 1 / sqrt((double)DIM), 0, NULL, o + x * DIM, &lse);
    }
}

/* Some pages: equal bytes, and attention over them against double from their bytes alone. */
static void check_pages(const setup *s)
{
    static float o[OUT], lse[Q_HEADS];
    static double expected[OUT];
    unsigned char *bytes[CHECK_PAGES], *plain;
    const void *pages[CHECK_PAGES];
    oscar_layer layer;
    oscar_layout layout;
    oscar_page_list list;
    oscar_attend_desc desc;
    ref_page page;
    oscar_isa isa;
    void *scratch;
    int p, same, kind;
    memset(&layer, 0, sizeof layer);
    memset(&list, 0, sizeof list);
    memset(&desc, 0, sizeof desc);
    layer.q_heads = Q_HEADS;
    layer.kv_heads = KV_HEADS;
    layer.k_dim = DIM;
    page = ref_page_of(&layer, PAGE, OSCAR_BF16);
    bench_ok(oscar_page_layout(&layer, PAGE, OSCAR_BF16, NULL, &layout), "oscar_page_layout");
    scratch = bench_alloc(layout.scratch);
    plain = (unsigned char *)bench_alloc(page.bytes);
    for (p = 0; p < CHECK_PAGES; p++) pages[p] = bytes[p] = (unsigned char *)bench_alloc(layout.bytes);
    list.pages = pages;
    list.count = CHECK_PAGES;
    desc.layout = &layout;
    desc.q.data = s->q;
    desc.queries = 1;
    desc.position = CHECK_TOKENS - 1;
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
        for (same = page.bytes == layout.bytes, p = 0; p < CHECK_PAGES; p++) {
            oscar_view k, v;
            memset(&k, 0, sizeof k);
            k.data = s->k + p * PAGE * TOKEN;
            v = k;
            v.data = s->v + p * PAGE * TOKEN;
            bench_ok(oscar_page_write(&layout, &k, &v, bytes[p], scratch), "oscar_page_write");
            same = same && ref_page_write(&page, &k, &v, plain) && !memcmp(plain, bytes[p], layout.bytes);
        }
        bench_close(same ? 0 : 1, 0, isa, "bytes of pages against the plain reading");
        reference_pages(&page, bytes, s->q, expected);
        for (kind = KIND_INT2; kind <= KIND_FAST; kind++) {
            desc.precision = precision_of(kind);
            bench_ok(oscar_attend_pages(&desc, &list, o, lse), "oscar_attend_pages");
            relerr[kind][isa] = larger(relerr[kind][isa], error_of(kind, o, expected));
            bench_close(error_of(kind, o, expected), limit_of(kind, isa), isa,
                        "attention over pages against double from their bytes, %s", job_names[kind]);
        }
    }
    for (p = 0; p < CHECK_PAGES; p++) bench_free(bytes[p], layout.bytes);
    bench_free(scratch, layout.scratch);
    bench_free(plain, page.bytes);
}

/* == MEASURING == */

static void job_init(setup *s, int kind, int threads, int queries, step_job *job)
{
    size_t rows = (size_t)(s->sequences * queries);
    int part;
    memset(job, 0, sizeof *job);
    job->s = s;
    job->kind = kind;
    job->subject = kind == KIND_PLAIN ? NULL : kind == KIND_PAGES ? &s->bf16 : &s->int2;
    job->threads = threads;
    job->queries = queries;
    job->o = (float *)calloc((size_t)s->layers * rows * OUT, sizeof(float));
    for (part = 0; part < threads; part++) {
        job->part_o[part] = (float *)calloc(rows * OUT, sizeof(float));
        job->part_lse[part] = (float *)calloc(rows * Q_HEADS, sizeof(float));
    }
}

static int job_make(setup *s, step_job *jobs)
{
    int count = 0, threads, kind;
    for (threads = 1; threads <= THREADS; threads++)
        for (kind = 0; kind < KINDS; kind++) job_init(s, kind, threads, 1, &jobs[count++]);
    return count;
}

static void job_free(step_job *jobs, int count)
{
    int i, part;
    for (i = 0; i < count; i++) {
        free(jobs[i].o);
        for (part = 0; part < jobs[i].threads; part++) {
            free(jobs[i].part_o[part]);
            free(jobs[i].part_lse[part]);
        }
    }
}

/* Bytes that a step reads of a subject: its pages, and the rows in its windows. */
static double bytes_of(const setup *s, const subject *from)
{
    double bytes = 0;
    int i;
    for (i = 0; i < s->sequences; i++) {
        oscar_seq_state state;
        bench_ok(oscar_cache_get(from->cache, from->seqs[i], &state), "oscar_cache_get");
        bytes += s->layers * ((double)from->layout.bytes * (double)state.page_count
                              + (double)(state.sink + state.recent) * TOKEN * 4);
    }
    return bytes;
}

/* Tokens times KV heads of a step. */
static double units_of(const setup *s) { return (double)s->layers * s->sequences * s->tokens * KV_HEADS; }

static bench_case step_case(step_job *job, const char *name)
{
    setup *s = job->s;
    bench_case c = bench_case_of(run_step, job, "%s %s %dt", s->label, name, job->threads);
    c.units = units_of(s);
    c.bytes = job->subject ? bytes_of(s, job->subject) : (double)s->pages_bytes;
    c.out = job->o;
    c.out_size = (size_t)s->layers * (size_t)(rows_of(job) * OUT) * sizeof(float);
    return c;
}

/* The scalar code knows no low precision: it would be timed twice. */
static void add_fast(bench_table *table, bench_case c)
{
    for (c.isa = bench_next_isa(OSCAR_ISA_AUTO); c.isa != OSCAR_ISA_AUTO; c.isa = bench_next_isa(c.isa))
        if (c.isa != OSCAR_ISA_SCALAR) bench_add(table, c);
}

static void add_cases(setup *s, bench_table *table, step_job *jobs, int job_count, bench_reader *readers)
{
    int i;
    for (i = 0; i < job_count; i++) {
        bench_case c = step_case(&jobs[i], job_names[jobs[i].kind]);
        if (jobs[i].kind == KIND_FAST) add_fast(table, c);
        else if (jobs[i].subject) bench_add_isas(table, c);
        else bench_add(table, c);
    }
    for (i = 0; i < THREADS; i++) {
        bench_case c;
        memset(&readers[i], 0, sizeof readers[i]);
        readers[i].data = s->pages;
        readers[i].bytes = s->pages_bytes;
        readers[i].threads = i + 1;
        c = bench_case_of(bench_read, &readers[i], "%s read %dt", s->label, i + 1);
        c.units = units_of(s);
        c.bytes = (double)s->pages_bytes;
        bench_add(table, c);
    }
}

/* Time of one unit where a core gets so many bytes a second: its time here, or that of its bytes. */
static double loaded(const bench_case *c, int threads, double bytes_per_s)
{
    return fmax(c->median / c->units * threads, c->bytes / c->units / bytes_per_s);
}

static void print_threads(const setup *s, const bench_table *table, oscar_isa isa, int threads, double clock_hz)
{
    const char *end = s->windows ? ".windows" : "";
    const bench_case *int2 = bench_find(table, isa, "%s INT2 %dt", s->label, threads);
    const bench_case *pages = bench_find(table, isa, "%s BF16 pages %dt", s->label, threads);
    const bench_case *plain = bench_find(table, OSCAR_ISA_AUTO, "%s BF16 plain %dt", s->label, threads);
    const bench_case *read = bench_find(table, OSCAR_ISA_AUTO, "%s read %dt", s->label, threads);
    const bench_case *best = pages->median < plain->median ? pages : plain;
    const double gb = 1e9, cycles = clock_hz * threads;
    bench_figure(isa, best->median / int2->median, "1", "attend.int2_over_bf16.%s.%dt%s", s->label, threads, end);
    bench_figure(isa, pages->median / int2->median, "1", "attend.int2_over_bf16_pages.%s.%dt%s", s->label, threads,
                 end);
    bench_figure(isa, loaded(best, threads, 4 * gb) / loaded(int2, threads, 4 * gb), "1",
                 "attend.int2_over_bf16_at_4gbs.%s.%dt%s", s->label, threads, end);
    bench_figure(isa, int2->median / int2->units * 1e9, "ns", "attend.ns_per_token_head.%s.%dt%s", s->label, threads,
                 end);
    bench_figure(isa, int2->median / int2->units * cycles, "cycles", "attend.cycles_per_token_head.%s.%dt%s", s->label,
                 threads, end);
    if (isa != OSCAR_ISA_SCALAR) {
        const bench_case *fast = bench_find(table, isa, "%s INT2 fast %dt", s->label, threads);
        bench_figure(isa, best->median / fast->median, "1", "attend.fast_over_bf16.%s.%dt%s", s->label, threads, end);
        bench_figure(isa, fast->median / fast->units * 1e9, "ns", "attend.fast_ns_per_token_head.%s.%dt%s", s->label,
                     threads, end);
        bench_figure(isa, fast->median / fast->units * cycles, "cycles", "attend.fast_cycles_per_token_head.%s.%dt%s",
                     s->label, threads, end);
    }
    bench_figure(isa, best->median / best->units * 1e9, "ns", "attend.bf16_ns_per_token_head.%s.%dt%s", s->label,
                 threads, end);
    bench_figure(isa, best->median / best->units * cycles, "cycles", "attend.bf16_cycles_per_token_head.%s.%dt%s",
                 s->label, threads, end);
    bench_figure(isa, read->median / best->median, "1", "attend.bf16.fraction_of_bandwidth.%s.%dt%s", s->label,
                 threads, end);
    if (isa != bench.best) return;
    bench_figure(isa, int2->bytes / int2->units, "B", "attend.bytes_per_token_head.%s.%dt%s", s->label, threads, end);
    bench_figure(isa, read->bytes / read->median / 1e9, "GB/s", "attend.read_gb_per_s.%s.%dt%s", s->label, threads,
                 end);
}

static void print_figures(const setup *s, const bench_table *table)
{
    double clock_hz = bench_clock_hz();
    int threads;
    oscar_isa isa;
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (threads = 1; threads <= THREADS; threads++) print_threads(s, table, isa, threads, clock_hz);
}

/* Fills in what a setup is called, and fills its caches. */
static void setup_fill(setup *s, int tokens, int layers, int sequences)
{
    double start = bench_now();
    char count[24] = "";
    s->tokens = tokens;
    s->layers = layers;
    s->sequences = sequences;
    if (sequences > 1) (void)snprintf(count, sizeof count, "x%d", sequences);
    (void)snprintf(s->label, sizeof s->label, tokens % 1024 ? "%d%s.%dlayers" : "%dk%s.%dlayers",
                   tokens % 1024 ? tokens : tokens / 1024, count, layers);
    printf("\n");
    fill(s);
    printf("# filled    %s in %.1f s\n", s->label, bench_now() - start);
}

static void measure(const setup *pattern, int tokens, int layers, int sequences)
{
    static bench_table table;
    static step_job jobs[KINDS * THREADS];
    static bench_reader readers[THREADS];
    setup s = *pattern;
    int job_count;
    setup_fill(&s, tokens, layers, sequences);
    job_count = job_make(&s, jobs);
    check_step(&s, jobs, job_count);
    memset(&table, 0, sizeof table);
    add_cases(&s, &table, jobs, job_count, readers);
    bench_time(&table, 5e-3);
    printf("%s%s: time, and bytes read, for one token and KV head (4 query heads)\n", s.label,
           s.windows ? ", windows 64 + 256" : ", all tokens in pages");
    bench_print(&table, 1e9, "ns");
    print_figures(&s, &table);
    job_free(jobs, job_count);
    release(&s);
}

/* == SEVERAL QUERY TOKENS AT ONCE == */

/* The last 1, 2, 4, 8 tokens of a sequence attend in one call, as drafts of speculative decoding do: rows and heads of
   a group go over the pages together. The last PAGE tokens are exact rows, so that each query sees all of the pages. */
static void measure_queries(const setup *pattern, int tokens, int layers)
{
    static const int counts[4] = { 1, 2, 4, 8 };
    static bench_table table;
    static step_job jobs[2 * 4];
    setup s = *pattern;
    oscar_isa isa;
    char name[24];
    int i;
    s.windows = 0;
    s.recent = PAGE;
    setup_fill(&s, tokens, layers, 1);
    memset(&table, 0, sizeof table);
    for (i = 0; i < 2 * 4; i++) {
        step_job *job = &jobs[i];
        job_init(&s, i < 4 ? KIND_INT2 : KIND_PAGES, 1, counts[i % 4], job);
        check_step(&s, job, 1);
        (void)snprintf(name, sizeof name, "%s x%d", job_names[job->kind], job->queries);
        bench_add_isas(&table, step_case(job, name));
    }
    bench_time(&table, 5e-3);
    printf("%s, several query tokens in one call: time of the call, and bytes read, for one token and KV head\n",
           s.label);
    bench_print(&table, 1e9, "ns");
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (i = 1; i < 4; i++) {
            double one = bench_find(&table, isa, "%s INT2 x1 1t", s.label)->median;
            double several = bench_find(&table, isa, "%s INT2 x%d 1t", s.label, counts[i])->median;
            bench_figure(isa, several / one, "1", "attend.queries%d_over_1", counts[i]);
            bench_figure(isa, bench_find(&table, isa, "%s BF16 pages x%d 1t", s.label, counts[i])->median / several,
                         "1", "attend.queries%d.int2_over_bf16_pages", counts[i]);
        }
    job_free(jobs, 2 * 4);
    release(&s);
}

/* == MEMORY == */

/* What a cache costs, against what it allocates and against the figures of the formats: 36 and 20 bytes a row. */
static void report_memory(void)
{
    static const struct { int dim; oscar_fit fit; int page_mean, draft; double held; } rows[4] = {
        { 128, OSCAR_CLIP, -1, -1, 2.2836 }, { 64, OSCAR_CLIP, -1, -1, 2.5330 },
        { 128, OSCAR_UNBIASED, 0, 0, 0 }, { 64, OSCAR_UNBIASED, 0, 0, 0 },
    };
    int i;
    printf("\nBits a value, 131072 tokens, windows 64 + 256 of BF16 included (held: rows in use, owned: the ring)\n");
    for (i = 0; i < 4; i++) {
        oscar_cache_desc desc;
        oscar_layer layer;
        oscar_footprint bytes;
        memset(&desc, 0, sizeof desc);
        memset(&layer, 0, sizeof layer);
        layer.q_heads = Q_HEADS;
        layer.kv_heads = KV_HEADS;
        layer.k_dim = rows[i].dim;
        layer.k_fit = layer.v_fit = rows[i].fit;
        layer.k_page_mean = rows[i].page_mean;
        desc.layers = &layer;
        desc.layer_count = 1;
        desc.max_sequences = 1;
        desc.max_pages = 131072 / PAGE;
        desc.max_draft = rows[i].draft;
        bench_ok(oscar_cache_bytes(&desc, 131072, &bytes), "oscar_cache_bytes");
        printf("D = %3d, %-8s, page mean %s: held %.4f owned %.4f exact %.0f; pages %.1f windows %.2f rest %.2f MB\n",
               rows[i].dim, rows[i].fit == OSCAR_CLIP ? "CLIP" : "UNBIASED", rows[i].page_mean ? "off" : "on ",
               bytes.held_bits, bytes.owned_bits, bytes.exact_bits, (double)bytes.pages / 1e6,
               (double)bytes.windows / 1e6, (double)bytes.rest / 1e6);
        if (rows[i].held > 0) bench_check(fabs(bytes.held_bits - rows[i].held) < 5e-5, "bits held");
        bench_check(bytes.total == bytes.pages + bytes.windows + bytes.rest, "the sum of the bytes");
    }
}

/* == ALL == */

/* "4k:32" */
static void measure_word(const setup *pattern, const char *word)
{
    char *end;
    long tokens = strtol(word, &end, 10), layers = 0;
    if (*end == 'k') { tokens *= 1024; end++; }
    if (*end == ':') layers = strtol(end + 1, &end, 10);
    if (*end || tokens < PAGE || tokens > 1 << 24 || tokens % PAGE || layers < 1 || layers > 128) {
        fprintf(stderr, "%s: not TOKENS:LAYERS with tokens a multiple of %d\n", word, PAGE);
        exit(2);
    }
    measure(pattern, (int)tokens, (int)layers, 1);
}

/* Rows and queries of all cases. query: room for QUERY_ROWS of them. */
static void source_rows(setup *out, float *query)
{
    int t, h, i;
    memset(out, 0, sizeof *out);
    out->plain = plain_choose();
    printf("# baseline  BF16 plain and read, %s\n", out->plain.name);
    out->k = (float *)bench_alloc(SOURCE * TOKEN * sizeof(float));
    out->v = (float *)bench_alloc(SOURCE * TOKEN * sizeof(float));
    out->q = query;
    bench_normal(1, SOURCE * TOKEN, out->k);
    bench_normal(2, SOURCE * TOKEN, out->v);
    bench_normal(3, QUERY_ROWS * OUT, query);
    for (t = 0; t < SOURCE; t++)       /* keys have a mean: each head its own on every fourth channel */
        for (h = 0; h < KV_HEADS; h++)
            for (i = 0; i < DIM; i += 4) out->k[(t * KV_HEADS + h) * DIM + i] += (float)((h + i) % 5 - 2) * 0.5f;
}

#ifndef BENCH_ATTEND_NO_MAIN   /* bench/peer_ggml.c measures with the same caches */
int main(int argc, char **argv)
{
    static const char *const quick[] = { "4k:4", "16k:1" }, *const full[] = { "4k:1", "4k:32", "32k:6", "128k:3" };
    static float query[QUERY_ROWS * OUT];
    setup pattern;
    int i, windows = 0;
    oscar_isa isa;
    for (i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--windows")) {
            windows = 1;
            for (argc--; i < argc; i++) argv[i] = argv[i + 1];
        }
    bench_begin("bench_attend", "[--full] [--windows] [TOKENS:LAYERS ...]", argc, argv);
    source_rows(&pattern, query);
    pattern.windows = windows;
    check_pages(&pattern);
    for (i = 0; i < bench.word_count; i++) measure_word(&pattern, bench.words[i]);
    if (!bench.word_count && bench.full) for (i = 0; i < 4; i++) measure_word(&pattern, full[i]);
    if (!bench.word_count && !bench.full) for (i = 0; i < 2; i++) measure_word(&pattern, quick[i]);
    if (!bench.word_count) {
        measure(&pattern, 512, bench.full ? 4 : 1, SEQUENCES_MAX);
        measure_queries(&pattern, 4096, 1);
    }
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
        bench_figure(isa, relerr[KIND_INT2][isa], "1", "attend.relerr");
        if (isa != OSCAR_ISA_SCALAR) bench_figure(isa, relerr[KIND_FAST][isa], "1", "attend.fast_relerr");
    }
    report_memory();
    return 0;
}
#endif
