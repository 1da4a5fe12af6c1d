/* reference.h - a second, plain reading of the row codec, the page bytes and attention, for the tests alone.

   It is written from the text of the format (manual 1.4) and shares no code with the library, only its types. Clip
   thresholds come from qsort, half floats from frexp, codes from the one-line formula of a tile, offsets from the
   order of the arrays in a page. What makes bytes is float and fmaf; what reads them for comparison is double.

   Words: D channels a row, G channels a group, P tokens a page. rows are float [D], pages are bytes. Functions that
   may have to refuse a row or page return 1 for written, 0 for refused. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { REF_DIM_MAX = 1024, REF_GROUPS_MAX = REF_DIM_MAX / 16 };
#define REF_ABSENT ((size_t)-1)

/* == 1 NUMBERS == */

/* A float that was rounded to float: a compiler may not fuse the operation behind it with the next one. */
static float ref_f32(float x)
{
    volatile float stored = x;
    return stored;
}

static int ref_is_finite(float x) { return fabs((double)x) <= (double)FLT_MAX; }

/* |x| rounded to a multiple of 2^(e - digits), where 2^e <= |x|, e at least lowest; ties to even. */
static double ref_round_digits(double x, int digits, int lowest)
{
    int e;
    double unit;
    (void)frexp(x, &e);
    e = e - 1 < lowest ? lowest : e - 1;
    unit = ldexp(1, e - digits);
    return nearbyint(fabs(x) / unit) * unit;
}

static uint16_t ref_half_bits(float x)
{
    unsigned sign = signbit((double)x) ? 0x8000u : 0;
    double a;
    int e;
    if (x != x) return (uint16_t)(sign | 0x7e00);
    if (x == 0) return (uint16_t)sign;
    a = ref_is_finite(x) ? ref_round_digits((double)x, 10, -14) : 1e9;
    if (a > 65504) return (uint16_t)(sign | 0x7c00);
    if (a < ldexp(1, -14)) return (uint16_t)(sign | (unsigned)ldexp(a, 24));
    (void)frexp(a, &e);
    return (uint16_t)(sign | (unsigned)(e + 14) << 10 | ((unsigned)ldexp(a, 11 - e) & 0x3ff));
}

static float ref_half_value(unsigned h)
{
    int e = (int)(h >> 10 & 31), m = (int)(h & 0x3ff);
    double a = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return (float)(h & 0x8000 ? -a : a);
}

/* x as the type holds it; too large becomes infinite. */
static float ref_round(oscar_type type, float x)
{
    double a;
    if (type == OSCAR_F16) return ref_half_value(ref_half_bits(x));
    if (type != OSCAR_BF16 || x == 0 || !ref_is_finite(x)) return x;
    a = ref_round_digits((double)x, 7, -126);
    if (a > (double)FLT_MAX) a = (double)INFINITY;
    return (float)(x < 0 ? -a : a);
}

static size_t ref_type_size(oscar_type type) { return type == OSCAR_BF16 || type == OSCAR_F16 ? 2 : 4; }

/* Value number index of an array in the machine's byte order, at any alignment. */
static float ref_get(oscar_type type, const void *data, ptrdiff_t index)
{
    const unsigned char *p = (const unsigned char *)data + index * (ptrdiff_t)ref_type_size(type);
    uint32_t word = 0;
    uint16_t half;
    float x;
    if (ref_type_size(type) == 4) { memcpy(&x, p, 4); return x; }
    memcpy(&half, p, 2);
    if (type == OSCAR_F16) return ref_half_value(half);
    word = (uint32_t)half << 16;
    memcpy(&x, &word, 4);
    return x;
}

static void ref_put(oscar_type type, void *data, ptrdiff_t index, float x)
{
    unsigned char *p = (unsigned char *)data + index * (ptrdiff_t)ref_type_size(type);
    uint32_t word;
    uint16_t half;
    if (ref_type_size(type) == 4) { memcpy(p, &x, 4); return; }
    if (type == OSCAR_F16) half = ref_half_bits(x);
    else {
        float rounded = ref_round(OSCAR_BF16, x);
        memcpy(&word, &rounded, 4);
        half = (uint16_t)(word >> 16);
    }
    memcpy(p, &half, 2);
}

/* x as an output of the type shows it: rounded once, too large becomes the largest finite value. */
static float ref_output(oscar_type type, float x)
{
    float top = type == OSCAR_F16 ? 65504.0f : type == OSCAR_BF16 ? (float)ldexp(255, 120) : FLT_MAX;
    float y = ref_round(type, x);
    return y > top ? top : y < -top ? -top : y;
}

static void ref_little16(unsigned char *p, unsigned x)
{
    p[0] = (unsigned char)(x & 255);
    p[1] = (unsigned char)(x >> 8);
}

static unsigned ref_read16(const unsigned char *p) { return (unsigned)p[0] + 256u * (unsigned)p[1]; }

static void ref_little_float(unsigned char *p, float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    ref_little16(p, u & 0xffff);
    ref_little16(p + 2, u >> 16);
}

