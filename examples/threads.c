/* threads.c - attention of a step on the threads of a pool, for one long sequence and for many short ones.

       cc -O2 -I. examples/threads.c -o threads -lm -pthread && ./threads [threads, default 2]

   oscar.h starts no thread: it hands out shares of the work. Thread `part` of `parts` calls oscar_attend_part for its
   share, and one thread joins the results. Attention only reads, so nothing is locked. Here the joined outputs are
   compared with those of one call, and a step is timed with 1 thread up to all of the pool. */

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE   /* clock_gettime under -std=c99 */
#endif
#define OSCAR_IMPLEMENTATION
#include "oscar.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { Q_HEADS = 16, KV_HEADS = 4, DIM = 128, THREADS_MAX = 64, RUNS = 7 };

static void must(oscar_result result, const char *what)
{
    if (result == OSCAR_OK) return;
    fprintf(stderr, "%s: %s\n", what, oscar_result_text(result));
    exit(1);
}

static void *must_allocate(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (!p) { fprintf(stderr, "no memory\n"); exit(1); }
    return p;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the pool ---- */

/* Threads 1 .. count - 1 wait for the next task; thread 0 is the caller. A task is a function of (argument, part,
   parts); parts may be smaller than the pool. */
typedef struct pool {
    int count, started;           /* threads; how many have taken their number */
    pthread_t threads[THREADS_MAX];
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    int task, busy, parts, end;   /* number of the task, threads still at it, its parts; whether to leave */
    void (*run)(void *, int part, int parts);
    void *argument;
} pool;

static void *pool_thread(void *of)
{
    pool *p = (pool *)of;
    int part, seen = 0;
    pthread_mutex_lock(&p->mutex);
    part = ++p->started;
    for (;;) {
        while (p->task == seen && !p->end) pthread_cond_wait(&p->wake, &p->mutex);
        if (p->end) break;
        seen = p->task;
        pthread_mutex_unlock(&p->mutex);
        if (part < p->parts) p->run(p->argument, part, p->parts);
        pthread_mutex_lock(&p->mutex);
        if (--p->busy == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static void pool_start(pool *p, int count)
{
    int i;
    memset(p, 0, sizeof *p);
    p->count = count;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    for (i = 1; i < count; i++)
        if (pthread_create(&p->threads[i], NULL, pool_thread, p)) { fprintf(stderr, "no thread\n"); exit(1); }
}

/* run(argument, part, parts) for each part; returns when all of them have returned. */
static void pool_run(pool *p, int parts, void (*run)(void *, int, int), void *argument)
{
    pthread_mutex_lock(&p->mutex);
    p->run = run;
    p->argument = argument;
    p->parts = parts;
    p->busy = p->count - 1;
    p->task++;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    run(argument, 0, parts);
    pthread_mutex_lock(&p->mutex);
    while (p->busy) pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

static void pool_stop(pool *p)
{
    int i;
    pthread_mutex_lock(&p->mutex);
    p->end = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    for (i = 1; i < p->count; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
}

/* ---- attention in parts ---- */

/* A step of a batch: one query token for each sequence. Each part has room for a result of the whole batch. */
typedef struct step {
    const oscar_cache *cache;
    const oscar_batch *batch;
    int sequences;
    oscar_view q;
    float *part_o[THREADS_MAX], *part_lse[THREADS_MAX];
    oscar_result results[THREADS_MAX];
} step;

static void attend_part(void *argument, int part, int parts)
{
    step *s = (step *)argument;
    s->results[part] = oscar_attend_part(s->cache, 0, s->batch, s->sequences, &s->q, part, parts, s->part_o[part],
                                         s->part_lse[part]);
}

/* What oscar_attend does, on `parts` threads. o: [sequences][Q_HEADS][DIM] */
static void attend(pool *p, int parts, step *s, float *o)
{
    int i;
    pool_run(p, parts, attend_part, s);
    for (i = 0; i < parts; i++) must(s->results[i], "oscar_attend_part");
    oscar_attend_join(parts, (const float *const *)s->part_o, (const float *const *)s->part_lse, s->sequences, Q_HEADS,
                      DIM, NULL, o, NULL);
}

/* ---- what attends ---- */

/* Numbers between -1 and 1, the same ones in every run. */
static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

/* A cache of one layer with sequences of `tokens` tokens each; batch: [sequences]. */
static oscar_cache *fill_cache(int sequences, int tokens, oscar_batch *batch)
{
    enum { CHUNK = 256 };
    oscar_cache_desc desc;
    oscar_layer layer;
    oscar_cache *cache;
    oscar_view k, v;
    size_t count = (size_t)CHUNK * KV_HEADS * DIM, x;
    float *rows = (float *)must_allocate(2 * count, sizeof(float));
    uint32_t state = 1;
    int i, t;
    memset(&desc, 0, sizeof desc);
    memset(&layer, 0, sizeof layer);
    memset(&k, 0, sizeof k);
    layer.q_heads = Q_HEADS;
    layer.kv_heads = KV_HEADS;
    layer.k_dim = DIM;
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.max_sequences = sequences;
    desc.max_pages = (int64_t)sequences * ((tokens + 63) / 64);
    must(oscar_cache_create(&desc, &cache), "oscar_cache_create");
    k.data = rows;
    v = k;
    v.data = rows + count;
    for (i = 0; i < sequences; i++) {
        must(oscar_cache_open(cache, &batch[i].seq), "oscar_cache_open");
        batch[i].row = i;
        for (t = 0; t < tokens; t += CHUNK) {
            oscar_batch chunk = { 0, 0, 0 };
            chunk.seq = batch[i].seq;
            chunk.rows = tokens - t < CHUNK ? tokens - t : CHUNK;
            for (x = 0; x < 2 * count; x++) rows[x] = noise(&state);
            must(oscar_cache_reserve(cache, chunk.seq, chunk.rows, 0), "oscar_cache_reserve");
            must(oscar_append(cache, 0, &chunk, 1, &k, &v), "oscar_append");
        }
        batch[i].rows = 1;    /* the last token asks */
    }
    free(rows);
    return cache;
}

/* |a - b| / |b| */
static double relative(const float *a, const float *b, size_t count)
{
    double difference = 0, norm = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / norm);
}

/* Compares, times and prints one kind of batch; returns 0 if parts and one call differ. */
static int demonstrate(pool *p, const char *name, int sequences, int tokens)
{
    size_t outputs = (size_t)sequences * Q_HEADS * DIM, i;
    oscar_batch *batch = (oscar_batch *)must_allocate((size_t)sequences, sizeof *batch);
    float *q = (float *)must_allocate(3 * outputs, sizeof(float)), *o = q + outputs, *expected = o + outputs;
    double one_thread = 0, worst = 0;
    uint32_t state = 2;
    oscar_cache *cache = fill_cache(sequences, tokens, batch);
    oscar_out out;
    step s;
    int parts, run;
    memset(&s, 0, sizeof s);
    memset(&out, 0, sizeof out);
    s.cache = cache;
    s.batch = batch;
    s.sequences = sequences;
    for (i = 0; i < outputs; i++) q[i] = noise(&state);
    s.q.data = q;
    for (parts = 0; parts < p->count; parts++) {
        s.part_o[parts] = (float *)must_allocate(outputs, sizeof(float));
        s.part_lse[parts] = (float *)must_allocate((size_t)sequences * Q_HEADS, sizeof(float));
    }
    out.data = expected;
    must(oscar_attend(s.cache, 0, batch, sequences, &s.q, NULL, &out, NULL), "oscar_attend");
    printf("%s: %d x %d tokens\n", name, sequences, tokens);
    for (parts = 1; parts <= p->count; parts++) {
        double best = HUGE_VAL, error;
        for (run = 0; run < RUNS; run++) {
            double start = seconds();
            attend(p, parts, &s, o);
            start = seconds() - start;
            if (start < best) best = start;
        }
        error = relative(o, expected, outputs);
        if (!(error <= worst)) worst = error;
        if (parts == 1) one_thread = best;
        printf("  %2d thread%s %9.3f ms a step, %.2f times as fast as 1; relative difference %.1e\n", parts,
               parts == 1 ? " " : "s", 1e3 * best, one_thread / best, error);
    }
    for (parts = 0; parts < p->count; parts++) {
        free(s.part_o[parts]);
        free(s.part_lse[parts]);
    }
    oscar_cache_destroy(cache);
    free(q);
    free(batch);
    return worst <= 1e-5;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 2, ok;
    pool p;
    if (count < 1 || count > THREADS_MAX) {
        fprintf(stderr, "usage: threads [1..%d]\n", THREADS_MAX);
        return 2;
    }
    printf("oscar.h, %s path, %d query heads on %d KV heads of %d, 2 bits\n", oscar_isa_name(oscar_isa_active()),
           Q_HEADS, KV_HEADS, DIM);
    pool_start(&p, count);
    ok = demonstrate(&p, "one long sequence", 1, 8192);
    ok = demonstrate(&p, "many short sequences", 32, 512) && ok;
    pool_stop(&p);
    if (!ok) fprintf(stderr, "the parts do not add up to one call\n");
    return !ok;
}
