/* bench_calib.c - calibration: how fast sums take in activations, and how long the pairs take to find.

   A row is one token of one KV head, with the queries of its 4 query heads: (4 + 1) * D floats are read. PLAIN does
   5 D^2 products a row (C_Q and C_K); ATTENTION also the scores of the chunk, so its cost a row grows with the length
   of the chunk, here 768 tokens. Baseline of PLAIN: the same sums by a textbook loop of this file.

   Before timing the pairs that come out are tested with sums and weights of this file, in double: transformed keys and
   queries must have a flat profile (all diagonal entries of F^T Cx F are 1, all of B^T Cw B are equal), and the mean
   key must be the weighted mean. */
#include "bench.h"

enum { KV_HEADS = 2, GROUP = 4, Q_HEADS = KV_HEADS * GROUP, TOKENS = 768, DIM_MAX = 128, SINK = 64, RECENT = 256 };

typedef struct calib_job {
    int dim;
    oscar_weights weights;
    oscar_chunk chunk;
    const float *q, *k;       /* [TOKENS][heads][dim] */
    oscar_calib *calib;
    oscar_compose compose;
    double *sums;             /* textbook: [KV_HEADS][2][dim][dim] */
} calib_job;

static const char *weights_name(oscar_weights weights)
{
    return weights == OSCAR_WEIGHTS_PLAIN ? "PLAIN" : "ATTENTION";
}

/* == CASES == */

static void run_add(void *argument)
{
    calib_job *job = (calib_job *)argument;
    bench_ok(oscar_calib_add(job->calib, 0, &job->chunk), "oscar_calib_add");
}

/* sum += weight x^T x, row by row of the matrix. */
static void textbook_add(int dim, const float *x, double weight, double *sum)
{
    int i, j;
    for (i = 0; i < dim; i++)
        for (j = 0; j < dim; j++) sum[i * dim + j] += weight * (double)x[i] * (double)x[j];
}

static void run_textbook(void *argument)
{
    calib_job *job = (calib_job *)argument;
    size_t square = (size_t)(job->dim * job->dim);
    int t, h;
    memset(job->sums, 0, 2 * KV_HEADS * square * sizeof(double));
    for (t = 0; t < TOKENS; t++) {
        for (h = 0; h < Q_HEADS; h++)
            textbook_add(job->dim, job->q + (t * Q_HEADS + h) * job->dim, 1,
                         job->sums + (size_t)(h / GROUP) * 2 * square);
        for (h = 0; h < KV_HEADS; h++)
            textbook_add(job->dim, job->k + (t * KV_HEADS + h) * job->dim, 1, job->sums + ((size_t)h * 2 + 1) * square);
    }
}

static void run_solve(void *argument)
{
    calib_job *job = (calib_job *)argument;
    oscar_rotations *rotations;
    bench_ok(oscar_calib_solve(job->calib, &job->compose, &rotations), "oscar_calib_solve");
    oscar_rotations_destroy(rotations);
}

/* The pairs as they are after all the adds of a case. */
static uint64_t sum_pairs(void *argument)
{
    calib_job *job = (calib_job *)argument;
    oscar_rotations *rotations;
    oscar_layer layer;
    uint64_t sum;
    memset(&layer, 0, sizeof layer);
    bench_ok(oscar_calib_solve(job->calib, &job->compose, &rotations), "oscar_calib_solve");
    bench_ok(oscar_rotations_layer(rotations, 0, &layer), "oscar_rotations_layer");
    sum = bench_checksum(layer.k[0].to, (size_t)(job->dim * job->dim) * sizeof(float));
    oscar_rotations_destroy(rotations);
    return sum;
}

/* == CHECK == */

/* Weights of the keys [TOKENS] and of the queries [TOKENS][GROUP] of a KV head. ATTENTION: w_ij = p_ij (1 - p_ij) for
   SINK <= j <= i - RECENT, p the causal softmax of query i. */
