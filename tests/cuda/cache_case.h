/* cache_case.h - two caches of the same layers, one on the CPU and one on a device, and what they are compared by. The
   program names the libraries (cuda_path, nvrtc_path), gives images of the kernels or none, and says what else is done
   with the driver: the four functions below. */
#ifndef OSCAR_TEST_CACHE_CASE_H
#define OSCAR_TEST_CACHE_CASE_H

#ifndef _GNU_SOURCE
#  define _GNU_SOURCE 1
#endif
#include "tests/test.h"
#include "tests/cuda/calls.h"
#include "oscar_cuda.h"

enum {
    LAYERS = 2, SEQUENCES = 4, ENTRIES = 3, MOST_ROWS = 4, STEP_ROWS = ENTRIES * MOST_ROWS, CHUNK_ROWS = 360,
    VALUES = CHUNK_ROWS * 4 * 64, PAGES = 20
};

static const char *cuda_said(void);    /* about the last error, "" if nothing */
static void cuda_fresh(void);          /* before a test opens the device */
static void cuda_started(int late);    /* after that; late 1: work is done when somebody waits, where that can be had */
static void cuda_left(int closed);     /* the caches are gone, then the device: is more left than the test's own? */

/* The log, and an allocator that counts; the allocation that brings `left` to 0 fails. */
static struct { char text[4096]; int errors, left; int64_t bytes; } said;

static struct {
    oscar_cuda *cuda;
    oscar_cuda_cache *device;
    oscar_cache *host;
    oscar_cuda_cache_desc desc;
    struct { oscar_seq device, host; } seq[SEQUENCES];
    void *stream;
} both;

static struct {
    uint64_t k[LAYERS], v[LAYERS], q[LAYERS], o, lse, layer_o[LAYERS], layer_lse[LAYERS], sinks;
} device;

static int few_drafts;   /* 1: steps may be longer than drafts, so that pages and windows take two launches */
static const char *cuda_path, *nvrtc_path;   /* NULL: as the library finds them */
static char *images[LAYERS];
static size_t image_bytes[LAYERS];

static float rows_k[LAYERS][VALUES], rows_v[LAYERS][VALUES], rows_q[LAYERS][VALUES];
static float want_o[VALUES], got_o[VALUES], want_lse[VALUES / 16], got_lse[VALUES / 16];
static float sink_logits[4] = { -0.5f, 0.25f, 1, -2 };

static void listen(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)code;
    (void)line;
    if (level != OSCAR_LOG_ERROR) return;
    said.errors++;
    snprintf(said.text, sizeof said.text, "%s", text);
    if (getenv("TEST_VERBOSE") && *getenv("TEST_VERBOSE") == '2') printf("    %s\n", text);
}

static void *take(void *user, size_t size, size_t align)
{
    void *memory = NULL;
    (void)user;
    if (said.left && !--said.left) return NULL;
    if (posix_memalign(&memory, align, size)) return NULL;
    said.bytes += (int64_t)size;
    return memory;
}

static void give(void *user, void *memory, size_t size, size_t align)
{
    (void)user;
    (void)align;
    said.bytes -= (int64_t)size;
    free(memory);
}

static void leave(void)
{
    void *popped;
    CHECK(!cu.CtxPopCurrent(&popped));
}

/* == LAYERS == */

/* A dense pair of its own for each head: a rotation whose channels are stretched, so that B is not F. */
static void make_pair(test_random *random, oscar_pair *pair, float *memory, int dim)
{
    double *m = (double *)malloc((size_t)(dim * dim) * sizeof *m);
    float *to = memory, *dual = memory + dim * dim, *mean = memory + 2 * dim * dim;
    int i, j;
    random_orthogonal(random, dim, m);
    for (i = 0; i < dim; i++)
        for (j = 0; j < dim; j++) {
            double stretch = 0.7 + 0.6 * j / dim;
            to[i * dim + j] = (float)(m[i * dim + j] * stretch);
            dual[i * dim + j] = (float)(m[i * dim + j] / stretch);
        }
    for (i = 0; i < dim; i++) mean[i] = (float)(0.1 * random_normal(random));
    memset(pair, 0, sizeof *pair);
    pair->kind = OSCAR_DENSE;
    pair->dim = dim;
    pair->to = to;
    pair->dual = dual;
    pair->mean = mean;
    free(m);
}

/* Layer 0: dense pairs, keys with a mean, 2 KV heads. Layer 1: no matrices, 4 bits, CLIP, a sliding window, a soft cap.
   cache_kernels.c tells them apart by that. */