static float ref_read_float(const unsigned char *p)
{
    uint32_t u = ref_read16(p) + 65536u * ref_read16(p + 2);
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* == 2 THE ROW CODEC == */

/* wide: fp32 metadata; metric: M, UNBIASED only, or NULL */
typedef struct ref_codec { oscar_fit fit; int bits, group; double clip; int wide; const float *metric; } ref_codec;

typedef struct ref_row {
    int code[REF_DIM_MAX];
    float scale[REF_GROUPS_MAX], low[REF_GROUPS_MAX];
} ref_row;

/* S(x, y): 16 chains, chain l over channels l, l + 16, ..., then p_l += p_(l+8), +4, +2, +1. */
static float ref_sum(int n, const float *x, const float *y)
{
    float p[16] = { 0 };
    int i, half;
    for (i = 0; i < n; i++) p[i % 16] = fmaf(x[i], y[i], p[i % 16]);
    for (half = 8; half; half /= 2)
        for (i = 0; i < half; i++) p[i] = ref_f32(p[i] + p[i + half]);
    return p[0];
}

static int ref_compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The floor(ratio * n)-th smallest |x|; ratio outside (0, 1): the largest. */
static float ref_threshold(int n, const float *x, double ratio)
{
    float sorted[REF_DIM_MAX];
    int i, index = ratio > 0 && ratio < 1 ? (int)floor(ratio * n) : n - 1;
    for (i = 0; i < n; i++) sorted[i] = (float)fabs((double)x[i]);
    qsort(sorted, (size_t)n, sizeof sorted[0], ref_compare);
    return sorted[index];
}

/* A scale or minimum as stored; 0 if it cannot be. */
static int ref_metadata(int wide, float x, float *stored)
{
    *stored = wide ? x : ref_half_value(ref_half_bits(x));
    return ref_is_finite(*stored);
}

static int ref_clip_group(const ref_codec *codec, const float *x, float tau, int *code, float *scale, float *low)
{
    float lo = INFINITY, hi = -INFINITY, y[REF_DIM_MAX], levels = codec->bits == 2 ? 3.0f : 15.0f;
    int i;
    for (i = 0; i < codec->group; i++) {
        y[i] = x[i] < -tau ? -tau : x[i] > tau ? tau : x[i];
        if (y[i] < lo) lo = y[i];
        if (y[i] > hi) hi = y[i];
    }
    if (!ref_metadata(codec->wide, ref_f32(hi - lo) / levels, scale)) return 0;
    if (!ref_metadata(codec->wide, lo + 0.0f, low)) return 0;
    for (i = 0; i < codec->group; i++) {
        float above = ref_f32(y[i] - *low), s = *scale;
        if (s == 0) code[i] = 0;
        else if (codec->bits == 2)
            code[i] = (above >= ref_f32(0.5f * s)) + (above >= ref_f32(1.5f * s)) + (above >= ref_f32(2.5f * s));
        else {
            float q = ref_f32(ref_f32(above / s) + 0.5f);
            code[i] = q < 0 ? 0 : q > 15 ? 15 : (int)q;
        }
    }
    return 1;
}

/* scale: not yet rounded */
static int ref_unbiased_group(const ref_codec *codec, const float *x, int *code, float *scale)
{
    static const float T2[4] = { 0.79656f, 0.945915f, 1.115184f, 1.29441f };
    static const float T4[4] = { 0.26816f, 0.31844f, 0.375424f, 0.43576f };
    int n = codec->group, i, a;
    float square = ref_sum(n, x, x), r = sqrtf(ref_f32(square / (float)n)), best = 0, best_d = 0;
    if (!ref_is_finite(square)) return 0;
    *scale = 0;
    for (a = 0; a < 4; a++) {
        float t = ref_f32(r * (codec->bits == 2 ? T2[a] : T4[a])), u[REF_DIM_MAX], d, score;
        if (!(t > 0)) { for (i = 0; i < n; i++) code[i] = 0; return 1; }
        for (i = 0; i < n; i++) {
            if (codec->bits == 2) u[i] = (float)((x[i] >= -t) + (x[i] >= 0) + (x[i] >= t)) - 1.5f;
            else u[i] = fminf(fmaxf(floorf(ref_f32(x[i] / t)) + 0.5f, -7.5f), 7.5f);
        }
        d = ref_sum(n, x, u);
        score = ref_f32(ref_f32(d * d) / ref_sum(n, u, u));
        if (a && !(score > best)) continue;
        best = score;
        best_d = d;
        for (i = 0; i < n; i++) code[i] = (int)(u[i] + (codec->bits == 2 ? 1.5f : 7.5f));
    }
    *scale = ref_f32(square / best_d);
    return ref_is_finite(*scale);
}

/* out = x m, each a chain over the inputs */
static void ref_row_times(int dim, const float *x, const float *m, float *out)
{
    int i, j;
    for (j = 0; j < dim; j++)
        for (out[j] = 0, i = 0; i < dim; i++) out[j] = fmaf(x[i], m[i * dim + j], out[j]);
}

/* One channel takes the level that makes e M e^T least, given the others; g is the gradient (s u - x) M, or half of
   it. */
static void ref_refine_channel(const ref_codec *codec, int dim, int c, float s, float *u, float *g)
{
    float top = codec->bits == 2 ? 1.5f : 7.5f, r = ref_f32(s * codec->metric[c * dim + c]), level, d;
    int j;
    if (!(s > 0) || !(r > 0)) return;
    level = floorf(ref_f32(u[c] - ref_f32(g[c] / r))) + 0.5f;
    level = level >= -top ? level : -top;
    level = level <= top ? level : top;
    d = ref_f32(s * (level - u[c]));
    if (d == 0 || d != d) return;
    u[c] = level;
    for (j = 0; j < dim; j++) g[j] = fmaf(d, codec->metric[c * dim + j], g[j]);
}

/* From the plain codes and scales to those for the metric, or not if a scale would change too much. */
static void ref_refine(const ref_codec *codec, int dim, const float *x, ref_row *row)
{
    float u[REF_DIM_MAX], w[REF_DIM_MAX], z[REF_DIM_MAX], g[REF_DIM_MAX], s[REF_GROUPS_MAX];
    float top = codec->bits == 2 ? 1.5f : 7.5f;
    int n = codec->group, groups = dim / n, pass, i;
    for (i = 0; i < groups; i++) s[i] = row->scale[i];
    for (i = 0; i < dim; i++) u[i] = s[i / n] > 0 ? (float)row->code[i] - top : 0;
    ref_row_times(dim, x, codec->metric, z);
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < dim; i++) w[i] = ref_f32(s[i / n] * u[i]);
        ref_row_times(dim, w, codec->metric, g);
        for (i = 0; i < dim; i++) g[i] = ref_f32(g[i] - z[i]);
        for (i = 0; i < dim; i++) ref_refine_channel(codec, dim, i, s[i / n], u, g);
        for (i = 0; i < groups; i++) {
            float below = ref_sum(n, u + i * n, z + i * n);
            if (row->scale[i] > 0) s[i] = below > 0 ? ref_f32(ref_sum(n, x + i * n, z + i * n) / below) : 0;
        }
    }
    for (i = 0; i < groups; i++) {
        double ratio = (double)s[i] / (double)row->scale[i];
        if (row->scale[i] == 0) continue;
        if (!(ratio >= 0.5 && ratio <= 2) || (!codec->wide && s[i] > 65504) || !ref_is_finite(s[i])) return;
    }
    for (i = 0; i < dim; i++) if (row->scale[i / n] > 0) row->code[i] = (int)(u[i] + top);
    for (i = 0; i < groups; i++) row->scale[i] = s[i];
}

