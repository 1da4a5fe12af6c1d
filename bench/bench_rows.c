/* bench_rows.c - rows: Walsh-Hadamard transform, dense transform, encode, decode, and what appending a token costs.

   Before anything is timed every output is compared with the plain reading in tests/reference.h: bytes and decoded rows
   exactly, transforms with double arithmetic. Baselines: a textbook butterfly and a textbook vector-matrix product of
   this file, the method of FFHT (plain_fwht.h), and memcpy of the same bytes. */
#include "bench.h"
#include "plain_fwht.h"

enum { ROWS = 256, DIM_MAX = 512 };

/* What a case on rows works on. Room for ROWS rows of DIM_MAX numbers in each array. */
typedef struct rows_job {
    int dim;
    oscar_codec codec;
    const float *x, *matrix;
    float *out;
    unsigned char *encoded;
} rows_job;

enum { JOBS_MAX = 32 };
static rows_job jobs[JOBS_MAX];
static int job_count;

/* A job of its own for a case, from a pattern. */
static rows_job *job_of(const rows_job *pattern, int dim)
{
    rows_job *job = &jobs[job_count++];
    bench_check(job_count <= JOBS_MAX, "room for a job");
    *job = *pattern;
    job->dim = dim;
    return job;
}

/* A case on all rows of a job: in and out once, or in and encoded. */
static bench_case rows_case(void (*run)(void *), rows_job *job, double bytes_a_row, const char *name)
{
    bench_case c = bench_case_of(run, job, "%s, D = %d", name, job->dim);
    c.units = ROWS;
    c.bytes = bytes_a_row * ROWS;
    c.out = job->out;
    c.out_size = (size_t)(ROWS * job->dim) * sizeof(float);
    return c;
}

static void run_memcpy(void *argument)
{
    rows_job *job = (rows_job *)argument;
    memcpy(job->out, job->x, (size_t)(ROWS * job->dim) * sizeof(float));
}

/* == TRANSFORMS == */

static void run_fwht(void *argument)
{
    rows_job *job = (rows_job *)argument;
    (void)oscar_fwht(job->dim, ROWS, job->x, job->out);
}

/* The transform as a textbook has it: log2 n passes of butterflies, then the scale. */
static void run_textbook_fwht(void *argument)
{
    rows_job *job = (rows_job *)argument;
    int n = job->dim, row, h, i, j;
    float scale = 1.0f / sqrtf((float)n);
    run_memcpy(job);
    for (row = 0; row < ROWS; row++) {
        float *x = job->out + row * n;
        for (h = 1; h < n; h *= 2)
            for (i = 0; i < n; i += 2 * h)
                for (j = i; j < i + h; j++) {
                    float a = x[j], b = x[j + h];
                    x[j] = a + b;
                    x[j + h] = a - b;
                }
        for (i = 0; i < n; i++) x[i] *= scale;
    }
}

static void run_ffht(void *argument)
{
    rows_job *job = (rows_job *)argument;
    plain_fwht(job->dim, ROWS, job->x, job->out);
}

static void run_rotate(void *argument)
{
    rows_job *job = (rows_job *)argument;
    (void)oscar_rotate(job->dim, ROWS, job->matrix, job->x, job->out);
}

/* A vector-matrix product as a textbook has it: the matrix row by row. */
static void run_textbook_rotate(void *argument)
{
    rows_job *job = (rows_job *)argument;
    int n = job->dim, row, i, j;
    for (row = 0; row < ROWS; row++) {
        const float *x = job->x + row * n;
        float *out = job->out + row * n;
        memset(out, 0, (size_t)n * sizeof(float));
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++) out[j] += x[i] * job->matrix[i * n + j];
    }
}