static const oscar_layer *layer_of(int layer)
{
    static oscar_layer layers[LAYERS];
    static oscar_pair pairs[4];
    static float memory[4][2 * 64 * 64 + 64];
    if (!layers[0].kv_heads) {
        test_random random = { 77 };
        make_pair(&random, &pairs[0], memory[0], 64);
        make_pair(&random, &pairs[1], memory[1], 64);
        make_pair(&random, &pairs[2], memory[2], 32);
        make_pair(&random, &pairs[3], memory[3], 32);
        pairs[2].mean = pairs[3].mean = NULL;
        layers[0].q_heads = 4;
        layers[0].kv_heads = 2;
        layers[0].k_dim = 64;
        layers[0].v_dim = 32;
        layers[0].k = pairs;
        layers[0].v = pairs + 2;
        layers[1].q_heads = 2;
        layers[1].kv_heads = 1;
        layers[1].k_dim = layers[1].v_dim = 32;
        layers[1].k_bits = 4;
        layers[1].v_fit = OSCAR_CLIP;
        layers[1].window = 100;
        layers[1].softcap = 5;
    }
    return &layers[layer];
}

static void make_desc(void)
{
    static oscar_layer layers[LAYERS];
    oscar_cache_desc *d = &both.desc.cache;
    int l;
    for (l = 0; l < LAYERS; l++) layers[l] = *layer_of(l);
    memset(&both.desc, 0, sizeof both.desc);
    d->layers = layers;
    d->layer_count = LAYERS;
    d->max_sequences = SEQUENCES;
    d->max_pages = PAGES;
    d->sink = 4;
    d->recent = 8;
    d->max_draft = few_drafts ? 1 : MOST_ROWS;
    d->hooks.alloc = take;
    d->hooks.free = give;
    d->hooks.log = listen;
    both.desc.max_batch = ENTRIES;
    both.desc.max_rows = MOST_ROWS;
}

static oscar_cuda_options options_of(void)
{
    oscar_cuda_options o;
    memset(&o, 0, sizeof o);
    o.sink = both.desc.cache.sink;
    o.recent = both.desc.cache.recent;
    o.max_draft = both.desc.cache.max_draft;
    o.step_rows = both.desc.max_rows;
    return o;
}

/* == ROWS == */

/* A small copy may still be on its way when the call returns, and the test's stream does not wait for it. */
static void arrive(void) { CHECK(!cu.StreamSynchronize(NULL)); }

static void send_rows(int rows)
{
    int l;
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    for (l = 0; l < LAYERS; l++) {
        const oscar_layer *a = layer_of(l);
        size_t count = (size_t)rows * sizeof(float);
        CHECK(!cu.StreamSynchronize(both.stream));
        CHECK(!cu.MemcpyHtoD(device.k[l], rows_k[l], count * (size_t)(a->kv_heads * a->k_dim)));
        CHECK(!cu.MemcpyHtoD(device.v[l], rows_v[l], count * (size_t)(a->kv_heads * a->v_dim)));
        CHECK(!cu.MemcpyHtoD(device.q[l], rows_q[l], count * (size_t)(a->q_heads * a->k_dim)));
    }
    arrive();
    leave();
}

/* New rows, which BF16 holds. */
static void make_rows(test_random *random, int rows)
{
    int l, i;
    for (l = 0; l < LAYERS; l++) {
        const oscar_layer *a = layer_of(l);
        for (i = 0; i < rows * a->kv_heads * a->k_dim; i++) rows_k[l][i] = (float)random_normal(random);
        for (i = 0; i < rows * a->kv_heads * a->v_dim; i++) rows_v[l][i] = (float)random_normal(random);
        for (i = 0; i < rows * a->q_heads * a->k_dim; i++) rows_q[l][i] = (float)random_normal(random);
        oscar__round_to(OSCAR_BF16, rows_k[l], (size_t)(rows * a->kv_heads * a->k_dim));
        oscar__round_to(OSCAR_BF16, rows_v[l], (size_t)(rows * a->kv_heads * a->v_dim));
    }
    send_rows(rows);
}

static void views(int layer, oscar_view *k, oscar_view *v)
{
    memset(k, 0, sizeof *k);
    memset(v, 0, sizeof *v);
    k->data = rows_k[layer];
    v->data = rows_v[layer];
}

static void device_rows(int layer, oscar_cuda_rows *k, oscar_cuda_rows *v)
{
    memset(k, 0, sizeof *k);
    memset(v, 0, sizeof *v);
    k->data = device.k[layer];
    v->data = device.v[layer];
}

static void device_q(int layer, oscar_cuda_rows *q, oscar_cuda_rows *o)
{
    memset(q, 0, sizeof *q);
    memset(o, 0, sizeof *o);
    q->data = device.q[layer];
    o->data = device.o;
}

