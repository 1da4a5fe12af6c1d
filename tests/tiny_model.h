/* tiny_model.h - random models of a few ten thousand weights as GGUF files in memory, and their forward pass in double,
   by plain loops that follow the definitions of the architectures. Include it behind examples/llm.c.

       gguf_build b;
       tiny_build(&tiny_models[0], NULL, &b);                 NULL: nothing is wrong with it
       ... gguf_parse(b.at, b.size, &g) ...
       tiny_reference(&tiny_models[0], &g, ids, tokens, logits);
       free(b.at);

   Their tokens are the 256 bytes, <s> (256), </s> (257), and pairs of letters. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include "gguf_build.h"
#include "test.h"

/* Zero is what the file leaves out. */
typedef struct tiny {
    const char *arch;
    int layers, width, q_heads, kv_heads, k_dim, v_dim, hidden, vocabulary, context;
    int types[4];                    /* of the matrices, by turns */
    int biases;                      /* 1: of q, k, v, 2: of the attention's output, too */
    int tied, rope_dims, rope_freqs;
    int window, pattern, pattern_list;    /* pattern_list: the pattern is written as one bool a layer */
    double base, local_base, scaling, attention_softcap, final_softcap;
    const char *scaling_type;
    int tokens, add_bos;             /* tokens of the vocabulary, 0 = as many as embeddings */
} tiny;

static const tiny tiny_models[] = {
    { "llama", 3, 32, 4, 2, 16, 0, 48, 300, 512, { 0, 0, 0, 0 }, 0, 0, 0, 1, 0, 0, 0, 5000, 0, 0, 0, 0, NULL, 0, 1 },
    { "llama", 2, 64, 6, 3, 32, 16, 48, 301, 512, { TYPE_F16, TYPE_BF16, TYPE_F32, TYPE_F32 }, 2, 1, 16, 0, 0, 0, 0,
      0, 0, 4, 0, 0, "linear", 0, 0 },
    { "llama", 2, 96, 3, 1, 32, 64, 64, 300, 512, { TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0 }, 0, 0, 0, 0, 5, 0, 0,
      0, 777, 0, 3, 0, NULL, 0, 0 },
    { "qwen2", 2, 64, 4, 1, 32, 0, 96, 300, 512, { TYPE_Q8_0, TYPE_Q8_0, TYPE_Q4_0, TYPE_Q8_0 }, 1, 1, 0, 0, 0, 0, 0,
      1e6, 0, 0, 0, 0, NULL, 0, 0 },
    { "qwen3", 2, 64, 4, 2, 32, 0, 64, 300, 512, { TYPE_Q4_0, TYPE_F32, TYPE_F32, TYPE_F32 }, 0, 0, 0, 0, 0, 0, 0,
      1e6, 0, 3, 0, 0, "none", 0, 0 },
    { "gemma3", 4, 48, 4, 2, 32, 0, 64, 300, 512, { 0, 0, 0, 0 }, 0, 1, 0, 0, 17, 3, 0, 1e6, 0, 8, 3, 5, "linear", 0,
      1 },
    { "gemma3", 2, 256, 4, 1, 64, 0, 256, 300, 512, { TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K, TYPE_Q8_0 }, 0, 1, 0, 0, 9, 2,
      1, 1e6, 20000, 0, 0, 0, NULL, 0, 0 },
    { "gemma3", 62, 32, 1, 1, 16, 0, 16, 270, 512, { 0, 0, 0, 0 }, 0, 1, 0, 0, 5, 0, 0, 1e6, 0, 0, 0, 0, NULL, 0, 0 }
};

enum { TINY_LLAMA, TINY_ODD_LLAMA, TINY_BLOCKS, TINY_QWEN2, TINY_QWEN3, TINY_GEMMA, TINY_BIG_GEMMA, TINY_DEEP_GEMMA,
       TINY_MODELS };