/* Some rows of job->out against the transform in double; matrix NULL: Walsh-Hadamard. */
static void check_transform(const rows_job *job, const float *matrix, oscar_isa isa, const char *what)
{
    static double x[DIM_MAX], expected[DIM_MAX];
    double worst = 0;
    int n = job->dim, row, i, j;
    for (row = 0; row < ROWS; row += 17) {
        for (i = 0; i < n; i++) x[i] = (double)job->x[row * n + i];
        for (j = 0; j < n; j++) {
            if (!matrix) { expected[j] = ref_hadamard_dot(n, j, x); continue; }
            for (expected[j] = 0, i = 0; i < n; i++) expected[j] += x[i] * (double)matrix[i * n + j];
        }
        worst = fmax(worst, ref_relative(n, job->out + row * n, expected));
    }
    bench_close(worst, 1e-6, isa, "%s %d against double", what, job->dim);
}

/* The method of FFHT leaves the scale out. */
static void check_ffht(const rows_job *job)
{
    int i;
    run_ffht((void *)job);
    for (i = 0; i < ROWS * job->dim; i++) job->out[i] *= 1.0f / sqrtf((float)job->dim);
    check_transform(job, NULL, OSCAR_ISA_AUTO, "method of FFHT");
}

static const int sizes[4] = { 64, 128, 256, 512 };

static void measure_transforms(const rows_job *pattern)
{
    static bench_table table;
    oscar_isa isa;
    int s;
    for (s = 0; s < 4; s++) {
        rows_job *job = job_of(pattern, sizes[s]);
        double bytes = 8.0 * job->dim;
        for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
            run_fwht(job);
            check_transform(job, NULL, isa, "FWHT");
            if (job->dim == 512) continue;
            run_rotate(job);
            check_transform(job, job->matrix, isa, "dense transform");
        }
        bench_add_isas(&table, rows_case(run_fwht, job, bytes, "FWHT"));
        bench_add(&table, rows_case(run_textbook_fwht, job, bytes, "textbook FWHT"));
        if (plain_fwht_here()) {
            check_ffht(job);
            bench_add(&table, rows_case(run_ffht, job, bytes, "method of FFHT"));
        }
        bench_add(&table, rows_case(run_memcpy, job, bytes, "memcpy"));
        if (job->dim == 512) continue;
        bench_add_isas(&table, rows_case(run_rotate, job, bytes, "dense"));
        bench_add(&table, rows_case(run_textbook_rotate, job, bytes, "textbook dense"));
    }
    bench_time(&table, 2e-3);
    printf("\nTransforms: time, bytes read and written, for one row; baselines: textbook loops of this file, the "
           "method of FFHT, memcpy\n");
    bench_print(&table, 1e9, "ns");
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (s = 0; s < 4; s++) {
            int n = sizes[s];
            double fwht = bench_find(&table, isa, "FWHT, D = %d", n)->median;
            double textbook = bench_find(&table, OSCAR_ISA_AUTO, "textbook FWHT, D = %d", n)->median;
            bench_figure(isa, fwht * 1e9 / ROWS, "ns", "fwht.D%d.ns", n);
            bench_figure(isa, textbook / fwht, "1", "fwht.D%d.over_textbook", n);
            if (plain_fwht_here())
                bench_figure(isa, bench_find(&table, OSCAR_ISA_AUTO, "method of FFHT, D = %d", n)->median / fwht, "1",
                             "fwht.D%d.over_ffht", n);
            if (n == 512) continue;
            bench_figure(isa, bench_find(&table, isa, "dense, D = %d", n)->median * 1e9 / ROWS, "ns", "rotate.D%d.ns",
                         n);
        }
}

/* == TRANSFORMS, STREAMED == */

/* Rows that come from memory and go back there, in place. */
enum { STREAM_ROWS = 100000 };

typedef struct stream_job { int dim; float *x; const float *source; } stream_job;

/* The baseline has no scale: without new rows its numbers would grow. */
static void stream_fill(void *argument)
{
    const stream_job *job = (const stream_job *)argument;
    size_t count = (size_t)STREAM_ROWS * (size_t)job->dim, some = (size_t)ROWS * DIM_MAX, at;
    for (at = 0; at < count; at += some)
        memcpy(job->x + at, job->source, (count - at < some ? count - at : some) * sizeof(float));
}

