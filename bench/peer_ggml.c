/* peer_ggml.c - decode attention and append of the library beside ggml's CPU backend, in one run: `make bench-peers`
   (peers.sh) builds and starts it.

       peer_ggml [--full]           4k tokens; 4k, 32k, 128k

   ggml: FLASH_ATTN_EXT with one query token over caches of f16, q8_0 and q4_0, laid out as llama.cpp does
   ([token][KV head][channel]), a graph of all layers in turn; and its row quantisers. Ours, and the rows, queries and
   shapes of both, are those of bench_attend.c. Everything lies in huge pages where the system gives them. The outputs
   of ggml are checked against double over the exact rows, within what its types lose.

   ggml's threads wait by looking; before each sample there is a pause in which they fall asleep. */
#define BENCH_ATTEND_NO_MAIN
#include "bench_attend.c"

#include "ggml-cpu.h"
#include "ggml.h"

enum { TYPES = 3, CASES = (TYPES + 2) * THREADS };

/* limit: of the relative error of a head's output; values have no mean, the hardest case. */
static const struct { enum ggml_type type; const char *name; double limit; } types[TYPES] = {
    { GGML_TYPE_F16, "ggml f16", 0.02 }, { GGML_TYPE_Q8_0, "ggml q8_0", 0.05 }, { GGML_TYPE_Q4_0, "ggml q4_0", 0.3 },
};

static const char *const slugs[TYPES] = { "ggml_f16", "ggml_q8_0", "ggml_q4_0" };

static void pause_threads(void *argument)
{
    const struct timespec pause = { 0, 20000000 };
    (void)argument;
    nanosleep(&pause, NULL);
}

/* == ATTENTION == */

/* The caches of all layers in one type, and a graph over them. */
typedef struct peer {
    struct ggml_context *context;
    void *memory;
    size_t size;
    struct ggml_cgraph *graph;
    struct ggml_tensor **outputs;
    double bytes;
} peer;

typedef struct peer_job { const peer *from; struct ggml_cplan plan; } peer_job;

/* K or V of one layer: [token][KV head][DIM], quantised from the rows that the other caches hold. */
static struct ggml_tensor *peer_rows(const setup *s, struct ggml_context *context, enum ggml_type type, int layer,
                                     const float *source)
{
    struct ggml_tensor *rows = ggml_new_tensor_3d(context, type, DIM, KV_HEADS, s->tokens);
    int token;
    for (token = 0; token < s->tokens; token += CHUNK) {
        int count = s->tokens - token < CHUNK ? s->tokens - token : CHUNK;
        ggml_quantize_chunk(type, source + source_of(layer, 0, token) * TOKEN,
                            (char *)rows->data + (size_t)token * rows->nb[2], 0, (int64_t)count * KV_HEADS, DIM, NULL);
    }
    return rows;
}

static void peer_create(const setup *s, enum ggml_type type, peer *out)
{
    struct ggml_init_params parameters;
    size_t row = ggml_row_size(type, DIM), layer_bytes = 2 * row * KV_HEADS * (size_t)s->tokens;
    int layer;
    out->size = (size_t)s->layers * (layer_bytes + 8 * OUT + (1 << 16)) + (16 << 20);
    out->memory = bench_alloc(out->size);
    parameters.mem_size = out->size;
    parameters.mem_buffer = out->memory;
    parameters.no_alloc = false;
    out->context = ggml_init(parameters);
    bench_check(out->context != NULL, "ggml_init");
    out->graph = ggml_new_graph_custom(out->context, 1024, false);
    out->outputs = (struct ggml_tensor **)calloc((size_t)s->layers, sizeof *out->outputs);
    out->bytes = (double)layer_bytes * s->layers;
    for (layer = 0; layer < s->layers; layer++) {
        struct ggml_tensor *q = ggml_new_tensor_4d(out->context, GGML_TYPE_F32, DIM, 1, Q_HEADS, 1);
        struct ggml_tensor *k = peer_rows(s, out->context, type, layer, s->k);
        struct ggml_tensor *v = peer_rows(s, out->context, type, layer, s->v);
        memcpy(q->data, query_of(s, layer, 0), OUT * sizeof(float));
        out->outputs[layer] = ggml_flash_attn_ext(out->context, q, ggml_permute(out->context, k, 0, 2, 1, 3),
                                                  ggml_permute(out->context, v, 0, 2, 1, 3), NULL,
                                                  1.0f / sqrtf((float)DIM), 0.0f, 0.0f);
        ggml_build_forward_expand(out->graph, out->outputs[layer]);
    }
}

static void peer_destroy(peer *p)
{
    ggml_free(p->context);
    free(p->outputs);
    bench_free(p->memory, p->size);
}

static void run_peer(void *argument)
{
    peer_job *job = (peer_job *)argument;
    bench_check(ggml_graph_compute(job->from->graph, &job->plan) == GGML_STATUS_SUCCESS, "ggml_graph_compute");
}