/* What is wrong in a file: a key (absent, or of another value), or tensor number `tensor`. */
enum { FLAW_NONE, FLAW_ABSENT, FLAW_LENGTH, FLAW_ROWS, FLAW_TYPE, FLAW_VECTOR };
typedef struct flaw {
    const char *key;      /* without the architecture's name */
    uint32_t type;        /* and bits, if what is not FLAW_ABSENT */
    uint64_t bits;
    int tensor, what;
} flaw;

typedef struct tiny_file {
    const tiny *t;
    const flaw *f;
    gguf_build keys, tensors, data;
    int key_count, tensor_count, seen, matrices;
    char names[512][40];      /* of all tensors, those left out by a flaw included */
    test_random random;
} tiny_file;

/* ---- weights ---- */

static void put_half(unsigned char *at, double value)
{
    float x = (float)value;
    uint16_t half;
    oscar_convert(1, OSCAR_F32, &x, OSCAR_F16, &half);
    at[0] = (unsigned char)(half & 255);
    at[1] = (unsigned char)(half >> 8);
}

/* Random blocks: all bytes are random but the scales (and minima), so that values are about +- scale around 0. */
static void tiny_blocks(test_random *r, int type, int64_t n, double scale, unsigned char *out)
{
    static const struct { int type, values, bytes, d, m; double divide, minimum; } blocks[] = {
        { TYPE_Q8_0, 32, 34, 0, -1, 74, 0 }, { TYPE_Q4_0, 32, 18, 0, -1, 4.6, 0 },
        { TYPE_Q4_1, 32, 20, 0, 2, 4.6, -7.5 }, { TYPE_Q5_0, 32, 22, 0, -1, 9.2, 0 },
        { TYPE_Q5_1, 32, 24, 0, 2, 9.2, -15.5 }, { TYPE_Q4_K, 256, 144, 0, 2, 200, 7.5 },
        { TYPE_Q5_K, 256, 176, 0, 2, 450, 15.5 }, { TYPE_Q6_K, 256, 210, 208, -1, 1300, 0 }
    };
    int i = 0, j;
    while (blocks[i].type != type) i++;
    for (; n > 0; n -= blocks[i].values, out += blocks[i].bytes) {
        double d = scale / blocks[i].divide * (0.7 + 0.6 * random_unit(r));
        for (j = 0; j < blocks[i].bytes; j++) out[j] = (unsigned char)(random_u32(r) & 255);
        put_half(out + blocks[i].d, d);
        if (blocks[i].m >= 0) put_half(out + blocks[i].m, d * blocks[i].minimum);
    }
}

/* A row of n random values around `center`, which only single values have. */
static void tiny_row(test_random *r, int type, int64_t n, double scale, double center, unsigned char *out)
{
    int64_t i;
    if (type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16) { tiny_blocks(r, type, n, scale, out); return; }
    for (i = 0; i < n; i++) {
        float x = (float)(center + scale * random_normal(r));
        uint32_t bits = bits_of_float(x);
        int size = type == TYPE_F32 ? 4 : 2, j;   /* BF16 is the upper half */
        if (type == TYPE_F16) { put_half(out + 2 * i, (double)x); continue; }
        for (j = 0; j < size; j++) out[size * i + j] = (unsigned char)(bits >> 8 * (j + 4 - size) & 255);
    }
}

/* Puts a tensor into the file: a vector where rows is 0. */
static void tiny_tensor(tiny_file *f, int layer, const char *name, int64_t n, int64_t rows, double scale, double center)
{
    int type = rows ? f->t->types[f->matrices++ % 4] : TYPE_F32, what = FLAW_NONE;
    uint64_t shape[2];
    int64_t i, lines = rows ? rows : 1;
    size_t bytes;
    unsigned char *row;
    char *full = f->names[f->seen % 512];
    if (layer >= 0) snprintf(full, 40, "blk.%d.%s", layer, name);
    else snprintf(full, 40, "%s", name);
    if (f->f && !f->f->key && f->f->tensor == f->seen) what = f->f->what;
    f->seen++;
    if (what == FLAW_ABSENT) return;
    if (what == FLAW_LENGTH) n += 256;
    if (what == FLAW_ROWS) lines = rows += rows ? 1 : 2;
    if (what == FLAW_VECTOR) type = TYPE_BF16;
    shape[0] = (uint64_t)n;
    shape[1] = (uint64_t)rows;
    build_tensor(&f->tensors, full, rows ? 2 : 1, shape, what == FLAW_TYPE ? 16 : (uint32_t)type, f->data.size);
    f->tensor_count++;
    bytes = row_bytes(type, n);
    if (!bytes) abort();
    row = (unsigned char *)malloc(bytes);
    if (!row) abort();
    for (i = 0; i < lines; i++) {
        tiny_row(&f->random, type, n, scale, center, row);
        build_bytes(&f->data, row, bytes);
    }
    free(row);
    build_pad(&f->data, 32);
}

