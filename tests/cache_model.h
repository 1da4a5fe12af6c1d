/* cache_model.h - a naive model of a cache, and a twin that runs a cache and its model side by side.

   A sequence of the model keeps plain arrays of its rows, rounded to the window type, indexed by position, and a list
   of pages. Lengths follow the formulas of the design: history after an append is max(h, P floor((n - S0 - W) / P)), a
   cut below it gives P floor((n - S0) / P), and so on. A page is made by oscar_page_write from P rows of the arrays
   and read by oscar_page_read, so the model needs no codec of its own; tokens that a cut or an abort takes out of a
   page go back into the arrays, rounded to the window type. There is no ring and no free list, and nothing is ever
   moved.

   Attention is a double softmax over these rows. Everything else is compared exactly: lengths, page counts, rows (as
   bits), and pages byte for byte.

   Include after test.h and oscar.h (with OSCAR_IMPLEMENTATION). */
#ifndef CACHE_MODEL_H
#define CACHE_MODEL_H

enum { MODEL_LAYERS = 6, MODEL_SEQS = 16 };

/* -- memory of the test: never fails -- */

static inline void *model_get(size_t count, size_t each)
{
    void *p = calloc(count ? count : 1, each ? each : 1);
    if (!p) { printf("no memory for the test\n"); exit(2); }
    return p;
}

/* -- layers, descs and views of float rows, zeroed but for what is given -- */

static inline oscar_layer small_layer(void)
{
    oscar_layer l;
    memset(&l, 0, sizeof l);
    l.q_heads = l.kv_heads = 1;
    l.k_dim = 16;
    return l;
}

static inline oscar_cache_desc model_desc(const oscar_layer *layers, int count, int sequences, int64_t pages)
{
    oscar_cache_desc d;
    memset(&d, 0, sizeof d);
    d.layers = layers;
    d.layer_count = count;
    d.max_sequences = sequences;
    d.max_pages = pages;
    return d;
}

static inline oscar_view dense_view(const float *data)
{
    oscar_view v;
    memset(&v, 0, sizeof v);
    v.data = data;
    return v;
}

static inline oscar_out dense_out(float *data)
{
    oscar_out v;
    memset(&v, 0, sizeof v);
    v.data = data;
    return v;
}

/* -- hooks: an allocator that keeps book, and the last sentence of the log -- */

typedef struct model_memory {
    unsigned char fill;                 /* new memory is filled with it */
    int64_t calls, fail_at;             /* fail_at: which call (from 1) gets NULL; 0 none */
    int count, bad;                     /* blocks alive; calls that broke the contract */
    struct { unsigned char *raw, *at; size_t size, align; } block[32];
    size_t bytes, last_size;            /* alive; of the last call */
    int logs;
    oscar_level level;
    oscar_result code;
    int line;
    char text[512];                     /* the last sentence */
    char all[1024];                     /* all of them, until one does not fit */
} model_memory;

static inline void *model_memory_alloc(void *user, size_t size, size_t align)
{
    model_memory *m = (model_memory *)user;
    unsigned char *raw;
    m->last_size = size;
    if (align < 64 || (align & (align - 1)) || size == 0) m->bad++;
    if (++m->calls == m->fail_at || m->count == 32 || size > ((size_t)1 << 33)) return NULL;
    raw = (unsigned char *)malloc(size + 2 * align);
    if (!raw) return NULL;
    m->block[m->count].raw = raw;
    raw += align - (uintptr_t)raw % align;
    if ((uintptr_t)raw % (2 * align) == 0) raw += align;      /* aligned to what was asked for, not to more */
    memset(raw, m->fill, size);
    m->block[m->count].at = raw;
    m->block[m->count].size = size;
    m->block[m->count].align = align;
    m->count++;
    m->bytes += size;
    return raw;
}

static inline void model_memory_free(void *user, void *memory, size_t size, size_t align)
{
    model_memory *m = (model_memory *)user;
    int i;
    for (i = 0; i < m->count; i++) if (m->block[i].at == memory) {
        if (m->block[i].size != size || m->block[i].align != align) m->bad++;
        m->bytes -= m->block[i].size;
        free(m->block[i].raw);
        m->block[i] = m->block[--m->count];
        return;
    }
    m->bad++;
}

static inline void model_memory_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    model_memory *m = (model_memory *)user;
    m->logs++;
    m->level = level;
    m->code = code;
    m->line = line;
    m->text[0] = 0;
    strncat(m->text, text, sizeof m->text - 1);
    if (strlen(m->all) + strlen(text) + 2 < sizeof m->all) { strcat(m->all, text); strcat(m->all, "\n"); }
}

static inline oscar_hooks model_memory_hooks(model_memory *m)
{
    oscar_hooks hooks;
    hooks.alloc = model_memory_alloc;
    hooks.free = model_memory_free;
    hooks.log = model_memory_log;
    hooks.user = m;
    return hooks;
}

/* A checksum of memory (FNV-1a), and one that goes on. Gaps that the library poisons under AddressSanitizer are read,
   too. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((no_sanitize("address")))
#endif
static inline uint64_t model_sum_on(uint64_t sum, const unsigned char *p, size_t size)
{
    size_t i;
    for (i = 0; i < size; i++) sum = (sum ^ p[i]) * 1099511628211u;
    return sum;
}

static inline uint64_t model_sum(const unsigned char *p, size_t size)
{
    return model_sum_on(14695981039346656037u, p, size);
}

/* -- inside the cache: where its bytes are -- */

static inline unsigned char *model_pool_page(const oscar_cache *cache, int layer, uint32_t id)
{
    return cache->layers[layer].pool + (size_t)id * cache->layers[layer].layout.bytes;
}

/* Bytes of the windows of all sequences in one layer. side: 0 K, 1 V. */
static inline unsigned char *model_windows(const oscar_cache *cache, int layer, int side, size_t *bytes)
{
    const oscar__store_layer *s = &cache->layers[layer];
    int dim = side ? s->layout.layer.v_dim : s->layout.layer.k_dim;
    *bytes = (size_t)cache->pager_desc.max_sequences * (size_t)(cache->pager_desc.sink + cache->ring)
             * (size_t)s->layout.layer.kv_heads * (size_t)dim * (s->layout.window_type == OSCAR_F32 ? 4 : 2);
    return side ? s->v_windows : s->k_windows;
}

/* A checksum of everything but working space: pools, windows, lengths, tables, references, free lists, flags. */
static inline uint64_t model_state(const oscar_cache *cache)
{
    const oscar_pager *p = cache->pager;
    size_t slots = (size_t)cache->pager_desc.max_sequences, pages = (size_t)cache->pager_desc.max_pages, bytes;
    uint64_t sum = 0;
    int i, side;
    for (i = 0; i < cache->layer_count; i++) {
        sum = sum * 31 + model_sum(cache->layers[i].pool, pages * cache->layers[i].layout.bytes);
        for (side = 0; side < 2; side++) {
            const unsigned char *windows = model_windows(cache, i, side, &bytes);
            sum = sum * 31 + model_sum(windows, bytes);
        }
        sum = sum * 31 + model_sum(cache->layers[i].appended, slots);
    }
    sum = sum * 31 + model_sum((const unsigned char *)cache->appended_layers, slots * sizeof(int));
    sum = sum * 31 + model_sum((const unsigned char *)p->seqs, slots * sizeof(oscar__seq));
    sum = sum * 31 + model_sum((const unsigned char *)p->tables, slots * (size_t)p->table_pages * sizeof(uint32_t));
    sum = sum * 31 + model_sum((const unsigned char *)p->references, pages * sizeof(uint32_t));
    sum = sum * 31 + model_sum((const unsigned char *)p->free_pages, pages * sizeof(uint32_t));
    return sum * 31 + (uint64_t)p->free_count * 7 + p->free_slot;
}

