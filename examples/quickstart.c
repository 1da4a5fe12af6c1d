/* quickstart.c - the main job on real activations, and below it the smallest real use.

       cc -O2 -I. examples/quickstart.c -o quickstart -lm && ./quickstart          (or: make demo)

   Layers 2, 14 and 28 of SmolLM2-135M. Calibrates on one text, writes the rotations file, reads it back, and for
   another text measures how far each method moves the attention logits and outputs; then fills a paged cache token by
   token and attends, as an engine does. Draws demo.svg. Lines `figure NAME VALUE UNIT` are for scripts. */

#define OSCAR_IMPLEMENTATION
#include "activations.h"

#include <time.h>

enum { LAYERS = 3, METHODS = 7, BALANCED = 4, RECOMMENDED = 5 };
static const int layer_numbers[LAYERS] = { 2, 14, 28 };
static const windows short_windows = { 16, 64, 96 };   /* for 768 tokens; a real cache keeps 64 and 256 */

/* name: in figures; label: in the table and the plot; extras: attention weights, and page mean and metric of K. */
typedef struct method {
    const char *name, *label;
    oscar_method compose;
    int shared, extras;
    oscar_fit fit;
    int clip, k_bits;
} method;

static const method methods[METHODS] = {
    { "none", "no transform, min-max", OSCAR_METHOD_NONE, 0, 0, OSCAR_CLIP, 0, 2 },
    { "hadamard_clip", "Hadamard, clip (QuaRot)", OSCAR_METHOD_HADAMARD, 0, 0, OSCAR_CLIP, 1, 2 },
    { "oscar_layer", "OSCAR per layer, clip", OSCAR_METHOD_OSCAR, 1, 0, OSCAR_CLIP, 1, 2 },
    { "oscar_head", "OSCAR per head, clip", OSCAR_METHOD_OSCAR, 0, 0, OSCAR_CLIP, 1, 2 },
    { "balanced", "BALANCED, unbiased", OSCAR_METHOD_BALANCED, 0, 0, OSCAR_UNBIASED, 0, 2 },
    { "recommended", "+ attention weights, page mean, metric", OSCAR_METHOD_BALANCED, 0, 1, OSCAR_UNBIASED, 0, 2 },
    { "recommended_k4", "+ keys of 4 bits", OSCAR_METHOD_BALANCED, 0, 1, OSCAR_UNBIASED, 0, 4 },
};

static errors found[METHODS][LAYERS];
static double bits_found[METHODS];

/* Of this program's own work, whatever else the machine does. */
static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void progress(const char *what, int done, int of)
{
    if (10 * done / of == 10 * (done - 1) / of) return;
    fflush(stdout);
    fprintf(stderr, "%s %d %%%s", done == 1 || 10 * done / of == 1 ? what : "", 100 * done / of,
            done == of ? "\n" : " ");
    fflush(stderr);
}

static void print_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    fprintf(stderr, "oscar.h:%d: %s: %s\n", line, level == OSCAR_LOG_ERROR ? oscar_result_text(code) : "note", text);
}

static void must(oscar_result result, const char *what)
{
    if (result == OSCAR_OK) return;
    fprintf(stderr, "%s: %s\n", what, oscar_result_text(result));
    exit(1);
}

static oscar_hooks logging(void)
{
    oscar_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.log = print_log;
    return hooks;
}

/* The shape of the model's layers, and how a method codes them. */
static oscar_layer layer_of(const activations *a, const method *m)
{
    oscar_layer layer;
    memset(&layer, 0, sizeof layer);
    layer.q_heads = a->q.heads;
    layer.kv_heads = a->k.heads;
    layer.k_dim = a->k.dim;
    layer.k_fit = layer.v_fit = m->fit;
    layer.k_clip = layer.v_clip = m->clip ? 0 : -1;   /* 0: the defaults, 0.96 and 0.92 */
    layer.k_bits = m->k_bits;
    layer.k_page_mean = m->extras ? 0 : -1;
    return layer;
}