static int ref_encode_row(const ref_codec *codec, int dim, const float *x, ref_row *row)
{
    int i, g, ok = 1;
    float tau;
    for (i = 0; i < dim; i++) if (!ref_is_finite(x[i])) return 0;
    tau = ref_threshold(dim, x, codec->clip);
    for (g = 0; g < dim / codec->group && ok; g++) {
        const float *part = x + g * codec->group;
        int *code = row->code + g * codec->group;
        row->low[g] = 0;
        if (codec->fit == OSCAR_CLIP) ok = ref_clip_group(codec, part, tau, code, &row->scale[g], &row->low[g]);
        else ok = ref_unbiased_group(codec, part, code, &row->scale[g]);
    }
    if (!ok || codec->fit == OSCAR_CLIP) return ok;
    if (codec->metric) ref_refine(codec, dim, x, row);
    for (g = 0; g < dim / codec->group && ok; g++) ok = ref_metadata(codec->wide, row->scale[g], &row->scale[g]);
    return ok;
}

/* Codes, low bits first, then the scales, then the minima (CLIP). Returns the size; out NULL asks for it only. */
static size_t ref_pack_row(const ref_codec *codec, int dim, const ref_row *row, unsigned char *out)
{
    size_t codes = (size_t)(dim * codec->bits / 8), each = codec->wide ? 4 : 2, groups = (size_t)(dim / codec->group);
    size_t size = codes + each * groups * (codec->fit == OSCAR_CLIP ? 2 : 1), g;
    int i, a_byte = 8 / codec->bits;
    if (!out) return size;
    memset(out, 0, size);
    for (i = 0; i < dim; i++)
        out[i / a_byte] = (unsigned char)(out[i / a_byte] + (row->code[i] << i % a_byte * codec->bits));
    for (g = 0; g < groups * (codec->fit == OSCAR_CLIP ? 2 : 1); g++) {
        float value = g < groups ? row->scale[g] : row->low[g - groups];
        if (codec->wide) ref_little_float(out + codes + 4 * g, value);
        else ref_little16(out + codes + 2 * g, ref_half_bits(value));
    }
    return size;
}

/* From bytes to floats: fmaf(c, s, lo), or u s. */
static void ref_unpack_row(const ref_codec *codec, int dim, const unsigned char *in, float *x)
{
    int groups = dim / codec->group, a_byte = 8 / codec->bits, i;
    const unsigned char *meta = in + dim * codec->bits / 8;
    for (i = 0; i < dim; i++) {
        int g = i / codec->group, c = in[i / a_byte] >> i % a_byte * codec->bits & ((1 << codec->bits) - 1);
        float s = codec->wide ? ref_read_float(meta + 4 * g) : ref_half_value(ref_read16(meta + 2 * g)), lo;
        if (codec->fit != OSCAR_CLIP) { x[i] = ref_f32(((float)c - (codec->bits == 2 ? 1.5f : 7.5f)) * s); continue; }
        g += groups;
        lo = codec->wide ? ref_read_float(meta + 4 * g) : ref_half_value(ref_read16(meta + 2 * g));
        x[i] = fmaf((float)c, s, lo);
    }
}

/* == 3 TRANSFORMS == */

static int ref_hadamard_block(int dim) { return dim & -dim; }