static void stream_fwht(void *argument)
{
    const stream_job *job = (const stream_job *)argument;
    (void)oscar_fwht(job->dim, STREAM_ROWS, job->x, job->x);
}

static void stream_ffht(void *argument)
{
    const stream_job *job = (const stream_job *)argument;
    plain_fwht(job->dim, STREAM_ROWS, job->x, job->x);
}

static void stream_scale(void *argument)   /* what memory gives to anything that works in place */
{
    const stream_job *job = (const stream_job *)argument;
    size_t count = (size_t)STREAM_ROWS * (size_t)job->dim, i;
    for (i = 0; i < count; i++) job->x[i] *= 0.5f;
}

static bench_case stream_case(void (*run)(void *), stream_job *job, const char *name)
{
    bench_case c = bench_case_of(run, job, "streamed %s, D = %d", name, job->dim);
    c.prepare = stream_fill;
    c.units = STREAM_ROWS;
    c.bytes = 8.0 * STREAM_ROWS * job->dim;
    c.out = job->x;
    c.out_size = (size_t)(16 * job->dim) * sizeof(float);
    return c;
}

static void measure_streams(const float *source)
{
    static bench_table table;
    static stream_job streams[4];
    size_t bytes = (size_t)STREAM_ROWS * DIM_MAX * sizeof(float);
    float *x = (float *)bench_alloc(bytes);
    oscar_isa isa;
    int s;
    for (s = 0; s < 4; s++) {
        streams[s].dim = sizes[s];
        streams[s].x = x;
        streams[s].source = source;
        bench_add_isas(&table, stream_case(stream_fwht, &streams[s], "FWHT"));
        bench_add(&table, stream_case(stream_scale, &streams[s], "x *= c"));
        if (plain_fwht_here()) bench_add(&table, stream_case(stream_ffht, &streams[s], "method of FFHT"));
    }
    bench_time(&table, 2e-3);
    printf("\n%d rows in place, from memory and back; baselines: the method of FFHT, one product\n", STREAM_ROWS);
    bench_print(&table, 1e9, "ns");
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (s = 0; s < 4; s++) {
            int n = sizes[s];
            double fwht = bench_find(&table, isa, "streamed FWHT, D = %d", n)->median;
            double scale = bench_find(&table, OSCAR_ISA_AUTO, "streamed x *= c, D = %d", n)->median;
            bench_figure(isa, fwht * 1e9 / STREAM_ROWS, "ns", "fwht.D%d.streamed.ns", n);
            bench_figure(isa, fwht / scale, "1", "fwht.D%d.streamed.times_of_one_product", n);
            if (plain_fwht_here())
                bench_figure(isa, bench_find(&table, OSCAR_ISA_AUTO, "streamed method of FFHT, D = %d", n)->median
                             / fwht, "1", "fwht.D%d.streamed.over_ffht", n);
        }
    if (!plain_fwht_here()) SKIP("fwht.over_ffht", "the baseline needs AVX");
    bench_free(x, bytes);
}

/* == CODEC == */

static void run_encode(void *argument)
{
    rows_job *job = (rows_job *)argument;
    (void)oscar_encode(&job->codec, job->dim, ROWS, job->x, job->encoded);
}

static void run_decode(void *argument)
{
    rows_job *job = (rows_job *)argument;
    (void)oscar_decode(&job->codec, job->dim, ROWS, job->encoded, job->out);
}

static const char *fit_name(oscar_fit fit) { return fit == OSCAR_CLIP ? "CLIP" : "UNBIASED"; }