static void tiny_layer(tiny_file *f, int i)
{
    const tiny *t = f->t;
    int v_dim = t->v_dim ? t->v_dim : t->k_dim, q = t->q_heads * t->k_dim, k = t->kv_heads * t->k_dim;
    int v = t->kv_heads * v_dim, o = t->q_heads * v_dim, gemma = !strcmp(t->arch, "gemma3");
    double in = 1 / sqrt(t->width);
    tiny_tensor(f, i, "attn_norm.weight", t->width, 0, 0.2, 1);
    tiny_tensor(f, i, "attn_q.weight", t->width, q, 1.5 * in, 0);
    tiny_tensor(f, i, "attn_k.weight", t->width, k, 1.5 * in, 0);
    tiny_tensor(f, i, "attn_v.weight", t->width, v, in, 0);
    tiny_tensor(f, i, "attn_output.weight", o, t->width, 1 / sqrt(o), 0);
    tiny_tensor(f, i, "ffn_norm.weight", t->width, 0, 0.2, 1);
    tiny_tensor(f, i, "ffn_gate.weight", t->width, t->hidden, in, 0);
    tiny_tensor(f, i, "ffn_up.weight", t->width, t->hidden, in, 0);
    tiny_tensor(f, i, "ffn_down.weight", t->hidden, t->width, 1 / sqrt(t->hidden), 0);
    if (gemma || !strcmp(t->arch, "qwen3")) {
        tiny_tensor(f, i, "attn_q_norm.weight", t->k_dim, 0, 0.3, 1.5);
        tiny_tensor(f, i, "attn_k_norm.weight", t->k_dim, 0, 0.3, 1.5);
    }
    if (gemma) {
        tiny_tensor(f, i, "post_attention_norm.weight", t->width, 0, 0.2, 1);
        tiny_tensor(f, i, "post_ffw_norm.weight", t->width, 0, 0.2, 1);
    }
    if (t->biases) {
        tiny_tensor(f, i, "attn_q.bias", q, 0, 0.5, 0);
        tiny_tensor(f, i, "attn_k.bias", k, 0, 0.5, 0);
        tiny_tensor(f, i, "attn_v.bias", v, 0, 0.5, 0);
    }
    if (t->biases > 1) tiny_tensor(f, i, "attn_output.bias", t->width, 0, 0.5, 0);
}

/* ---- keys ---- */

/* Is the key to be written? Then with what is wrong about it, if anything is. */
static int tiny_key(tiny_file *f, const char *key, uint32_t *type, uint64_t *bits, char *full)
{
    int flawed = f->f && f->f->key && !strcmp(f->f->key, key);
    int whole = !strncmp(key, "general.", 8) || !strncmp(key, "tokenizer.", 10);
    if (flawed && f->f->what == FLAW_ABSENT) return 0;
    if (flawed) { *type = f->f->type; *bits = f->f->bits; }
    if (whole) snprintf(full, 80, "%s", key);
    else snprintf(full, 80, "%s.%s", f->t->arch, key);
    f->key_count++;
    return 1;
}

static void tiny_number(tiny_file *f, const char *key, uint32_t type, uint64_t bits)
{
    char full[80];
    if (!tiny_key(f, key, &type, &bits, full)) return;
    if (type == GGUF_STRING) build_string(&f->keys, full, "three");
    else build_number(&f->keys, full, type, bits);
}

