/* bench_attend.c - decode attention of one token: 32 query heads, 8 KV heads, 128 channels, over long contexts.

       bench_attend [--full] [--windows] [TOKENS:LAYERS ...]      tokens as 4096 or 4k, a multiple of 64

   What is compared, on the same rows, all layers in turn as in a decode step, 1 and 2 threads, one after the other in
   every run:
     INT2         the library: K and V of 2 bits, UNBIASED, page mean, Hadamard
     BF16 pages   the library: the same code path with k_bits = v_bits = 16
     BF16 plain   the baseline of this bench (plain_bf16.h): float, no library, for the widest vectors of the machine
     read         reading the bytes of the BF16 pages once: what memory gives
   Both caches hold all tokens in pages (no windows); with --windows they keep 64 + 256 exact rows, and figures end in
   `.windows`. int2_over_bf16 is the time of the faster BF16 over that of INT2.

   Before timing: bytes and attention of some pages against the plain reading in tests/reference.h; then, of the caches
   that are timed, the first and the last layer against attention in double over the rows that the cache holds. */
#include "bench.h"

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, GROUP = Q_HEADS / KV_HEADS, PAGE = 64, TOKEN = KV_HEADS * DIM };
enum { SOURCE = 1024, CHUNK = 256, QUERIES = 8, THREADS = 2, OUT = Q_HEADS * DIM };

/* == THE BASELINE == */

#define PLAIN(name) plain_##name
#define PLAIN_TARGET
#define PLAIN_LANES 4
#define PLAIN_BLOCK 1
#include "plain_bf16.h"

#if defined(__x86_64__)
#define PLAIN(name) plain_avx2_##name
#define PLAIN_TARGET __attribute__((target("avx2,fma")))
#define PLAIN_LANES 8
#define PLAIN_BLOCK 1
#include "plain_bf16.h"

#define PLAIN(name) plain_avx512_##name
#define PLAIN_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define PLAIN_LANES 16
#define PLAIN_BLOCK 2
#include "plain_bf16.h"
#endif

static plain_kernel plain_choose(void)
{
    static const plain_kernel narrow = { "128-bit vectors", plain_attend, plain_read };
#if defined(__x86_64__)
    static const plain_kernel avx2 = { "256-bit vectors", plain_avx2_attend, plain_avx2_read };
    static const plain_kernel avx512 = { "512-bit vectors", plain_avx512_attend, plain_avx512_read };
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2;
#endif
    return narrow;
}

/* == WHAT IS MEASURED == */

/* A cache of the library that holds the tokens. */
typedef struct subject {
    oscar_layer layer;
    oscar_layout layout;
    oscar_cache *cache;
    oscar_seq seq;
} subject;

typedef struct setup {
    int tokens, layers, windows;
    char label[32];           /* "4k.32layers" */
    float *k, *v, *q;         /* SOURCE tokens; QUERIES queries */
    subject int2, bf16;
    plain_kernel plain;
    unsigned char *pages;     /* the baseline's BF16 pages, [layer][page] */
    size_t pages_bytes;
} setup;

/* One case: a decode step over all layers. subject NULL: the baseline. */
typedef struct step_job {
    setup *s;
    subject *subject;
    int threads, layer;
    float *part_o[THREADS], *part_lse[THREADS];
    oscar_result results[THREADS];
    float *o;                 /* [layers][Q_HEADS][DIM] */
} step_job;

static const float *query_of(const setup *s, int layer) { return s->q + layer % QUERIES * OUT; }

/* Where the rows of a chunk of a layer come from: some of the SOURCE tokens, on a page boundary. */
static int source_of(int layer, int token) { return (token / CHUNK * 5 + layer * 3) % 13 * PAGE + token % CHUNK; }