/* Bytes and decoded rows, exactly. Leaves the rows encoded. */
static void check_codec(const rows_job *job, oscar_isa isa)
{
    static ref_row row;
    static unsigned char bytes[2 * DIM_MAX];
    static float x[DIM_MAX];
    ref_codec codec = { OSCAR_UNBIASED, 0, 0, 0, 0, NULL };
    size_t size = oscar_row_bytes(&job->codec, job->dim), r;
    int same = 1;
    codec.fit = job->codec.fit;
    codec.bits = job->codec.bits;
    codec.group = job->dim;
    codec.clip = job->codec.clip;
    codec.metric = job->codec.metric;
    memset(job->encoded, 0xff, size * ROWS);
    bench_ok(oscar_encode(&job->codec, job->dim, ROWS, job->x, job->encoded), "oscar_encode");
    bench_ok(oscar_decode(&job->codec, job->dim, ROWS, job->encoded, job->out), "oscar_decode");
    for (r = 0; r < ROWS; r++) {
        same = same && ref_encode_row(&codec, job->dim, job->x + r * (size_t)job->dim, &row);
        same = same && ref_pack_row(&codec, job->dim, &row, bytes) == size;
        same = same && !memcmp(bytes, job->encoded + r * size, size);
        ref_unpack_row(&codec, job->dim, bytes, x);
        same = same && !memcmp(x, job->out + r * (size_t)job->dim, (size_t)job->dim * sizeof(float));
    }
    bench_close(same ? 0 : 1, 0, isa, "D = %d, %s, %d bits: encoded bytes and decoded rows against the plain reading",
                job->dim, fit_name(job->codec.fit), job->codec.bits);
}

static void measure_codec(const rows_job *pattern, int dim)
{
    static bench_table table;
    char name[64];
    int which;
    table.count = 0;
    for (which = 0; which < 4; which++) {
        rows_job *job = job_of(pattern, dim);
        size_t size;
        bench_case encode, decode;
        oscar_isa isa;
        job->codec.fit = which / 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        job->codec.bits = which % 2 ? 4 : 2;
        job->codec.clip = 0.96;
        job->encoded = pattern->encoded + (size_t)which * ROWS * DIM_MAX;
        size = oscar_row_bytes(&job->codec, dim);
        for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) check_codec(job, isa);
        (void)snprintf(name, sizeof name, "encode %s %d bits", fit_name(job->codec.fit), job->codec.bits);
        encode = rows_case(run_encode, job, 4.0 * dim + (double)size, name);
        encode.out = job->encoded;
        encode.out_size = size * ROWS;
        (void)snprintf(name, sizeof name, "decode %s %d bits", fit_name(job->codec.fit), job->codec.bits);
        decode = rows_case(run_decode, job, 4.0 * dim + (double)size, name);
        bench_add_isas(&table, encode);
        bench_add_isas(&table, decode);
    }
    bench_add(&table, rows_case(run_memcpy, job_of(pattern, dim), 8.0 * dim, "memcpy"));
    bench_time(&table, 2e-3);
    printf("\nRow codec, D = %d, one group, fp16 metadata, clip 0.96: one row; baseline: memcpy of the floats\n", dim);
    bench_print(&table, 1e9, "ns");
    for (which = 0; which < 8; which++) {
        oscar_isa isa;
        const char *what = which % 2 ? "decode" : "encode";
        oscar_fit fit = which / 4 ? OSCAR_CLIP : OSCAR_UNBIASED;
        int bits = which / 2 % 2 ? 4 : 2;
        for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
            bench_figure(isa, bench_find(&table, isa, "%s %s %d bits, D = %d", what, fit_name(fit), bits, dim)->median
                         * 1e9 / ROWS, "ns", "%s.%s.%dbit.D%d.ns", what, fit == OSCAR_CLIP ? "clip" : "unbiased", bits,
                         dim);
    }
}

/* == APPEND == */

enum { HEADS = 8, DIM = 128, TOKEN = HEADS * DIM, PAGE = 64, SOURCE = 64, STEPS = 4 * PAGE };

/* One layer of a cache. Every sample appends STEPS tokens one by one, so the cost of a page that falls due is spread
   over its tokens; when the pages are used up, a new sequence takes over, which is not timed. */