static void tiny_int(tiny_file *f, const char *key, int value) { tiny_number(f, key, GGUF_UINT32, (uint64_t)value); }

static void tiny_real(tiny_file *f, const char *key, double value)
{
    tiny_number(f, key, GGUF_FLOAT32, bits_of_float((float)value));
}

static void tiny_text(tiny_file *f, const char *key, const char *value)
{
    char full[80];
    uint32_t type = GGUF_STRING;
    uint64_t bits = 0;
    if (!tiny_key(f, key, &type, &bits, full)) return;
    if (f->f && f->f->key && !strcmp(f->f->key, key)) value = "three";
    if (type == GGUF_STRING) build_string(&f->keys, full, value);
    else build_number(&f->keys, full, type, bits);
}

static void tiny_vocabulary(tiny_file *f)
{
    static const char letters[] = "etaoinshr";
    int i, count = f->t->tokens ? f->t->tokens : f->t->vocabulary, pairs = count - 258;
    char out[8];
    tiny_text(f, "tokenizer.ggml.model", "gpt2");
    tiny_text(f, "tokenizer.ggml.pre", "default");
    build_array(&f->keys, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)count);
    for (i = 0; i < 256; i++) build_text(&f->keys, out, build_spell_byte(i, out));
    build_text(&f->keys, "<s>", 3);
    build_text(&f->keys, "</s>", 4);
    for (i = 0; i < pairs; i++) {
        out[0] = letters[i % 9];
        out[1] = letters[i / 9 % 9];
        build_text(&f->keys, out, 2);
    }
    build_array(&f->keys, "tokenizer.ggml.token_type", GGUF_INT32, (uint64_t)count);
    for (i = 0; i < count; i++) build_int(&f->keys, 4, i == 256 || i == 257 ? TOKEN_CONTROL : 1);
    build_array(&f->keys, "tokenizer.ggml.merges", GGUF_STRING, (uint64_t)pairs);
    for (i = 0; i < pairs; i++) {
        out[0] = letters[i % 9];
        out[1] = ' ';
        out[2] = letters[i / 9 % 9];
        build_text(&f->keys, out, 3);
    }
    f->key_count += 3;
    tiny_int(f, "tokenizer.ggml.bos_token_id", 256);
    tiny_int(f, "tokenizer.ggml.eos_token_id", 257);
    tiny_number(f, "tokenizer.ggml.add_bos_token", GGUF_BOOL, (uint64_t)f->t->add_bos);
}

static void tiny_keys(tiny_file *f)
{
    const tiny *t = f->t;
    int i;
    tiny_text(f, "general.architecture", t->arch);
    tiny_text(f, "general.name", "tiny");
    tiny_int(f, "block_count", t->layers);
    tiny_int(f, "embedding_length", t->width);
    tiny_int(f, "feed_forward_length", t->hidden);
    tiny_int(f, "context_length", t->context);
    tiny_int(f, "attention.head_count", t->q_heads);
    tiny_int(f, "attention.head_count_kv", t->kv_heads);
    if (t->k_dim * t->q_heads != t->width) tiny_int(f, "attention.key_length", t->k_dim);
    if (t->v_dim) tiny_int(f, "attention.value_length", t->v_dim);
    tiny_real(f, "attention.layer_norm_rms_epsilon", 1e-3);
    if (t->rope_dims) tiny_int(f, "rope.dimension_count", t->rope_dims);
    if (t->base > 0) tiny_real(f, "rope.freq_base", t->base);
    if (t->local_base > 0) tiny_real(f, "rope.freq_base_swa", t->local_base);
    if (t->scaling > 0) tiny_real(f, "rope.scaling.factor", t->scaling);
    if (t->scaling_type) tiny_text(f, "rope.scaling.type", t->scaling_type);
    if (t->attention_softcap > 0) tiny_real(f, "attn_logit_softcapping", t->attention_softcap);
    if (t->final_softcap > 0) tiny_real(f, "final_logit_softcapping", t->final_softcap);
    if (t->window) tiny_int(f, "attention.sliding_window", t->window);
    if (t->pattern && !t->pattern_list) tiny_int(f, "attention.sliding_window_pattern", t->pattern);
    if (t->pattern_list) {
        char full[80];
        snprintf(full, sizeof full, "%s.attention.sliding_window_pattern", t->arch);
        build_array(&f->keys, full, GGUF_BOOL, (uint64_t)t->layers);
        for (i = 0; i < t->layers; i++) build_int(&f->keys, 1, (uint64_t)((i + 1) % t->pattern != 0));
        f->key_count++;
    }
    tiny_vocabulary(f);
}