static void peer_plan(const peer *from, int threads, peer_job *job)
{
    job->from = from;
    job->plan = ggml_graph_plan(from->graph, threads, NULL);
    job->plan.work_data = (uint8_t *)bench_alloc(job->plan.work_size + 64);
}

static void check_peer(setup *s, peer_job *job, int type)
{
    static double exact[2][OUT];
    static step_job like;
    double worst = 0;
    int end;
    like.s = s;
    like.queries = 1;
    run_peer(job);
    for (end = 0; end < 2; end++) {
        const struct ggml_tensor *o = job->from->outputs[end * (s->layers - 1)];
        if (!type && job->plan.n_threads == 1) reference_end(&like, &s->bf16, end, exact[end]);
        worst = larger(worst, worst_head((const float *)o->data, exact[end]));
    }
    bench_close(worst, types[type].limit, OSCAR_ISA_AUTO, "%s, %s against double over exact rows", s->label,
                types[type].name);
}

static void add_peers(setup *s, const peer *peers, peer_job *jobs, bench_table *table)
{
    int threads, type;
    for (type = 0; type < TYPES; type++)
        for (threads = 1; threads <= THREADS; threads++) {
            peer_job *job = &jobs[type * THREADS + threads - 1];
            bench_case c = bench_case_of(run_peer, job, "%s %s %dt", s->label, types[type].name, threads);
            peer_plan(&peers[type], threads, job);
            check_peer(s, job, type);
            c.units = units_of(s);
            c.bytes = peers[type].bytes;
            c.out = peers[type].outputs[s->layers - 1]->data;
            c.out_size = OUT * sizeof(float);
            c.prepare = pause_threads;
            bench_add(table, c);
        }
}

static void print_peers(const setup *s, const bench_table *table)
{
    int threads, type;
    char context[32];
    (void)snprintf(context, sizeof context, "%.*s", (int)strcspn(s->label, "."), s->label);
    for (type = 0; type < TYPES; type++)
        for (threads = 1; threads <= THREADS; threads++) {
            const bench_case *ours = bench_find(table, bench.best, "%s INT2 %dt", s->label, threads);
            const bench_case *c = bench_find(table, OSCAR_ISA_AUTO, "%s %s %dt", s->label, types[type].name, threads);
            bench_figure(OSCAR_ISA_AUTO, c->median / ours->median, "1", "attend.over_%s.%s.%dt", slugs[type], context,
                         threads);
            bench_figure(OSCAR_ISA_AUTO, c->median / c->units * 1e9, "ns", "attend.%s_ns_per_token_head.%s.%dt",
                         slugs[type], s->label, threads);
        }
}

static void compare(const setup *pattern, int tokens, int layers)
{
    static bench_table table;
    static peer peers[TYPES];
    static peer_job peer_jobs[TYPES * THREADS];
    static step_job own[2 * THREADS];
    setup s = *pattern;
    int i;
    setup_fill(&s, tokens, layers, 1);
    memset(&table, 0, sizeof table);
    for (i = 0; i < 2 * THREADS; i++) {
        bench_case c;
        job_init(&s, i % 2 ? KIND_PLAIN : KIND_INT2, i / 2 + 1, 1, &own[i]);
        c = step_case(&own[i], job_names[own[i].kind]);
        c.prepare = pause_threads;
        if (own[i].subject) bench_add_isas(&table, c);
        else bench_add(&table, c);
    }
    check_step(&s, own, 2 * THREADS);
    for (i = 0; i < TYPES; i++) peer_create(&s, types[i].type, &peers[i]);
    add_peers(&s, peers, peer_jobs, &table);
    for (i = 0; i < table.count; i++) table.cases[i].calls = bench.full ? 1 : 3;
    bench_time(&table, 0);
    printf("%s: time, and bytes read, for one token and KV head (4 query heads)\n", s.label);
    bench_print(&table, 1e9, "ns");
    print_peers(&s, &table);
    job_free(own, 2 * THREADS);
    for (i = 0; i < TYPES * THREADS; i++) bench_free(peer_jobs[i].plan.work_data, peer_jobs[i].plan.work_size + 64);
    for (i = 0; i < TYPES; i++) peer_destroy(&peers[i]);
    release(&s);
}

/* == APPEND == */

enum { STEPS = 256, APPEND_PAGES = 64, SETTINGS = 2 };

/* One layer, a sequence that grows. */
typedef struct append_job {
    const setup *s;
    oscar_cache *cache;
    oscar_seq seq;
    int64_t length;
} append_job;

static void append_token(append_job *job)
{
    oscar_batch batch = { 0, 0, 1 };
    oscar_view k, v;
    memset(&k, 0, sizeof k);
    k.data = job->s->k + job->length % SOURCE * TOKEN;
    v = k;
    v.data = job->s->v + job->length % SOURCE * TOKEN;
    batch.seq = job->seq;
    bench_ok(oscar_cache_reserve(job->cache, job->seq, 1, 0), "oscar_cache_reserve");
    bench_ok(oscar_append(job->cache, 0, &batch, 1, &k, &v), "oscar_append");
    job->length++;
}

