/* activations.h - what the demo and its test share: reading real activations, and the error of logits and outputs.

   The file (safetensors, BF16) holds q, k (after RoPE) and v of some layers of a real model: tensors layers.L.PART.X
   [tokens, heads, dim], PART calib or eval, X q, k or v. */
#ifndef ACTIVATIONS_H
#define ACTIVATIONS_H

#include "oscar.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor: bf16 values [tokens][heads][dim] inside the loaded file. */
typedef struct tensor { const void *data; int tokens, heads, dim; } tensor;

typedef struct activations { tensor q, k, v; } activations;

/* A whole file, ended by a 0 so that its header is a string; NULL and a message if it cannot be read. */
static char *activations_open(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *bytes = NULL;
    long size = 0;
    if (f && !fseek(f, 0, SEEK_END) && (size = ftell(f)) > 8 && !fseek(f, 0, SEEK_SET)) {
        bytes = (char *)malloc((size_t)size + 1);
        if (bytes && fread(bytes, 1, (size_t)size, f) != (size_t)size) { free(bytes); bytes = NULL; }
        if (bytes) bytes[size] = 0;
    }
    if (f) fclose(f);
    if (!bytes) fprintf(stderr, "cannot read %s: run from the repository's root, or give its path\n", path);
    return bytes;
}

/* One tensor by name. Trusts that the file is the one that comes with the repository. */
static int activations_tensor(const char *file, int layer, const char *part, char which, tensor *out)
{
    uint32_t header_bytes = (uint32_t)(unsigned char)file[0] | (uint32_t)(unsigned char)file[1] << 8
                            | (uint32_t)(unsigned char)file[2] << 16;
    const char *entry, *shape, *offsets;
    char name[64];
    long from, to;
    snprintf(name, sizeof name, "\"layers.%d.%s.%c\"", layer, part, which);
    entry = strstr(file + 8, name);
    shape = entry ? strstr(entry, "\"shape\"") : NULL;
    offsets = shape ? strstr(shape, "\"data_offsets\"") : NULL;
    if (!offsets || sscanf(strchr(shape, '['), "[%d,%d,%d]", &out->tokens, &out->heads, &out->dim) != 3
        || sscanf(strchr(offsets, '['), "[%ld,%ld]", &from, &to) != 2
        || to - from != 2L * out->tokens * out->heads * out->dim) {
        fprintf(stderr, "the activations have no tensor %s\n", name);
        return 0;
    }
    out->data = file + 8 + header_bytes + from;
    return 1;
}

static int activations_get(const char *file, int layer, const char *part, activations *out)
{
    return activations_tensor(file, layer, part, 'q', &out->q) && activations_tensor(file, layer, part, 'k', &out->k)
           && activations_tensor(file, layer, part, 'v', &out->v);
}

static oscar_view tensor_view(const tensor *t, int first_token)
{
    oscar_view view;
    memset(&view, 0, sizeof view);
    view.data = (const char *)t->data + (size_t)first_token * (size_t)t->heads * (size_t)t->dim * 2;
    view.type = OSCAR_BF16;
    return view;
}

static void *must_allocate(size_t size)
{
    void *memory = malloc(size);
    if (!memory) { fprintf(stderr, "out of memory\n"); exit(1); }
    return memory;
}

/* Where a value stands in a plane: keys and queries are kept channel by channel, [head][dim][token], so that logits of
   many tokens are contiguous; values token by token, [head][token][dim]. */
static size_t plane_index(const tensor *t, int by_channel, int token, int head, int channel)
{
    if (by_channel) return ((size_t)head * (size_t)t->dim + (size_t)channel) * (size_t)t->tokens + (size_t)token;
    return ((size_t)head * (size_t)t->tokens + (size_t)token) * (size_t)t->dim + (size_t)channel;
}

static size_t plane_size(const tensor *t) { return (size_t)t->tokens * (size_t)t->heads * (size_t)t->dim; }

/* A tensor as a float plane. */
static float *tensor_plane(const tensor *t, int by_channel)
{
    float *rows = (float *)must_allocate(plane_size(t) * sizeof(float));
    float *out = (float *)must_allocate(plane_size(t) * sizeof(float));
    int n, h, d;
    oscar_convert(plane_size(t), OSCAR_BF16, t->data, OSCAR_F32, rows);
    for (n = 0; n < t->tokens; n++)
        for (h = 0; h < t->heads; h++)
            for (d = 0; d < t->dim; d++)
                out[plane_index(t, by_channel, n, h, d)] = rows[(n * t->heads + h) * t->dim + d];
    free(rows);
    return out;
}

/* ---- errors ------------------------------------------------------------------------------------------------- */

/* Where a query sees keys exactly: j < sink or j > i - recent. Outputs count from query first_output on. */
typedef struct windows { int sink, recent, first_output; } windows;

/* Exact and decoded keys and values of one layer, as planes; tokens and dim are multiples of 16. */
typedef struct compared {
    const float *q, *k, *v, *k_decoded, *v_decoded;
    int tokens, q_heads, kv_heads, dim;
} compared;

typedef struct errors { double logit, output; } errors;

/* out[j] = q_i . k_j for j < n, 16 keys at a time; may write up to the next multiple of 16. */
static void products(const compared *c, const float *q, const float *k, int i, int n, float *out)
{
    int d, j, t;
    for (j = 0; j < n; j += 16) {
        float sum[16] = { 0 };
        for (d = 0; d < c->dim; d++) {
            size_t row = (size_t)d * (size_t)c->tokens;
            float x = q[row + (size_t)i];
            for (t = 0; t < 16; t++) sum[t] += x * k[row + (size_t)(j + t)];
        }
        memcpy(out + j, sum, sizeof sum);
    }
}