typedef struct append_job {
    const char *name;
    oscar_layer layer;
    const float *k, *v;       /* SOURCE tokens, used again and again: a model hands over rows that are in cache, too */
    oscar_cache *cache;
    oscar_seq seq;
    oscar_isa isa;
    double page_bytes;
} append_job;

enum { APPEND_PAGES = 64 };

static void append_tokens(append_job *job, int64_t at, int64_t rows)
{
    oscar_view k, v;
    oscar_batch batch;
    oscar_result result;
    memset(&k, 0, sizeof k);
    k.data = job->k + at % SOURCE * TOKEN;
    v = k;
    v.data = job->v + at % SOURCE * TOKEN;
    batch.seq = job->seq;
    batch.row = 0;
    batch.rows = rows;
    result = oscar_cache_reserve(job->cache, job->seq, rows, 0);
    if (result == OSCAR_OK) result = oscar_append(job->cache, 0, &batch, 1, &k, &v);
    bench_ok(result, job->name);
}

/* Windows full, one token short of the next page. */
static void append_restart(append_job *job)
{
    int t;
    if (job->seq) bench_ok(oscar_cache_close(job->cache, job->seq), "oscar_cache_close");
    bench_ok(oscar_cache_open(job->cache, &job->seq), "oscar_cache_open");
    for (t = 0; t < 64 + 256 + PAGE - 1; t += 1) append_tokens(job, t, 1);
}

static void append_prepare(void *argument)
{
    append_job *job = (append_job *)argument;
    oscar_seq_state state;
    bench_ok(oscar_cache_get(job->cache, job->seq, &state), "oscar_cache_get");
    if (state.page_count + STEPS / PAGE >= APPEND_PAGES) append_restart(job);
}

static void run_append(void *argument)
{
    append_job *job = (append_job *)argument;
    oscar_seq_state state;
    int t;
    bench_ok(oscar_cache_get(job->cache, job->seq, &state), "oscar_cache_get");
    for (t = 0; t < STEPS; t++) append_tokens(job, state.length + t, 1);
}

/* Float rows in, a ring of float rows out. */
static float append_ring[2][SOURCE * TOKEN];

static void run_append_memcpy(void *argument)
{
    append_job *job = (append_job *)argument;
    int t;
    for (t = 0; t < STEPS; t++) {
        memcpy(append_ring[0] + t % SOURCE * TOKEN, job->k + t % SOURCE * TOKEN, TOKEN * sizeof(float));
        memcpy(append_ring[1] + t % SOURCE * TOKEN, job->v + t % SOURCE * TOKEN, TOKEN * sizeof(float));
    }
}

static void append_create(append_job *job)
{
    oscar_cache_desc desc;
    oscar_layout layout;
    memset(&desc, 0, sizeof desc);
    job->layer.q_heads = HEADS;
    job->layer.kv_heads = HEADS;
    job->layer.k_dim = DIM;
    desc.layers = &job->layer;
    desc.layer_count = 1;
    desc.max_sequences = 1;
    desc.max_pages = APPEND_PAGES;
    desc.hooks = bench_hooks();
    bench_ok(oscar_cache_create(&desc, &job->cache), "oscar_cache_create");
    bench_ok(oscar_cache_layout(job->cache, 0, &layout), "oscar_cache_layout");
    job->page_bytes = (double)layout.bytes;
    append_restart(job);
}