/* A new sequence when the pages are nearly used up; windows full before anything is timed. */
static void append_prepare(void *argument)
{
    append_job *job = (append_job *)argument;
    if (job->seq && job->length + STEPS <= APPEND_PAGES * PAGE) return;
    if (job->seq) bench_ok(oscar_cache_close(job->cache, job->seq), "oscar_cache_close");
    bench_ok(oscar_cache_open(job->cache, &job->seq), "oscar_cache_open");
    for (job->length = 0; job->length < 64 + 256 + PAGE - 1;) append_token(job);
}

static void run_append(void *argument)
{
    int t;
    for (t = 0; t < STEPS; t++) append_token((append_job *)argument);
}

static void append_create(const setup *s, int setting, append_job *job)
{
    oscar_cache_desc desc;
    oscar_layer layer;
    memset(&desc, 0, sizeof desc);
    memset(&layer, 0, sizeof layer);
    layer.q_heads = Q_HEADS;
    layer.kv_heads = KV_HEADS;
    layer.k_dim = DIM;
    if (setting) {             /* the nearest to q4_0: least and greatest of a row, nothing searched */
        layer.k_fit = layer.v_fit = OSCAR_CLIP;
        layer.k_clip = layer.v_clip = -1;
        layer.k_page_mean = -1;
    }
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.max_sequences = 1;
    desc.max_pages = APPEND_PAGES;
    desc.hooks = bench_hooks();
    job->s = s;
    bench_ok(oscar_cache_create(&desc, &job->cache), "oscar_cache_create");
}

typedef struct quantise_job { const setup *s; int type; void *out; } quantise_job;

/* K and V of a token, as the graph would quantise them, without the graph. */
static void run_quantise(void *argument)
{
    const quantise_job *job = (const quantise_job *)argument;
    const struct ggml_type_traits_cpu *traits = ggml_get_type_traits_cpu(types[job->type].type);
    size_t row = ggml_row_size(types[job->type].type, TOKEN);
    int t;
    for (t = 0; t < STEPS; t++) {
        char *out = (char *)job->out + (size_t)t * 2 * row;
        traits->from_float(job->s->k + t % SOURCE * TOKEN, out, TOKEN);
        traits->from_float(job->s->v + t % SOURCE * TOKEN, out + row, TOKEN);
    }
}

static void compare_append(const setup *s)
{
    static const char *const names[SETTINGS] = { "INT2, default setting", "INT2, CLIP off, no page mean" };
    static bench_table table;
    static append_job appends[SETTINGS];
    static quantise_job quantises[TYPES];
    oscar_isa isa;
    int i;
    for (i = 0; i < SETTINGS; i++) {
        bench_case c = bench_case_of(run_append, &appends[i], "%s", names[i]);
        append_create(s, i, &appends[i]);
        c.prepare = append_prepare;
        c.units = STEPS;
        bench_add_isas(&table, c);
    }
    for (i = 0; i < TYPES; i++) {
        bench_case c = bench_case_of(run_quantise, &quantises[i], "%s", types[i].name);
        quantises[i].s = s;
        quantises[i].type = i;
        c.out_size = 2 * STEPS * ggml_row_size(types[i].type, TOKEN);
        c.out = quantises[i].out = bench_alloc(c.out_size);
        c.units = STEPS;
        bench_add(&table, c);
    }
    bench_time(&table, 2e-3);
    printf("\nAppend of one token, K and V, %d heads x %d: ours through the cache, windows and pages included; ggml: "
           "the row quantiser alone\n", KV_HEADS, DIM);
    bench_print(&table, 1e6, "us");
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (i = 0; i < TYPES; i++) {
            double theirs = bench_find(&table, OSCAR_ISA_AUTO, "%s", types[i].name)->median;
            double ours = bench_find(&table, isa, "%s", names[0])->median;
            double clip_off = bench_find(&table, isa, "%s", names[1])->median;
            bench_figure(isa, theirs / ours, "1", "append.over_%s", slugs[i]);
            bench_figure(isa, theirs / clip_off, "1", "append.clip_off.over_%s", slugs[i]);
        }
    for (i = 0; i < SETTINGS; i++) oscar_cache_destroy(appends[i].cache);
    for (i = 0; i < TYPES; i++)
        bench_free(quantises[i].out, 2 * STEPS * ggml_row_size(types[i].type, TOKEN));
}

/* == ALL == */

int main(int argc, char **argv)
{
    static const struct { int tokens, layers; } full[3] = { { 4096, 32 }, { 32768, 6 }, { 131072, 3 } };
    static float query[QUERY_ROWS * OUT];
    setup pattern;
    int i;
    bench_begin("peer_ggml", "[--full]", argc, argv);
    if (bench.only == OSCAR_ISA_AUTO) bench.only = bench.best;
    printf("# peer      ggml %s\n", ggml_version());
    source_rows(&pattern, query);
    if (bench.full) for (i = 0; i < 3; i++) compare(&pattern, full[i].tokens, full[i].layers);
    else compare(&pattern, 4096, 8);
    compare_append(&pattern);
    return 0;
}