/* ---- the file ---- */

/* The tensors' names in order go to names ([512][40]) if it is not NULL; returns how many there are. */
static int tiny_build_named(const tiny *t, const flaw *wrong, gguf_build *b, char (*names)[40])
{
    tiny_file *f = (tiny_file *)calloc(1, sizeof *f);
    int i, count;
    if (!f) abort();
    f->t = t;
    f->f = wrong;
    f->random.state = (uint64_t)(t - tiny_models) < TINY_MODELS ? (uint64_t)(t - tiny_models) : 99;
    tiny_keys(f);
    tiny_tensor(f, -1, "token_embd.weight", t->width, t->vocabulary, 1, 0);
    tiny_tensor(f, -1, "output_norm.weight", t->width, 0, 0.2, 1);
    if (!t->tied) tiny_tensor(f, -1, "output.weight", t->width, t->vocabulary, 2 / sqrt(t->width), 0);
    if (t->rope_freqs) tiny_tensor(f, -1, "rope_freqs.weight", t->k_dim / 2, 0, 0.2, 2);
    for (i = 0; i < t->layers; i++) tiny_layer(f, i);
    memset(b, 0, sizeof *b);
    build_header(b, 3, (uint64_t)f->tensor_count, (uint64_t)f->key_count);
    build_bytes(b, f->keys.at, f->keys.size);
    build_bytes(b, f->tensors.at, f->tensors.size);
    build_pad(b, 32);
    build_bytes(b, f->data.at, f->data.size);
    if (names) memcpy(names, f->names, sizeof f->names);
    count = f->seen;
    free(f->keys.at);
    free(f->tensors.at);
    free(f->data.at);
    free(f);
    return count;
}

static void tiny_build(const tiny *t, const flaw *wrong, gguf_build *b) { tiny_build_named(t, wrong, b, NULL); }

/* ---- forward pass in double ---- */

static double *tiny_doubles(size_t count)
{
    double *out = (double *)calloc(count ? count : 1, sizeof *out);
    if (!out) abort();
    return out;
}

/* A tensor as doubles, or NULL if the file has none; the caller frees. */
static double *tiny_weight(const gguf *g, int layer, const char *name)
{
    char full[64];
    const tensor *t;
    int64_t r, i, n;
    double *out;
    float *row;
    if (layer >= 0) snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else snprintf(full, sizeof full, "%s", name);
    t = gguf_tensor(g, full);
    if (!t) return NULL;
    n = t->shape[0];
    out = tiny_doubles((size_t)(n * t->shape[1]));
    row = (float *)malloc((size_t)n * sizeof *row);
    if (!row) abort();
    for (r = 0; r < t->shape[1]; r++) {
        row_floats(t->type, t->data + (size_t)r * row_bytes(t->type, n), n, row);
        for (i = 0; i < n; i++) out[r * n + i] = (double)row[i];
    }
    free(row);
    return out;
}

/* y = x W^T + bias; the bias where the file has one. */
static void tiny_product(const gguf *g, int layer, const char *name, int n, int rows, int tokens, const double *x,
                         double *y)
{
    char full[64];
    double *w, *bias;
    int i, r, t;
    snprintf(full, sizeof full, "%s.weight", name);
    w = tiny_weight(g, layer, full);
    snprintf(full, sizeof full, "%s.bias", name);
    bias = tiny_weight(g, layer, full);
    for (t = 0; t < tokens; t++)
        for (r = 0; r < rows; r++) {
            double sum = bias ? bias[r] : 0;
            for (i = 0; i < n; i++) sum += w[r * n + i] * x[t * n + i];
            y[t * rows + r] = sum;
        }
    free(w);
    free(bias);
}