static void ref_butterfly(int dim, float *x)
{
    int block = ref_hadamard_block(dim), stride, i;
    for (stride = 1; stride < block; stride *= 2)
        for (i = 0; i < dim; i++)
            if (!(i / stride % 2)) {
                float a = x[i], b = x[i + stride];
                x[i] = ref_f32(a + b);
                x[i + stride] = ref_f32(a - b);
            }
}

static float ref_hadamard_scale(int dim) { return (float)(1 / sqrt((double)ref_hadamard_block(dim))); }

/* x' = (x - m) F in float, as bytes are made. pair NULL: HADAMARD without mean. */
static void ref_forward(const oscar_pair *pair, int dim, const float *x, float *out)
{
    float centred[REF_DIM_MAX];
    int i, j;
    for (i = 0; i < dim; i++) centred[i] = pair && pair->mean ? ref_f32(x[i] - pair->mean[i]) : x[i];
    if (pair && pair->kind == OSCAR_DENSE) {
        for (j = 0; j < dim; j++) {
            float p = 0;
            for (i = 0; i < dim; i++) p = fmaf(centred[i], pair->to[i * dim + j], p);
            out[j] = p;
        }
        return;
    }
    if (!pair || pair->kind == OSCAR_HADAMARD) {
        ref_butterfly(dim, centred);
        for (i = 0; i < dim; i++) centred[i] = ref_f32(centred[i] * ref_hadamard_scale(dim));
    }
    memcpy(out, centred, (size_t)dim * sizeof out[0]);
}

static const float *ref_dual(const oscar_pair *pair) { return pair->dual ? pair->dual : pair->to; }

/* x = x' B^T + m in float, as page_read gives it before the last rounding. */
static void ref_back(const oscar_pair *pair, int dim, const float *x, float *out)
{
    float h[REF_DIM_MAX];
    int i, j;
    memcpy(h, x, (size_t)dim * sizeof h[0]);
    if (!pair || pair->kind == OSCAR_HADAMARD) ref_butterfly(dim, h);
    for (i = 0; i < dim; i++) {
        float m = pair && pair->mean ? pair->mean[i] : 0.0f, p = 0;
        if (!pair || pair->kind == OSCAR_HADAMARD) { out[i] = fmaf(h[i], ref_hadamard_scale(dim), m); continue; }
        if (pair->kind == OSCAR_IDENTITY) { out[i] = ref_f32(h[i] + m); continue; }
        for (j = 0; j < dim; j++) p = fmaf(h[j], ref_dual(pair)[i * dim + j], p);
        out[i] = ref_f32(p + m);
    }
}

/* Row i of the Hadamard matrix with blocks of `block`, times x: entries (-1)^popcount(i & j) / sqrt(block) inside i's
   block, 0 elsewhere. */
static double ref_hadamard_dot(int block, int i, const double *x)
{
    double sum = 0;
    int first = i / block * block, j;
    for (j = 0; j < block; j++) {
        int common = (i - first) & j;
        common ^= common >> 8;
        common ^= common >> 4;
        common ^= common >> 2;
        common ^= common >> 1;                  /* bit 0: the parity of popcount */
        sum += common & 1 ? -x[first + j] : x[first + j];
    }
    return sum / sqrt((double)block);
}

/* The way back in double, entry by entry of the matrices. */
static void ref_back_double(const oscar_pair *pair, int dim, const double *x, double *out)
{
    int i, j;
    for (i = 0; i < dim; i++) {
        double sum = x[i];
        if (!pair || pair->kind == OSCAR_HADAMARD) sum = ref_hadamard_dot(ref_hadamard_block(dim), i, x);
        else if (pair->kind == OSCAR_DENSE) {
            const float *row = ref_dual(pair) + i * dim;
            for (sum = 0, j = 0; j < dim; j++) sum += x[j] * (double)row[j];
        }
        out[i] = sum + (pair && pair->mean ? (double)pair->mean[i] : 0);
    }
}

/* == 4 PAGES == */

typedef struct ref_page {
    oscar_layer layer;                          /* resolved by hand: no field is a default */
    int tokens;
    oscar_type type;                            /* of the windows */
    size_t k_codes, v_codes, k_scale, k_min, v_scale, v_min, head, mean, mean_scale, bytes;
} ref_page;

/* Fills in the defaults of a zeroed layer, as the table of oscar_layer says. */
static oscar_layer ref_resolve(const oscar_layer *in)
{
    oscar_layer out = *in;
    if (!out.v_dim) out.v_dim = out.k_dim;
    if (!out.k_bits) out.k_bits = 2;
    if (!out.v_bits) out.v_bits = 2;
    if (out.k_clip == 0) out.k_clip = 0.96;
    if (out.v_clip == 0) out.v_clip = 0.92;
    if (!out.k_group) out.k_group = out.k_dim;
    if (!out.v_group) out.v_group = out.v_dim;
    if (out.scale == 0) out.scale = (float)(1 / sqrt((double)out.k_dim));
    return out;
}

static int ref_has_mean(const oscar_layer *layer) { return layer->k_bits != 16 && layer->k_page_mean != -1; }

static size_t ref_up128(size_t x) { return (x + 127) / 128 * 128; }

