/* test_threads.c - many threads: first calls at once, readers between writes, parts of one attention, caches side by
   side. Also built with ThreadSanitizer. */
#if !defined(_WIN32)
#  define _POSIX_C_SOURCE 200809L
#endif
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "test.h"
#include "cache_model.h"

#if defined(_WIN32)
int main(void)
{
    SKIP("threads", "needs pthreads");
    return test_end("test_threads");
}
#else
#include <pthread.h>

enum { THREADS = 4, SEQUENCES = 3, HEADS = 4, DIM = 32, ROWS = 2, OUT = SEQUENCES * ROWS * HEADS * DIM };

/* Two layers of 2 KV heads x 32; the second has a sliding window. */
static void make_layers(oscar_layer *l)
{
    memset(l, 0, 2 * sizeof *l);
    l[0].q_heads = l[1].q_heads = HEADS;
    l[0].kv_heads = l[1].kv_heads = 2;
    l[0].k_dim = l[1].k_dim = DIM;
    l[1].k_bits = 4;
    l[1].window = 100;
}

static oscar_cache_desc make_desc(const oscar_layer *l)
{
    oscar_cache_desc d;
    memset(&d, 0, sizeof d);
    d.layers = l;
    d.layer_count = 2;
    d.max_sequences = SEQUENCES;
    d.max_pages = 60;
    d.sink = 4;
    d.recent = 40;
    return d;
}

/* Appends `rows` tokens to a sequence in both layers. Threads call it: no CHECK inside. */
static oscar_result append_rows(oscar_cache *cache, oscar_seq seq, int rows, uint64_t seed)
{
    float *k = (float *)model_get((size_t)rows * 2 * DIM * 2, sizeof *k), *v = k + rows * 2 * DIM;
    oscar_result result = oscar_cache_reserve(cache, seq, rows, 0);
    oscar_view kv, vv;
    oscar_batch b;
    int layer, i, h;
    memset(&kv, 0, sizeof kv);
    memset(&vv, 0, sizeof vv);
    kv.data = k;
    vv.data = v;
    b.seq = seq;
    b.row = 0;
    b.rows = rows;
    for (layer = 0; layer < 2 && result == OSCAR_OK; layer++) {
        for (i = 0; i < rows; i++) for (h = 0; h < 2; h++) {
            model_source(seed, layer, 0, i, h, DIM, k + (i * 2 + h) * DIM);
            model_source(seed, layer, 1, i, h, DIM, v + (i * 2 + h) * DIM);
        }
        result = oscar_append(cache, layer, &b, 1, &kv, &vv);
    }
    free(k);
    return result;
}

static void make_queries(float *q)
{
    int i, h;
    for (i = 0; i < SEQUENCES * ROWS; i++)
        for (h = 0; h < HEADS; h++) model_source(9, 0, 2, i, h, DIM, q + (i * HEADS + h) * DIM);
}

/* A cache with its sequences, and one attention over all of them. */
typedef struct subject {
    oscar_cache *cache;
    oscar_seq seq[SEQUENCES];
    oscar_batch batch[SEQUENCES];
    float q[OUT];
} subject;

static oscar_result subject_create(subject *s, const oscar_cache_desc *d)
{
    oscar_result result = oscar_cache_create(d, &s->cache);
    int i;
    for (i = 0; i < SEQUENCES && result == OSCAR_OK; i++) {
        result = oscar_cache_open(s->cache, &s->seq[i]);
        s->batch[i].seq = s->seq[i];
        s->batch[i].row = i * ROWS;
        s->batch[i].rows = ROWS;
        if (result == OSCAR_OK) result = append_rows(s->cache, s->seq[i], 5 + 150 * i, (uint64_t)i);
    }
    make_queries(s->q);
    return result;
}

static oscar_result subject_attend(const subject *s, int layer, float *o, float *lse)
{
    oscar_view q;
    oscar_out out;
    memset(&q, 0, sizeof q);
    memset(&out, 0, sizeof out);
    q.data = s->q;
    out.data = o;
    return oscar_attend(s->cache, layer, s->batch, SEQUENCES, &q, NULL, &out, lse);
}

/* == JOBS OF A THREAD == */