static void weigh(const calib_job *job, int head, double *key, double *query)
{
    static double p[TOKENS];
    int i, j, x, c;
    for (i = 0; i < TOKENS; i++) key[i] = job->weights == OSCAR_WEIGHTS_PLAIN;
    for (i = 0; i < TOKENS * GROUP; i++) query[i] = job->weights == OSCAR_WEIGHTS_PLAIN;
    if (job->weights == OSCAR_WEIGHTS_PLAIN) return;
    for (i = 0; i < TOKENS; i++)
        for (x = 0; x < GROUP; x++) {
            const float *q = job->q + (i * Q_HEADS + head * GROUP + x) * job->dim;
            double top = -HUGE_VAL, sum = 0;
            for (j = 0; j <= i; j++) {
                const float *k = job->k + (j * KV_HEADS + head) * job->dim;
                for (p[j] = 0, c = 0; c < job->dim; c++) p[j] += (double)q[c] * (double)k[c];
                p[j] /= sqrt((double)job->dim);
                top = fmax(top, p[j]);
            }
            for (j = 0; j <= i; j++) sum += p[j] = exp(p[j] - top);
            for (j = SINK; j <= i - RECENT; j++) {
                double w = p[j] / sum * (1 - p[j] / sum);
                key[j] += w;
                query[i * GROUP + x] += w;
            }
        }
}

/* The diagonal of F^T C F. */
static void profile(int dim, const float *f, const double *c, double *out)
{
    int i, j, a;
    for (a = 0; a < dim; a++)
        for (out[a] = 0, i = 0; i < dim; i++) {
            double row = 0;
            for (j = 0; j < dim; j++) row += c[i * dim + j] * (double)f[j * dim + a];
            out[a] += (double)f[i * dim + a] * row;
        }
}

/* C + eps tr(C) / D I with the default eps. */
static void regularise(int dim, double *c)
{
    double trace = 0;
    int i;
    for (i = 0; i < dim; i++) trace += c[i * dim + i];
    for (i = 0; i < dim; i++) c[i * dim + i] += 1e-4 * trace / dim;
}

/* Largest deviation of entries from `expected` over it. */
static double flatness(int dim, const double *x, double expected)
{
    double worst = 0;
    int i;
    for (i = 0; i < dim; i++) worst = fmax(worst, fabs(x[i] / expected - 1));
    return worst;
}

/* One KV head: sums of this file against the pair. */
static double check_head(const calib_job *job, int head, const oscar_pair *pair)
{
    static double key[TOKENS], query[TOKENS * GROUP], mean[DIM_MAX], diagonal[DIM_MAX];
    int dim = job->dim, t, x, i;
    size_t square = (size_t)(dim * dim);
    double *c_q = (double *)calloc(square, sizeof(double)), *c_k = (double *)calloc(square, sizeof(double));
    double total_k = 0, total_q = 0, worst = 0, average = 0;
    weigh(job, head, key, query);
    memset(mean, 0, sizeof mean);
    for (t = 0; t < TOKENS; t++) {
        const float *k = job->k + (t * KV_HEADS + head) * dim;
        total_k += key[t];
        for (i = 0; i < dim; i++) mean[i] += key[t] * (double)k[i];
        for (x = 0; x < GROUP; x++) {
            total_q += query[t * GROUP + x];
            textbook_add(dim, job->q + (t * Q_HEADS + head * GROUP + x) * dim, query[t * GROUP + x], c_q);
        }
    }
    for (i = 0; i < dim; i++) mean[i] /= total_k;
    for (t = 0; t < TOKENS; t++) {
        float centred[DIM_MAX];
        for (i = 0; i < dim; i++)
            centred[i] = (float)((double)job->k[(t * KV_HEADS + head) * dim + i] - mean[i]);
        textbook_add(dim, centred, key[t] / total_k, c_k);
    }
    for (i = 0; i < dim * dim; i++) c_q[i] /= total_q;
    regularise(dim, c_k);
    regularise(dim, c_q);
    profile(dim, pair->to, c_k, diagonal);
    worst = flatness(dim, diagonal, 1);
    profile(dim, pair->dual, c_q, diagonal);
    for (i = 0; i < dim; i++) average += diagonal[i] / dim;
    worst = fmax(worst, flatness(dim, diagonal, average));
    worst = fmax(worst, ref_relative(dim, pair->mean, mean));
    free(c_q);
    free(c_k);
    return worst;
}

