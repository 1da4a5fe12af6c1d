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

/* Float [heads][dim][tokens]: channel by channel, so that sums over tokens are contiguous. */
static float *tensor_transposed(const tensor *t)
{
    size_t count = (size_t)t->tokens * (size_t)t->heads * (size_t)t->dim, i;
    float *rows = (float *)malloc(count * sizeof(float)), *out = (float *)malloc(count * sizeof(float));
    if (!rows || !out) { fprintf(stderr, "out of memory\n"); exit(1); }
    oscar_convert(count, OSCAR_BF16, t->data, OSCAR_F32, rows);
    for (i = 0; i < count; i++) {
        size_t d = i % (size_t)t->dim, h = i / (size_t)t->dim % (size_t)t->heads, n = i / (size_t)(t->dim * t->heads);
        out[(h * (size_t)t->dim + d) * (size_t)t->tokens + n] = rows[i];
    }
    free(rows);
    return out;
}

/* ---- errors ------------------------------------------------------------------------------------------------- */

/* Where a query sees keys exactly: j < sink or j > i - recent. Outputs count from query first_output on. */
typedef struct windows { int sink, recent, first_output; } windows;

/* Exact and decoded keys and values of one layer, all float [heads][dim][tokens]. */
typedef struct compared {
    const float *q, *k, *v, *k_decoded, *v_decoded;
    int tokens, q_heads, kv_heads, dim;
} compared;

typedef struct errors { double logit, output; } errors;

static void softmax(double *x, int n)
{
    double top = x[0], sum = 0;
    int i;
    for (i = 1; i < n; i++) if (x[i] > top) top = x[i];
    for (i = 0; i < n; i++) sum += x[i] = exp(x[i] - top);
    for (i = 0; i < n; i++) x[i] /= sum;
}

/* out[j] = q_i . k_j for j < n, k as [dim][tokens]. */
static void products(const compared *c, const float *q, const float *k, int i, int n, double *out)
{
    int d, j;
    for (j = 0; j < n; j++) out[j] = 0;
    for (d = 0; d < c->dim; d++) {
        const float *row = k + (size_t)d * (size_t)c->tokens;
        double x = (double)q[(size_t)d * (size_t)c->tokens + (size_t)i];
        for (j = 0; j < n; j++) out[j] += x * (double)row[j];
    }
}

/* |QK^ - QK| / |QK| over the quantised causal pairs, and |O^ - O| / |O|, Frobenius norms over all heads. The softmax
   scale is 1 / sqrt(dim). */
static errors measure(const compared *c, const windows *w)
{
    double *exact = (double *)malloc((size_t)c->tokens * 2 * sizeof(double)), *mixed = exact + c->tokens;
    double logit[2] = { 0, 0 }, output[2] = { 0, 0 };   /* of the difference, of the exact ones */
    errors e;
    int x, i, j, d;
    if (!exact) { fprintf(stderr, "out of memory\n"); exit(1); }
    for (x = 0; x < c->q_heads; x++) {
        size_t plane = (size_t)c->dim * (size_t)c->tokens, head = (size_t)(x / (c->q_heads / c->kv_heads)) * plane;
        for (i = 0; i < c->tokens; i++) {
            int end = i - w->recent + 1 > w->sink ? i - w->recent + 1 : w->sink;   /* quantised: sink <= j < end */
            products(c, c->q + (size_t)x * plane, c->k + head, i, i + 1, exact);
            products(c, c->q + (size_t)x * plane, c->k_decoded + head, i, end <= i + 1 ? end : i + 1, mixed);
            for (j = 0; j <= i; j++) {
                if (j < w->sink || j >= end) { mixed[j] = exact[j]; continue; }
                logit[0] += (mixed[j] - exact[j]) * (mixed[j] - exact[j]);
                logit[1] += exact[j] * exact[j];
            }
            if (i < w->first_output) continue;
            for (j = 0; j <= i; j++) { exact[j] /= sqrt((double)c->dim); mixed[j] /= sqrt((double)c->dim); }
            softmax(exact, i + 1);
            softmax(mixed, i + 1);
            for (d = 0; d < c->dim; d++) {
                const float *v = c->v + head + (size_t)d * (size_t)c->tokens;
                const float *v_decoded = c->v_decoded + head + (size_t)d * (size_t)c->tokens;
                double o = 0, o_mixed = 0;
                for (j = 0; j <= i; j++) {
                    int quantised = j >= w->sink && j < end;
                    o += exact[j] * (double)v[j];
                    o_mixed += mixed[j] * (double)(quantised ? v_decoded[j] : v[j]);
                }
                output[0] += (o_mixed - o) * (o_mixed - o);
                output[1] += o * o;
            }
        }
    }
    free(exact);
    e.logit = sqrt(logit[0] / logit[1]);
    e.output = sqrt(output[0] / output[1]);
    return e;
}

/* Keys and values of `a` through oscar_page_write and oscar_page_read with this layer's settings, as float
   [heads][dim][tokens]; tokens a multiple of 64. Also the page's bits per value. 0 and a message on an error. */
static int through_pages(const oscar_layer *layer, const activations *a, float *k, float *v, double *bits)
{
    oscar_layout layout;
    oscar_out k_out, v_out;
    oscar_result result = oscar_page_layout(layer, 64, OSCAR_BF16, NULL, &layout);
    unsigned char *page;
    int first;
    if (result) { fprintf(stderr, "oscar_page_layout: %s\n", oscar_result_text(result)); return 0; }
    page = (unsigned char *)malloc(layout.bytes + layout.scratch + 64);
    if (!page) { fprintf(stderr, "out of memory\n"); exit(1); }
    memset(&k_out, 0, sizeof k_out);
    memset(&v_out, 0, sizeof v_out);
    for (first = 0; first < a->k.tokens && !result; first += 64) {
        oscar_view k_view = tensor_view(&a->k, first), v_view = tensor_view(&a->v, first);
        unsigned char *scratch = page + layout.bytes;
        float *rows[2];
        int side, t, h, d;
        scratch += 64 - (uintptr_t)scratch % 64;
        rows[0] = (float *)malloc((size_t)64 * (size_t)a->k.heads * (size_t)a->k.dim * 2 * sizeof(float));
        if (!rows[0]) { fprintf(stderr, "out of memory\n"); exit(1); }
        rows[1] = rows[0] + (size_t)64 * (size_t)a->k.heads * (size_t)a->k.dim;
        k_out.data = rows[0];
        v_out.data = rows[1];
        result = oscar_page_write(&layout, &k_view, &v_view, page, scratch);
        if (!result) result = oscar_page_read(&layout, page, 0, 64, &k_out, &v_out, scratch);
        for (side = 0; side < 2 && !result; side++)
            for (t = 0; t < 64; t++)
                for (h = 0; h < a->k.heads; h++)
                    for (d = 0; d < a->k.dim; d++)
                        (side ? v : k)[((size_t)h * (size_t)a->k.dim + (size_t)d) * (size_t)a->k.tokens
                                       + (size_t)(first + t)] = rows[side][(t * a->k.heads + h) * a->k.dim + d];
        free(rows[0]);
    }
    *bits = 8.0 * (double)layout.bytes / (64.0 * a->k.heads * 2 * a->k.dim);
    free(page);
    if (result) fprintf(stderr, "pages: %s\n", oscar_result_text(result));
    return result == OSCAR_OK;
}

#endif