/* The first page of history, as it was appended token by token, against a page of the plain reading. */
static void check_append(append_job *job)
{
    ref_page page = ref_page_of(&job->layer, PAGE, OSCAR_BF16);
    unsigned char *bytes = (unsigned char *)calloc(1, page.bytes);
    float *fetched[2], expected[DIM];
    oscar_view k, v;
    oscar_out out[2];
    int side, t, h, same;
    memset(&k, 0, sizeof k);
    k.data = job->k;          /* tokens 64 .. 127 of the sequence are SOURCE rows 0 .. 63 */
    v = k;
    v.data = job->v;
    run_append(job);
    same = ref_page_write(&page, &k, &v, bytes) && page.bytes == (size_t)job->page_bytes;
    for (side = 0; side < 2; side++) {
        fetched[side] = (float *)calloc(PAGE * TOKEN, sizeof(float));
        memset(&out[side], 0, sizeof out[side]);
        out[side].data = fetched[side];
    }
    bench_ok(oscar_fetch(job->cache, 0, job->seq, 64, PAGE, &out[0], &out[1]), "oscar_fetch");
    for (side = 0; side < 2; side++)
        for (t = 0; t < PAGE; t++)
            for (h = 0; h < HEADS; h++) {
                ref_row_float(&page, bytes, side, h, t, OSCAR_F32, expected);
                same = same && !memcmp(expected, fetched[side] + (t * HEADS + h) * DIM, sizeof expected);
            }
    bench_close(same ? 0 : 1, 0, job->isa, "%s: rows of an appended page against the plain reading", job->name);
    free(fetched[0]);
    free(fetched[1]);
    free(bytes);
}

/* Of the newest page of history, as it is fetched. */
static uint64_t sum_append(void *argument)
{
    static uint16_t k[PAGE * TOKEN], v[PAGE * TOKEN];
    append_job *job = (append_job *)argument;
    oscar_out out_k, out_v;
    oscar_seq_state state;
    memset(&out_k, 0, sizeof out_k);
    out_k.type = OSCAR_BF16;
    out_v = out_k;
    out_k.data = k;
    out_v.data = v;
    bench_ok(oscar_cache_get(job->cache, job->seq, &state), "oscar_cache_get");
    bench_ok(oscar_fetch(job->cache, 0, job->seq, state.sink + state.history - PAGE, PAGE, &out_k, &out_v),
             "oscar_fetch");
    return bench_checksum(k, sizeof k) ^ bench_checksum(v, sizeof v);
}

/* The settings that are compared. Clip off still finds minimum and maximum. */
enum { SETTINGS = 7 };

static int append_settings(append_job *out, const oscar_pair *dense, const oscar_pair *metric)
{
    static const struct {
        const char *name;
        oscar_fit fit;
        double k_clip, v_clip;
        int page_mean, dense;     /* 2: K with a mean and a metric, V by FWHT, as is recommended */
    } table[SETTINGS] = {
        { "FWHT, CLIP off, no page mean", OSCAR_CLIP, -1, -1, -1, 0 },
        { "FWHT, CLIP, no page mean", OSCAR_CLIP, 0.96, 0.92, -1, 0 },
        { "FWHT, UNBIASED, no page mean", OSCAR_UNBIASED, 0, 0, -1, 0 },
        { "FWHT, UNBIASED", OSCAR_UNBIASED, 0, 0, 0, 0 },
        { "dense, CLIP, no page mean", OSCAR_CLIP, 0.96, 0.92, -1, 1 },
        { "dense, UNBIASED", OSCAR_UNBIASED, 0, 0, 0, 1 },
        { "K dense with metric, V FWHT, UNBIASED", OSCAR_UNBIASED, 0, 0, 0, 2 },
    };
    int i;
    for (i = 0; i < SETTINGS; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].name = table[i].name;
        out[i].layer.k_fit = out[i].layer.v_fit = table[i].fit;
        out[i].layer.k_clip = table[i].k_clip;
        out[i].layer.v_clip = table[i].v_clip;
        out[i].layer.k_page_mean = table[i].page_mean;
        out[i].layer.k = table[i].dense == 2 ? metric : table[i].dense ? dense : NULL;
        out[i].layer.v = table[i].dense == 1 ? dense : NULL;
    }
    return SETTINGS;
}