/* Logits to softmax weights, scale 1 / sqrt(dim). */
static void softmax(const compared *c, float *x, int n)
{
    double scale = 1 / sqrt((double)c->dim), sum = 0;
    float top = x[0];
    int i;
    for (i = 1; i < n; i++) if (x[i] > top) top = x[i];
    for (i = 0; i < n; i++) sum += x[i] = (float)exp(scale * (double)(x[i] - top));
    for (i = 0; i < n; i++) x[i] = (float)((double)x[i] / sum);
}

/* o += sum of p_j v_j, from <= j < to, 16 channels at a time. */
static void weigh(const compared *c, const float *p, const float *v, int from, int to, float *o)
{
    int j, d, t;
    for (d = 0; d < c->dim; d += 16) {
        float sum[16] = { 0 };
        for (j = from; j < to; j++)
            for (t = 0; t < 16; t++) sum[t] += p[j] * v[(size_t)j * (size_t)c->dim + (size_t)(d + t)];
        for (t = 0; t < 16; t++) o[d + t] += sum[t];
    }
}

static void add_difference(const float *x, const float *exact, int n, double *sums)
{
    int i;
    for (i = 0; i < n; i++) {
        sums[0] += ((double)x[i] - (double)exact[i]) * ((double)x[i] - (double)exact[i]);
        sums[1] += (double)exact[i] * (double)exact[i];
    }
}

/* |QK^ - QK| / |QK| over the quantised causal pairs, and |O^ - O| / |O|, Frobenius norms over all heads. */
static errors measure(const compared *c, const windows *w)
{
    float *exact = (float *)must_allocate((size_t)(c->tokens + c->dim) * 2 * sizeof(float));
    float *mixed = exact + c->tokens, *o = mixed + c->tokens, *o_mixed = o + c->dim;
    double logit[2] = { 0, 0 }, output[2] = { 0, 0 };   /* squares of the difference, of the exact ones */
    size_t plane = (size_t)c->dim * (size_t)c->tokens;
    errors e;
    int x, i;
    for (x = 0; x < c->q_heads; x++) {
        size_t head = (size_t)(x / (c->q_heads / c->kv_heads)) * plane;
        for (i = 0; i < c->tokens; i++) {
            int end = i - w->recent + 1 > w->sink ? i - w->recent + 1 : w->sink;   /* quantised: sink <= j < end */
            if (end > i + 1) end = i + 1;
            products(c, c->q + (size_t)x * plane, c->k + head, i, i + 1, exact);
            if (end > w->sink) {
                products(c, c->q + (size_t)x * plane, c->k_decoded + head, i, end, mixed);
                add_difference(mixed + w->sink, exact + w->sink, end - w->sink, logit);
                memcpy(mixed, exact, (size_t)w->sink * sizeof(float));
                memcpy(mixed + end, exact + end, (size_t)(i + 1 - end) * sizeof(float));
            }
            if (i < w->first_output) continue;
            softmax(c, exact, i + 1);
            softmax(c, mixed, i + 1);
            memset(o, 0, (size_t)c->dim * 2 * sizeof(float));
            weigh(c, exact, c->v + head, 0, i + 1, o);
            weigh(c, mixed, c->v + head, 0, w->sink, o_mixed);
            weigh(c, mixed, c->v_decoded + head, w->sink, end, o_mixed);
            weigh(c, mixed, c->v + head, end, i + 1, o_mixed);
            add_difference(o_mixed, o, c->dim, output);
        }
    }
    free(exact);
    e.logit = sqrt(logit[0] / logit[1]);
    e.output = sqrt(output[0] / output[1]);
    return e;
}

/* Keys and values of `a` through oscar_page_write and oscar_page_read with this layer's settings, as planes; tokens a
   multiple of 64. Also the page's bits per value. 0 and a message on an error. */
static int through_pages(const oscar_layer *layer, const activations *a, float *k, float *v, double *bits)
{
    size_t values = (size_t)64 * (size_t)a->k.heads * (size_t)a->k.dim;
    float *rows = (float *)must_allocate(2 * values * sizeof(float));
    oscar_layout layout;
    oscar_out k_out, v_out;
    oscar_result result = oscar_page_layout(layer, 64, OSCAR_BF16, NULL, &layout);
    unsigned char *page, *scratch;
    int first, t, h, d;
    if (result) { fprintf(stderr, "oscar_page_layout: %s\n", oscar_result_text(result)); return 0; }
    page = (unsigned char *)must_allocate(layout.bytes + layout.scratch + 64);
    scratch = page + layout.bytes + 64 - (uintptr_t)(page + layout.bytes) % 64;
    memset(&k_out, 0, sizeof k_out);
    memset(&v_out, 0, sizeof v_out);
    k_out.data = rows;
    v_out.data = rows + values;
    for (first = 0; first < a->k.tokens && !result; first += 64) {
        oscar_view k_view = tensor_view(&a->k, first), v_view = tensor_view(&a->v, first);
        result = oscar_page_write(&layout, &k_view, &v_view, page, scratch);
        if (!result) result = oscar_page_read(&layout, page, 0, 64, &k_out, &v_out, scratch);
        for (t = 0; t < 64 && !result; t++)
            for (h = 0; h < a->k.heads; h++)
                for (d = 0; d < a->k.dim; d++) {
                    size_t at = (size_t)((t * a->k.heads + h) * a->k.dim + d);
                    k[plane_index(&a->k, 1, first + t, h, d)] = rows[at];
                    v[plane_index(&a->v, 0, first + t, h, d)] = rows[values + at];
                }
    }
    *bits = 8.0 * (double)layout.bytes / (2.0 * (double)values);
    free(page);
    free(rows);
    if (result) fprintf(stderr, "pages: %s\n", oscar_result_text(result));
    return result == OSCAR_OK;
}

#endif