/* After one chunk. */
static void check_pairs(calib_job *job, oscar_isa isa)
{
    oscar_rotations *rotations;
    oscar_layer layer;
    double worst = 0;
    int h;
    memset(&layer, 0, sizeof layer);
    bench_ok(oscar_calib_solve(job->calib, NULL, &rotations), "oscar_calib_solve");
    bench_ok(oscar_rotations_layer(rotations, 0, &layer), "oscar_rotations_layer");
    bench_check(layer.k && layer.k[0].kind == OSCAR_DENSE && layer.k[0].dual && layer.k[0].mean, "a pair with mean");
    for (h = 0; h < KV_HEADS; h++) worst = fmax(worst, check_head(job, h, &layer.k[h]));
    bench_close(worst, 1e-4, isa, "D = %d, %s: flat profiles and mean key", job->dim, weights_name(job->weights));
    oscar_rotations_destroy(rotations);
}

/* == ALL == */

static void job_create(calib_job *job, unsigned sums)
{
    oscar_calib_desc desc;
    oscar_layer layer;
    memset(&desc, 0, sizeof desc);
    memset(&layer, 0, sizeof layer);
    layer.q_heads = Q_HEADS;
    layer.kv_heads = KV_HEADS;
    layer.k_dim = job->dim;
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.weights = job->weights;
    desc.sums = sums;
    desc.hooks = bench_hooks();
    bench_ok(oscar_calib_create(&desc, &job->calib), "oscar_calib_create");
    memset(&job->chunk, 0, sizeof job->chunk);
    job->chunk.tokens = TOKENS;
    job->chunk.q.data = job->q;
    job->chunk.k.data = job->k;
    job->chunk.v.data = job->k;      /* any values; V takes part only in one of the solves */
}

static void add_cases(bench_table *table, calib_job *job)
{
    oscar_isa isa;
    bench_case c;
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa)) {
        job_create(job, 0);
        run_add(job);
        check_pairs(job, isa);
        oscar_calib_destroy(job->calib);
    }
    job_create(job, 0);
    c = bench_case_of(run_add, job, "add %s, D = %d", weights_name(job->weights), job->dim);
    c.units = KV_HEADS * TOKENS;
    c.bytes = c.units * (GROUP + 1) * job->dim * 4.0;
    c.sum = sum_pairs;
    c.calls = 1;      /* the sums, and so the checksum, depend on the number of calls */
    bench_add_isas(table, c);
    if (job->weights != OSCAR_WEIGHTS_PLAIN) return;
    job->sums = (double *)bench_alloc(2 * KV_HEADS * (size_t)(job->dim * job->dim) * sizeof(double));
    c = bench_case_of(run_textbook, job, "textbook sums, D = %d", job->dim);
    c.units = KV_HEADS * TOKENS;
    c.bytes = c.units * (GROUP + 1) * job->dim * 4.0;
    c.out = job->sums;
    c.out_size = 2 * KV_HEADS * (size_t)(job->dim * job->dim) * sizeof(double);
    bench_add(table, c);
}

static void add_solves(bench_table *table, calib_job *balanced, calib_job *paper)
{
    bench_case c = bench_case_of(run_solve, balanced, "solve BALANCED, D = %d", balanced->dim);
    c.units = KV_HEADS;
    c.sum = sum_pairs;
    bench_add_isas(table, c);
    paper->compose.method = OSCAR_METHOD_OSCAR;
    paper->compose.v_target = OSCAR_TARGET_SELF;
    c = bench_case_of(run_solve, paper, "solve OSCAR K and V, D = %d", paper->dim);
    c.units = KV_HEADS;
    c.sum = sum_pairs;
    bench_add_isas(table, c);
}