/* Fills every page that is free now. */
static inline void model_poison_free(const oscar_cache *cache, unsigned char fill)
{
    int64_t i;
    int layer;
    for (i = 0; i < cache->pager->free_count; i++) for (layer = 0; layer < cache->layer_count; layer++)
        memset(model_pool_page(cache, layer, cache->pager->free_pages[i]), fill, cache->layers[layer].layout.bytes);
}

/* Makes the checksum of a changed blob right again: the last 8 bytes of the header, over all other bytes. */
static inline void model_blob_seal(unsigned char *blob, size_t size)
{
    uint64_t sum = model_sum(blob, OSCAR__BLOB_HEADER - 8);
    int i;
    sum = model_sum_on(sum, blob + OSCAR__BLOB_HEADER, size - OSCAR__BLOB_HEADER);
    for (i = 0; i < 8; i++) blob[OSCAR__BLOB_HEADER - 8 + i] = (unsigned char)(sum >> (8 * i));
}

/* -- pairs and rows of the tests -- */

typedef struct model_pairs {
    oscar_pair pair[8];
    float *to[8], *dual[8], *mean[8];
} model_pairs;

/* F = (I - 2 a a^T) diag(d) (I - 2 b b^T) with unit vectors a, b: F^-T has 1/d in place of d, and the largest singular
   value is the largest d. spread 1 gives an orthogonal F without dual. */
static inline void model_dense(model_pairs *p, int heads, int dim, double spread, int with_mean, uint64_t seed)
{
    test_random r = { seed };
    double *a = (double *)model_get((size_t)dim * 3, sizeof *a), *b = a + dim, *d = b + dim;
    int h, i, j, l;
    memset(p, 0, sizeof *p);
    for (h = 0; h < heads; h++) {
        double aa = 0, bb = 0, top = 0;
        p->to[h] = (float *)model_get((size_t)dim * (size_t)dim, sizeof(float));
        p->dual[h] = (float *)model_get((size_t)dim * (size_t)dim, sizeof(float));
        p->mean[h] = (float *)model_get((size_t)dim, sizeof(float));
        for (i = 0; i < dim; i++) {
            a[i] = random_normal(&r); b[i] = random_normal(&r);
            aa += a[i] * a[i]; bb += b[i] * b[i];
            d[i] = pow(spread, 2 * random_unit(&r) - 1);
            if (spread == 1) d[i] = 1;
            if (d[i] > top) top = d[i];
            p->mean[h][i] = (float)(with_mean ? random_normal(&r) : 0);
        }
        for (i = 0; i < dim; i++) { a[i] /= sqrt(aa); b[i] /= sqrt(bb); }
        for (i = 0; i < dim; i++) for (j = 0; j < dim; j++) {
            double f = 0, g = 0;
            for (l = 0; l < dim; l++) {
                double left = (i == l) - 2 * a[i] * a[l], right = (l == j) - 2 * b[l] * b[j];
                f += left * d[l] * right;
                g += left / d[l] * right;
            }
            p->to[h][i * dim + j] = (float)f;
            p->dual[h][i * dim + j] = (float)g;
        }
        p->pair[h].kind = OSCAR_DENSE;
        p->pair[h].dim = dim;
        p->pair[h].to = p->to[h];
        p->pair[h].dual = spread == 1 ? NULL : p->dual[h];
        p->pair[h].mean = with_mean ? p->mean[h] : NULL;
        p->pair[h].norm = spread == 1 ? 0.0f : (float)(top * 1.0001);
    }
    free(a);
}

static inline void model_pairs_free(model_pairs *p)
{
    int h;
    for (h = 0; h < 8; h++) { free(p->to[h]); free(p->dual[h]); free(p->mean[h]); }
}

/* Four layers that differ in everything: 0 is zeroed but for its shape and a metric that both heads share; 1 has dense
   pairs that are not orthogonal, 4 bits, CLIP and a sliding window; 2 is exact, with softcap; 3 has exact K, folded V
   in groups, and no page mean. */
typedef struct model_mixed {
    oscar_layer layer[4];
    oscar_pair k0[2];
    float metric[32 * 32];
    model_pairs k1, v1, v3;
} model_mixed;

static inline void model_mixed_init(model_mixed *x, uint64_t seed)
{
    int i;
    memset(x, 0, sizeof *x);
    for (i = 0; i < 32 * 32; i++)   /* half of the identity and one direction */
        x->metric[i] = (i % 33 ? 0.0f : 0.5f) + 0.01f * (float)(i / 32 % 7 - 3) * (float)(i % 32 % 7 - 3);
    x->k0[0].dim = x->k0[1].dim = 32;
    x->k0[0].metric = x->k0[1].metric = x->metric;
    x->layer[0].k = x->k0;
    x->layer[0].q_heads = 4; x->layer[0].kv_heads = 2; x->layer[0].k_dim = 32; x->layer[0].v_dim = 16;
    x->layer[1].q_heads = 2; x->layer[1].kv_heads = 2; x->layer[1].k_dim = 16; x->layer[1].v_dim = 32;
    model_dense(&x->k1, 2, 16, 2, 1, seed + 1);
    model_dense(&x->v1, 2, 32, 1, 0, seed + 2);
    x->layer[1].k = x->k1.pair; x->layer[1].v = x->v1.pair;
    x->layer[1].k_bits = x->layer[1].v_bits = 4;
    x->layer[1].k_fit = OSCAR_CLIP; x->layer[1].k_group = 16;
    x->layer[1].window = 70;
    x->layer[2].q_heads = 3; x->layer[2].kv_heads = 1; x->layer[2].k_dim = 16;
    x->layer[2].k_bits = x->layer[2].v_bits = 16;
    x->layer[2].softcap = 5; x->layer[2].scale = 0.3f;
    x->layer[3].q_heads = 1; x->layer[3].kv_heads = 1; x->layer[3].k_dim = 16; x->layer[3].v_dim = 48;
    model_dense(&x->v3, 1, 48, 1, 0, seed + 3);
    x->layer[3].v = x->v3.pair;
    x->layer[3].k_bits = 16; x->layer[3].v_fit = OSCAR_CLIP; x->layer[3].v_group = 16; x->layer[3].v_folded = 1;
}

static inline void model_mixed_free(model_mixed *x)
{
    model_pairs_free(&x->k1);
    model_pairs_free(&x->v1);
    model_pairs_free(&x->v3);
}

/* The row of one token: normal numbers about an offset that drifts with position, so that page means are used by some
   rows and not by others. The same arguments give the same row. side: 0 K, 1 V, 2 Q. */
static inline void model_source(uint64_t seed, int layer, int side, int64_t position, int head, int dim, float *out)
{
    test_random r;
    int i;
    double turn = 0.01 * (double)position + head;
    r.state = (seed * 1000003 + (uint64_t)position) * 64 + (uint64_t)(layer * 8 + side) + ((uint64_t)head << 48);
    random_u32(&r);
    for (i = 0; i < dim; i++) {
        double offset = side == 0 ? 2 * cos(turn + i) : side == 1 ? 0.3 * (i % 3) : 0;
        out[i] = (float)(random_normal(&r) + offset);
    }
    if (random_below(&r, 97) == 0) for (i = 0; i < dim; i++) out[i] = side == 0 && i % 2 ? -0.0f : 0.0f;
}

/* -- the model -- */

typedef struct model_page {
    int references, counted;
    unsigned char *bytes[MODEL_LAYERS];
    float *row[MODEL_LAYERS][2];        /* decoded, [page_tokens][kv_heads][dim]; K, V */
} model_page;

typedef struct model_seq {
    int open;
    oscar_seq handle;
    int64_t n, h;
    oscar_step step;
    int64_t rows, step_h;
    int appended[MODEL_LAYERS];
    model_page **pages;                 /* history, then reserved */
    int64_t page_count, capacity;
    float *row[MODEL_LAYERS][2];        /* [capacity][kv_heads][dim] */
} model_seq;