/* The arrays of a page one behind the other, in the order in which the format lists them. */
static ref_page ref_page_of(const oscar_layer *in, int tokens, oscar_type type)
{
    ref_page page;
    oscar_layer layer = ref_resolve(in);
    size_t p = (size_t)tokens, dk = (size_t)layer.k_dim, dv = (size_t)layer.v_dim, at = 0;
    size_t k_groups = dk / (size_t)layer.k_group, v_groups = dv / (size_t)layer.v_group, heads = (size_t)layer.kv_heads;
    page.layer = layer;
    page.tokens = tokens;
    page.type = type == OSCAR_TYPE_DEFAULT ? OSCAR_BF16 : type;
    page.k_codes = at;
    at += layer.k_bits == 16 ? p * dk * ref_type_size(page.type) : p * dk * (size_t)layer.k_bits / 8;
    page.v_codes = at;
    at += layer.v_bits == 16 ? p * dv * ref_type_size(page.type) : p * dv * (size_t)layer.v_bits / 8;
    page.k_scale = page.k_min = page.v_scale = page.v_min = page.mean = page.mean_scale = REF_ABSENT;
    if (layer.k_bits != 16) { page.k_scale = at; at += k_groups * p * 2; }
    if (layer.k_bits != 16 && layer.k_fit == OSCAR_CLIP) { page.k_min = at; at += k_groups * p * 2; }
    if (layer.v_bits != 16) { page.v_scale = at; at += v_groups * p * 2; }
    if (layer.v_bits != 16 && layer.v_fit == OSCAR_CLIP) { page.v_min = at; at += v_groups * p * 2; }
    page.head = ref_up128(at);
    page.bytes = heads * page.head;
    if (ref_has_mean(&layer)) {
        page.mean = page.bytes;
        page.mean_scale = page.mean + heads * dk;
        page.bytes = ref_up128(page.mean_scale + 2 * heads);
    }
    return page;
}

/* What differs between the K and the V side. */
typedef struct ref_side {
    ref_codec codec;
    int is_v, dim, bits;
    size_t codes, scale, low;
    const oscar_pair *pair;                     /* NULL: HADAMARD */
    int transformed;
} ref_side;

static ref_side ref_side_of(const ref_page *page, int is_v, int head)
{
    const oscar_layer *l = &page->layer;
    ref_side s;
    s.is_v = is_v;
    s.dim = is_v ? l->v_dim : l->k_dim;
    s.bits = is_v ? l->v_bits : l->k_bits;
    s.codes = (is_v ? page->v_codes : page->k_codes) + (size_t)head * page->head;
    s.scale = (is_v ? page->v_scale : page->k_scale) + (size_t)head * page->head;
    s.low = (is_v ? page->v_min : page->k_min) + (size_t)head * page->head;
    s.codec.fit = is_v ? l->v_fit : l->k_fit;
    s.codec.bits = s.bits;
    s.codec.group = is_v ? l->v_group : l->k_group;
    s.codec.clip = is_v ? l->v_clip : l->k_clip;
    s.codec.wide = 0;
    s.codec.metric = NULL;
    s.pair = is_v ? (l->v ? l->v + head : NULL) : (l->k ? l->k + head : NULL);
    s.transformed = s.bits != 16 && !(is_v && l->v_folded);
    if (s.pair && !is_v) s.codec.metric = s.pair->metric;
    return s;
}

/* Byte and shift of one code: w = 32 / bits codes a word; K: word (c / w) 16 + t, i = c mod w; V: word (t / w) D + c,
   i = t mod w; byte i mod 4, shift bits (i / 4); t the token in its tile of 16. */
static size_t ref_code_byte(const ref_side *side, int token, int channel, int *shift)
{
    int w = 32 / side->bits, t = token % 16, tile = token / 16;
    int word = side->is_v ? t / w * side->dim + channel : channel / w * 16 + t;
    int i = side->is_v ? t % w : channel % w;
    *shift = side->bits * (i / 4);
    return side->codes + (size_t)tile * (size_t)(2 * side->dim * side->bits) + (size_t)(4 * word + i % 4);
}

static float ref_view_value(const oscar_view *view, int heads, int dim, int token, int head, int channel)
{
    ptrdiff_t token_stride = view->token_stride ? view->token_stride : (ptrdiff_t)heads * dim;
    ptrdiff_t head_stride = view->head_stride ? view->head_stride : dim;
    return ref_get(view->type, view->data, token * token_stride + head * head_stride + channel);
}

/* The page's mean row of transformed keys x [P][D]: signed half-integers n [D] and the stored scale. */
static int ref_mean_row(int tokens, int dim, const float *x, float *n, float *scale)
{
    float top = 0, z[REF_DIM_MAX];
    int j, t;
    for (j = 0; j < dim; j++) {
        z[j] = 0;
        for (t = 0; t < tokens; t++) z[j] = fmaf(x[t * dim + j], (float)(1.0 / tokens), z[j]);
        if (!ref_is_finite(z[j])) return 0;
        if (fabsf(z[j]) > top) top = fabsf(z[j]);
    }
    if (!ref_metadata(0, ref_f32(top / 127.5f), scale)) return 0;
    for (j = 0; j < dim; j++)
        n[j] = *scale == 0 ? 0.5f : fminf(fmaxf(floorf(ref_f32(z[j] / *scale)) + 0.5f, -127.5f), 127.5f);
    return 1;
}