/* Divides rows of n by their root mean square, times the weights; nothing where the file has none. */
static void tiny_norm(const gguf *g, int layer, const char *name, int rows, int n, const double *x, double *y)
{
    double *w = tiny_weight(g, layer, name);
    int r, i;
    for (r = 0; r < rows; r++) {
        double sum = 0;
        for (i = 0; i < n; i++) sum += x[r * n + i] * x[r * n + i];
        for (i = 0; i < n; i++)
            y[r * n + i] = w ? x[r * n + i] / sqrt(sum / n + (double)1e-3f) * w[i] : x[r * n + i];
    }
    free(w);
}

static int tiny_is_local(const tiny *t, int layer)
{
    return !strcmp(t->arch, "gemma3") && (layer + 1) % (t->pattern ? t->pattern : 6) != 0;
}

static void tiny_rope(const tiny *t, const gguf *g, int layer, int tokens, int heads, double *x)
{
    double *factors = tiny_weight(g, -1, "rope_freqs.weight");
    double base = t->base > 0 ? t->base : 10000, scaling = t->scaling > 0 ? t->scaling : 1;
    int dims = t->rope_dims ? t->rope_dims : t->k_dim, p, h, i, llama = !strcmp(t->arch, "llama");
    if (t->scaling_type && !strcmp(t->scaling_type, "none")) scaling = 1;
    if (tiny_is_local(t, layer)) {
        base = t->local_base > 0 ? t->local_base : 10000;
        scaling = 1;
    }
    for (p = 0; p < tokens; p++)
        for (h = 0; h < heads; h++, x += t->k_dim)
            for (i = 0; i < dims / 2; i++) {
                double angle = p / pow(base, 2.0 * i / dims) / scaling / (factors ? factors[i] : 1);
                double *a = llama ? x + 2 * i : x + i, *b = llama ? x + 2 * i + 1 : x + i + dims / 2, old = *a;
                *a = cos(angle) * old - sin(angle) * *b;
                *b = sin(angle) * old + cos(angle) * *b;
            }
    free(factors);
}

static void tiny_attention(const tiny *t, int layer, int tokens, const double *q, const double *k, const double *v,
                           double *o)
{
    int v_dim = t->v_dim ? t->v_dim : t->k_dim, i, j, h, c, window = tiny_is_local(t, layer) ? t->window : 0;
    int wide = !strcmp(t->arch, "gemma3") && t->layers == 62;
    double *p = tiny_doubles((size_t)tokens), scale = 1 / sqrt(wide ? (double)t->width / t->q_heads : t->k_dim);
    for (i = 0; i < tokens; i++)
        for (h = 0; h < t->q_heads; h++) {
            int kv = h / (t->q_heads / t->kv_heads), first = window && i - window + 1 > 0 ? i - window + 1 : 0;
            double sum = 0, top = -1e300;
            for (j = first; j <= i; j++) {
                p[j] = 0;
                for (c = 0; c < t->k_dim; c++)
                    p[j] += q[(i * t->q_heads + h) * t->k_dim + c] * k[(j * t->kv_heads + kv) * t->k_dim + c];
                p[j] *= scale;
                if (t->attention_softcap > 0) p[j] = t->attention_softcap * tanh(p[j] / t->attention_softcap);
                if (p[j] > top) top = p[j];
            }
            for (j = first; j <= i; j++) sum += p[j] = exp(p[j] - top);
            for (c = 0; c < v_dim; c++) {
                double *out = &o[(i * t->q_heads + h) * v_dim + c];
                *out = 0;
                for (j = first; j <= i; j++) *out += p[j] / sum * v[(j * t->kv_heads + kv) * v_dim + c];
            }
        }
    free(p);
}