typedef struct model {
    int layers, sink, recent, page_tokens, max_draft, max_sequences;
    int64_t max_pages, pages_used;
    oscar_type window_type;
    oscar_layout layout[MODEL_LAYERS];
    void *scratch, *scratch_raw;
    model_seq seq[MODEL_SEQS];
} model;

static inline int model_default(int given, int value) { return given == 0 ? value : given < 0 ? 0 : given; }
static inline int model_dim(const model *m, int layer, int side)
{
    return side == 0 ? m->layout[layer].layer.k_dim : m->layout[layer].layer.v_dim;
}
static inline size_t model_token(const model *m, int layer, int side)   /* values of one token */
{
    return (size_t)m->layout[layer].layer.kv_heads * (size_t)model_dim(m, layer, side);
}

static inline void model_create(model *m, const oscar_cache_desc *desc)
{
    size_t scratch = 0;
    int i;
    memset(m, 0, sizeof *m);
    m->layers = desc->layer_count;
    m->sink = model_default(desc->sink, 64);
    m->recent = model_default(desc->recent, 256);
    m->page_tokens = model_default(desc->page_tokens, 64);
    m->max_draft = model_default(desc->max_draft, 16);
    m->max_sequences = desc->max_sequences;
    m->max_pages = desc->max_pages;
    m->window_type = desc->window_type == OSCAR_TYPE_DEFAULT ? OSCAR_BF16 : desc->window_type;
    for (i = 0; i < m->layers; i++) {
        if (oscar_page_layout(&desc->layers[i], m->page_tokens, m->window_type, NULL, &m->layout[i]) != OSCAR_OK) {
            printf("the model got a layer that has no layout\n");
            exit(2);
        }
        if (m->layout[i].scratch > scratch) scratch = m->layout[i].scratch;
    }
    m->scratch_raw = model_get(scratch + 64, 1);
    m->scratch = (unsigned char *)m->scratch_raw + (64 - (uintptr_t)m->scratch_raw % 64) % 64;
}

static inline model_page *model_page_new(model *m, int counted)
{
    model_page *p = (model_page *)model_get(1, sizeof *p);
    int i, side;
    p->references = 1;
    p->counted = counted;
    for (i = 0; i < m->layers; i++) {
        p->bytes[i] = (unsigned char *)model_get(m->layout[i].bytes, 1);
        for (side = 0; side < 2; side++)
            p->row[i][side] = (float *)model_get((size_t)m->page_tokens * model_token(m, i, side), sizeof(float));
    }
    m->pages_used += counted;
    return p;
}

static inline void model_page_release(model *m, model_page *p)
{
    int i;
    if (--p->references) return;
    m->pages_used -= p->counted;
    for (i = 0; i < m->layers; i++) { free(p->bytes[i]); free(p->row[i][0]); free(p->row[i][1]); }
    free(p);
}

static inline model_page *model_page_copy(model *m, const model_page *from, int counted)
{
    model_page *p = model_page_new(m, counted);
    int i, side;
    for (i = 0; i < m->layers; i++) {
        memcpy(p->bytes[i], from->bytes[i], m->layout[i].bytes);
        for (side = 0; side < 2; side++)
            memcpy(p->row[i][side], from->row[i][side], (size_t)m->page_tokens * model_token(m, i, side) * 4);
    }
    return p;
}

/* Writes page index `page` of a sequence in one layer from the arrays. */
static inline void model_page_fill(model *m, model_seq *s, int layer, int64_t page)
{
    const oscar_layout *layout = &m->layout[layer];
    model_page *p = s->pages[page];
    size_t first = (size_t)(m->sink + page * m->page_tokens);
    oscar_view k, v;
    oscar_out ko, vo;
    oscar_result result;
    memset(&k, 0, sizeof k); memset(&v, 0, sizeof v); memset(&ko, 0, sizeof ko); memset(&vo, 0, sizeof vo);
    k.type = v.type = ko.type = vo.type = OSCAR_F32;
    k.data = s->row[layer][0] + first * model_token(m, layer, 0);
    v.data = s->row[layer][1] + first * model_token(m, layer, 1);
    ko.data = p->row[layer][0];
    vo.data = p->row[layer][1];
    result = oscar_page_write(layout, &k, &v, p->bytes[layer], m->scratch);
    CHECK_MSG(result == OSCAR_OK, ("    the model cannot write a page: %s\n", oscar_result_text(result)));
    result = oscar_page_read(layout, p->bytes[layer], 0, m->page_tokens, &ko, &vo, m->scratch);
    CHECK(result == OSCAR_OK);
}

/* Rounds to a type, too large becomes the largest finite value. */
static inline void model_round(oscar_type type, const float *in, size_t count, float *out)
{
    float top = type == OSCAR_F16 ? 65504.0f : 3.3895313892515355e38f;
    uint16_t half[256];
    size_t i, n;
    if (type == OSCAR_F32 || type == OSCAR_TYPE_DEFAULT) { memmove(out, in, count * sizeof *out); return; }
    for (; count > 0; count -= n, in += n, out += n) {
        n = count < 256 ? count : 256;
        oscar_convert(n, OSCAR_F32, in, type, half);
        oscar_convert(n, type, half, OSCAR_F32, out);
        for (i = 0; i < n; i++) out[i] = out[i] > top ? top : out[i] < -top ? -top : out[i];
    }
}

/* The first `tokens` tokens of a page back into the arrays of one layer. */
static inline void model_decode(model *m, model_seq *s, int layer, int64_t page, int64_t tokens)
{
    size_t first = (size_t)(m->sink + page * m->page_tokens);
    int side;
    for (side = 0; side < 2; side++) {
        size_t each = model_token(m, layer, side);
        model_round(m->window_type, s->pages[page]->row[layer][side], (size_t)tokens * each,
                    s->row[layer][side] + first * each);
    }
}

static inline void model_capacity(model *m, model_seq *s, int64_t tokens)
{
    int i, side;
    if (tokens <= s->capacity) return;
    tokens += tokens / 2 + 64;
    for (i = 0; i < m->layers; i++) for (side = 0; side < 2; side++) {
        size_t each = model_token(m, i, side);
        float *grown = (float *)model_get((size_t)tokens * each, sizeof(float));
        if (s->capacity) memcpy(grown, s->row[i][side], (size_t)s->capacity * each * sizeof(float));
        free(s->row[i][side]);
        s->row[i][side] = grown;
    }
    s->capacity = tokens;
}

static inline void model_pages_keep(model *m, model_seq *s, int64_t count)
{
    while (s->page_count > count) model_page_release(m, s->pages[--s->page_count]);
}

static inline void model_pages_add(model *m, model_seq *s, int64_t count)
{
    model_page **grown = (model_page **)model_get((size_t)(s->page_count + count), sizeof *grown);
    int64_t i;
    if (s->page_count) memcpy(grown, s->pages, (size_t)s->page_count * sizeof *grown);
    for (i = 0; i < count; i++) grown[s->page_count + i] = model_page_new(m, 1);
    free(s->pages);
    s->pages = grown;
    s->page_count += count;
}

static inline void model_seq_free(model *m, model_seq *s)
{
    int i;
    model_pages_keep(m, s, 0);
    free(s->pages);
    for (i = 0; i < m->layers; i++) { free(s->row[i][0]); free(s->row[i][1]); }
    memset(s, 0, sizeof *s);
}

static inline void model_destroy(model *m)
{
    int i;
    for (i = 0; i < MODEL_SEQS; i++) model_seq_free(m, &m->seq[i]);
    free(m->scratch_raw);
}