/* ---- calibration ---- */

/* Two passes over the calibration text: the second one is what OSCAR's value target needs. */
static oscar_calib *calibrate(const activations *texts, oscar_weights weights)
{
    oscar_calib_desc desc;
    oscar_layer layers[LAYERS];
    oscar_calib *calib;
    int pass, i;
    memset(&desc, 0, sizeof desc);
    for (i = 0; i < LAYERS; i++) layers[i] = layer_of(&texts[i], &methods[RECOMMENDED]);
    desc.layers = layers;
    desc.layer_count = LAYERS;
    desc.sums = OSCAR_SUM_Q | OSCAR_SUM_K | OSCAR_SUM_S;
    desc.weights = weights;
    desc.sink = short_windows.sink;
    desc.recent = short_windows.recent;
    desc.hooks = logging();
    must(oscar_calib_create(&desc, &calib), "oscar_calib_create");
    for (pass = 0; pass < 2; pass++) {
        if (pass) must(oscar_calib_freeze_q(calib), "oscar_calib_freeze_q");
        for (i = 0; i < LAYERS; i++) {
            oscar_chunk chunk;
            memset(&chunk, 0, sizeof chunk);
            chunk.tokens = texts[i].q.tokens;
            chunk.q = tensor_view(&texts[i].q, 0);
            chunk.k = tensor_view(&texts[i].k, 0);
            chunk.v = tensor_view(&texts[i].v, 0);
            must(oscar_calib_add(calib, i, &chunk), "oscar_calib_add");
            progress("calibrating", pass * LAYERS + i + 1, 2 * LAYERS);
        }
    }
    return calib;
}

static oscar_rotations *solve(const oscar_calib *calib, const method *m)
{
    oscar_compose compose;
    oscar_rotations *rotations;
    memset(&compose, 0, sizeof compose);
    compose.method = m->compose;
    compose.shared = m->shared;
    compose.k_metric = m->extras ? 0 : -1;   /* 0: BALANCED has one */
    compose.model = "SmolLM2-135M-Instruct, layers 2, 14, 28";
    must(oscar_calib_solve(calib, &compose, &rotations), "oscar_calib_solve");
    return rotations;
}

static void print_report(const oscar_calib *calib, int heads)
{
    int i, h;
    printf("What calibration says the logit error will be (2 bits; BALANCED with 4 bits last):\n");
    printf("  %-6s%-6s%8s%6s%11s%8s%10s%8s%10s%10s\n", "layer", "head", "tokens", "rank", "condition", "none",
           "hadamard", "oscar", "balanced", "4 bits");
    for (i = 0; i < LAYERS; i++)
        for (h = 0; h < heads; h++) {
            oscar_report r;
            must(oscar_calib_report(calib, i, h, &r), "oscar_calib_report");
            printf("  %-6d%-6d%8lld%6d%11.3g%8.3f%10.3f%8.3f%10.3f%10.3f\n", layer_numbers[i], h, (long long)r.tokens,
                   r.rank, r.condition, r.logit_error[OSCAR_REPORT_NONE][0], r.logit_error[OSCAR_REPORT_HADAMARD][0],
                   r.logit_error[OSCAR_REPORT_OSCAR][0], r.logit_error[OSCAR_REPORT_BALANCED][0],
                   r.logit_error[OSCAR_REPORT_BALANCED][1]);
        }
}

/* ---- methods ---- */