static void tiny_reference_layer(const tiny *t, const gguf *g, int layer, int tokens, double *x)
{
    int v_dim = t->v_dim ? t->v_dim : t->k_dim, q_row = t->q_heads * t->k_dim, k_row = t->kv_heads * t->k_dim, i;
    int v_row = t->kv_heads * v_dim, o_row = t->q_heads * v_dim, gemma = !strcmp(t->arch, "gemma3");
    size_t n = (size_t)tokens;
    double *h = tiny_doubles(n * (size_t)t->width), *q = tiny_doubles(n * (size_t)q_row);
    double *k = tiny_doubles(n * (size_t)k_row), *v = tiny_doubles(n * (size_t)v_row);
    double *o = tiny_doubles(n * (size_t)o_row), *gate = tiny_doubles(n * (size_t)t->hidden);
    double *up = tiny_doubles(n * (size_t)t->hidden);
    tiny_norm(g, layer, "attn_norm.weight", tokens, t->width, x, h);
    tiny_product(g, layer, "attn_q", t->width, q_row, tokens, h, q);
    tiny_product(g, layer, "attn_k", t->width, k_row, tokens, h, k);
    tiny_product(g, layer, "attn_v", t->width, v_row, tokens, h, v);
    tiny_norm(g, layer, "attn_q_norm.weight", tokens * t->q_heads, t->k_dim, q, q);
    tiny_norm(g, layer, "attn_k_norm.weight", tokens * t->kv_heads, t->k_dim, k, k);
    tiny_rope(t, g, layer, tokens, t->q_heads, q);
    tiny_rope(t, g, layer, tokens, t->kv_heads, k);
    tiny_attention(t, layer, tokens, q, k, v, o);
    tiny_product(g, layer, "attn_output", o_row, t->width, tokens, o, h);
    tiny_norm(g, layer, "post_attention_norm.weight", tokens, t->width, h, h);
    for (i = 0; i < tokens * t->width; i++) x[i] += h[i];
    tiny_norm(g, layer, "ffn_norm.weight", tokens, t->width, x, h);
    tiny_product(g, layer, "ffn_gate", t->width, t->hidden, tokens, h, gate);
    tiny_product(g, layer, "ffn_up", t->width, t->hidden, tokens, h, up);
    for (i = 0; i < tokens * t->hidden; i++) {
        double a = gate[i], cubic = sqrt(2 / 3.14159265358979324) * (a + 0.044715 * a * a * a);
        gate[i] = (gemma ? 0.5 * a * (1 + tanh(cubic)) : a / (1 + exp(-a))) * up[i];
    }
    tiny_product(g, layer, "ffn_down", t->hidden, t->width, tokens, gate, h);
    tiny_norm(g, layer, "post_ffw_norm.weight", tokens, t->width, h, h);
    for (i = 0; i < tokens * t->width; i++) x[i] += h[i];
    free(h); free(q); free(k); free(v); free(o); free(gate); free(up);
}

/* logits [tokens][vocabulary] of a sequence that starts at position 0. */
static void tiny_reference(const tiny *t, const gguf *g, const int32_t *ids, int tokens, double *logits)
{
    double *x = tiny_doubles((size_t)tokens * (size_t)t->width), *embedding = tiny_weight(g, -1, "token_embd.weight");
    int i, j;
    for (i = 0; i < tokens; i++)
        for (j = 0; j < t->width; j++)
            x[i * t->width + j] = embedding[ids[i] * t->width + j] * (strcmp(t->arch, "gemma3") ? 1 : sqrt(t->width));
    for (i = 0; i < t->layers; i++) tiny_reference_layer(t, g, i, tokens, x);
    tiny_norm(g, -1, "output_norm.weight", tokens, t->width, x, x);
    tiny_product(g, -1, t->tied ? "token_embd" : "output", t->width, t->vocabulary, tokens, x, logits);
    for (i = 0; t->final_softcap > 0 && i < tokens * t->vocabulary; i++)
        logits[i] = t->final_softcap * tanh(logits[i] / t->final_softcap);
    free(x);
    free(embedding);
}

#endif