static void figures(const bench_table *adds, const bench_table *solves)
{
    static const int dims[2] = { 64, 128 };
    oscar_isa isa;
    int d;
    for (isa = bench_next_isa(OSCAR_ISA_AUTO); isa; isa = bench_next_isa(isa))
        for (d = 0; d < 2; d++) {
            double plain = bench_find(adds, isa, "add PLAIN, D = %d", dims[d])->median;
            double attention = bench_find(adds, isa, "add ATTENTION, D = %d", dims[d])->median;
            double textbook = bench_find(adds, OSCAR_ISA_AUTO, "textbook sums, D = %d", dims[d])->median;
            if (dims[d] == 128) bench_figure(isa, KV_HEADS * TOKENS / attention, "rows/s", "calib.rows_per_s");
            bench_figure(isa, KV_HEADS * TOKENS / attention, "rows/s", "calib.rows_per_s.attention.D%d", dims[d]);
            bench_figure(isa, KV_HEADS * TOKENS / plain, "rows/s", "calib.rows_per_s.plain.D%d", dims[d]);
            bench_figure(isa, textbook / plain, "1", "calib.plain.over_textbook.D%d", dims[d]);
            bench_figure(isa, bench_find(solves, isa, "solve BALANCED, D = %d", dims[d])->median * 1e3 / KV_HEADS, "ms",
                         "calib.solve_balanced.D%d.ms_per_head", dims[d]);
            bench_figure(isa, bench_find(solves, isa, "solve OSCAR K and V, D = %d", dims[d])->median * 1e3 / KV_HEADS,
                         "ms", "calib.solve_oscar.D%d.ms_per_head", dims[d]);
        }
}

int main(int argc, char **argv)
{
    static const int dims[2] = { 64, 128 };
    static bench_table adds, solves;
    static calib_job jobs[6];
    float *q, *k;
    int d, t, i, w;
    bench_begin("bench_calib", "", argc, argv);
    q = (float *)bench_alloc(TOKENS * Q_HEADS * DIM_MAX * sizeof(float));
    k = (float *)bench_alloc(TOKENS * KV_HEADS * DIM_MAX * sizeof(float));
    bench_normal(1, TOKENS * Q_HEADS * DIM_MAX, q);
    bench_normal(2, TOKENS * KV_HEADS * DIM_MAX, k);
    for (t = 0; t < TOKENS * KV_HEADS * DIM_MAX; t++)      /* channels of unlike size, a mean key */
        k[t] = (k[t] + 0.5f) * (float)(1 + t % DIM_MAX % 7 * (t % DIM_MAX % 5)) * 0.2f;
    for (d = 0; d < 2; d++) {
        for (w = 0; w < 3; w++) {
            calib_job *job = &jobs[d * 3 + w];
            job->dim = dims[d];
            job->weights = w == 0 ? OSCAR_WEIGHTS_PLAIN : OSCAR_WEIGHTS_ATTENTION;
            job->q = q;
            job->k = k;
            if (w < 2) add_cases(&adds, job);
        }
        job_create(&jobs[d * 3 + 2], OSCAR_SUM_Q | OSCAR_SUM_K | OSCAR_SUM_V);
        run_add(&jobs[d * 3 + 2]);
        add_solves(&solves, &jobs[d * 3 + 1], &jobs[d * 3 + 2]);
    }
    bench_time(&adds, 5e-3);
    bench_time(&solves, 5e-3);
    printf("\nSums: one row (token of a KV head, %d query heads), chunks of %d tokens; baseline: textbook sums\n",
           GROUP, TOKENS);
    bench_print(&adds, 1e9, "ns");
    printf("\nPairs of one KV head\n");
    bench_print(&solves, 1e3, "ms");
    figures(&adds, &solves);
    for (i = 0; i < 6; i++) oscar_calib_destroy(jobs[i].calib);
    return 0;
}