static void library_part(void *argument, int part, int parts)
{
    step_job *job = (step_job *)argument;
    oscar_view q;
    oscar_batch batch;
    memset(&q, 0, sizeof q);
    q.data = query_of(job->s, job->layer);
    batch.seq = job->subject->seq;
    batch.row = 0;
    batch.rows = 1;
    job->results[part] = oscar_attend_part(job->subject->cache, job->layer, &batch, 1, &q, part, parts,
                                           job->part_o[part], job->part_lse[part]);
}

static void plain_part(void *argument, int part, int parts)
{
    step_job *job = (step_job *)argument;
    const setup *s = job->s;
    size_t page_bytes = s->bf16.layout.bytes;
    const unsigned char *layer = s->pages + (size_t)job->layer * (s->pages_bytes / (size_t)s->layers);
    int h, a, i;
    for (h = part; h < KV_HEADS; h += parts) {
        plain_half q[PLAIN_GROUP];
        plain_state state;
        memset(&state, 0, sizeof state);
        for (a = 0; a < GROUP; a++) {
            const float *from = query_of(s, job->layer) + (h * GROUP + a) * DIM;
            state.top[a] = -HUGE_VALF;
            for (i = 0; i < PLAIN_HALF; i++) {
                q[a].even[i] = from[2 * i] * s->bf16.layout.layer.scale;
                q[a].odd[i] = from[2 * i + 1] * s->bf16.layout.layer.scale;
            }
        }
        s->plain.attend(layer + (size_t)h * s->bf16.layout.head_bytes, page_bytes, s->tokens / PAGE, q, &state);
        for (a = 0; a < GROUP; a++) {
            float *o = job->o + job->layer * OUT + (h * GROUP + a) * DIM;
            for (i = 0; i < PLAIN_HALF; i++) {
                o[2 * i] = state.o[a].even[i] / state.sum[a];
                o[2 * i + 1] = state.o[a].odd[i] / state.sum[a];
            }
        }
    }
}