static inline int64_t model_floor(const model *m, int64_t tokens)   /* P floor(max(0, tokens) / P) */
{
    return tokens <= 0 ? 0 : tokens / m->page_tokens * m->page_tokens;
}
static inline int64_t model_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t model_min(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t model_history(const model *m, int64_t h, int64_t n)
{
    return model_max(h, model_floor(m, n - m->sink - m->recent));
}

static inline int model_slot(const model *m)
{
    int i;
    for (i = 0; i < m->max_sequences; i++) if (!m->seq[i].open) return i;
    return -1;
}

static inline oscar_result model_reserve(model *m, model_seq *s, int64_t rows, int draft)
{
    int64_t h, pages;
    if (s->step != OSCAR_STEP_NONE) return OSCAR_ERR_STATE;
    if (rows < 1 || (draft && rows > m->max_draft)) return OSCAR_ERR_ARGUMENT;
    h = model_history(m, s->h, s->n + rows);
    pages = (h - s->h) / m->page_tokens;
    if (pages > m->max_pages - m->pages_used) return OSCAR_ERR_FULL;
    model_pages_add(m, s, pages);
    model_capacity(m, s, s->n + rows);
    s->step = draft ? OSCAR_STEP_DRAFT : OSCAR_STEP_APPEND;
    s->rows = rows;
    s->step_h = h;
    memset(s->appended, 0, sizeof s->appended);
    return OSCAR_OK;
}

/* k, v: [rows][kv_heads][dim], not yet rounded. */
static inline void model_append(model *m, model_seq *s, int layer, const float *k, const float *v)
{
    int i, done = 1;
    int64_t page;
    model_round(m->window_type, k, (size_t)s->rows * model_token(m, layer, 0),
                s->row[layer][0] + (size_t)s->n * model_token(m, layer, 0));
    model_round(m->window_type, v, (size_t)s->rows * model_token(m, layer, 1),
                s->row[layer][1] + (size_t)s->n * model_token(m, layer, 1));
    s->appended[layer] = 1;
    if (s->step == OSCAR_STEP_APPEND)
        for (page = s->h / m->page_tokens; page < s->step_h / m->page_tokens; page++)
            model_page_fill(m, s, layer, page);
    for (i = 0; i < m->layers; i++) done = done && s->appended[i];
    if (!done) return;
    if (s->step == OSCAR_STEP_DRAFT) { s->step = OSCAR_STEP_DRAFTED; return; }
    s->n += s->rows;
    s->h = s->step_h;
    s->step = OSCAR_STEP_NONE;
    s->rows = 0;
}

static inline oscar_result model_accept(model *m, model_seq *s, int64_t rows)
{
    int64_t h, page;
    int i;
    if (s->step != OSCAR_STEP_DRAFTED) return OSCAR_ERR_STATE;
    if (rows < 0 || rows > s->rows) return OSCAR_ERR_ARGUMENT;
    h = model_history(m, s->h, s->n + rows);
    for (page = s->h / m->page_tokens; page < h / m->page_tokens; page++)
        for (i = 0; i < m->layers; i++) model_page_fill(m, s, i, page);
    model_pages_keep(m, s, h / m->page_tokens);
    s->n += rows;
    s->h = h;
    s->step = OSCAR_STEP_NONE;
    s->rows = 0;
    return OSCAR_OK;
}

static inline oscar_result model_abort(model *m, model_seq *s)
{
    int64_t h = s->h, page;
    int i, started = 0;
    if (s->step == OSCAR_STEP_NONE) return OSCAR_ERR_STATE;
    for (i = 0; i < m->layers; i++) started = started || s->appended[i];
    if (s->step == OSCAR_STEP_APPEND && started) {
        h = model_min(s->step_h, model_max(s->h, model_floor(m, s->n - m->sink)));
        for (i = 0; i < m->layers; i++) {
            if (!s->appended[i])
                for (page = s->h / m->page_tokens; page < h / m->page_tokens; page++) model_page_fill(m, s, i, page);
            else if (s->step_h > h && s->n > m->sink + h)
                model_decode(m, s, i, h / m->page_tokens, s->n - m->sink - h);
        }
    }
    model_pages_keep(m, s, h / m->page_tokens);
    s->h = h;
    s->step = OSCAR_STEP_NONE;
    s->rows = 0;
    return OSCAR_OK;
}

static inline oscar_result model_cut(model *m, model_seq *s, int64_t length)
{
    int i;
    if (s->step != OSCAR_STEP_NONE) return OSCAR_ERR_STATE;
    if (length < 0 || length > s->n) return OSCAR_ERR_ARGUMENT;
    if (length < m->sink + s->h) {
        int64_t h = model_floor(m, length - m->sink);
        if (length > m->sink + h && h < s->h)
            for (i = 0; i < m->layers; i++) model_decode(m, s, i, h / m->page_tokens, length - m->sink - h);
        model_pages_keep(m, s, h / m->page_tokens);
        s->h = h;
    }
    s->n = length;
    return OSCAR_OK;
}

/* A copy of a sequence without a step, its pages shared (fork) or copied (counted: in the pool; else outside it, as a
   blob would be). */
static inline void model_copy(model *m, const model_seq *from, model_seq *to, int share, int counted)
{
    int64_t page;
    int i, side;
    memset(to, 0, sizeof *to);
    to->open = 1;
    to->n = from->n;
    to->h = from->h;
    model_capacity(m, to, from->n);
    for (i = 0; i < m->layers; i++) for (side = 0; side < 2; side++)
        if (from->n)
            memcpy(to->row[i][side], from->row[i][side], (size_t)from->n * model_token(m, i, side) * sizeof(float));
    to->page_count = from->page_count;
    to->pages = (model_page **)model_get((size_t)to->page_count, sizeof *to->pages);
    for (page = 0; page < to->page_count; page++) {
        to->pages[page] = share ? from->pages[page] : model_page_copy(m, from->pages[page], counted);
        if (share) to->pages[page]->references++;
    }
}

/* -- what a layer of a sequence shows now -- */

static inline int64_t model_shown_history(const model_seq *s, int layer)
{
    return s->step == OSCAR_STEP_APPEND && s->appended[layer] ? s->step_h : s->h;
}
static inline int64_t model_shown_length(const model_seq *s, int layer)
{
    return s->step != OSCAR_STEP_NONE && s->appended[layer] ? s->n + s->rows : s->n;
}

static inline const float *model_row(const model *m, const model_seq *s, int layer, int side, int64_t token, int head)
{
    size_t each = model_token(m, layer, side), at = (size_t)head * (size_t)model_dim(m, layer, side);
    int64_t index = token - m->sink;
    if (index >= 0 && index < model_shown_history(s, layer))
        return s->pages[index / m->page_tokens]->row[layer][side] + (size_t)(index % m->page_tokens) * each + at;
    return s->row[layer][side] + (size_t)token * each + at;
}

/* Attention of one query head at `position` over tokens 0 .. position; tokens from `chunk_first` on are rows of
   chunk_k, chunk_v (already rounded) where given. o: [v_dim]. Returns the log-sum-exp. */
static inline double model_attend_one(const model *m, const model_seq *s, int layer, int q_head, const float *q,
                                      int64_t position, int64_t chunk_first, const float *chunk_k, const float *chunk_v,
                                      const float *sink_logits, double *o)
{
    const oscar_layer *l = &m->layout[layer].layer;
    int head = (int)((int64_t)q_head * l->kv_heads / l->q_heads), i;
    int64_t first = l->window > 0 ? model_max(0, position - l->window + 1) : 0, j;
    double *logit = (double *)model_get((size_t)(position + 1), sizeof *logit), top = -HUGE_VAL, sum = 0;
    for (j = first; j <= position; j++) {
        const float *k = chunk_k && j >= chunk_first
            ? chunk_k + (size_t)(j - chunk_first) * model_token(m, layer, 0) + (size_t)head * (size_t)l->k_dim
            : model_row(m, s, layer, 0, j, head);
        double dot = 0;
        for (i = 0; i < l->k_dim; i++) dot += (double)q[i] * (double)k[i];
        dot *= (double)l->scale;
        if (l->softcap > 0) dot = (double)l->softcap * tanh(dot / (double)l->softcap);
        logit[j] = dot;
        if (dot > top) top = dot;
    }
    if (sink_logits && (double)sink_logits[q_head] > top) top = (double)sink_logits[q_head];
    for (i = 0; i < l->v_dim; i++) o[i] = 0;
    if (sink_logits) sum += exp((double)sink_logits[q_head] - top);
    for (j = first; j <= position; j++) {
        const float *v = chunk_v && j >= chunk_first
            ? chunk_v + (size_t)(j - chunk_first) * model_token(m, layer, 1) + (size_t)head * (size_t)l->v_dim
            : model_row(m, s, layer, 1, j, head);
        double p = exp(logit[j] - top);
        sum += p;
        for (i = 0; i < l->v_dim; i++) o[i] += p * (double)v[i];
    }
    free(logit);
    for (i = 0; i < l->v_dim; i++) o[i] /= sum;
    return top + log(sum);
}

static inline double model_tolerance(void) { return oscar_isa_active() == OSCAR_ISA_SCALAR ? 1e-5 : 1e-3; }

/* Compares outputs o [rows][q_heads][v_dim], lse [rows][q_heads] (or NULL) of the queries at first .. first + rows - 1;
   the largest relative error over heads is returned. */
static inline double model_compare(const model *m, const model_seq *s, int layer, const float *q, int64_t first,
                                   int64_t rows, int64_t chunk_first, const float *chunk_k, const float *chunk_v,
                                   const float *sink_logits, const float *o, const float *lse)
{
    const oscar_layer *l = &m->layout[layer].layer;
    double *ref = (double *)model_get((size_t)l->v_dim, sizeof *ref), worst = 0;
    int64_t t;
    int x, i;
    for (t = 0; t < rows; t++) for (x = 0; x < l->q_heads; x++) {
        size_t at = (size_t)t * (size_t)l->q_heads + (size_t)x;
        double expect = model_attend_one(m, s, layer, x, q + at * (size_t)l->k_dim, first + t, chunk_first, chunk_k,
                                         chunk_v, sink_logits, ref);
        double error = 0, norm = 0;
        for (i = 0; i < l->v_dim; i++) {
            double e = (double)o[at * (size_t)l->v_dim + (size_t)i] - ref[i];
            error += e * e;
            norm += ref[i] * ref[i];
        }
        error = norm > 0 ? sqrt(error / norm) : error > 0 ? HUGE_VAL : 0;
        if (!(error <= worst)) worst = error;
        CHECK_MSG(error <= model_tolerance(),
                  ("    layer %d position %lld head %d: relative error %.3g\n", layer, (long long)(first + t), x,
                   error));
        if (lse) {
            double slack = oscar_isa_active() == OSCAR_ISA_SCALAR ? 1e-5 * (1 + fabs(expect))
                                                                  : fmax(1e-3, 1e-4 * fabs(expect));
            CLOSE(lse[at], expect, slack);
        }
    }
    free(ref);
    return worst;
}

/* -- views in every layout -- */

/* rows of heads x dim values in a buffer of one of four layouts: 0 dense, 1 [head][token], 2 wide strides with NaN in
   the gaps, 3 dense at an odd address. */
typedef struct model_buffer {
    unsigned char *memory, *data;
    oscar_type type;
    int64_t rows;
    int heads, dim;
    ptrdiff_t token_stride, head_stride;
} model_buffer;

static inline size_t model_size(oscar_type type) { return type == OSCAR_BF16 || type == OSCAR_F16 ? 2 : 4; }

static inline model_buffer model_buffer_new(int64_t rows, int heads, int dim, oscar_type type, int layout)
{
    model_buffer b;
    size_t values, i;
    memset(&b, 0, sizeof b);
    b.rows = rows; b.heads = heads; b.dim = dim; b.type = type;
    b.head_stride = layout == 1 ? (ptrdiff_t)rows * dim : layout == 2 ? dim + 3 : dim;
    b.token_stride = layout == 1 ? dim : layout == 2 ? heads * b.head_stride + 5 : (ptrdiff_t)heads * dim;
    values = layout == 2 ? (size_t)rows * (size_t)b.token_stride : (size_t)rows * (size_t)heads * (size_t)dim;
    b.memory = (unsigned char *)model_get(values * model_size(type) + 64, 1);
    b.data = b.memory + (layout == 3 ? 1 : 0);
    for (i = 0; i < values * model_size(type); i++) b.data[i] = 0xff;      /* NaN in every type */
    return b;
}

static inline void *model_buffer_at(const model_buffer *b, int64_t row, int head)
{
    return b->data + ((ptrdiff_t)row * b->token_stride + head * b->head_stride) * (ptrdiff_t)model_size(b->type);
}

/* Puts a row [heads][dim] in and returns in `seen` (may be the same array) what the type made of it. */
static inline void model_buffer_put(model_buffer *b, int64_t row, const float *values, float *seen)
{
    int h;
    for (h = 0; h < b->heads; h++) {
        unsigned char line[4 * 1024];
        if (b->type == OSCAR_F32) {
            memcpy(model_buffer_at(b, row, h), values + h * b->dim, (size_t)b->dim * 4);
            memmove(seen + h * b->dim, values + h * b->dim, (size_t)b->dim * 4);
            continue;
        }
        oscar_convert((size_t)b->dim, OSCAR_F32, values + h * b->dim, b->type, line);
        memcpy(model_buffer_at(b, row, h), line, (size_t)b->dim * model_size(b->type));
        oscar_convert((size_t)b->dim, b->type, line, OSCAR_F32, seen + h * b->dim);
    }
}

static inline void model_buffer_get(const model_buffer *b, int64_t row, float *values)
{
    int h;
    for (h = 0; h < b->heads; h++) {
        unsigned char line[4 * 1024];
        if (b->type == OSCAR_F32) {
            memcpy(values + h * b->dim, model_buffer_at(b, row, h), (size_t)b->dim * 4);
            continue;
        }
        memcpy(line, model_buffer_at(b, row, h), (size_t)b->dim * model_size(b->type));
        oscar_convert((size_t)b->dim, b->type, line, OSCAR_F32, values + h * b->dim);
    }
}

static inline oscar_view model_buffer_view(const model_buffer *b)
{
    oscar_view v;
    v.data = b->data; v.type = b->type; v.token_stride = b->token_stride; v.head_stride = b->head_stride;
    return v;
}

static inline oscar_out model_buffer_out(model_buffer *b)
{
    oscar_out v;
    v.data = b->data; v.type = b->type; v.token_stride = b->token_stride; v.head_stride = b->head_stride;
    return v;
}

/* -- the twin -- */

typedef struct twin {
    oscar_cache *cache;
    model m;
    test_random random;
    int plain;          /* 1: dense F32 views only */
    double worst;       /* largest relative error of an output so far */
} twin;

static inline int twin_create(twin *t, const oscar_cache_desc *desc, uint64_t seed)
{
    oscar_result result;
    memset(t, 0, sizeof *t);
    t->random.state = seed;
    result = oscar_cache_create(desc, &t->cache);
    CHECK_MSG(result == OSCAR_OK, ("    create: %s\n", oscar_result_text(result)));
    if (result != OSCAR_OK) return 0;
    model_create(&t->m, desc);
    return 1;
}

static inline void twin_destroy(twin *t)
{
    oscar_cache_destroy(t->cache);
    model_destroy(&t->m);
}

static inline oscar_type twin_type(twin *t)
{
    return t->plain ? OSCAR_F32 : (oscar_type)(1 + random_below(&t->random, 3));
}
static inline int twin_layout(twin *t) { return t->plain ? 0 : random_below(&t->random, 4); }

/* Slot of a new sequence, or -1 if the cache is out of sequences (which is compared). */
static inline int twin_open(twin *t)
{
    int slot = model_slot(&t->m);
    oscar_seq handle = 12345;
    oscar_result result = oscar_cache_open(t->cache, &handle);
    CHECK(result == (slot < 0 ? OSCAR_ERR_FULL : OSCAR_OK));
    if (result != OSCAR_OK) { CHECK(handle == 12345); return -1; }
    if (slot < 0) return -1;
    t->m.seq[slot].open = 1;
    t->m.seq[slot].handle = handle;
    return slot;
}

static inline void twin_close(twin *t, int slot)
{
    oscar_seq handle = t->m.seq[slot].handle;
    oscar_seq_state state = { 0 };
    CHECK(oscar_cache_close(t->cache, handle) == OSCAR_OK);
    CHECK(oscar_cache_close(t->cache, handle) == OSCAR_ERR_HANDLE);
    CHECK(oscar_cache_get(t->cache, handle, &state) == OSCAR_ERR_HANDLE);
    model_seq_free(&t->m, &t->m.seq[slot]);
}

static inline oscar_result twin_reserve(twin *t, int slot, int64_t rows, int draft)
{
    model_seq *s = &t->m.seq[slot];
    oscar_result can = oscar_cache_can(t->cache, s->handle, draft ? OSCAR_CAN_DRAFT : OSCAR_CAN_RESERVE, rows);
    oscar_result got = oscar_cache_reserve(t->cache, s->handle, rows, draft);
    oscar_result expect = model_reserve(&t->m, s, rows, draft);
    CHECK_MSG(got == expect, ("    reserve %lld: %s, expected %s\n", (long long)rows, oscar_result_text(got),
                              oscar_result_text(expect)));
    CHECK(can == got);
    return got;
}

static inline oscar_result twin_accept(twin *t, int slot, int64_t rows)
{
    model_seq *s = &t->m.seq[slot];
    oscar_result can = oscar_cache_can(t->cache, s->handle, OSCAR_CAN_ACCEPT, rows);
    oscar_result got = oscar_cache_accept(t->cache, s->handle, rows), expect = model_accept(&t->m, s, rows);
    CHECK_MSG(got == expect, ("    accept: %s, expected %s\n", oscar_result_text(got), oscar_result_text(expect)));
    CHECK(can == got);
    return got;
}

static inline oscar_result twin_abort(twin *t, int slot)
{
    model_seq *s = &t->m.seq[slot];
    oscar_result got = oscar_cache_abort(t->cache, s->handle), expect = model_abort(&t->m, s);
    CHECK_MSG(got == expect, ("    abort: %s, expected %s\n", oscar_result_text(got), oscar_result_text(expect)));
    return got;
}

static inline oscar_result twin_cut(twin *t, int slot, int64_t length)
{
    model_seq *s = &t->m.seq[slot];
    oscar_result can = oscar_cache_can(t->cache, s->handle, OSCAR_CAN_CUT, length);
    oscar_result got = oscar_cache_cut(t->cache, s->handle, length), expect = model_cut(&t->m, s, length);
    CHECK_MSG(got == expect, ("    cut: %s, expected %s\n", oscar_result_text(got), oscar_result_text(expect)));
    CHECK(can == got);
    return got;
}

static inline int twin_fork(twin *t, int slot, int64_t length)
{
    model_seq *s = &t->m.seq[slot];
    int to = model_slot(&t->m);
    oscar_seq handle = 0;
    oscar_result can = oscar_cache_can(t->cache, s->handle, OSCAR_CAN_FORK, length);
    oscar_result got = oscar_cache_fork(t->cache, s->handle, length, &handle), expect;
    expect = s->step != OSCAR_STEP_NONE ? OSCAR_ERR_STATE : length < 0 || length > s->n ? OSCAR_ERR_ARGUMENT
           : to < 0 ? OSCAR_ERR_FULL : OSCAR_OK;
    CHECK_MSG(got == expect, ("    fork: %s, expected %s\n", oscar_result_text(got), oscar_result_text(expect)));
    CHECK(can == got);
    if (got != OSCAR_OK || expect != OSCAR_OK) return -1;
    model_copy(&t->m, s, &t->m.seq[to], 1, 1);
    t->m.seq[to].handle = handle;
    model_cut(&t->m, &t->m.seq[to], length);
    return to;
}

/* Saves a sequence; the caller frees the blob. NULL if the cache refused. */
static inline unsigned char *twin_save(twin *t, int slot, size_t *size)
{
    model_seq *s = &t->m.seq[slot];
    oscar_result can = oscar_cache_can(t->cache, s->handle, OSCAR_CAN_SAVE, 0), got, expect;
    unsigned char *blob;
    size_t asked = 0, written = 0;
    *size = 0;
    expect = s->step == OSCAR_STEP_NONE ? OSCAR_OK : OSCAR_ERR_STATE;
    got = oscar_cache_save(t->cache, s->handle, NULL, 0, &asked);
    CHECK(got == expect && can == expect);
    if (got != OSCAR_OK) return NULL;
    blob = (unsigned char *)model_get(asked, 1);
    CHECK(oscar_cache_save(t->cache, s->handle, blob, asked, &written) == OSCAR_OK);
    CHECK(written == asked);
    *size = written;
    return blob;
}

/* A sequence from a blob whose content `from` describes (a copy outside the pool). */
static inline int twin_restore(twin *t, const unsigned char *blob, size_t size, const model_seq *from)
{
    int slot = model_slot(&t->m);
    oscar_seq handle = 0;
    oscar_result got = oscar_cache_restore(t->cache, blob, size, &handle), expect = OSCAR_OK;
    if (slot < 0 || from->page_count > t->m.max_pages - t->m.pages_used) expect = OSCAR_ERR_FULL;
    CHECK_MSG(got == expect, ("    restore: %s, expected %s\n", oscar_result_text(got), oscar_result_text(expect)));
    if (got != OSCAR_OK || expect != OSCAR_OK) return -1;
    model_copy(&t->m, from, &t->m.seq[slot], 0, 1);
    t->m.seq[slot].handle = handle;
    return slot;
}

/* Rows of one layer for the open steps of `count` sequences in one batch: each sequence's rows stand at a place of
   their own in the views, padding (NaN) and zero handles between them. seeds: of each sequence's rows. */
typedef struct twin_batch {
    oscar_batch entry[2 * MODEL_SEQS];
    int slot[2 * MODEL_SEQS];         /* -1: padding */
    int count;
    int64_t total;
} twin_batch;

static inline void twin_batch_add(twin *t, twin_batch *b, int slot, int64_t rows)
{
    int pad = t->plain ? 0 : random_below(&t->random, 3);
    if (pad == 1) b->total += 2;      /* rows of nobody */
    if (pad == 2) {
        b->entry[b->count].seq = 0;
        b->entry[b->count].row = b->total;
        b->entry[b->count].rows = 1;
        b->slot[b->count++] = -1;
        b->total++;
    }
    b->entry[b->count].seq = t->m.seq[slot].handle;
    b->entry[b->count].row = b->total;
    b->entry[b->count].rows = rows;
    b->slot[b->count++] = slot;
    b->total += rows;
}

/* Fills a buffer for the batch from model_source; dense gets [total][heads][dim] as the library sees it. */
static inline model_buffer twin_rows(twin *t, const twin_batch *b, int layer, int side, const uint64_t *seeds,
                                     const int64_t *first, float **dense)
{
    const oscar_layer *l = &t->m.layout[layer].layer;
    int heads = side == 2 ? l->q_heads : l->kv_heads, dim = side == 1 ? l->v_dim : l->k_dim, e, h;
    size_t each = (size_t)heads * (size_t)dim;
    model_buffer buffer = model_buffer_new(b->total, heads, dim, twin_type(t), twin_layout(t));
    *dense = (float *)model_get((size_t)b->total * each, sizeof(float));
    for (e = 0; e < b->count; e++) {
        int64_t i;
        if (b->slot[e] < 0) continue;
        for (i = 0; i < b->entry[e].rows; i++) {
            int64_t row = b->entry[e].row + i;
            float *to = *dense + (size_t)row * each;
            for (h = 0; h < heads; h++) model_source(seeds[e], layer, side, first[e] + i, h, dim, to + h * dim);
            model_buffer_put(&buffer, row, to, to);
        }
    }
    return buffer;
}

static inline void twin_positions(const twin *t, const twin_batch *b, int64_t *first)
{
    int e;
    for (e = 0; e < b->count; e++) first[e] = b->slot[e] < 0 ? 0 : t->m.seq[b->slot[e]].n;
}

static inline oscar_result twin_append(twin *t, int layer, const twin_batch *b, const uint64_t *seeds)
{
    int64_t first[2 * MODEL_SEQS];
    float *k, *v;
    model_buffer kb, vb;
    oscar_view kv, vv;
    oscar_result got;
    int e;
    twin_positions(t, b, first);
    kb = twin_rows(t, b, layer, 0, seeds, first, &k);
    vb = twin_rows(t, b, layer, 1, seeds, first, &v);
    kv = model_buffer_view(&kb);
    vv = model_buffer_view(&vb);
    got = oscar_append(t->cache, layer, b->entry, b->count, &kv, &vv);
    CHECK_MSG(got == OSCAR_OK, ("    append: %s\n", oscar_result_text(got)));
    if (got == OSCAR_OK) for (e = 0; e < b->count; e++) if (b->slot[e] >= 0)
        model_append(&t->m, &t->m.seq[b->slot[e]], layer, k + (size_t)b->entry[e].row * model_token(&t->m, layer, 0),
                     v + (size_t)b->entry[e].row * model_token(&t->m, layer, 1));
    free(k); free(v); free(kb.memory); free(vb.memory);
    return got;
}

/* The output of padding is zero, its lse -inf; rows of nobody are not touched (they still hold 0xff). */
static inline void twin_check_padding(const twin *t, const twin_batch *b, const model_buffer *o, const float *lse,
                                      int q_heads)
{
    int e, h;
    int64_t i, j;
    float *line = (float *)model_get((size_t)q_heads * (size_t)o->dim, sizeof(float));
    (void)t;
    for (i = 0; i < b->total; i++) {
        int owner = -2;
        for (e = 0; e < b->count; e++)
            if (i >= b->entry[e].row && i < b->entry[e].row + b->entry[e].rows) owner = b->slot[e];
        if (owner >= 0) continue;
        model_buffer_get(o, i, line);
        for (h = 0; h < q_heads; h++) {
            for (j = 0; j < o->dim; j++) {
                float x = line[h * o->dim + j];
                CHECK_MSG(owner == -1 ? x == 0 : x != x, ("    output of padding is %g\n", (double)x));
            }
            if (owner == -1) CHECK(lse[i * q_heads + h] == -HUGE_VALF);
        }
    }
    free(line);
}

/* Attention of the last rows of each sequence of the batch against the model; kv seeds of prefill, or NULL to attend.
   long: views, call and comparison of one batch. */
static inline oscar_result twin_attention(twin *t, int layer, const twin_batch *b, const uint64_t *q_seeds,
                                          const uint64_t *kv_seeds, const float *sink_logits)
{
    const oscar_layer *l = &t->m.layout[layer].layer;
    int64_t first[2 * MODEL_SEQS];
    float *q, *k = NULL, *v = NULL, *o, *lse;
    model_buffer qb, kb, vb, ob;
    oscar_view qv, kv, vv;
    oscar_out out;
    oscar_result got;
    size_t heads = (size_t)l->q_heads, dim = (size_t)l->v_dim;
    int64_t i;
    int e;
    memset(&kb, 0, sizeof kb); memset(&vb, 0, sizeof vb);
    twin_positions(t, b, first);
    if (!kv_seeds) for (e = 0; e < b->count; e++)
        if (b->slot[e] >= 0) first[e] = model_shown_length(&t->m.seq[b->slot[e]], layer) - b->entry[e].rows;
    qb = twin_rows(t, b, layer, 2, q_seeds, first, &q);
    qv = model_buffer_view(&qb);
    ob = model_buffer_new(b->total, l->q_heads, l->v_dim, OSCAR_F32, t->plain ? 0 : random_below(&t->random, 3));
    out = model_buffer_out(&ob);
    lse = (float *)model_get((size_t)b->total * heads, sizeof(float));
    o = (float *)model_get((size_t)b->total * heads * dim, sizeof(float));
    if (kv_seeds) {
        kb = twin_rows(t, b, layer, 0, kv_seeds, first, &k);
        vb = twin_rows(t, b, layer, 1, kv_seeds, first, &v);
        kv = model_buffer_view(&kb);
        vv = model_buffer_view(&vb);
        got = oscar_prefill(t->cache, layer, b->entry, b->count, &qv, &kv, &vv, sink_logits, &out, lse);
    } else got = oscar_attend(t->cache, layer, b->entry, b->count, &qv, sink_logits, &out, lse);

    if (got == OSCAR_OK) {
        for (i = 0; i < b->total; i++) model_buffer_get(&ob, i, o + (size_t)i * heads * dim);
        for (e = 0; e < b->count; e++) if (b->slot[e] >= 0) {
            model_seq *s = &t->m.seq[b->slot[e]];
            size_t row = (size_t)b->entry[e].row, rows = (size_t)b->entry[e].rows;
            size_t ks = model_token(&t->m, layer, 0), vs = model_token(&t->m, layer, 1);
            float *kr = NULL, *vr = NULL;
            double worst;
            if (kv_seeds) {
                kr = (float *)model_get(rows * ks, sizeof(float));
                vr = (float *)model_get(rows * vs, sizeof(float));
                model_round(t->m.window_type, k + row * ks, rows * ks, kr);
                model_round(t->m.window_type, v + row * vs, rows * vs, vr);
            }
            worst = model_compare(&t->m, s, layer, q + row * heads * (size_t)l->k_dim, first[e], (int64_t)rows,
                                  first[e], kr, vr, sink_logits, o + row * heads * dim, lse + row * heads);
            if (worst > t->worst) t->worst = worst;
            if (kv_seeds) model_append(&t->m, s, layer, k + row * ks, v + row * vs);
            free(kr); free(vr);
        }
        twin_check_padding(t, b, &ob, lse, l->q_heads);
    }
    free(q); free(k); free(v); free(o); free(lse);
    free(qb.memory); free(kb.memory); free(vb.memory); free(ob.memory);
    return got;
}

/* -- short forms for one sequence -- */

static inline twin_batch twin_single(twin *t, int slot, int64_t rows)
{
    twin_batch b;
    memset(&b, 0, sizeof b);
    twin_batch_add(t, &b, slot, rows);
    return b;
}

static inline void twin_seeds(const twin_batch *b, uint64_t seed, uint64_t *seeds)
{
    int e;
    for (e = 0; e < b->count; e++) seeds[e] = seed;
}

/* Appends rows of `seed` in every layer of one sequence. */
static inline oscar_result twin_step(twin *t, int slot, int64_t rows, int draft, uint64_t seed)
{
    uint64_t seeds[2 * MODEL_SEQS];
    oscar_result result = twin_reserve(t, slot, rows, draft);
    int i, from = t->plain ? 0 : random_below(&t->random, t->m.layers);
    if (result != OSCAR_OK) return result;
    for (i = 0; i < t->m.layers; i++) {
        twin_batch b = twin_single(t, slot, rows);
        twin_seeds(&b, seed, seeds);
        result = twin_append(t, (from + i) % t->m.layers, &b, seeds);
        if (result != OSCAR_OK) return result;
    }
    return OSCAR_OK;
}

static inline oscar_result twin_attend(twin *t, int slot, int layer, int64_t rows, uint64_t seed)
{
    uint64_t seeds[2 * MODEL_SEQS];
    twin_batch b = twin_single(t, slot, rows);
    oscar_result result;
    twin_seeds(&b, seed, seeds);
    result = twin_attention(t, layer, &b, seeds, NULL, NULL);
    CHECK_MSG(result == OSCAR_OK, ("    attend: %s\n", oscar_result_text(result)));
    return result;
}

/* Reserves and prefills rows in every layer. */
static inline oscar_result twin_prefill(twin *t, int slot, int64_t rows, uint64_t seed)
{
    uint64_t seeds[2 * MODEL_SEQS];
    oscar_result result = twin_reserve(t, slot, rows, 0);
    int i;
    if (result != OSCAR_OK) return result;
    for (i = 0; i < t->m.layers; i++) {
        twin_batch b = twin_single(t, slot, rows);
        twin_seeds(&b, seed, seeds);
        result = twin_attention(t, i, &b, seeds, seeds, NULL);
        CHECK_MSG(result == OSCAR_OK, ("    prefill: %s\n", oscar_result_text(result)));
        if (result != OSCAR_OK) return result;
    }
    return OSCAR_OK;
}

/* -- comparisons -- */

static inline void twin_check_state(twin *t, int slot)
{
    const model_seq *s = &t->m.seq[slot];
    oscar_seq_state state = { 0 };
    int64_t i, j;
    CHECK(oscar_cache_get(t->cache, s->handle, &state) == OSCAR_OK);
    CHECK_MSG(state.length == s->n && state.history == s->h,
              ("    length %lld history %lld, expected %lld and %lld\n", (long long)state.length,
               (long long)state.history, (long long)s->n, (long long)s->h));
    CHECK(state.sink == model_min(s->n, t->m.sink));
    CHECK(state.sink + state.history + state.recent == state.length);
    CHECK(state.step == s->step);
    CHECK(state.step_rows == s->rows);
    if (s->step == OSCAR_STEP_APPEND) CHECK(state.step_history == s->step_h);
    CHECK_MSG(state.page_count == s->page_count,
              ("    pages %lld, expected %lld\n", (long long)state.page_count, (long long)s->page_count));
    for (i = 0; i < state.page_count && state.page_count == s->page_count; i++) {
        CHECK((int64_t)state.pages[i] < t->m.max_pages);
        for (j = 0; j < i; j++) CHECK(state.pages[i] != state.pages[j]);
    }
}

static inline void twin_check_cache(twin *t)
{
    oscar_stats stats;
    int64_t open = 0, tokens = 0;
    int i;
    CHECK(oscar_cache_check(t->cache) == OSCAR_OK);
    oscar_cache_stats(t->cache, &stats);
    for (i = 0; i < t->m.max_sequences; i++) if (t->m.seq[i].open) { open++; tokens += t->m.seq[i].n; }
    CHECK(stats.sequences == open);
    CHECK(stats.tokens == tokens);
    CHECK(stats.pages == t->m.max_pages);
    CHECK_MSG(stats.pages_used == t->m.pages_used,
              ("    pages used %lld, expected %lld\n", (long long)stats.pages_used, (long long)t->m.pages_used));
}

/* Pages of one layer, byte for byte. */
static inline void twin_check_pages(twin *t, int slot, int layer)
{
    const model_seq *s = &t->m.seq[slot];
    int64_t count = model_shown_history(s, layer) / t->m.page_tokens, i;
    oscar_seq_state state = { 0 };
    CHECK(oscar_cache_get(t->cache, s->handle, &state) == OSCAR_OK);
    if (state.page_count != s->page_count) return;
    for (i = 0; i < count; i++)
        CHECK_MSG(memcmp(model_pool_page(t->cache, layer, state.pages[i]), s->pages[i]->bytes[layer],
                         t->m.layout[layer].bytes) == 0,
                  ("    slot %d layer %d: page %lld differs\n", slot, layer, (long long)i));
}

/* Tokens first .. first + count - 1 of one layer, bit for bit. */
static inline void twin_check_rows(twin *t, int slot, int layer, int64_t first, int64_t count)
{
    const model_seq *s = &t->m.seq[slot];
    const oscar_layer *l = &t->m.layout[layer].layer;
    oscar_type kt = twin_type(t), vt = twin_type(t);
    model_buffer kb = model_buffer_new(count, l->kv_heads, l->k_dim, kt, twin_layout(t));
    model_buffer vb = model_buffer_new(count, l->kv_heads, l->v_dim, vt, twin_layout(t));
    oscar_out k = model_buffer_out(&kb), v = model_buffer_out(&vb);
    oscar_result got = oscar_fetch(t->cache, layer, s->handle, first, count, &k, &v);
    int side, h, bad = 0;
    int64_t i;
    CHECK_MSG(got == OSCAR_OK, ("    fetch: %s\n", oscar_result_text(got)));
    if (got == OSCAR_OK) for (side = 0; side < 2; side++) {
        const model_buffer *b = side ? &vb : &kb;
        size_t each = model_token(&t->m, layer, side), dim = (size_t)b->dim;
        float *line = (float *)model_get(2 * each, sizeof(float)), *expect = line + each;
        for (i = 0; i < count; i++) {
            model_buffer_get(b, i, line);
            for (h = 0; h < l->kv_heads; h++)
                model_round(b->type, model_row(&t->m, s, layer, side, first + i, h), dim, expect + (size_t)h * dim);
            if (memcmp(line, expect, each * sizeof(float)) != 0 && !bad++)
                CHECK_MSG(0, ("    slot %d layer %d side %d token %lld of %lld (history %lld): %g, expected %g\n", slot,
                              layer, side, (long long)(first + i), (long long)s->n,
                              (long long)model_shown_history(s, layer), (double)line[0], (double)expect[0]));
        }
        free(line);
    }
    free(kb.memory);
    free(vb.memory);
}

/* Lengths, pages and all rows of one sequence. Rows cannot be fetched while a step is open. */
static inline void twin_check(twin *t, int slot)
{
    const model_seq *s = &t->m.seq[slot];
    int i;
    twin_check_state(t, slot);
    for (i = 0; i < t->m.layers; i++) {
        twin_check_pages(t, slot, i);
        if (s->step == OSCAR_STEP_NONE || s->step == OSCAR_STEP_DRAFTED) {
            if (s->n + s->rows) twin_check_rows(t, slot, i, 0, s->n + s->rows);
        } else CHECK(oscar_fetch(t->cache, i, s->handle, 0, 0, NULL, NULL) == OSCAR_ERR_STATE);
    }
}

static inline void twin_check_all(twin *t)
{
    int i;
    twin_check_cache(t);
    for (i = 0; i < t->m.max_sequences; i++) if (t->m.seq[i].open) twin_check(t, i);
}

/* Two sequences (of caches of one configuration) have equal blobs. */
static inline int twin_blobs_equal(twin *a, int slot_a, twin *b, int slot_b)
{
    size_t size_a, size_b;
    unsigned char *blob_a = twin_save(a, slot_a, &size_a), *blob_b = twin_save(b, slot_b, &size_b);
    int equal = blob_a && blob_b && size_a == size_b && memcmp(blob_a, blob_b, size_a) == 0;
    free(blob_a);
    free(blob_b);
    return equal;
}

#endif