/* Errors of one method on one layer. */
static void measure_layer(int m, int i, const oscar_rotations *rotations, const activations *text)
{
    size_t count = plane_size(&text->k);
    float *decoded = (float *)must_allocate(2 * count * sizeof(float));
    float *q = tensor_plane(&text->q, 1), *k = tensor_plane(&text->k, 1), *v = tensor_plane(&text->v, 0);
    oscar_layer layer = layer_of(text, &methods[m]), solved;
    compared c;
    must(oscar_rotations_layer(rotations, i, &solved), "oscar_rotations_layer");
    layer.k = solved.k;
    layer.v = solved.v;
    if (!through_pages(&layer, text, decoded, decoded + count, &bits_found[m])) exit(1);
    c.q = q;
    c.k = k;
    c.v = v;
    c.k_decoded = decoded;
    c.v_decoded = decoded + count;
    c.tokens = text->k.tokens;
    c.q_heads = text->q.heads;
    c.kv_heads = text->k.heads;
    c.dim = text->k.dim;
    found[m][i] = measure(&c, &short_windows);
    free(decoded);
    free(q);
    free(k);
    free(v);
}

static void print_table(void)
{
    int m, i;
    printf("\nRelative error against exact attention, other text, %d tokens exact at the start, %d at the end:\n\n",
           short_windows.sink, short_windows.recent);
    printf("  %-40s%6s", "method", "bits");
    for (i = 0; i < LAYERS; i++) printf("   L%-2d logit output", layer_numbers[i]);
    printf("\n");
    for (m = 0; m < METHODS; m++) {
        printf("  %-40s%6.3f", methods[m].label, bits_found[m]);
        for (i = 0; i < LAYERS; i++) printf("      %.4f %.4f", found[m][i].logit, found[m][i].output);
        printf("\n");
    }
    printf("\n");
    for (m = 0; m < METHODS; m++) {
        for (i = 0; i < LAYERS; i++) {
            printf("figure demo.L%d.logit_error.%s %.4f 1\n", layer_numbers[i], methods[m].name, found[m][i].logit);
            printf("figure demo.L%d.output_error.%s %.4f 1\n", layer_numbers[i], methods[m].name, found[m][i].output);
        }
        printf("figure demo.bits.%s %.4f bits\n", methods[m].name, bits_found[m]);
    }
}

/* ---- the cache, token by token ---- */

typedef struct run { double error[LAYERS], us_append, us_attend; oscar_footprint footprint; } run;

/* Relative error of outputs [tokens][q_heads][dim] from token `first` on. */
static double output_error(const activations *a, const float *o, const float *exact, int first)
{
    size_t from = (size_t)first * (size_t)a->q.heads * (size_t)a->v.dim, i;
    size_t to = (size_t)a->q.tokens * (size_t)a->q.heads * (size_t)a->v.dim;
    double difference = 0, norm = 0;
    for (i = from; i < to; i++) {
        difference += ((double)o[i] - (double)exact[i]) * ((double)o[i] - (double)exact[i]);
        norm += (double)exact[i] * (double)exact[i];
    }
    return sqrt(difference / norm);
}

/* Fills a cache with the text, one token a step in all layers, and attends after each append. o: [LAYERS] outputs
   [tokens][q_heads][dim]. exact: all layers in BF16. */