/* One side of one head. x: [P][D] rounded to the window type. raw: rows kept by the page mean's sign bit. */
static int ref_write_side(const ref_page *page, const ref_side *side, int head, float *x, unsigned char *out)
{
    int dim = side->dim, tokens = page->tokens, mean = !side->is_v && ref_has_mean(&page->layer), t, i, g;
    float n[REF_DIM_MAX], y[REF_DIM_MAX], mean_scale = 0;
    for (i = 0; i < tokens * dim; i++) if (!ref_is_finite(x[i])) return 0;
    if (side->bits == 16) {
        for (i = 0; i < tokens * dim; i++) {
            unsigned char *p = out + side->codes + (size_t)i * ref_type_size(page->type);
            uint16_t half;
            if (ref_type_size(page->type) == 4) { ref_little_float(p, x[i]); continue; }
            ref_put(page->type, &half, 0, x[i]);
            ref_little16(p, half);
        }
        return 1;
    }
    if (side->transformed) for (t = 0; t < tokens; t++) ref_forward(side->pair, dim, x + t * dim, x + t * dim);
    for (i = 0; i < tokens * dim; i++) if (!ref_is_finite(x[i])) return 0;
    if (mean) {
        if (!ref_mean_row(tokens, dim, x, n, &mean_scale)) return 0;
        for (i = 0; i < dim; i++) out[page->mean + (size_t)(head * dim + i)] = (unsigned char)(n[i] + 127.5f);
        ref_little16(out + page->mean_scale + 2 * head, ref_half_bits(mean_scale));
    }
    for (t = 0; t < tokens; t++) {
        static ref_row row;
        const float *kept = x + t * dim;
        unsigned sign = 0;
        if (mean) {
            float with, without = ref_sum(dim, kept, kept);
            for (i = 0; i < dim; i++) y[i] = fmaf(-n[i], mean_scale, kept[i]);
            with = ref_sum(dim, y, y);
            if (!ref_is_finite(with) || !ref_is_finite(without)) return 0;
            if (with < without) kept = y;
            else sign = 0x8000;
        }
        if (!ref_encode_row(&side->codec, dim, kept, &row)) return 0;
        for (i = 0; i < dim; i++) {
            int shift;
            size_t at = ref_code_byte(side, t, i, &shift);
            out[at] = (unsigned char)(out[at] | row.code[i] << shift);
        }
        for (g = 0; g < dim / side->codec.group; g++) {
            size_t at = 2 * (size_t)(g * tokens + t);
            ref_little16(out + side->scale + at, ref_half_bits(row.scale[g]) | sign);
            if (side->codec.fit == OSCAR_CLIP) ref_little16(out + side->low + at, ref_half_bits(row.low[g]));
        }
    }
    return 1;
}

/* Writes a page of page->bytes bytes. */
static int ref_page_write(const ref_page *page, const oscar_view *k, const oscar_view *v, unsigned char *out)
{
    int head, is_v, t, i, ok = 1;
    memset(out, 0, page->bytes);
    for (head = 0; head < page->layer.kv_heads && ok; head++)
        for (is_v = 0; is_v < 2 && ok; is_v++) {
            ref_side side = ref_side_of(page, is_v, head);
            float *x = (float *)malloc((size_t)(page->tokens * side.dim) * sizeof(float));
            for (t = 0; t < page->tokens; t++)
                for (i = 0; i < side.dim; i++)
                    x[t * side.dim + i] = ref_round(page->type, ref_view_value(is_v ? v : k, page->layer.kv_heads,
                                                                               side.dim, t, head, i));
            ok = ref_write_side(page, &side, head, x, out);
            free(x);
        }
    return ok;
}

/* Whether a row of keys is stored without its page's mean. */
static int ref_sign(const ref_page *page, const unsigned char *bytes, int head, int token)
{
    ref_side side = ref_side_of(page, 0, head);
    return (int)(ref_read16(bytes + side.scale + 2 * token) >> 15);
}

/* A row as it is in the page, before the way back: exact in double (exact), and rounded as page_read rounds
   (rounded); either may be NULL. */
static void ref_read_row(const ref_page *page, const unsigned char *bytes, int is_v, int head, int token,
                         double *exact, float *rounded)
{
    ref_side side = ref_side_of(page, is_v, head);
    int dim = side.dim, i, mean = !is_v && ref_has_mean(&page->layer);
    double middle = side.bits == 2 ? 1.5 : 7.5;
    for (i = 0; i < dim; i++) {
        double value;
        float near;
        if (side.bits == 16) {
            const unsigned char *p = bytes + side.codes + (size_t)(token * dim + i) * ref_type_size(page->type);
            uint16_t half;
            if (ref_type_size(page->type) == 4) near = ref_read_float(p);
            else {
                half = (uint16_t)ref_read16(p);
                near = ref_get(page->type, &half, 0);
            }
            value = (double)near;
        } else {
            size_t at = 2 * (size_t)(i / side.codec.group * page->tokens + token);
            unsigned half = ref_read16(bytes + side.scale + at);
            int shift, code = bytes[ref_code_byte(&side, token, i, &shift)];
            float s = ref_half_value(half & (mean ? 0x7fffu : 0xffffu));
            code = code >> shift & ((1 << side.bits) - 1);
            if (side.codec.fit == OSCAR_CLIP) {
                float lo = ref_half_value(ref_read16(bytes + side.low + at));
                value = (double)lo + code * (double)s;
                near = fmaf((float)code, s, lo);
            } else {
                value = (code - middle) * (double)s;
                near = (float)value;
            }
            if (mean && !(half & 0x8000)) {
                float n = (float)bytes[page->mean + (size_t)(head * dim + i)] - 127.5f;
                float s_m = ref_half_value(ref_read16(bytes + page->mean_scale + 2 * head));
                value += (double)n * (double)s_m;
                near = fmaf(n, s_m, near);
            }
        }
        if (exact) exact[i] = value;
        if (rounded) rounded[i] = near;
    }
}

