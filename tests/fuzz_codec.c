/* fuzz_codec.c - rows, pages and attention from arbitrary bytes. Nothing may be read or written out of bounds, results
   have to be the promised ones, and what was accepted has to decode to finite numbers.

       clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -Itests tests/fuzz_codec.c -lm -o fuzz_codec
       ./fuzz_codec -max_len=4096 -max_total_time=300

   Without libFuzzer, on files or on the bytes of a generator:

       cc -g -O1 -fsanitize=address,undefined -I. -Itests tests/fuzz_codec.c tests/fuzz_main.c -lm -o fuzz_codec

   The first bytes choose shapes and options, all of them (repeated) are the content of rows and of page bytes. */
#define _POSIX_C_SOURCE 200112L   /* posix_memalign */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition) \
    ((condition) ? (void)0 : ((void)fprintf(stderr, "fuzz_codec.c:%d: %s\n", __LINE__, #condition), abort()))

typedef struct input { const uint8_t *data; size_t size, at; } input;

/* The next byte; the content is repeated without end, so that short inputs fill rows too. */
static unsigned take(input *in)
{
    if (!in->size) return 0;
    if (in->at == in->size) in->at = in->size > 32 ? 32 : 0;
    return in->data[in->at++];
}

static int take_below(input *in, int n)
{
    unsigned low = take(in), high = take(in);
    return (int)((low | high << 8) % (unsigned)n);
}

static void take_bytes(input *in, void *out, size_t size)
{
    size_t i;
    for (i = 0; i < size; i++) ((uint8_t *)out)[i] = (uint8_t)take(in);
}

/* An allocation that ends where the array ends. */
static void *flush(size_t size)
{
    void *p = malloc(size ? size : 1);
    REQUIRE(p);
    return p;
}

/* Floats of any bits, or, more often, of ordinary size. */
static void take_floats(input *in, int raw, float *x, size_t count)
{
    size_t i;
    if (raw) { take_bytes(in, x, count * sizeof(float)); return; }
    for (i = 0; i < count; i++) x[i] = (float)(take_below(in, 65536) - 32768) / 4096.0f;
}

static int all_finite(const float *x, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) if (!(fabs((double)x[i]) <= (double)FLT_MAX)) return 0;
    return 1;
}

static void fuzz_rows(input *in)
{
    static const double clips[8] = { 0, 0.96, 0.5, 1, -1, 1e-300, 0.9999999, 2 };
    oscar_codec codec;
    int dim = take_below(in, 70) * 16 - 16, rows = take_below(in, 4), raw = take_below(in, 3) == 0;
    size_t size, count;
    float *x;
    uint8_t *encoded;
    oscar_result result;
    memset(&codec, 0, sizeof codec);
    codec.fit = (oscar_fit)take_below(in, 2);
    codec.bits = take_below(in, 4) * 2;
    codec.group = take_below(in, 9) * 16 - (take_below(in, 16) == 0);
    codec.metadata = (oscar_type)take_below(in, 5);
    codec.clip = clips[take_below(in, 8)];
    size = oscar_row_bytes(&codec, dim);
    if (!size) {
        REQUIRE(oscar_encode(&codec, dim, 0, NULL, NULL) != OSCAR_OK);
        return;
    }
    count = (size_t)(dim * rows);
    x = (float *)flush(count * sizeof(float));
    encoded = (uint8_t *)flush(size * (size_t)rows);
    take_floats(in, raw, x, count);
    result = oscar_encode(&codec, dim, (size_t)rows, x, encoded);
    REQUIRE(result == OSCAR_OK || result == OSCAR_ERR_NUMERIC);
    REQUIRE(result == OSCAR_OK || raw || !all_finite(x, count));
    if (result == OSCAR_OK) {
        REQUIRE(all_finite(x, count));
        REQUIRE(oscar_decode(&codec, dim, (size_t)rows, encoded, x) == OSCAR_OK);
        REQUIRE(codec.metadata == OSCAR_F32 || all_finite(x, count));
    }
    take_bytes(in, encoded, size * (size_t)rows);
    REQUIRE(oscar_decode(&codec, dim, (size_t)rows, encoded, x) == OSCAR_OK);
    free(x);
    free(encoded);
}

/* A layer whose every field may be wrong now and then. */
static oscar_layer take_layer(input *in)
{
    static const int bits[9] = { 0, 2, 4, 16, 2, 4, 2, 4, 3 };
    oscar_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.kv_heads = take_below(in, 20) % 4;
    layer.q_heads = layer.kv_heads * (1 + take_below(in, 3)) - (take_below(in, 40) == 0);
    layer.k_dim = take_below(in, 9) * 16 + (take_below(in, 40) == 0);
    layer.v_dim = take_below(in, 9) * 16;
    layer.window = take_below(in, 200) - 2;
    layer.k_bits = bits[take_below(in, 9)];
    layer.v_bits = bits[take_below(in, 9)];
    layer.k_fit = (oscar_fit)take_below(in, 2);
    layer.v_fit = (oscar_fit)take_below(in, 2);
    layer.k_clip = take_below(in, 40) / 32.0 - 0.1;
    layer.v_clip = layer.k_clip;
    layer.k_group = take_below(in, 3) * 16;
    layer.v_group = take_below(in, 3) * 16;
    layer.k_page_mean = -take_below(in, 2);
    layer.v_folded = take_below(in, 2);
    layer.softcap = (float)take_below(in, 3) - 1;
    return layer;
}

/* Reads and attends over a page; written: it is one that page_write made, so results are finite. */
static void fuzz_read(input *in, const oscar_layout *layout, const uint8_t *page, void *scratch, int written)
{
    const oscar_layer *l = &layout->layer;
    int first = take_below(in, layout->page_tokens), count = take_below(in, layout->page_tokens - first + 1);
    int queries = 1 + take_below(in, 2);
    size_t ks = (size_t)(count * l->kv_heads * l->k_dim), vs = (size_t)(count * l->kv_heads * l->v_dim);
    size_t os = (size_t)(queries * l->q_heads * l->v_dim), qs = (size_t)(queries * l->q_heads * l->k_dim);
    float *k = (float *)flush(ks * 4), *v = (float *)flush(vs * 4);
    float *q = (float *)flush(qs * 4), *o = (float *)flush(os * 4);
    float *lse = (float *)flush((size_t)(queries * l->q_heads) * 4);
    oscar_out k_out, v_out;
    oscar_attend_desc desc;
    oscar_page_list list;
    const void *pages[1];
    memset(&k_out, 0, sizeof k_out);
    memset(&desc, 0, sizeof desc);
    memset(&list, 0, sizeof list);
    v_out = k_out;
    k_out.data = k;
    v_out.data = v;
    REQUIRE(oscar_page_read(layout, page, first, count, &k_out, &v_out, scratch) == OSCAR_OK);
    if (written) REQUIRE(all_finite(k, ks) && all_finite(v, vs));
    take_floats(in, 0, q, qs);
    pages[0] = page;
    list.pages = pages;
    list.count = 1;
    list.position = take_below(in, 300);
    desc.layout = layout;
    desc.q.data = q;
    desc.queries = queries;
    desc.position = take_below(in, 600);
    REQUIRE(oscar_attend_pages(&desc, &list, o, lse) == OSCAR_OK);
    free(k);
    free(v);
    free(q);
    free(o);
    free(lse);
}

static void fuzz_page(input *in)
{
    oscar_layer layer = take_layer(in);
    oscar_layout layout;
    int tokens = take_below(in, 4) * 64, raw = take_below(in, 4) == 0;
    oscar_view k, v;
    size_t ks, vs, i;
    uint8_t *page;
    void *scratch = NULL;
    oscar_result result = oscar_page_layout(&layer, tokens, (oscar_type)take_below(in, 5), NULL, &layout);
    if (result != OSCAR_OK) return;
    memset(&k, 0, sizeof k);
    v = k;
    k.type = (oscar_type)take_below(in, 4);
    v.type = (oscar_type)take_below(in, 4);
    ks = (size_t)(layout.page_tokens * layout.layer.kv_heads * layout.layer.k_dim);
    vs = (size_t)(layout.page_tokens * layout.layer.kv_heads * layout.layer.v_dim);
    k.data = flush(ks * oscar__type_size(k.type));
    v.data = flush(vs * oscar__type_size(v.type));
    page = (uint8_t *)flush(layout.bytes);
    memset(page, 0xa5, layout.bytes);
    REQUIRE(!posix_memalign(&scratch, 64, layout.scratch));
    {
        float *x = (float *)flush((ks > vs ? ks : vs) * sizeof(float));
        take_floats(in, raw, x, ks);
        oscar_convert(ks, OSCAR_F32, x, k.type, (void *)(uintptr_t)k.data);
        take_floats(in, raw, x, vs);
        oscar_convert(vs, OSCAR_F32, x, v.type, (void *)(uintptr_t)v.data);
        free(x);
    }
    result = oscar_page_write(&layout, &k, &v, page, scratch);
    REQUIRE(result == OSCAR_OK || (result == OSCAR_ERR_NUMERIC && raw));
    if (result == OSCAR_OK) fuzz_read(in, &layout, page, scratch, 1);
    else for (i = 0; i < layout.bytes; i++) REQUIRE(page[i] == 0xa5);
    take_bytes(in, page, layout.bytes);
    fuzz_read(in, &layout, page, scratch, 0);
    free((void *)(uintptr_t)k.data);
    free((void *)(uintptr_t)v.data);
    free(page);
    free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in;
    in.data = data;
    in.size = size;
    in.at = 0;
    if (take(&in) % 4) fuzz_rows(&in);
    else fuzz_page(&in);
    return 0;
}