static void fetch_from(uint64_t o, uint64_t lse)
{
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    CHECK_MSG(!cu.StreamSynchronize(both.stream), ("    %s\n", cuda_said()));
    CHECK(!cu.MemcpyDtoH(got_o, o, sizeof got_o));
    CHECK(!cu.MemcpyDtoH(got_lse, lse, sizeof got_lse));
    leave();
}

/* got_o and got_lse against want_o and want_lse. */
static void compare_rows(int layer, int row, int rows, int is_padding)
{
    const oscar_layer *a = layer_of(layer);
    int r, c;
    for (r = row * a->q_heads; r < (row + rows) * a->q_heads; r++) {
        double error = 0, size = 0;
        for (c = 0; c < a->v_dim; c++) {
            double x = got_o[r * a->v_dim + c], y = want_o[r * a->v_dim + c];
            error += (x - y) * (x - y);
            size += y * y;
        }
        CHECK_MSG(sqrt(error) <= 1e-3 * sqrt(size), ("    layer %d, row %d, head %d: %g of %g\n", layer,
                  r / a->q_heads, r % a->q_heads, sqrt(error), sqrt(size)));
        if (is_padding) CHECK(got_lse[r] == -HUGE_VALF && size == 0);
        else if (want_lse[r] > -1e30f) CLOSE(got_lse[r], want_lse[r], 2e-3);
        else CHECK(got_lse[r] == want_lse[r]);
    }
}

/* Joins the device's part of a chunk with the chunk's attention over itself. */
static void join_chunk(int layer, int row, int rows, int64_t position)
{
    static float own_o[VALUES], own_lse[VALUES / 16];
    const oscar_layer *a = layer_of(layer);
    oscar_attend_desc d;
    oscar_row_span span;
    const float *o[2], *lse[2];
    float *to = got_o + row * a->q_heads * a->v_dim;
    memset(&d, 0, sizeof d);
    memset(&span, 0, sizeof span);
    d.layout = &both.host->layers[layer].layout;
    d.q.data = rows_q[layer] + row * a->q_heads * a->k_dim;
    d.queries = rows;
    d.position = span.position = position;
    span.k.data = rows_k[layer] + row * a->kv_heads * a->k_dim;
    span.v.data = rows_v[layer] + row * a->kv_heads * a->v_dim;
    span.count = rows;
    CHECK(oscar_attend_rows(&d, &span, 1, own_o, own_lse) == OSCAR_OK);
    o[0] = to;
    o[1] = own_o;
    lse[0] = got_lse + row * a->q_heads;
    lse[1] = own_lse;
    oscar_attend_join(2, o, lse, rows, a->q_heads, a->v_dim, NULL, to, got_lse + row * a->q_heads);
}

/* == CACHES == */

/* Pages of a sequence in one layer, then its tokens. */
static void compare_layer(int layer, oscar_seq seq, oscar_seq host_seq, const oscar_seq_state *state)
{
    static unsigned char page[65536];
    static unsigned short got[2][VALUES], want[2][VALUES];
    const oscar_layer *a = layer_of(layer);
    const oscar__store_layer *host = &both.host->layers[layer];
    oscar_out k, v;
    int64_t i, first = 0;
    for (i = 0; i < state->history / 64; i++) {
        CHECK(oscar_cuda_download(both.device, layer, state->pages[i], page, both.stream) == OSCAR_OK);
        CHECK(!cu.StreamSynchronize(both.stream));
        CHECK_MSG(!memcmp(page, host->pool + state->pages[i] * host->layout.bytes, host->layout.bytes),
                  ("    layer %d, page %d of %d\n", layer, (int)i, (int)(state->history / 64)));
    }
    memset(&k, 0, sizeof k);
    memset(&v, 0, sizeof v);
    k.type = v.type = OSCAR_BF16;
    k.data = want[0];
    v.data = want[1];
    if (state->length > CHUNK_ROWS) first = state->length - CHUNK_ROWS;
    if (state->length == first) return;
    CHECK(oscar_fetch(both.host, layer, host_seq, first, state->length - first, &k, &v) == OSCAR_OK);
    CHECK(oscar_cuda_gather(both.device, layer, seq, first, state->length - first, device.k[layer], device.v[layer],
                            both.stream) == OSCAR_OK);
    CHECK(!cu.StreamSynchronize(both.stream));
    CHECK(!cu.MemcpyDtoH(got[0], device.k[layer], sizeof got[0]));
    CHECK(!cu.MemcpyDtoH(got[1], device.v[layer], sizeof got[1]));
    i = (state->length - first) * a->kv_heads;
    CHECK_MSG(!memcmp(got[0], want[0], (size_t)(i * a->k_dim * 2)),
              ("    layer %d, keys of %d tokens, %d in pages\n", layer, (int)state->length, (int)state->history));
    CHECK_MSG(!memcmp(got[1], want[1], (size_t)(i * a->v_dim * 2)), ("    layer %d, values\n", layer));
}