/* The row in the space it came from (a folded V stays folded), in double. */
static void ref_row_double(const ref_page *page, const unsigned char *bytes, int is_v, int head, int token, double *out)
{
    ref_side side = ref_side_of(page, is_v, head);
    double x[REF_DIM_MAX];
    ref_read_row(page, bytes, is_v, head, token, x, NULL);
    if (side.transformed) ref_back_double(side.pair, side.dim, x, out);
    else memcpy(out, x, (size_t)side.dim * sizeof out[0]);
}

/* The same in float, operation by operation as page_read has it, rounded to type. */
static void ref_row_float(const ref_page *page, const unsigned char *bytes, int is_v, int head, int token,
                          oscar_type type, float *out)
{
    ref_side side = ref_side_of(page, is_v, head);
    float x[REF_DIM_MAX];
    int i;
    ref_read_row(page, bytes, is_v, head, token, NULL, x);
    if (side.transformed) ref_back(side.pair, side.dim, x, x);
    for (i = 0; i < side.dim; i++) out[i] = ref_output(type, x[i]);
}

/* == 5 ATTENTION == */

/* One query over n keys: k [n][dk], v [n][dv], visible [n]; logit = softcap(scale q.k); sink: a learned logit, or NULL.
   Without a visible key lse = -inf (or the sink's logit) and o = 0. */
static void ref_attend(int n, int dk, int dv, const double *q, const double *k, const double *v,
                       const unsigned char *visible, double scale, double softcap, const float *sink,
                       double *o, double *lse)
{
    double top = sink ? (double)*sink : -HUGE_VAL, sum = 0, *logit = (double *)malloc((size_t)(n + 1) * sizeof(double));
    int i, j;
    for (j = 0; j < n; j++) {
        double x = 0;
        for (i = 0; i < dk; i++) x += q[i] * k[j * dk + i];
        x *= scale;
        if (softcap > 0) x = softcap * tanh(x / softcap);
        logit[j] = visible[j] ? x : -HUGE_VAL;
        if (logit[j] > top) top = logit[j];
    }
    for (i = 0; i < dv; i++) o[i] = 0;
    *lse = -HUGE_VAL;
    if (top > -HUGE_VAL) {
        for (j = 0; j < n; j++) {
            double p = visible[j] ? exp(logit[j] - top) : 0;
            sum += p;
            for (i = 0; i < dv; i++) if (visible[j]) o[i] += p * v[j * dv + i];
        }
        if (sink) sum += exp((double)*sink - top);
        for (i = 0; i < dv; i++) o[i] /= sum;
        *lse = top + log(sum);
    }
    free(logit);
}

/* |a - b| / |b| over n values; |a| where b is 0. */
static double ref_relative(int n, const float *a, const double *b)
{
    double difference = 0, length = 0;
    int i;
    for (i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        length += b[i] * b[i];
    }
    return difference != difference ? HUGE_VAL : length > 0 ? sqrt(difference / length) : sqrt(difference);
}

/* == 6 MATERIAL FOR TESTS == */

/* m (I - 2 v v^T / |v|^2) for m [dim][dim] */
static void ref_reflect(int dim, double *m, const double *v)
{
    double square = 0, dot;
    int i, j;
    for (i = 0; i < dim; i++) square += v[i] * v[i];
    for (i = 0; i < dim; i++) {
        for (dot = 0, j = 0; j < dim; j++) dot += m[i * dim + j] * v[j];
        for (j = 0; j < dim; j++) m[i * dim + j] -= 2 * dot / square * v[j];
    }
}

/* Metrics by number. STEEP: with very heavy directions, so that rounding shows in the codes; those after it are bad. */
enum { REF_METRIC_USUAL, REF_METRIC_STEEP, REF_METRIC_ZERO, REF_METRIC_NEGATIVE, REF_METRIC_WILD, REF_METRIC_HUGE,
       REF_METRICS };

/* A random metric [dim][dim]: a few heavy directions and half of the identity. */
static void ref_random_metric(test_random *random, int kind, int dim, float *m)
{
    double direction[REF_DIM_MAX];
    int i, j, k, few = 4 + dim / 8 < 20 ? 4 + dim / 8 : 20, plain = kind == REF_METRIC_ZERO || kind >= REF_METRIC_WILD;
    for (i = 0; i < dim * dim; i++) {
        m[i] = i % (dim + 1) ? 0.0f : 0.5f;
        if (kind == REF_METRIC_WILD) m[i] = (float)random_normal(random);
        if (kind == REF_METRIC_HUGE) m[i] = (float)(random_normal(random) * 1e37);
        if (kind == REF_METRIC_ZERO) m[i] = 0;
    }
    for (k = 0; k < few && !plain; k++) {
        double weight = exp(random_normal(random)) * (kind == REF_METRIC_STEEP && k < 3 ? 1000 : 1) / few;
        for (i = 0; i < dim; i++) direction[i] = random_normal(random);
        for (i = 0; i < dim; i++)
            for (j = 0; j < dim; j++) m[i * dim + j] += (float)(weight * (direction[i] * direction[j]));
    }
    for (i = 0; i < dim * dim && kind == REF_METRIC_NEGATIVE; i++) m[i] = -m[i];
}