typedef struct job {
    const subject *shared;      /* readers and parts */
    const oscar_cache_desc *desc;
    int number, layer;
    oscar_result result;
    float o[2][OUT], lse[2][SEQUENCES * ROWS * HEADS];
    unsigned char *blob;
    size_t blob_size;
    oscar_isa isa;
} job;

/* Makes a cache of its own, writes and attends. */
static void *run_own(void *data)
{
    job *j = (job *)data;
    subject *s = (subject *)model_get(1, sizeof *s);
    int i;
    j->isa = oscar_isa_active();
    j->result = subject_create(s, j->desc);
    for (i = 0; i < 3 && j->result == OSCAR_OK; i++) j->result = append_rows(s->cache, s->seq[i], 30, 7);
    for (i = 0; i < 2 && j->result == OSCAR_OK; i++) j->result = subject_attend(s, i, j->o[i], j->lse[i]);
    oscar_cache_destroy(s->cache);
    free(s);
    return NULL;
}

/* Everything that only reads. */
static void *run_reader(void *data)
{
    job *j = (job *)data;
    const subject *s = j->shared;
    oscar_seq_state state;
    oscar_stats stats;
    oscar_layout layout;
    int i;
    j->result = OSCAR_OK;
    for (i = 0; i < 2 && j->result == OSCAR_OK; i++) j->result = subject_attend(s, i, j->o[i], j->lse[i]);
    for (i = 0; i < SEQUENCES && j->result == OSCAR_OK; i++) {
        j->result = oscar_cache_get(s->cache, s->seq[i], &state);
        if (j->result == OSCAR_OK) j->result = oscar_cache_can(s->cache, s->seq[i], OSCAR_CAN_CUT, state.length / 2);
    }
    oscar_cache_stats(s->cache, &stats);
    if (j->result == OSCAR_OK) j->result = oscar_cache_layout(s->cache, 1, &layout);
    if (j->result == OSCAR_OK) j->result = oscar_cache_save(s->cache, s->seq[2], j->blob, j->blob_size, &j->blob_size);
    return NULL;
}

static void *run_part(void *data)
{
    job *j = (job *)data;
    oscar_view q;
    memset(&q, 0, sizeof q);
    q.data = j->shared->q;
    j->result = oscar_attend_part(j->shared->cache, j->layer, j->shared->batch, SEQUENCES, &q, j->number, THREADS,
                                  j->o[0], j->lse[0]);
    return NULL;
}

static void run_all(void *(*run)(void *), job *jobs)
{
    pthread_t thread[THREADS];
    int i, started = 0;
    for (i = 0; i < THREADS; i++) {
        if (pthread_create(&thread[i], NULL, run, &jobs[i])) { CHECK(0); break; }
        started++;
    }
    for (i = 0; i < started; i++) pthread_join(thread[i], NULL);
    for (i = 0; i < THREADS; i++)
        CHECK_MSG(jobs[i].result == OSCAR_OK, ("    thread %d: %s\n", i, oscar_result_text(jobs[i].result)));
}

/* == TESTS == */

static void test_first_calls(job *jobs, const oscar_cache_desc *d)
{
    int i, layer;
    TEST("first calls of many threads at once, each with a cache of its own");
    for (i = 0; i < THREADS; i++) jobs[i].desc = d;
    run_all(run_own, jobs);
    for (i = 1; i < THREADS; i++) {
        CHECK(jobs[i].isa == jobs[0].isa);
        for (layer = 0; layer < 2; layer++) {
            CHECK(memcmp(jobs[i].o[layer], jobs[0].o[layer], sizeof jobs[0].o[0]) == 0);
            CHECK(memcmp(jobs[i].lse[layer], jobs[0].lse[layer], sizeof jobs[0].lse[0]) == 0);
        }
    }
}