static void measure_append(const float *k, const float *v)
{
    static append_job appends[SETTINGS * OSCAR_ISA_COUNT], settings[SETTINGS];
    static float room[HEADS][2 * DIM * DIM + DIM], metric_room[HEADS][2 * DIM * DIM + DIM], metrics[HEADS][DIM * DIM];
    static oscar_pair dense[HEADS], metric[HEADS];
    static bench_table table;
    test_random random = { 7 };
    int i, j, count = 0, setting_count = append_settings(settings, dense, metric);
    oscar_isa isa;
    bench_case copy;
    for (i = 0; i < HEADS; i++) {
        dense[i] = ref_random_pair(&random, OSCAR_DENSE, DIM, 0, 1, room[i]);
        metric[i] = ref_random_pair(&random, OSCAR_DENSE, DIM, 1, 1, metric_room[i]);
        metric[i].metric = metrics[i];   /* symmetric, with 1 on the diagonal */
        for (j = 0; j < DIM * DIM; j++) {
            int low = j / DIM < j % DIM ? j / DIM : j % DIM, high = j / DIM + j % DIM - low;
            metrics[i][j] = low == high ? 1.0f : (float)((low * 7 + high * 13 + i) % 17 - 8) / 120.0f;
        }
    }
    for (i = 0; i < setting_count; i++)
        for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
            append_job *job = &appends[count++];
            bench_case c = bench_case_of(run_append, job, "%s", settings[i].name);
            *job = settings[i];
            job->isa = c.isa = isa;
            job->k = k;
            job->v = v;
            append_create(job);
            check_append(job);
            c.prepare = append_prepare;
            c.sum = sum_append;
            c.units = STEPS;
            /* rows in, window rows out and, a page later, in again, page out */
            c.bytes = STEPS * (2.0 * TOKEN * (4 + 2 + 2) + job->page_bytes / PAGE);
            bench_add(&table, c);
        }
    copy = bench_case_of(run_append_memcpy, &appends[0], "memcpy of K and V rows as floats");
    copy.units = STEPS;
    copy.bytes = STEPS * 2.0 * TOKEN * 8;
    copy.out = append_ring;
    copy.out_size = sizeof append_ring;
    bench_add(&table, copy);
    bench_time(&table, 2e-3);
    printf("\nAppend of one token, K and V, %d heads x %d, windows 64 + 256, pages of %d included; baseline: memcpy\n",
           HEADS, DIM, PAGE);
    bench_print(&table, 1e6, "us");
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
        static const char *const figures[SETTINGS] = {
            "append.clip_off.us", "append.clip.us", "append.unbiased_no_mean.us", "append.unbiased.us",
            "append.dense_clip.us", "append.dense_unbiased.us", "append.metric.us"
        };
        for (i = 0; i < setting_count; i++)
            bench_figure(isa, bench_find(&table, isa, "%s", settings[i].name)->median * 1e6 / STEPS, "us", "%s",
                         figures[i]);
    }
    for (i = 0; i < count; i++) oscar_cache_destroy(appends[i].cache);
}

/* == ALL == */

int main(int argc, char **argv)
{
    static const int dims[3] = { 64, 128, 256 };
    static float room[2 * 256 * 256 + 256];
    rows_job pattern;
    test_random random = { 5 };
    size_t floats = (size_t)ROWS * DIM_MAX;
    float *x;
    oscar_pair pair;
    int i;
    bench_begin("bench_rows", "", argc, argv);
    memset(&pattern, 0, sizeof pattern);
    pair = ref_random_pair(&random, OSCAR_DENSE, 256, 0, 1, room);   /* smaller dimensions use a part of its entries */
    x = (float *)bench_alloc(floats * sizeof(float));
    bench_normal(1, floats, x);
    pattern.x = x;
    pattern.matrix = pair.to;
    pattern.out = (float *)bench_alloc(floats * sizeof(float));
    pattern.encoded = (unsigned char *)bench_alloc(4 * floats);
    measure_transforms(&pattern);
    measure_streams(x);
    for (i = 0; i < 3; i++) measure_codec(&pattern, dims[i]);
    measure_append(x, x + SOURCE * TOKEN);
    return 0;
}
