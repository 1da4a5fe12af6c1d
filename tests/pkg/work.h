/* work.h - a small job through most of the library, the same in C and C++. The packaging tests build it in many ways
   and link the results together: every copy must give the same number. Include it after oscar.h. */
#include <string.h>

static void work_fill(float *x, int count, unsigned seed)
{
    int i;
    for (i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int)(seed >> 16) / 32768.0f - 1.0f;
    }
}

/* Appends 200 tokens to a cache with short windows and attends; FNV-1a of the output's bytes, 0 if a call fails. */
static unsigned work(void)
{
    enum { TOKENS = 200, HEADS = 2, DIM = 32, ROW = HEADS * DIM };
    static float k[TOKENS * ROW], v[TOKENS * ROW];
    float q[2 * ROW], o[2 * ROW];
    unsigned char bytes[sizeof o];
    unsigned hash = 2166136261u;
    oscar_layer layer;
    oscar_cache_desc desc;
    oscar_cache *cache = NULL;
    oscar_batch batch;
    oscar_view kv, vv, qv;
    oscar_out out;
    int fine;
    size_t i;

    memset(&layer, 0, sizeof layer);
    memset(&desc, 0, sizeof desc);
    memset(&batch, 0, sizeof batch);
    memset(&kv, 0, sizeof kv);
    memset(&vv, 0, sizeof vv);
    memset(&qv, 0, sizeof qv);
    memset(&out, 0, sizeof out);
    memset(o, 0, sizeof o);
    work_fill(k, TOKENS * ROW, 1);
    work_fill(v, TOKENS * ROW, 2);
    work_fill(q, 2 * ROW, 3);
    layer.q_heads = 2 * HEADS;
    layer.kv_heads = HEADS;
    layer.k_dim = DIM;
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.max_sequences = 1;
    desc.max_pages = 8;
    desc.sink = 4;
    desc.recent = 16;
    kv.data = k;
    vv.data = v;
    qv.data = q;
    out.data = o;

    if (oscar_version() != OSCAR_VERSION || oscar_cache_create(&desc, &cache) != OSCAR_OK) return 0;
    fine = oscar_cache_open(cache, &batch.seq) == OSCAR_OK
           && oscar_cache_reserve(cache, batch.seq, TOKENS, 0) == OSCAR_OK;
    batch.rows = TOKENS;
    fine = fine && oscar_append(cache, 0, &batch, 1, &kv, &vv) == OSCAR_OK;
    batch.rows = 1;
    fine = fine && oscar_attend(cache, 0, &batch, 1, &qv, NULL, &out, NULL) == OSCAR_OK;
    fine = fine && oscar_cache_check(cache) == OSCAR_OK;
    oscar_cache_destroy(cache);
    if (!fine) return 0;
    memcpy(bytes, o, sizeof bytes);
    for (i = 0; i < sizeof bytes; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash ? hash : 1;
}