static void decode(const activations *texts, const oscar_rotations *rotations, int exact, float **o, run *r)
{
    int tokens = texts[0].k.tokens, t, i;
    oscar_cache_desc desc;
    oscar_layer layers[LAYERS];
    oscar_cache *cache;
    oscar_seq seq;
    double start, appending = 0, attending = 0;
    memset(&desc, 0, sizeof desc);
    for (i = 0; i < LAYERS; i++) {
        memset(&layers[i], 0, sizeof layers[i]);
        layers[i].q_heads = texts[i].q.heads;
        layers[i].kv_heads = texts[i].k.heads;
        layers[i].k_dim = texts[i].k.dim;
        if (exact) layers[i].k_bits = layers[i].v_bits = 16;
    }
    desc.layers = layers;
    desc.layer_count = LAYERS;
    desc.rotations = exact ? NULL : rotations;
    desc.max_sequences = 1;
    desc.max_pages = (tokens + 63) / 64;
    desc.sink = short_windows.sink;
    desc.recent = short_windows.recent;
    desc.hooks = logging();
    must(oscar_cache_create(&desc, &cache), "oscar_cache_create");
    must(oscar_cache_bytes(&desc, tokens, &r->footprint), "oscar_cache_bytes");
    must(oscar_cache_open(cache, &seq), "oscar_cache_open");
    for (t = 0; t < tokens; t++) {
        must(oscar_cache_reserve(cache, seq, 1, 0), "oscar_cache_reserve");
        for (i = 0; i < LAYERS; i++) {
            oscar_view q = tensor_view(&texts[i].q, t);
            oscar_view k = tensor_view(&texts[i].k, t), v = tensor_view(&texts[i].v, t);
            oscar_batch batch;
            oscar_out out;
            memset(&out, 0, sizeof out);
            batch.seq = seq;
            batch.row = 0;
            batch.rows = 1;
            out.data = o[i] + (size_t)t * (size_t)texts[i].q.heads * (size_t)texts[i].v.dim;
            start = seconds();
            must(oscar_append(cache, i, &batch, 1, &k, &v), "oscar_append");
            appending += seconds() - start;
            start = seconds();
            must(oscar_attend(cache, i, &batch, 1, &q, NULL, &out, NULL), "oscar_attend");
            attending += seconds() - start;
        }
        progress(exact ? "decoding with BF16" : "decoding with 2 bits", t + 1, tokens);
    }
    must(oscar_cache_check(cache), "oscar_cache_check");
    r->us_append = 1e6 * appending / tokens / LAYERS;
    r->us_attend = 1e6 * attending / tokens / LAYERS;
    oscar_cache_destroy(cache);
}

static void run_cache(const activations *texts, const oscar_rotations *rotations)
{
    float *exact[LAYERS], *o[LAYERS];
    size_t count = (size_t)texts[0].q.tokens * (size_t)texts[0].q.heads * (size_t)texts[0].v.dim;
    double values = 2.0 * LAYERS * texts[0].k.tokens * texts[0].k.heads * texts[0].k.dim;
    run bf16, int2;
    int i;
    for (i = 0; i < LAYERS; i++) {
        exact[i] = (float *)must_allocate(count * sizeof(float));
        o[i] = (float *)must_allocate(count * sizeof(float));
    }
    decode(texts, rotations, 1, exact, &bf16);
    decode(texts, rotations, 0, o, &int2);
    printf("\nThe paged cache with the rotations from the file, token by token, %d tokens, %d layers:\n\n",
           texts[0].k.tokens, LAYERS);
    printf("  %-22s%12s%12s%14s%14s\n", "", "KV bytes", "bits/value", "append us", "attend us");
    printf("  %-22s%12.0f%12.2f%14.1f%14.1f\n", "BF16 pages", values * bf16.footprint.held_bits / 8,
           bf16.footprint.held_bits, bf16.us_append, bf16.us_attend);
    printf("  %-22s%12.0f%12.2f%14.1f%14.1f   (per token and layer, %s)\n", "2-bit pages",
           values * int2.footprint.held_bits / 8, int2.footprint.held_bits, int2.us_append, int2.us_attend,
           oscar_isa_name(oscar_isa_active()));
    printf("  relative error of the outputs:");
    for (i = 0; i < LAYERS; i++) {
        int2.error[i] = output_error(&texts[i], o[i], exact[i], short_windows.first_output);
        printf("   L%d %.4f", layer_numbers[i], int2.error[i]);
    }
    printf("\n\n");
    for (i = 0; i < LAYERS; i++) printf("figure demo.L%d.cache.output_error %.4f 1\n", layer_numbers[i], int2.error[i]);
    printf("figure demo.cache.bits %.4f bits\n", int2.footprint.held_bits);
    printf("figure demo.cache.append.us %.2f us\n", int2.us_append);
    printf("figure demo.cache.attend.us %.2f us\n", int2.us_attend);
    printf("figure demo.cache.bf16.attend.us %.2f us\n", bf16.us_attend);
    for (i = 0; i < LAYERS; i++) { free(exact[i]); free(o[i]); }
}

/* ---- plot ---- */