static void compare_caches(void)
{
    int i, l;
    CHECK_MSG(oscar_cuda_cache_check(both.device) == OSCAR_OK, ("    %s\n", said.text));
    CHECK(oscar_pager_free_pages(both.device->pager) == oscar_pager_free_pages(both.host->pager));
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    for (i = 0; i < SEQUENCES; i++) {
        oscar_seq_state a, b;
        if (!both.seq[i].device) continue;
        CHECK(oscar_cuda_cache_get(both.device, both.seq[i].device, &a) == OSCAR_OK);
        CHECK(oscar_cache_get(both.host, both.seq[i].host, &b) == OSCAR_OK);
        CHECK(a.length == b.length && a.history == b.history && a.step == b.step && a.step_rows == b.step_rows);
        CHECK(a.page_count == b.page_count && !memcmp(a.pages, b.pages, (size_t)a.page_count * 4));
        for (l = 0; l < LAYERS && a.step == OSCAR_STEP_NONE; l++)
            compare_layer(l, both.seq[i].device, both.seq[i].host, &a);
    }
    leave();
}

static void do_open_at(int at)
{
    CHECK(oscar_cuda_cache_open(both.device, &both.seq[at].device) == OSCAR_OK);
    CHECK(oscar_cache_open(both.host, &both.seq[at].host) == OSCAR_OK);
}

static void take_device(uint64_t *out, size_t values) { CHECK(!cu.MemAlloc(out, values * sizeof(float))); }

/* Both caches, empty, and memory for rows. */
static void start(int late)
{
    oscar_cuda_desc desc;
    oscar_cuda_options options;
    int l;
    cuda_fresh();
    memset(&said, 0, sizeof said);
    memset(both.seq, 0, sizeof both.seq);
    memset(&desc, 0, sizeof desc);
    make_desc();
    options = options_of();
    desc.driver = cuda_path;
    desc.nvrtc = nvrtc_path;
    desc.hooks = both.desc.cache.hooks;
    CHECK_MSG(oscar_cuda_open(&desc, &both.cuda) == OSCAR_OK, ("    %s\n", said.text));
    for (l = 0; l < LAYERS; l++) {
        oscar_layout layout;
        CHECK(oscar_page_layout(layer_of(l), 0, OSCAR_BF16, NULL, &layout) == OSCAR_OK);
        CHECK_MSG(oscar_cuda_load(both.cuda, &layout, &options, images[l], image_bytes[l]) == OSCAR_OK,
                  ("    %s\n", said.text));
    }
    CHECK_MSG(oscar_cuda_cache_create(both.cuda, &both.desc, &both.device) == OSCAR_OK, ("    %s\n", said.text));
    CHECK(oscar_cache_create(&both.desc.cache, &both.host) == OSCAR_OK);
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    CHECK(!cu.StreamCreate(&both.stream, 1));
    for (l = 0; l < LAYERS; l++) {
        take_device(&device.k[l], VALUES);
        take_device(&device.v[l], VALUES);
        take_device(&device.q[l], VALUES);
        take_device(&device.layer_o[l], VALUES);
        take_device(&device.layer_lse[l], VALUES / 16);
    }
    take_device(&device.o, VALUES);
    take_device(&device.lse, VALUES / 16);
    take_device(&device.sinks, 4);
    CHECK(!cu.MemcpyHtoD(device.sinks, sink_logits, sizeof sink_logits));
    arrive();
    leave();
    cuda_started(late);
}

static void give_device(uint64_t *memory)
{
    CHECK(!cu.MemFree(*memory));
    *memory = 0;
}

/* Closes all; nothing but the test's own memory may be left. */
static void stop(void)
{
    void *popped;
    int l;
    CHECK(!cu.CtxPushCurrent(both.cuda->context));
    CHECK_MSG(!cu.StreamSynchronize(both.stream), ("    %s\n", cuda_said()));
    oscar_cuda_cache_destroy(both.device);
    cuda_left(0);
    for (l = 0; l < LAYERS; l++) {
        give_device(&device.k[l]);
        give_device(&device.v[l]);
        give_device(&device.q[l]);
        give_device(&device.layer_o[l]);
        give_device(&device.layer_lse[l]);
    }
    give_device(&device.o);
    give_device(&device.lse);
    give_device(&device.sinks);
    CHECK(!cu.StreamDestroy(both.stream));
    CHECK(!cu.CtxPopCurrent(&popped) && cu.CtxPopCurrent(&popped));   /* the stack is as it was */
    oscar_cuda_close(both.cuda);
    oscar_cache_destroy(both.host);
    cuda_left(1);
    CHECK_MSG(!said.bytes, ("    %d bytes\n", (int)said.bytes));
    memset(&both, 0, sizeof both);
}

#endif