static void test_readers(job *jobs, const subject *s)
{
    static float o[2][OUT], lse[2][SEQUENCES * ROWS * HEADS];
    size_t size = 0, capacity = 1 << 20;
    unsigned char *blob = (unsigned char *)model_get(capacity, 1);
    int round, i, layer;
    TEST("readers between writes see what one thread sees");
    for (i = 0; i < THREADS; i++) {
        jobs[i].shared = s;
        jobs[i].blob = (unsigned char *)model_get(capacity, 1);
    }
    for (round = 0; round < 12; round++) {
        CHECK(append_rows(s->cache, s->seq[round % SEQUENCES], 7 + 5 * round, (uint64_t)round + 20) == OSCAR_OK);
        if (round % 4 == 3) {
            oscar_seq_state state;
            CHECK(oscar_cache_get(s->cache, s->seq[2], &state) == OSCAR_OK);
            CHECK(oscar_cache_cut(s->cache, s->seq[2], state.length - 90) == OSCAR_OK);
            CHECK(append_rows(s->cache, s->seq[2], 3, 5) == OSCAR_OK);
        }
        for (layer = 0; layer < 2; layer++) CHECK(subject_attend(s, layer, o[layer], lse[layer]) == OSCAR_OK);
        CHECK(oscar_cache_save(s->cache, s->seq[2], blob, capacity, &size) == OSCAR_OK);
        for (i = 0; i < THREADS; i++) {
            memset(jobs[i].o, 0, sizeof jobs[i].o);
            jobs[i].blob_size = capacity;
        }
        run_all(run_reader, jobs);
        for (i = 0; i < THREADS; i++) {
            CHECK(memcmp(jobs[i].o, o, sizeof o) == 0);
            CHECK(memcmp(jobs[i].lse, lse, sizeof lse) == 0);
            CHECK(jobs[i].blob_size == size && memcmp(jobs[i].blob, blob, size) == 0);
        }
    }
    for (i = 0; i < THREADS; i++) { free(jobs[i].blob); jobs[i].blob = NULL; }
    free(blob);
}

static void test_parts(job *jobs, const subject *s)
{
    static float joined[OUT], joined_lse[SEQUENCES * ROWS * HEADS], whole[OUT], whole_lse[SEQUENCES * ROWS * HEADS];
    const float *part_o[THREADS], *part_lse[THREADS];
    int layer, i;
    TEST("parts of one attention from several threads");
    for (layer = 0; layer < 2; layer++) {
        double error = 0, norm = 0;
        for (i = 0; i < THREADS; i++) {
            jobs[i].shared = s;
            jobs[i].layer = layer;
            jobs[i].number = i;
            part_o[i] = jobs[i].o[0];
            part_lse[i] = jobs[i].lse[0];
        }
        run_all(run_part, jobs);
        oscar_attend_join(THREADS, part_o, part_lse, SEQUENCES * ROWS, HEADS, DIM, NULL, joined, joined_lse);
        CHECK(subject_attend(s, layer, whole, whole_lse) == OSCAR_OK);
        for (i = 0; i < OUT; i++) {
            double e = (double)joined[i] - (double)whole[i];
            error += e * e;
            norm += (double)whole[i] * (double)whole[i];
        }
        CHECK_MSG(sqrt(error / norm) < model_tolerance(), ("    error %g\n", sqrt(error / norm)));
        for (i = 0; i < SEQUENCES * ROWS * HEADS; i++) CLOSE(joined_lse[i], whole_lse[i], 1e-3);
        for (i = 0; i < THREADS; i++) {            /* alone, a part has the same bits */
            static job alone;
            alone.shared = s;
            alone.layer = layer;
            alone.number = i;
            run_part(&alone);
            CHECK(memcmp(alone.o[0], jobs[i].o[0], sizeof alone.o[0]) == 0);
            CHECK(memcmp(alone.lse[0], jobs[i].lse[0], sizeof alone.lse[0]) == 0);
        }
    }
}

int main(void)
{
    oscar_layer l[2];
    oscar_cache_desc d;
    job *jobs = (job *)model_get(THREADS, sizeof *jobs);
    subject *s = (subject *)model_get(1, sizeof *s);
    make_layers(l);
    d = make_desc(l);
    test_first_calls(jobs, &d);
    if (subject_create(s, &d) == OSCAR_OK) {
        test_readers(jobs, s);
        test_parts(jobs, s);
        CHECK(oscar_cache_check(s->cache) == OSCAR_OK);
    } else CHECK(0);
    oscar_cache_destroy(s->cache);
    free(s);
    free(jobs);
    return test_end("test_threads");
}
#endif