static const char *const colours[METHODS] = {
    "#9aa0a6", "#c58b4b", "#d9b44a", "#6aa6a6", "#3d6fb4", "#1f3f7a", "#7d4fa0"
};

/* Bars of one kind of error, a group for each layer, left edge at x. */
static void draw_panel(FILE *f, int x, int width, const char *title, int output)
{
    const int top = 92, height = 250;
    double limit = 0;
    int m, i, tick;
    for (m = 0; m < METHODS; m++)
        for (i = 0; i < LAYERS; i++) {
            double e = output ? found[m][i].output : found[m][i].logit;
            if (e > limit) limit = e;
        }
    limit = limit > 0.6 ? ceil(limit * 5) / 5 : ceil(limit * 10) / 10;   /* a tick at the top */
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"title\">%s</text>\n", x, top - 18, title);
    for (tick = 0; tick <= (int)(limit * 10 + 0.5); tick += limit > 0.6 ? 2 : 1) {
        double y = top + height - tick / 10.0 / limit * height;
        fprintf(f, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n", x, y, x + width, y,
                tick ? "#e6e8eb" : "#80868b");
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" class=\"tick\" text-anchor=\"end\">%.1f</text>\n", x - 8, y + 4,
                tick / 10.0);
    }
    for (i = 0; i < LAYERS; i++) {
        double group = (double)width / LAYERS, bar = group * 0.84 / METHODS, left = x + group * i + group * 0.08;
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" class=\"tick\" text-anchor=\"middle\">layer %d</text>\n",
                x + group * (i + 0.5), top + height + 20, layer_numbers[i]);
        for (m = 0; m < METHODS; m++) {
            double e = output ? found[m][i].output : found[m][i].logit, high = e / limit * height;
            double bx = left + bar * m, by = top + height - high;
            fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" rx=\"1.5\"/>\n",
                    bx + 1, by, bar - 2, high, colours[m]);
            fprintf(f, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" class=\"value\">%.3f</text>\n",
                    bx + bar / 2 + 3, by - 4, e);
        }
    }
}

static void draw(const char *path)
{
    FILE *f = fopen(path, "w");
    int m;
    if (!f) { fprintf(stderr, "cannot write %s\n", path); exit(1); }
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1080\" height=\"470\" viewBox=\"0 0 1080 470\" "
            "font-family=\"Helvetica, Arial, sans-serif\">\n<style>.title{font-size:14px;font-weight:600;fill:#202124}"
            ".tick{font-size:11px;fill:#5f6368}.value{font-size:9px;fill:#3c4043}.head{font-size:18px;font-weight:700;"
            "fill:#202124}</style>\n<rect width=\"1080\" height=\"470\" fill=\"#ffffff\"/>\n"
            "<text x=\"48\" y=\"36\" class=\"head\">A 2-bit KV cache of SmolLM2-135M: relative error by method and "
            "layer</text>\n");
    draw_panel(f, 48, 480, "attention logits", 0);
    draw_panel(f, 576, 480, "attention outputs", 1);
    for (m = 0; m < METHODS; m++) {
        int x = 48 + m % 4 * 252 + (m > 5 ? 96 : 0), y = 398 + m / 4 * 28;
        fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>", x, y, colours[m]);
        fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"tick\">%s (%.2f bits)</text>\n", x + 18, y + 10, methods[m].label,
                bits_found[m]);
    }
    fprintf(f, "</svg>\n");
    fclose(f);
}

/* ---- the smallest real use ---- */