/* A random pair F = Q1 diag(d) Q2, B = Q1 diag(1 / d) Q2, Q1 and Q2 products of reflections, d in 0.5 .. 2, or 1 where
   orthogonal (then without dual). room: 2 dim^2 + dim floats, which the pair points at. */
static oscar_pair ref_random_pair(test_random *random, oscar_kind kind, int dim, int with_mean, int orthogonal,
                                  float *room)
{
    oscar_pair pair;
    size_t square = (size_t)dim * (size_t)dim;
    float *mean = room + 2 * square;
    int i, j;
    memset(&pair, 0, sizeof pair);
    pair.kind = kind;
    pair.dim = dim;
    for (i = 0; i < dim; i++) mean[i] = (float)(random_normal(random) * 0.7);
    if (with_mean) pair.mean = mean;
    if (kind == OSCAR_DENSE) {
        double *f = (double *)calloc(2 * square, sizeof(double)), *b = f + square, v[REF_DIM_MAX] = { 0 };
        for (i = 0; i < dim; i++) f[i * dim + i] = 1;
        for (j = 0; j < 2; j++) {
            for (i = 0; i < dim; i++) v[i] = random_normal(random);
            ref_reflect(dim, f, v);
        }
        memcpy(b, f, square * sizeof b[0]);
        for (j = 0; j < dim && !orthogonal; j++) {
            double d = j == 0 ? 2 : 0.5 * pow(4, random_unit(random));
            for (i = 0; i < dim; i++) { f[i * dim + j] *= d; b[i * dim + j] /= d; }
        }
        for (j = 0; j < 2; j++) {
            for (i = 0; i < dim; i++) v[i] = random_normal(random);
            ref_reflect(dim, f, v);
            ref_reflect(dim, b, v);
        }
        for (i = 0; i < dim * dim; i++) { room[i] = (float)f[i]; room[square + (size_t)i] = (float)b[i]; }
        pair.to = room;
        pair.dual = orthogonal ? NULL : room + square;
        pair.norm = orthogonal ? 0.0f : 2.0f;
        free(f);
    }
    return pair;
}

/* A layer with every choice drawn at random: bits 2, 4, 16, both fits, groups, page mean, fold, pairs of every kind.
   Some K have metrics, mostly usual ones. k_dim, v_dim and kv_heads are the caller's. room: kv_heads (3 dk^2 + dk +
   2 dv^2 + dv) floats; pairs: 2 kv_heads. */
static oscar_layer ref_random_layer(test_random *random, int kv_heads, int query_group, int dk, int dv, float *room,
                                    oscar_pair *pairs)
{
    static const int bits[8] = { 0, 2, 2, 4, 4, 2, 4, 16 };
    static const double clips[6] = { 0, 0.96, 0.8, -1, 1, 2 };
    oscar_layer layer;
    int head, k_kind = random_below(random, 5), v_kind = random_below(random, 5), with_mean = random_below(random, 2);
    int with_metric = random_below(random, 3) == 0;
    memset(&layer, 0, sizeof layer);
    layer.kv_heads = kv_heads;
    layer.q_heads = kv_heads * query_group;
    layer.k_dim = dk;
    layer.v_dim = dv == dk && random_below(random, 2) ? 0 : dv;
    layer.k_bits = bits[random_below(random, 8)];
    layer.v_bits = bits[random_below(random, 8)];
    layer.k_fit = random_below(random, 3) == 0 ? OSCAR_CLIP : OSCAR_UNBIASED;
    layer.v_fit = random_below(random, 3) == 0 ? OSCAR_CLIP : OSCAR_UNBIASED;
    layer.k_clip = clips[random_below(random, 6)];
    layer.v_clip = clips[random_below(random, 6)];
    do layer.k_group = 16 * random_below(random, dk / 16 + 1); while (layer.k_group && dk % layer.k_group);
    do layer.v_group = 16 * random_below(random, dv / 16 + 1); while (layer.v_group && dv % layer.v_group);
    layer.k_page_mean = random_below(random, 3) == 0 ? -1 : 0;
    layer.v_folded = random_below(random, 4) == 0;
    for (head = 0; head < kv_heads; head++) {
        size_t k_room = 3 * (size_t)dk * (size_t)dk + (size_t)dk, v_room = 2 * (size_t)dv * (size_t)dv + (size_t)dv;
        float *k_at = room + (size_t)head * (k_room + v_room), *v_at = k_at + k_room;
        pairs[head] = ref_random_pair(random, k_kind < 2 ? OSCAR_DENSE : (oscar_kind)(k_kind - 2), dk, with_mean,
                                      k_kind == 1, k_at);
        pairs[kv_heads + head] = ref_random_pair(random, v_kind < 2 ? OSCAR_DENSE : (oscar_kind)(v_kind - 2), dv, 0,
                                                 v_kind == 1, v_at);
        if (!with_metric || random_below(random, 5) == 0) continue;
        pairs[head].metric = v_at - dk * dk;
        ref_random_metric(random, random_below(random, 4) ? REF_METRIC_USUAL : random_below(random, REF_METRICS), dk,
                          v_at - dk * dk);
    }
    if (random_below(random, 5)) layer.k = pairs;
    if (random_below(random, 5)) layer.v = pairs + kv_heads;
    return layer;
}

#endif