static void run_step(void *argument)
{
    step_job *job = (step_job *)argument;
    int part;
    for (job->layer = 0; job->layer < job->s->layers; job->layer++) {
        bench_parallel(job->threads, job->subject ? library_part : plain_part, job);
        if (!job->subject) continue;
        for (part = 0; part < job->threads; part++) bench_ok(job->results[part], "oscar_attend_part");
        oscar_attend_join(job->threads, (const float *const *)job->part_o, (const float *const *)job->part_lse, 1,
                          Q_HEADS, DIM, NULL, job->o + job->layer * OUT, NULL);
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
    desc.max_sequences = 1;
    desc.max_pages = s->tokens / PAGE;
    desc.max_draft = -1;
    if (!s->windows) desc.sink = desc.recent = -1;
    desc.hooks = bench_hooks();
    bench_ok(oscar_cache_bytes(&desc, s->tokens, &bytes), "oscar_cache_bytes");
    bench_ok(oscar_cache_create(&desc, &out->cache), "oscar_cache_create");
    bench_check(bench_held - before == bytes.total, "oscar_cache_bytes against the bytes that were allocated");
    bench_ok(oscar_cache_layout(out->cache, 0, &out->layout), "oscar_cache_layout");
    bench_ok(oscar_cache_open(out->cache, &out->seq), "oscar_cache_open");
    free(layers);
}

static void subject_append(const setup *s, subject *to, int token, int rows)
{
    int layer;
    oscar_batch batch;
    batch.seq = to->seq;
    batch.row = 0;
    batch.rows = rows;
    bench_ok(oscar_cache_reserve(to->cache, to->seq, rows, 0), "oscar_cache_reserve");
    for (layer = 0; layer < s->layers; layer++) {
        oscar_view k, v;
        memset(&k, 0, sizeof k);
        k.data = s->k + source_of(layer, token) * TOKEN;
        v = k;
        v.data = s->v + source_of(layer, token) * TOKEN;
        bench_ok(oscar_append(to->cache, layer, &batch, 1, &k, &v), "oscar_append");
    }
}

/* The baseline's pages: the layout of the library's BF16 pages, in memory of the bench. */
static void plain_fill(setup *s)
{
    size_t bytes = s->bf16.layout.bytes, at = 0;
    void *scratch = bench_alloc(s->bf16.layout.scratch);
    int layer, token;
    s->pages_bytes = bytes * (size_t)(s->tokens / PAGE) * (size_t)s->layers;
    s->pages = (unsigned char *)bench_alloc(s->pages_bytes);
    for (layer = 0; layer < s->layers; layer++)
        for (token = 0; token < s->tokens; token += PAGE, at += bytes) {
            oscar_view k, v;
            memset(&k, 0, sizeof k);
            k.data = s->k + source_of(layer, token) * TOKEN;
            v = k;
            v.data = s->v + source_of(layer, token) * TOKEN;
            bench_ok(oscar_page_write(&s->bf16.layout, &k, &v, s->pages + at, scratch), "oscar_page_write");
        }
    bench_free(scratch, s->bf16.layout.scratch);
}

static void fill(setup *s)
{
    int token;
    subject_create(s, &s->int2, 2);
    subject_create(s, &s->bf16, 16);
    for (token = 0; token < s->tokens; token += CHUNK) {
        int rows = s->tokens - token < CHUNK ? s->tokens - token : CHUNK;
        subject_append(s, &s->int2, token, rows);
        subject_append(s, &s->bf16, token, rows);
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

/* Attention of a layer in double over the rows that the cache holds; of BF16 over the rows that went in, rounded by the
   plain reading. o: [Q_HEADS][DIM] */
static void reference_layer(const setup *s, const subject *from, int layer, double *o)
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
    for (token = 0; token < s->tokens; token += CHUNK) {
        int rows = s->tokens - token < CHUNK ? s->tokens - token : CHUNK;
        if (from->layer.k_bits == 16)
            for (i = 0; i < rows * TOKEN; i++) {
                k[i] = ref_round(OSCAR_BF16, s->k[source_of(layer, token) * TOKEN + i]);
                v[i] = ref_round(OSCAR_BF16, s->v[source_of(layer, token) * TOKEN + i]);
            }
        else bench_ok(oscar_fetch(from->cache, layer, from->seq, token, rows, &k_out, &v_out), "oscar_fetch");
        reference_add(heads, query_of(s, layer), k, v, rows);
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
static double limit_of(oscar_isa isa) { return isa == OSCAR_ISA_SCALAR ? 1e-5 : 1e-3; }

static double relerr[OSCAR_ISA_COUNT];       /* the largest one of INT2 */

static const char *const job_names[3] = { "INT2", "BF16 pages", "BF16 plain" };

static int job_kind(const step_job *job) { return !job->subject ? 2 : job->subject == &job->s->int2 ? 0 : 1; }

/* One step of every job and instruction set, the first and the last layer of it: worst[kind][isa] against double over
   the same rows, worst_exact[isa] of INT2 against exact rows. */
static void check_outputs(setup *s, step_job *jobs, int job_count, double worst[3][OSCAR_ISA_COUNT],
                          double *worst_exact)
{
    static double held[2][OUT], exact[2][OUT];
    int i, end;
    for (end = 0; end < 2; end++) {
        reference_layer(s, &s->int2, end * (s->layers - 1), held[end]);
        reference_layer(s, &s->bf16, end * (s->layers - 1), exact[end]);
    }
    for (i = 0; i < job_count; i++) {
        int kind = job_kind(&jobs[i]);
        oscar_isa isa = OSCAR_ISA_AUTO;
        do {
            if (kind < 2) isa = bench_next_isa(isa);
            if (kind < 2 && isa == OSCAR_ISA_AUTO) break;
            run_step(&jobs[i]);
            for (end = 0; end < 2; end++) {
                const float *o = jobs[i].o + end * (s->layers - 1) * OUT;
                worst[kind][isa] = larger(worst[kind][isa], worst_head(o, kind ? exact[end] : held[end]));
                if (kind == 0) worst_exact[isa] = larger(worst_exact[isa], ref_relative(OUT, o, exact[end]));
            }
        } while (isa != OSCAR_ISA_AUTO);
    }
}

/* INT2 also against exact attention: with zero-mean values 2 bits leave an error of about 0.55 of the output of all
   heads, wrong codes one of about 1 or more. */
static void check_step(setup *s, step_job *jobs, int job_count)
{
    double worst[3][OSCAR_ISA_COUNT] = { { 0 } }, worst_exact[OSCAR_ISA_COUNT] = { 0 };
    oscar_isa isa;
    int kind;
    check_outputs(s, jobs, job_count, worst, worst_exact);
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
        for (kind = 0; kind < 2; kind++)
            bench_close(worst[kind][isa], limit_of(isa), isa, "%s, %s against double over the rows held", s->label,
                        job_names[kind]);
        bench_close(worst_exact[isa], 0.75, isa, "%s, INT2 against double over exact rows", s->label);
        relerr[isa] = larger(relerr[isa], worst[0][isa]);
    }
    bench_close(worst[2][OSCAR_ISA_AUTO], 1e-4, OSCAR_ISA_AUTO, "%s, BF16 plain against double", s->label);
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
    int p, same;
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
        bench_ok(oscar_attend_pages(&desc, &list, o, lse), "oscar_attend_pages");
        reference_pages(&page, bytes, s->q, expected);
        relerr[isa] = larger(relerr[isa], worst_head(o, expected));
        bench_close(worst_head(o, expected), limit_of(isa), isa,
                    "attention over pages against double from their bytes");
    }
    for (p = 0; p < CHECK_PAGES; p++) bench_free(bytes[p], layout.bytes);
    bench_free(scratch, layout.scratch);
    bench_free(plain, page.bytes);
}

/* == MEASURING == */

static int job_make(setup *s, step_job *jobs)
{
    int count = 0, threads, which, part;
    for (threads = 1; threads <= THREADS; threads++)
        for (which = 0; which < 3; which++) {
            step_job *job = &jobs[count++];
            memset(job, 0, sizeof *job);
            job->s = s;
            job->subject = which == 0 ? &s->int2 : which == 1 ? &s->bf16 : NULL;
            job->threads = threads;
            job->o = (float *)calloc((size_t)(s->layers * OUT), sizeof(float));
            for (part = 0; part < threads; part++) {
                job->part_o[part] = (float *)calloc(OUT, sizeof(float));
                job->part_lse[part] = (float *)calloc(Q_HEADS, sizeof(float));
            }
        }
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
    oscar_seq_state state;
    bench_ok(oscar_cache_get(from->cache, from->seq, &state), "oscar_cache_get");
    return s->layers * ((double)from->layout.bytes * (double)state.page_count
                        + (double)(state.sink + state.recent) * TOKEN * 4);
}

static void add_cases(setup *s, bench_table *table, step_job *jobs, int job_count, bench_reader *readers)
{
    int i;
    for (i = 0; i < job_count; i++) {
        step_job *job = &jobs[i];
        bench_case c = bench_case_of(run_step, job, "%s %s %dt", s->label, job_names[job_kind(job)], job->threads);
        c.units = (double)s->layers * s->tokens * KV_HEADS;
        c.bytes = job->subject ? bytes_of(s, job->subject) : (double)s->pages_bytes;
        c.out = job->o;
        c.out_size = (size_t)(s->layers * OUT) * sizeof(float);
        if (job->subject) bench_add_isas(table, c);
        else bench_add(table, c);
    }
    for (i = 0; i < THREADS; i++) {
        bench_case c;
        readers[i].data = s->pages;
        readers[i].bytes = s->pages_bytes;
        readers[i].threads = i + 1;
        readers[i].read = s->plain.read;
        c = bench_case_of(bench_read, &readers[i], "%s read %dt", s->label, i + 1);
        c.units = (double)s->layers * s->tokens * KV_HEADS;
        c.bytes = (double)s->pages_bytes;
        bench_add(table, c);
    }
}

static void print_figures(const setup *s, const bench_table *table)
{
    int threads;
    oscar_isa isa;
    double units = (double)s->layers * s->tokens * KV_HEADS;
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (threads = 1; threads <= THREADS; threads++) {
            const char *end = s->windows ? ".windows" : "";
            double int2 = bench_find(table, isa, "%s INT2 %dt", s->label, threads)->median;
            double pages = bench_find(table, isa, "%s BF16 pages %dt", s->label, threads)->median;
            double plain = bench_find(table, OSCAR_ISA_AUTO, "%s BF16 plain %dt", s->label, threads)->median;
            double read = bench_find(table, OSCAR_ISA_AUTO, "%s read %dt", s->label, threads)->median;
            double best = pages < plain ? pages : plain;
            bench_figure(isa, best / int2, "1", "attend.int2_over_bf16.%s.%dt%s", s->label, threads, end);
            bench_figure(isa, pages / int2, "1", "attend.int2_over_bf16_pages.%s.%dt%s", s->label, threads, end);
            bench_figure(isa, int2 / units * 1e9, "ns", "attend.ns_per_token_head.%s.%dt%s", s->label, threads, end);
            bench_figure(isa, read / best, "1", "attend.bf16.fraction_of_bandwidth.%s.%dt%s", s->label, threads,
                         end);
        }
}

static void measure(const setup *pattern, int tokens, int layers)
{
    static bench_table table;
    static step_job jobs[3 * THREADS];
    static bench_reader readers[THREADS];
    setup s = *pattern;
    int job_count;
    double start = bench_now();
    s.tokens = tokens;
    s.layers = layers;
    if (tokens % 1024) (void)snprintf(s.label, sizeof s.label, "%d.%dlayers", tokens, layers);
    else (void)snprintf(s.label, sizeof s.label, "%dk.%dlayers", tokens / 1024, layers);
    printf("\n");
    fill(&s);
    job_count = job_make(&s, jobs);
    printf("# filled    %s in %.1f s\n", s.label, bench_now() - start);
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
    measure(pattern, (int)tokens, (int)layers);
}

int main(int argc, char **argv)
{
    static const char *const quick[] = { "4k:4", "16k:1" }, *const full[] = { "4k:1", "4k:32", "32k:6", "128k:3" };
    static float query[QUERIES * OUT];
    setup pattern;
    int i, t, h;
    oscar_isa isa;
    memset(&pattern, 0, sizeof pattern);
    for (i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--windows")) {
            pattern.windows = 1;
            for (argc--; i < argc; i++) argv[i] = argv[i + 1];
        }
    bench_begin("bench_attend", "[--full] [--windows] [TOKENS:LAYERS ...]", argc, argv);
    pattern.plain = plain_choose();
    printf("# baseline  BF16 plain and read, %s\n", pattern.plain.name);
    pattern.k = (float *)bench_alloc(SOURCE * TOKEN * sizeof(float));
    pattern.v = (float *)bench_alloc(SOURCE * TOKEN * sizeof(float));
    pattern.q = query;
    bench_normal(1, SOURCE * TOKEN, pattern.k);
    bench_normal(2, SOURCE * TOKEN, pattern.v);
    bench_normal(3, QUERIES * OUT, query);
    for (t = 0; t < SOURCE; t++)       /* keys have a mean: each head its own on every fourth channel */
        for (h = 0; h < KV_HEADS; h++)
            for (i = 0; i < DIM; i += 4) pattern.k[(t * KV_HEADS + h) * DIM + i] += (float)((h + i) % 5 - 2) * 0.5f;
    check_pages(&pattern);
    for (i = 0; i < bench.word_count; i++) measure_word(&pattern, bench.words[i]);
    if (!bench.word_count && bench.full) for (i = 0; i < 4; i++) measure_word(&pattern, full[i]);
    if (!bench.word_count && !bench.full) for (i = 0; i < 2; i++) measure_word(&pattern, quick[i]);
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        bench_figure(isa, relerr[isa], "1", "attend.relerr");
    report_memory();
    return 0;
}