/* A cache of one layer without calibration: 2 bits behind a Hadamard transform. One token enters, and attends. */
static void smallest_use(const float *q, const float *k, const float *v, float *o)
{
    oscar_layer layer = { 0 };                       /* in C++: {} */
    oscar_cache_desc desc = { 0 };
    oscar_view q_rows = { 0 }, k_rows = { 0 }, v_rows = { 0 };
    oscar_out out = { 0 };
    oscar_batch batch = { 0, 0, 1 };                 /* a sequence, its first row, its rows */
    oscar_cache *cache;

    layer.q_heads = 9, layer.kv_heads = 3, layer.k_dim = 64;
    desc.layers = &layer, desc.layer_count = 1;
    desc.max_sequences = 1, desc.max_pages = 100;    /* of 64 tokens */
    q_rows.data = q, k_rows.data = k, v_rows.data = v, out.data = o;

    oscar_cache_create(&desc, &cache);
    oscar_cache_open(cache, &batch.seq);
    oscar_cache_reserve(cache, batch.seq, 1, 0);                    /* once a token */
    oscar_append(cache, 0, &batch, 1, &k_rows, &v_rows);            /* once a token and layer */
    oscar_attend(cache, 0, &batch, 1, &q_rows, NULL, &out, NULL);
    oscar_cache_destroy(cache);
}

/* A single token attends to itself alone, so its output is its own value, rounded to BF16. */
static int smallest_use_works(void)
{
    float q[9 * 64], k[3 * 64], v[3 * 64], o[9 * 64];
    int i;
    for (i = 0; i < 9 * 64; i++) q[i] = (float)(i % 7) - 3;
    for (i = 0; i < 3 * 64; i++) { k[i] = (float)(i % 5) - 2; v[i] = (float)i; }   /* exact in BF16 */
    smallest_use(q, k, v, o);
    for (i = 0; i < 9 * 64; i++) if (o[i] < v[i / 192 * 64 + i % 64] || o[i] > v[i / 192 * 64 + i % 64]) return 0;
    return 1;
}

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : "examples/data/qkv.safetensors";
    const char *file = argc > 2 ? argv[2] : "build/demo-rotations.safetensors";
    const char *plot = argc > 3 ? argv[3] : "demo.svg";
    activations calib_text[LAYERS], text[LAYERS];
    oscar_calib *plain, *attention;
    oscar_rotations *from_file;
    oscar_hooks hooks = logging();
    double start = seconds();
    char *bytes = activations_open(data);
    int m, i;
    if (!bytes) return 1;
    for (i = 0; i < LAYERS; i++)
        if (!activations_get(bytes, layer_numbers[i], "calib", &calib_text[i])
            || !activations_get(bytes, layer_numbers[i], "eval", &text[i])) return 1;
    if (!smallest_use_works()) { fprintf(stderr, "the smallest use gives a wrong output\n"); return 1; }

    printf("oscar.h %d.%d.%d, %s path, activations of SmolLM2-135M: %d tokens to calibrate, %d others to measure\n\n",
           OSCAR_VERSION_MAJOR, OSCAR_VERSION_MINOR, OSCAR_VERSION_PATCH, oscar_isa_name(oscar_isa_active()),
           calib_text[0].k.tokens, text[0].k.tokens);
    plain = calibrate(calib_text, OSCAR_WEIGHTS_PLAIN);
    attention = calibrate(calib_text, OSCAR_WEIGHTS_ATTENTION);
    print_report(plain, text[0].k.heads);

    for (m = 0; m < METHODS; m++) {
        oscar_rotations *rotations = solve(methods[m].extras ? attention : plain, &methods[m]);
        if (m == RECOMMENDED) must(oscar_rotations_save(rotations, file), "oscar_rotations_save");
        for (i = 0; i < LAYERS; i++) {
            measure_layer(m, i, rotations, &text[i]);
            progress("measuring", m * LAYERS + i + 1, METHODS * LAYERS);
        }
        oscar_rotations_destroy(rotations);
    }
    print_table();

    must(oscar_rotations_load(file, &hooks, &from_file), "oscar_rotations_load");
    run_cache(text, from_file);
    draw(plot);
    printf("figure demo.seconds %.1f s\n", seconds() - start);   /* of CPU */
    printf("\nWrote %s and %s.\n", file, plot);
    oscar_rotations_destroy(from_file);
    oscar_calib_destroy(plain);
    oscar_calib_destroy(attention);
    free(bytes);
    return 0;
}
