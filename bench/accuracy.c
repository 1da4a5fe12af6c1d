/* accuracy.c - what each way to store K and V does to two real models: docs/accuracy.md and docs/accuracy.svg.

       make models && make accuracy
       build/bench/accuracy [--rows PATTERN] [--quick] [--fresh] [--models DIR] [--out DIR]

   A row of the tables is a line of options as `llm ppl` and `llm calibrate` take them (examples/llm.c), so each can be
   repeated by hand; baselines that the library does not have are section 2. Results are kept in
   build/accuracy/results.tsv under a hash of all that a row depends on, calibrations beside it: an interrupted run goes
   on where it was, and a second one only does what changed. The hash does not cover the code: after a change of oscar.h
   or llm.c give --fresh. Lines `figure NAME VALUE UNIT` on stdout are for scripts.

    1 ROWS                  4 RESULTS AND CALIBRATIONS THAT ARE KEPT     7 PLOT
    2 BASELINES             5 RUNNING ROWS                               8 MAIN
    3 SELF-CHECKS           6 TABLES */
#define LLM_NO_MAIN
#include "../examples/llm.c"
#include <fnmatch.h>

/* == 1 ROWS ======================================================================================================== */

enum { FORMAT = 2 };   /* part of every hash: raise it when what is measured changes */
#define KEPT_MAX 6e9   /* bytes of exact logits that are kept in memory; more are worked out again for every row */

/* A model and what it reads. evaluate, calibrate: options that come before a row's own. reference: which one of a row's
   is for this setup, -1 none. seconds: of a row, roughly, on two cores, for the first estimate of the time left. */
typedef struct setup {
    const char *name, *title, *file;
    const char *evaluate, *calibrate;
    int reference;
    double seconds;
} setup;

enum {
    SMOL = 1, GEMMA = 2, GEMMA_2K = 4, SMOL_4K = 8, SMOL_8K = 16, GEMMA_4K = 32, QUICK_SMOL = 64, QUICK_GEMMA = 128,
    GEMMA_8K = 256,
    BOTH = SMOL | GEMMA, LONG = SMOL_4K | SMOL_8K | GEMMA_4K | GEMMA_8K, QUICK = QUICK_SMOL | QUICK_GEMMA
};

static const setup setups[] = {
    { "smollm2", "SmolLM2", "smollm2-135m.gguf", "--chunk 2048 --chunks 2", "--chunk 2048", 0, 30 },
    { "gemma3", "Gemma3", "gemma3-270m.gguf", "--chunk 1024 --chunks 2 --recent 128",
      "--chunk 1024 --recent 128 --tokens 12288", 1, 30 },
    { "gemma3.2k", "Gemma3, 2,048", "gemma3-270m.gguf", "--chunk 2048 --chunks 2",
      "--chunk 1024 --recent 128 --tokens 12288", -1, 60 },
    { "smollm2.4k", "SmolLM2, 4,096", "smollm2-135m.gguf", "--chunk 4096 --chunks 1", "--chunk 2048", 0, 60 },
    { "smollm2.8k", "SmolLM2, 8,192", "smollm2-135m.gguf", "--chunk 8192 --chunks 1", "--chunk 2048", -1, 150 },
    { "gemma3.4k", "Gemma3, 4,096", "gemma3-270m.gguf", "--chunk 4096 --chunks 1 --recent 128",
      "--chunk 1024 --recent 128 --tokens 12288", -1, 60 },
    { "quick.smollm2", "SmolLM2", "smollm2-135m.gguf", "--chunk 1024 --chunks 1 --recent 128",
      "--chunk 1024 --recent 128 --tokens 1024 --shifts none", -1, 6 },
    { "quick.gemma3", "Gemma3", "gemma3-270m.gguf", "--chunk 1024 --chunks 1 --recent 128",
      "--chunk 1024 --recent 128 --tokens 1024 --shifts none", -1, 12 },
    { "gemma3.8k", "Gemma3, 8,192", "gemma3-270m.gguf", "--chunk 8192 --chunks 1 --recent 128",
      "--chunk 1024 --recent 128 --tokens 12288", -1, 200 },
};
enum { SETUPS = (int)(sizeof setups / sizeof *setups) };

/* MEAN_KEY: OSCAR's pairs with the mean key of a BALANCED calibration on the same tokens. BUDGET: 4-bit keys for the
   layers that lose most, `amount` bits a value. NEEDLE: retrieval from `amount` tokens. */
typedef enum kind { EXACT, CACHE, MEAN_KEY, BUDGET, NEEDLE, KIVI, TURBOQUANT, COPY, PAGES } kind;

typedef struct table { const char *title, *words; int columns; } table;

enum { METHODS, LONGER, WINDOWS, GROUPS, TEXTS, TOKENS, CONTEXTS, CURVE, NEEDLES, QUICK_ROWS, TABLES };

static const table tables[TABLES] = {
    { "Methods", "SmolLM2: 2 chunks of 2,048 tokens, windows 64 + 256; Gemma3: 2 chunks of 1,024, windows 64 + 128.",
      BOTH },
    { "Gemma3 at 2,048 tokens", "2 chunks, windows 64 + 256; the calibration is that of the table above.", GEMMA_2K },
    { "Windows", "Sink + recent tokens that stay exact. The calibration is that of the default windows.", SMOL },
    { "Groups", "Channels that share a scale; recommended settings otherwise.", BOTH },
    { "Text of another kind", "Calibrated on source code and technical prose (oscar.h and the documents here).", BOTH },
    { "Calibration tokens", "From WikiText-2, in chunks of the table above; no shifts.", BOTH },
    { "Longer contexts", "One chunk each. Calibrated on chunks of 2,048 (SmolLM2) and 1,024 tokens (Gemma3) where not "
      "said otherwise.", SMOL | LONG },
    { "KL against bits", "Recommended settings, with 4-bit keys in the layers that lose most (`llm calibrate --bits`; "
      "the losses are measured on calibration text).", BOTH },
    { "Retrieval", "Of 10 facts hidden in so many tokens of WikiText-2: answered right, and nats a digit of the "
      "answers.",
      BOTH },
    { "Quick run", "One chunk of 1,024 tokens, 1,024 calibration tokens: a check of the program, not a measurement.",
      QUICK },
};

/* calibrate: options of `llm calibrate`, NULL without; cache: of `llm ppl`. other: calibrates on the other text.
   reference: KL of the independent NumPy engine at these settings, for SmolLM2 and Gemma3; 0 = not measured. */
typedef struct row {
    int table, setups;
    kind kind;
    const char *name, *label, *calibrate, *cache;
    double reference[2];
    int other;
    double amount;
} row;

#define NO_CLIP "--clip-k -1 --clip-v -1"
#define FEW "--tokens 4096 --shifts none"
#define NO_METRIC "--metric off "
#define PLAIN NO_METRIC "--weights plain " FEW
#define OSCAR_FEW "--method oscar " FEW
#define ON_NEEDLE(n, label) \
    { NEEDLES, BOTH, NEEDLE, "needle.exact." #n, "BF16 cache", NULL, "--method exact", { 0, 0 }, 0, n }, \
    { NEEDLES, BOTH, NEEDLE, "needle.oscar_head." #n, "OSCAR per head, clip", OSCAR_FEW, "", { 0, 0 }, 0, n }, \
    { NEEDLES, BOTH, NEEDLE, "needle.recommended." #n, "BALANCED recommended", "", "", { 0, 0 }, 0, n }
#define ON_CURVE(model, bits) \
    { CURVE, model, BUDGET, "budget." #bits, "at most " #bits " bits", "", "", { 0, 0 }, 0, bits }
#define ON_WINDOWS(name, label, options, reference) \
    { WINDOWS, SMOL, CACHE, "oscar_head." name, label ", OSCAR per head, clip", OSCAR_FEW, options, \
      { reference, 0 }, 0, 0 }, \
    { WINDOWS, SMOL, CACHE, "recommended." name, label ", BALANCED recommended", "", options, { 0, 0 }, 0, 0 }

static const row rows[] = {
    { METHODS, BOTH, EXACT, "exact", "exact", NULL, "", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "bf16", "BF16 cache", NULL, "--method exact", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "none", "NONE, min-max", NULL, "--method none " NO_CLIP, { 1.210, 6.336 }, 0, 0 },
    { METHODS, BOTH, CACHE, "none_clip", "NONE, clip", NULL, "--method none", { 1.841, 4.276 }, 0, 0 },
    { METHODS, BOTH, CACHE, "hadamard", "HADAMARD (QuaRot), min-max", NULL, "--method hadamard " NO_CLIP,
      { 0.327, 2.145 }, 0, 0 },
    { METHODS, BOTH, CACHE, "hadamard_clip", "HADAMARD (QuaRot), clip", NULL, "--method hadamard", { 0.188, 1.205 },
      0, 0 },
    { METHODS, BOTH, CACHE, "hadamard_default", "HADAMARD, unbiased, page mean", NULL,
      "--method hadamard --fit unbiased --page-mean on", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, KIVI, "kivi", "KIVI-like", NULL, "", { 0.152, 0 }, 0, 0 },
    { METHODS, BOTH, TURBOQUANT, "turboquant", "TurboQuant-like", NULL, "", { 0, 0 }, 0, 0 },
    { METHODS, SMOL, CACHE, "oscar_layer", "OSCAR per layer, clip (the paper)", "--method oscar-layer " FEW, "",
      { 0.191, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "oscar_head_minmax", "OSCAR per head, min-max", OSCAR_FEW, NO_CLIP, { 0.348, 2.243 }, 0,
      0 },
    { METHODS, BOTH, CACHE, "oscar_head", "OSCAR per head, clip", OSCAR_FEW, "", { 0.172, 0.893 }, 0, 0 },
    { METHODS, BOTH, MEAN_KEY, "oscar_mean", "OSCAR + mean key, clip", OSCAR_FEW, "", { 0.0865, 0.313 }, 0, 0 },
    { METHODS, BOTH, MEAN_KEY, "oscar_mean_unbiased", "OSCAR + mean key, unbiased", OSCAR_FEW,
      "--fit unbiased --page-mean off", { 0.056, 0.23 }, 0, 0 },
    { METHODS, BOTH, CACHE, "balanced_clip", "BALANCED, clip", PLAIN, "--fit clip --page-mean off",
      { 0.0630, 0.0371 }, 0, 0 },
    { METHODS, BOTH, CACHE, "balanced", "BALANCED, unbiased", PLAIN, "--page-mean off", { 0.0333, 0.0231 }, 0, 0 },
    { METHODS, BOTH, CACHE, "attention", "BALANCED, + attention weights", NO_METRIC FEW, "--page-mean off",
      { 0.0308, 0.0200 }, 0, 0 },
    { METHODS, BOTH, CACHE, "page_mean", "BALANCED, + page mean", NO_METRIC FEW, "", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "page_mean.many", "the same, 16,384 / 12,288 tokens", NO_METRIC "--shifts none", "",
      { 0.0225, 0.0136 }, 0, 0 },
    { METHODS, BOTH, CACHE, "metric", "BALANCED, + metric", FEW, "", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "many", "the same, 16,384 / 12,288 tokens", "--shifts none", "", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "recommended", "BALANCED, + shifts: recommended", "", "", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "recommended_v4", "recommended, V 4 bits", "", "--v-bits 4", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "recommended_k4", "recommended, K 4 bits", "", "--k-bits 4", { 0, 0 }, 0, 0 },
    { METHODS, BOTH, CACHE, "recommended_kv4", "recommended, K and V 4 bits", "", "--k-bits 4 --v-bits 4", { 0, 0 }, 0,
      0 },
    { METHODS, BOTH, CACHE, "hadamard_kv4", "HADAMARD, K and V 4 bits, unbiased", NULL,
      "--method hadamard --fit unbiased --page-mean off --k-bits 4 --v-bits 4", { 0, 0.0251 }, 0, 0 },

    { LONGER, GEMMA_2K, CACHE, "hadamard_clip", "HADAMARD (QuaRot), clip", NULL, "--method hadamard", { 0, 0 }, 0, 0 },
    { LONGER, GEMMA_2K, KIVI, "kivi", "KIVI-like", NULL, "", { 0, 0 }, 0, 0 },
    { LONGER, GEMMA_2K, CACHE, "oscar_head", "OSCAR per head, clip", OSCAR_FEW, "", { 0, 0 }, 0, 0 },
    { LONGER, GEMMA_2K, CACHE, "recommended", "BALANCED recommended", "", "", { 0, 0 }, 0, 0 },
    { LONGER, GEMMA_2K, CACHE, "recommended_k4", "BALANCED recommended, K 4 bits", "", "--k-bits 4", { 0, 0 }, 0, 0 },

    ON_WINDOWS("w0_0", "0 + 0", "--sink -1 --recent -1", 0),
    ON_WINDOWS("w64_0", "64 + 0", "--recent -1", 1.159),
    ON_WINDOWS("w4_64", "4 + 64", "--sink 4 --recent 64", 0.266),
    ON_WINDOWS("w16_64", "16 + 64", "--sink 16 --recent 64", 0),
    ON_WINDOWS("w0_256", "0 + 256", "--sink -1", 0.207),

    { GROUPS, GEMMA, CACHE, "group128", "128 channels", "", "--group 128", { 0, 0 }, 0, 0 },
    { GROUPS, GEMMA, CACHE, "group64", "64 channels", "", "--group 64", { 0, 0 }, 0, 0 },
    { GROUPS, BOTH, CACHE, "group32", "32 channels", "", "--group 32", { 0, 0 }, 0, 0 },

    { TEXTS, BOTH, CACHE, "oscar_head.other", "OSCAR per head, clip", OSCAR_FEW, "", { 0.192, 1.070 }, 1, 0 },
    { TEXTS, BOTH, CACHE, "balanced.other", "BALANCED, unbiased", PLAIN, "--page-mean off", { 0.0494, 0.0254 }, 1, 0 },
    { TEXTS, BOTH, CACHE, "attention.other", "+ attention weights", NO_METRIC FEW, "--page-mean off",
      { 0.0380, 0.0239 }, 1, 0 },
    { TEXTS, BOTH, CACHE, "metric.other", "+ page mean, metric", FEW, "", { 0, 0 }, 1, 0 },

    { TOKENS, SMOL, CACHE, "oscar_head.512", "OSCAR per head, clip, 512", "--method oscar --tokens 512 --shifts none",
      "", { 0.153, 0 }, 0, 0 },
    { TOKENS, SMOL, CACHE, "balanced.512", "BALANCED, unbiased, 512", NO_METRIC "--weights plain --tokens 512 "
      "--shifts none", "--page-mean off", { 0.0645, 0 }, 0, 0 },
    { TOKENS, BOTH, CACHE, "metric.512", "attention weights, page mean, metric, 512", "--tokens 512 --shifts none", "",
      { 0, 0 }, 0, 0 },
    { TOKENS, BOTH, CACHE, "attention.many", "BALANCED, attention weights, 16,384 / 12,288", NO_METRIC "--shifts none",
      "--page-mean off", { 0.0267, 0.0170 }, 0, 0 },

    { CONTEXTS, LONG, CACHE, "hadamard_clip", "HADAMARD (QuaRot), clip", NULL,
      "--method hadamard", { 0.220, 0 }, 0, 0 },
    { CONTEXTS, SMOL_4K | GEMMA_4K, CACHE, "oscar_head", "OSCAR per head, clip", OSCAR_FEW, "", { 0.208, 0 }, 0, 0 },
    { CONTEXTS, SMOL_4K, CACHE, "attention", "BALANCED, attention weights, no page mean, 4,096 tokens, no shifts",
      NO_METRIC FEW, "--page-mean off", { 0.0561, 0 }, 0, 0 },
    { CONTEXTS, SMOL_4K | SMOL_8K, CACHE, "metric", "BALANCED, page mean, metric, 4,096 tokens, no shifts", FEW, "",
      { 0, 0 }, 0, 0 },
    { CONTEXTS, SMOL | SMOL_4K | SMOL_8K, CACHE, "shifted10", "the same, shifts of weight 0.1", "--tokens 4096 "
      "--shift-weight 0.1", "", { 0, 0 }, 0, 0 },
    { CONTEXTS, SMOL | SMOL_4K | SMOL_8K, CACHE, "shifted100", "the same, shifts of weight 1", "--tokens 4096 "
      "--shift-weight 1", "", { 0, 0 }, 0, 0 },
    { CONTEXTS, LONG, CACHE, "many", "BALANCED recommended, but no shifts", "--shifts none", "", { 0, 0 }, 0, 0 },
    { CONTEXTS, LONG, CACHE, "recommended", "BALANCED recommended", "", "", { 0, 0 }, 0, 0 },
    { CONTEXTS, SMOL_4K | SMOL_8K | GEMMA_4K, CACHE, "many.chunk4k", "the same from chunks of 4,096, no shifts",
      "--chunk 4096 --shifts none", "", { 0, 0 }, 0, 0 },

    ON_CURVE(GEMMA, 2.3), ON_CURVE(BOTH, 2.5), ON_CURVE(BOTH, 2.75), ON_CURVE(SMOL, 3.0),

    ON_NEEDLE(512, ), ON_NEEDLE(1024, ), ON_NEEDLE(2048, ), ON_NEEDLE(4096, ),

    { QUICK_ROWS, QUICK, EXACT, "exact", "exact", NULL, "", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK, CACHE, "hadamard_clip", "HADAMARD (QuaRot), clip", NULL, "--method hadamard", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK_SMOL, KIVI, "kivi", "KIVI-like", NULL, "", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK_SMOL, TURBOQUANT, "turboquant", "TurboQuant-like", NULL, "", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK_SMOL, CACHE, "oscar_head", "OSCAR per head, clip", "--method oscar", "", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK_SMOL, MEAN_KEY, "oscar_mean", "OSCAR + mean key, clip", "--method oscar", "", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK, CACHE, "recommended", "BALANCED recommended", "", "", { 0, 0 }, 0, 0 },
    { QUICK_ROWS, QUICK_SMOL, CACHE, "recommended.other", "the same, other text", "", "", { 0, 0 }, 1, 0 },
    { QUICK_ROWS, QUICK_SMOL, NEEDLE, "needle.recommended.512", "retrieval", "", "", { 0, 0 }, 0, 512 },
};
enum { ROWS = (int)(sizeof rows / sizeof *rows), ENTRIES_MAX = 3 * ROWS };

/* For NEEDLE kl is nats a digit, top1 the part of right answers, tokens the number of questions. */
typedef struct result { double ppl, exact_ppl, kl, top1, bits, seconds; int64_t tokens; } result;

/* A row at one of its setups. */
typedef struct entry {
    const setup *at;
    const row *row;
    uint64_t key;
    int known, wanted;       /* wanted: by this run, and not known before it */
    result r;
} entry;

/* Options of llm from two strings; the words live as long as the object. */
typedef struct line { char text[512]; char *words[64]; options o; } line;

static int line_parse(line *l, const char *first, const char *second)
{
    int count = 1;
    char *at = l->text;
    snprintf(l->text, sizeof l->text, "%s %s", first, second);
    l->words[0] = at;
    while (*at && count < 64) {
        while (*at == ' ') *at++ = 0;
        if (*at) l->words[count++] = at;
        while (*at && *at != ' ') at++;
    }
    return options_parse(count, l->words, &l->o);
}

/* == 2 BASELINES ===================================================================================================

   Attention over rows that another quantiser has gone through, with the same windows as the library's cache: history is
   whole pages of 64 tokens, and the rows are rounded to BF16 first. What is quantised is a page. */

enum { PAGE = 64, KIVI_TOKENS = 32 };

typedef struct baseline {
    engine *e;
    kind kind;
    int sink, recent;             /* as in oscar_cache_desc */
    const float *rotation;        /* TURBOQUANT: [k_dim][k_dim], for K and V */
    /* of the present layer */
    const attention_input *in;
    oscar_layout layout, pages;   /* for attention over rows; PAGES: the library's own pages */
    float *k, *v, *k_read, *v_read;
    int64_t *start;               /* of runs of tokens that see the same history; [runs + 1] */
    int64_t runs;
    int failed;
} baseline;

static float half(float x)
{
    uint16_t bits;
    oscar_convert(1, OSCAR_F32, &x, OSCAR_F16, &bits);
    oscar_convert(1, OSCAR_F16, &bits, OSCAR_F32, &x);
    return x;
}

/* Asymmetric min-max with codes 0..3 over x[0], x[stride], ..., in place; scale and minimum in fp16. */
static void minmax2(float *x, int64_t count, int64_t stride)
{
    float low = x[0], high = x[0], scale;
    int64_t i;
    for (i = 0; i < count; i++) {
        if (x[i * stride] < low) low = x[i * stride];
        if (x[i * stride] > high) high = x[i * stride];
    }
    scale = half((high - low) / 3);
    low = half(low);
    for (i = 0; i < count; i++) {
        float code = scale > 0 ? floorf((x[i * stride] - low) / scale + 0.5f) : 0;
        x[i * stride] = low + scale * (code < 0 ? 0 : code > 3 ? 3 : code);
    }
}

/* KIVI: keys a channel over KIVI_TOKENS tokens, values a token over the head. */
static void kivi_page(const model *m, float *k, float *v)
{
    int64_t row = (int64_t)m->kv_heads * m->k_dim, t, c;
    for (t = 0; t < PAGE; t += KIVI_TOKENS)
        for (c = 0; c < row; c++) minmax2(k + t * row + c, KIVI_TOKENS, row);
    for (t = 0; t < PAGE * m->kv_heads; t++) minmax2(v + t * m->v_dim, m->v_dim, 1);
}

/* A row's direction turned at random, each coordinate on the four points that are best for a normal number. */
static void turboquant_row(const float *rotation, int n, float *x)
{
    float y[1024], norm = sqrtf(dot(x, x, n)), root = sqrtf((float)n);
    int i, j;
    if (norm <= 0) return;
    for (j = 0; j < n; j++) y[j] = 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) y[j] += x[i] / norm * rotation[i * n + j];
    for (j = 0; j < n; j++) {
        float z = y[j] * root, point = fabsf(z) < 0.9816f ? 0.4528f : 1.510f;
        y[j] = (z < 0 ? -point : point) / root;
    }
    norm = half(norm);
    for (i = 0; i < n; i++) x[i] = norm * dot(y, rotation + i * n, n);
}

/* A random orthogonal matrix: normal numbers, Gram-Schmidt in double. NULL without memory. */
static float *random_rotation(int n)
{
    float *out = (float *)allocate((size_t)n, (size_t)n * sizeof *out);
    double *row = (double *)allocate((size_t)n, (size_t)n * sizeof *row);
    uint64_t random = 20240601;
    int i, j, k, s;
    for (i = 0; out && row && i < n; i++) {
        double *x = row + i * n, norm = 0;
        for (j = 0; j < n; j++)   /* a sum of 12 uniform numbers is normal enough */
            for (s = 0, x[j] = -6; s < 12; s++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                x[j] += (double)(random >> 11) / 9007199254740992.0;
            }
        for (k = 0; k < 2 * i; k++) {   /* twice, against rounding */
            const double *other = row + k % i * n;
            double along = 0;
            for (j = 0; j < n; j++) along += x[j] * other[j];
            for (j = 0; j < n; j++) x[j] -= along * other[j];
        }
        for (j = 0; j < n; j++) norm += x[j] * x[j];
        for (j = 0; j < n; j++) out[i * n + j] = (float)(x[j] /= sqrt(norm));
    }
    if (!row) { free(out); out = NULL; }
    free(row);
    return out;
}

/* The library's pages, to check the attention here against its cache. */
static int library_page(const baseline *b, float *k, float *v)
{
    oscar_view k_view = view_of(k), v_view = view_of(v);
    oscar_out k_out, v_out;
    unsigned char *memory = (unsigned char *)allocate(b->pages.bytes + b->pages.scratch + 128, 1), *page;
    int ok;
    if (!memory) return 0;
    page = memory + (64 - (uintptr_t)memory % 64) % 64;
    memset(&k_out, 0, sizeof k_out);
    memset(&v_out, 0, sizeof v_out);
    k_out.data = k;
    v_out.data = v;
    ok = must(oscar_page_write(&b->pages, &k_view, &v_view, page, page + (b->pages.bytes + 63) / 64 * 64), "page")
         && must(oscar_page_read(&b->pages, page, 0, PAGE, &k_out, &v_out, page + (b->pages.bytes + 63) / 64 * 64),
                 "page");
    free(memory);
    return ok;
}

static void page_job(void *context, int64_t first, int64_t last)
{
    baseline *b = (baseline *)context;
    const model *m = &b->e->m;
    int64_t sink = b->sink < 0 ? 0 : b->sink ? b->sink : 64, page, t;
    for (page = first; page < last; page++) {
        float *k = b->k_read + (sink + page * PAGE) * m->kv_heads * m->k_dim;
        float *v = b->v_read + (sink + page * PAGE) * m->kv_heads * m->v_dim;
        if (b->kind == KIVI) kivi_page(m, k, v);
        else if (b->kind == PAGES && !library_page(b, k, v)) b->failed = 1;
        else if (b->kind == TURBOQUANT)
            for (t = 0; t < PAGE * m->kv_heads; t++) {
                turboquant_row(b->rotation, m->k_dim, k + t * m->k_dim);
                turboquant_row(b->rotation, m->v_dim, v + t * m->v_dim);
            }
    }
}

static int64_t history_of(const baseline *b, int64_t tokens)
{
    int64_t sink = b->sink < 0 ? 0 : b->sink ? b->sink : 64, recent = b->recent < 0 ? 0 : b->recent ? b->recent : 256;
    return tokens > sink + recent ? (tokens - sink - recent) / PAGE * PAGE : 0;
}

static oscar_row_span span_of(const baseline *b, const float *k, const float *v, int64_t first, int64_t end)
{
    const model *m = &b->e->m;
    oscar_row_span s;
    memset(&s, 0, sizeof s);
    s.k = view_of(k + first * m->kv_heads * m->k_dim);
    s.v = view_of(v + first * m->kv_heads * m->v_dim);
    s.count = end - first;
    s.position = first;
    return s;
}

/* Runs first .. last - 1: sink, history and recent tokens as three spans. */
static void baseline_job(void *context, int64_t first, int64_t last)
{
    baseline *b = (baseline *)context;
    const model *m = &b->e->m;
    int64_t sink = b->sink < 0 ? 0 : b->sink ? b->sink : 64, run;
    float *lse = (float *)allocate(PAGE, (size_t)m->q_heads * sizeof *lse);
    if (!lse) { b->failed = 1; return; }
    for (run = first; run < last; run++) {
        int64_t at = b->start[run], end = b->start[run + 1], history = history_of(b, end);
        oscar_attend_desc desc;
        oscar_row_span spans[3];
        int count = 0;
        if (sink > end) sink = end;
        if (sink) spans[count++] = span_of(b, b->k, b->v, 0, sink);
        if (history) spans[count++] = span_of(b, b->k_read, b->v_read, sink, sink + history);
        if (sink + history < end) spans[count++] = span_of(b, b->k, b->v, sink + history, end);
        sink = b->sink < 0 ? 0 : b->sink ? b->sink : 64;
        memset(&desc, 0, sizeof desc);
        desc.layout = &b->layout;
        desc.q = view_of(b->in->q + at * m->q_heads * m->k_dim);
        desc.queries = (int)(end - at);
        desc.position = at;
        if (!must(oscar_attend_rows(&desc, spans, count, b->in->o + at * m->q_heads * m->v_dim, lse), "attention"))
            b->failed = 1;
    }
    free(lse);
}

/* Rows as the cache's windows hold them; COPY keeps them as they are. */
static void round_rows(kind k, size_t count, const float *x, float *out)
{
    uint16_t block[256];
    size_t i;
    if (k == COPY) { memcpy(out, x, count * sizeof *x); return; }
    for (i = 0; i < count; i += 256) {
        size_t n = count - i < 256 ? count - i : 256;
        oscar_convert(n, OSCAR_F32, x + i, OSCAR_BF16, block);
        oscar_convert(n, OSCAR_BF16, block, OSCAR_F32, out + i);
    }
}

static int baseline_layouts(baseline *b, int layer)
{
    oscar_layer l = layer_of(&b->e->m, layer), coded = l;
    l.k_bits = l.v_bits = 16;
    return must(oscar_page_layout(&l, 0, OSCAR_F32, &b->e->hooks, &b->layout), "layer")
        && (b->kind != PAGES || must(oscar_page_layout(&coded, 0, OSCAR_BF16, &b->e->hooks, &b->pages), "layer"));
}

/* An `attention` as attend_cached: a chunk that starts a sequence. */
static int attend_baseline(void *self, const attention_input *in)
{
    baseline *b = (baseline *)self;
    const model *m = &b->e->m;
    size_t tokens = (size_t)in->tokens;
    size_t k = tokens * (size_t)m->kv_heads * (size_t)m->k_dim, v = tokens * (size_t)m->kv_heads * (size_t)m->v_dim;
    cached_attention windows;
    int64_t n = 0;
    memset(&windows, 0, sizeof windows);
    windows.sink = b->sink;
    windows.recent = b->recent;
    if (in->position) return complain("the chunk must start a sequence");
    if (!baseline_layouts(b, in->layer)) return 0;
    b->in = in;
    b->failed = 0;
    b->k = (float *)allocate(2 * (k + v), sizeof(float));
    b->start = (int64_t *)allocate(tokens + 1, sizeof *b->start);
    if (!b->k || !b->start) { free(b->k); free(b->start); return 0; }
    b->v = b->k + k;
    b->k_read = b->v + v;
    b->v_read = b->k_read + k;
    round_rows(b->kind, k, in->k, b->k);
    round_rows(b->kind, v, in->v, b->v);
    memcpy(b->k_read, b->k, (k + v) * sizeof(float));
    for (b->runs = 0; n < in->tokens; b->start[++b->runs] = n) n += run_of_tokens(&windows, n, in->tokens);
    pool_run(&b->e->threads, history_of(b, in->tokens) / PAGE, 1, page_job, b);
    pool_run(&b->e->threads, b->runs, 1, baseline_job, b);
    free(b->k);
    free(b->start);
    return !b->failed;
}

/* Bits a value in pages, from what each would store. */
static double baseline_bits(const model *m, kind k)
{
    if (k == KIVI) return 2 + 32.0 * ((double)m->k_dim / KIVI_TOKENS + 1) / (m->k_dim + m->v_dim);
    return 2 + 16.0 * 2 / (m->k_dim + m->v_dim);
}

/* == 3 SELF-CHECKS ================================================================================================= */

static float check_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 11) / 4503599627370496.0 - 1);
}

/* min-max keeps constant rows and the four points of a grid. */
static int check_minmax(void)
{
    float x[KIVI_TOKENS];
    int i;
    for (i = 0; i < KIVI_TOKENS; i++) x[i] = -0.75f;
    minmax2(x, KIVI_TOKENS, 1);
    for (i = 0; i < KIVI_TOKENS; i++) if (fabsf(x[i] + 0.75f) > 0) return complain("min-max changes a constant row");
    for (i = 0; i < KIVI_TOKENS; i++) x[i] = 0.5f * (float)(i * 5 % 4) - 1;
    minmax2(x, KIVI_TOKENS, 1);
    for (i = 0; i < KIVI_TOKENS; i++)
        if (fabsf(x[i] - 0.5f * (float)(i * 5 % 4) + 1) > 0) return complain("min-max changes a row on its grid");
    return 1;
}

/* The rotation is orthogonal, and the squared error of a turned row is that of the four points: 0.1175. */
static int check_turboquant(void)
{
    enum { N = 128, COUNT = 200 };
    float *rotation = random_rotation(N), x[N], y[N];
    double worst = 0, error = 0, norm = 0;
    uint64_t random = 7;
    int i, j, k;
    if (!rotation) return 0;
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            double e = i == j ? -1 : 0;
            for (k = 0; k < N; k++) e += (double)rotation[i * N + k] * (double)rotation[j * N + k];
            if (fabs(e) > worst) worst = fabs(e);
        }
    for (i = 0; i < COUNT; i++) {
        for (j = 0; j < N; j++) y[j] = x[j] = check_random(&random) * (j % 16 ? 1 : 4);
        turboquant_row(rotation, N, y);
        for (j = 0; j < N; j++) {
            error += (double)((x[j] - y[j]) * (x[j] - y[j]));
            norm += (double)(x[j] * x[j]);
        }
    }
    free(rotation);
    if (worst > 1e-6) return complain("the random rotation is not orthogonal: %g", worst);
    if (fabs(error / norm - 0.1175) > 0.006) return complain("four points give an error of %g", error / norm);
    return 1;
}

static double difference(const float *a, const float *b, size_t n)
{
    double e = 0, norm = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        e += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(e / norm);
}

/* The attention of section 2 over plain rows is exact attention, and over the library's pages its cache. */
static int check_attention(engine *e, int window, const float *rows_of)
{
    enum { T = 500, Q = 4 * 32, K = 2 * 32 };
    layer_weights weights;
    attention_input in;
    exact_attention exact;
    cached_attention cached;
    oscar_layer plain;
    baseline b;
    float *o = (float *)allocate(2 * T * Q, sizeof *o);
    double copied, paged;
    int ok;
    if (!o) return 0;
    memset(&weights, 0, sizeof weights);
    memset(&in, 0, sizeof in);
    memset(&exact, 0, sizeof exact);
    memset(&cached, 0, sizeof cached);
    memset(&plain, 0, sizeof plain);
    memset(&b, 0, sizeof b);
    weights.window = window;
    e->m.layer = &weights;
    in.tokens = T;
    in.q = rows_of;
    in.k = rows_of + T * Q;
    in.v = in.k + T * K;
    exact.e = cached.e = b.e = e;
    cached.settings = &plain;
    cached.sink = b.sink = 5;
    cached.recent = b.recent = 70;
    b.kind = COPY;
    in.o = o;
    ok = attend_exact(&exact, &in);
    in.o = o + T * Q;
    ok = ok && attend_baseline(&b, &in);
    copied = difference(o + T * Q, o, T * Q);
    b.kind = PAGES;
    ok = ok && attend_baseline(&b, &in);
    in.o = o;
    ok = ok && attend_cached(&cached, &in);
    paged = difference(o + T * Q, o, T * Q);
    free(o);
    if (ok && !(copied < 1e-5)) ok = complain("attention over copied rows is off by %g", copied);
    if (ok && !(paged < 1e-5)) ok = complain("attention over the library's rows is not its cache's: %g", paged);
    return ok;
}

static int self_checks(void)
{
    enum { T = 500, VALUES = T * 32 * (4 + 2 + 2) };
    engine e;
    uint64_t random = 3;
    float *x = (float *)allocate(VALUES, sizeof *x);
    int i, ok = x && check_minmax() && check_turboquant();
    memset(&e, 0, sizeof e);
    e.hooks.log = print_log;
    e.m.layers = 1;
    e.m.q_heads = 4;
    e.m.kv_heads = 2;
    e.m.k_dim = e.m.v_dim = 32;
    e.m.attention_scale = 0.2f;
    if (!ok || !pool_create(&e.threads, 2)) { free(x); return 0; }
    for (i = 0; i < VALUES; i++) x[i] = 2 * check_random(&random);
    ok = check_attention(&e, 0, x) && check_attention(&e, 150, x);
    pool_destroy(&e.threads);
    free(x);
    return ok;
}

/* == 4 RESULTS AND CALIBRATIONS THAT ARE KEPT ====================================================================== */

#define KEPT "build/accuracy/"
#define RESULTS KEPT "results.tsv"
#define OTHER_TEXT KEPT "other.txt"
#define CALIBRATION_TEXT "examples/data/wikitext-valid.txt"
#define EVALUATION_TEXT "examples/data/wikitext-test.txt"

/* FNV-1a; the 0 at the end of a string counts, so that neighbours do not run into each other. */
static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t size)
{
    const unsigned char *at = (const unsigned char *)bytes;
    size_t i;
    for (i = 0; i < size; i++) h = (h ^ at[i]) * 1099511628211u;
    return h;
}

static uint64_t hash_words(uint64_t h, const char *s) { return hash_bytes(h, s, strlen(s) + 1); }

static uint64_t hash_file(const char *path)
{
    mapped file;
    uint64_t h;
    if (!map_file(path, &file)) return 0;
    h = hash_bytes(14695981039346656037u, file.bytes, file.size);
    unmap_file(&file);
    return h;
}

/* Up to `size` bytes of a file from *at on, to a line's end; 0 when it is used up. */
static int copy_lines(FILE *f, const mapped *from, size_t *at, size_t size)
{
    size_t end = *at + size < from->size ? *at + size : from->size;
    if (*at >= from->size) return 0;
    while (end < from->size && from->bytes[end - 1] != '\n') end++;
    fwrite(from->bytes + *at, 1, end - *at, f);
    *at = end;
    return 1;
}

static time_t fresh_after;   /* --fresh: only what this run made is good */

static int is_kept(const char *path)
{
    struct stat info;
    return !stat(path, &info) && info.st_mtime >= fresh_after;
}

/* Text of another kind: pieces of oscar.h and of the documents in turn. Made once and then kept, so that results do not
   change with every edit of the documents; --fresh makes it anew. */
static int other_text(void)
{
    static const char *const documents[] = { "docs/design.md", "README.md", "docs/architecture.md", "bench/README.md",
                                             "docs/status.md" };
    mapped code, prose;
    size_t code_at = 0, prose_at = 0, i;
    FILE *f;
    int ok = 1;
    if (is_kept(OTHER_TEXT)) return 1;
    if (!map_file("oscar.h", &code)) return 0;
    f = fopen(OTHER_TEXT, "wb");
    for (i = 0; f && ok && i < sizeof documents / sizeof *documents; i++, prose_at = 0) {
        if (!map_file(documents[i], &prose)) { ok = 0; break; }
        while (copy_lines(f, &prose, &prose_at, 4096)) copy_lines(f, &code, &code_at, 4096);
        unmap_file(&prose);
    }
    unmap_file(&code);
    if (!f || fclose(f)) ok = complain("%s cannot be written: %s", OTHER_TEXT, strerror(errno));
    return ok;
}

static uint64_t text_hash[3];   /* calibration, other, evaluation */

static int texts_hash(void)
{
    if (!other_text()) return 0;
    text_hash[0] = hash_file(CALIBRATION_TEXT);
    text_hash[1] = hash_file(OTHER_TEXT);
    text_hash[2] = hash_file(EVALUATION_TEXT);
    return text_hash[0] && text_hash[1] && text_hash[2];
}

static uint64_t calibration_key(const setup *at, off_t model_size, const char *options, int other)
{
    char text[64];
    uint64_t h = hash_words(14695981039346656037u, at->file);
    snprintf(text, sizeof text, "%d %lld %llx", (int)FORMAT, (long long)model_size,
             (unsigned long long)text_hash[other]);
    return hash_words(hash_words(hash_words(h, text), at->calibrate), options);
}

static uint64_t entry_key(const entry *e, off_t model_size)
{
    char text[96];
    uint64_t h = e->row->calibrate ? calibration_key(e->at, model_size, e->row->calibrate, e->row->other)
                                   : hash_words(14695981039346656037u, e->at->file);
    snprintf(text, sizeof text, "%d %lld %d %g %llx", (int)FORMAT, (long long)model_size, (int)e->row->kind,
             e->row->amount, (unsigned long long)text_hash[2]);
    return hash_words(hash_words(hash_words(h, text), e->at->evaluate), e->row->cache);
}

/* Fills in what the file knows; of two lines with one key the later one counts. A line that was cut off is left out. */
static void results_read(entry *entries, int count)
{
    FILE *f = fopen(RESULTS, "r");
    char text[512];
    int i;
    while (f && fgets(text, sizeof text, f)) {
        unsigned long long key;
        long long tokens;
        result r;
        if (!strchr(text, '\n')
            || sscanf(text, "%llx\t%*s\t%lf\t%lf\t%lf\t%lf\t%lf\t%lf\t%lld", &key, &r.ppl, &r.exact_ppl, &r.kl, &r.top1,
                      &r.bits, &r.seconds, &tokens) != 8)
            continue;
        r.tokens = tokens;
        for (i = 0; i < count; i++)
            if (entries[i].key == key) { entries[i].known = 1; entries[i].r = r; }
    }
    if (f) fclose(f);
}

static int result_keep(const entry *e)
{
    FILE *f = fopen(RESULTS, "a");
    int ok = f != NULL;
    if (ok) ok = fprintf(f, "%016llx\t%s.%s\t%.10g\t%.10g\t%.10g\t%.10g\t%.10g\t%.1f\t%lld\n",
                         (unsigned long long)e->key, e->at->name, e->row->name, e->r.ppl, e->r.exact_ppl, e->r.kl,
                         e->r.top1, e->r.bits, e->r.seconds, (long long)e->r.tokens) > 0;
    if (f && fclose(f)) ok = 0;
    return ok || complain("%s cannot be written: %s", RESULTS, strerror(errno));
}

/* == 5 RUNNING ROWS ================================================================================================ */

/* What is kept from row to row: the engine of a model, and the exact rows of a setup. */
typedef struct bench {
    const char *models;
    const setup *model_of, *exact_of;
    off_t model_size;
    engine e;
    corpus text;
    float *exact, *nll;      /* [chunks][tokens][width], [chunks][tokens] of the exact model */
} bench;

static void model_path(const char *models, const setup *at, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", models, at->file);
}

static void exact_close(bench *b)
{
    if (b->model_of) keep_logits(&b->e, NULL, 0);
    free(b->exact);
    free(b->nll);
    free(b->text.ids);
    memset(&b->text, 0, sizeof b->text);
    b->exact = b->nll = NULL;
    b->exact_of = NULL;
}

static void bench_close(bench *b)
{
    exact_close(b);
    if (b->model_of) engine_close(&b->e);
    b->model_of = NULL;
}

static int bench_model(bench *b, const setup *at)
{
    char path[512];
    struct stat info;
    if (b->model_of && !strcmp(b->model_of->file, at->file)) return 1;
    bench_close(b);
    model_path(b->models, at, path, sizeof path);
    if (stat(path, &info) || !engine_open(path, 0, &b->e)) return 0;
    b->model_size = info.st_size;
    b->model_of = at;
    return 1;
}

/* The exact model over the setup's chunks: its rows, and the negative log-likelihood of every token. */
static int bench_exact(bench *b, const setup *at)
{
    line l;
    score s;
    int i;
    if (b->exact_of == at) return 1;
    exact_close(b);
    if (!line_parse(&l, at->evaluate, "")
        || !corpus_read(&b->e, EVALUATION_TEXT, 0, l.o.chunks, l.o.chunk, &b->text))
        return 0;
    b->exact = exact_rows(&b->e, &b->text);
    b->nll = (float *)allocate((size_t)b->text.chunks, (size_t)b->text.tokens * sizeof *b->nll);
    if (!b->exact || !b->nll) return 0;
    if ((double)b->text.chunks * b->text.tokens * b->e.m.vocabulary * sizeof(float) < KEPT_MAX
        && !keep_logits(&b->e, b->exact, (int64_t)b->text.chunks * b->text.tokens))
        return 0;
    memset(&s, 0, sizeof s);
    for (i = 0; i < b->text.chunks; i++)
        if (!score_chunk(&b->e, b->text.ids + (int64_t)i * b->text.tokens, b->text.tokens, 0,
                         b->exact + (size_t)i * (size_t)b->text.tokens * (size_t)b->e.m.width, NULL, &s,
                         b->nll + (size_t)i * (size_t)b->text.tokens))
            return 0;
    b->exact_of = at;
    return 1;
}

/* Perplexity of the exact model over the positions that a row scores. */
static double exact_ppl(const bench *b, int from)
{
    double sum = 0;
    int chunk, t;
    for (chunk = 0; chunk < b->text.chunks; chunk++)
        for (t = from; t < b->text.tokens - 1; t++) sum += (double)b->nll[(int64_t)chunk * b->text.tokens + t];
    return exp(sum / ((double)b->text.chunks * (b->text.tokens - 1 - from)));
}

/* The rotations file of a calibration; makes it if it is not there. */
static int calibration_file(bench *b, const setup *at, const char *options, int other, char *path, size_t size)
{
    calibration c;
    line l;
    oscar_layer *layers;
    int ok;
    snprintf(path, size, KEPT "%.*s-%016llx.safetensors", (int)strcspn(at->file, "."), at->file,
             (unsigned long long)calibration_key(at, b->model_size, options, other));
    if (is_kept(path)) return 1;
    if (!line_parse(&l, at->calibrate, options)) return 0;
    layers = (oscar_layer *)allocate((size_t)b->e.m.layers, sizeof *layers);
    if (!layers) return 0;
    ok = calibrate(&b->e, &l.o, other ? OTHER_TEXT : CALIBRATION_TEXT, &c) && layers_of(&c, layers)
         && calibration_save(&c, layers, path);
    calibration_free(&c);
    free(layers);
    return ok;
}

/* Settings of a row, from its calibration or its options alone. The row's options are l's. */
static int row_settings(bench *b, const entry *e, line *l, settings *s)
{
    char path[256];
    const row *r = e->row;
    memset(s, 0, sizeof *s);
    if (r->calibrate) {
        if (!calibration_file(b, e->at, r->calibrate, r->other, path, sizeof path)) return 0;
        l->o.rotations = path;
    }
    return settings_create(&b->e, &l->o, s);
}

/* The mean keys of a BALANCED calibration on the same tokens, put into the pairs of s. */
static int add_means(bench *b, const entry *e, settings *s, settings *means)
{
    const model *m = &b->e.m;
    char path[256];
    line l;
    int i, h, quick = !strncmp(e->at->name, "quick", 5);
    memset(means, 0, sizeof *means);
    if (!calibration_file(b, e->at, quick ? "--weights plain" : PLAIN, 0, path, sizeof path)
        || !line_parse(&l, "", ""))
        return 0;
    l.o.rotations = path;
    if (!settings_create(&b->e, &l.o, means)) return 0;
    for (i = 0; i < m->layers; i++) {
        oscar_pair *pairs = s->pairs + (size_t)i * 2 * (size_t)m->kv_heads;
        for (h = 0; h < m->kv_heads; h++) {
            pairs[h] = s->layers[i].k[h];
            pairs[h].mean = means->layers[i].k[h].mean;
        }
        s->layers[i].k = pairs;
    }
    return 1;
}

/* KL that each layer's cache costs alone, on the calibration text behind the calibration's part; kept as a file. */
static int losses_of(bench *b, const entry *e, const oscar_layer *layers, double *kl)
{
    char path[256];
    corpus text;
    line l;
    FILE *f;
    int i, ok;
    snprintf(path, sizeof path, KEPT "%.*s-%016llx.losses", (int)strcspn(e->at->file, "."), e->at->file,
             (unsigned long long)calibration_key(e->at, b->model_size, e->row->calibrate, 0));
    f = is_kept(path) ? fopen(path, "r") : NULL;
    for (i = 0; f && i < b->e.m.layers && fscanf(f, "%lf", &kl[i]) == 1; i++) {}
    if (f) fclose(f);
    if (f && i == b->e.m.layers) return 1;
    if (!line_parse(&l, e->at->calibrate, e->row->calibrate)
        || !corpus_read(&b->e, CALIBRATION_TEXT, l.o.tokens ? l.o.tokens : 16384, 1, l.o.chunk, &text))
        return 0;
    ok = measure_losses(&b->e, &l.o, layers, &text, kl);
    free(text.ids);
    f = ok ? fopen(path, "w") : NULL;
    for (i = 0; f && i < b->e.m.layers; i++) fprintf(f, "%.8g\n", kl[i]);
    return ok && ((f && !fclose(f)) || complain("%s cannot be written: %s", path, strerror(errno)));
}

static int spend(bench *b, const entry *e, settings *s)
{
    double *kl = (double *)allocate((size_t)b->e.m.layers, sizeof *kl);
    int ok = kl && losses_of(b, e, s->layers, kl) && spend_bits(&b->e, kl, e->row->amount, s->layers);
    free(kl);
    return ok;
}

/* A row that attends through the library's cache. */
static int run_cache(bench *b, entry *e, line *l, score *s)
{
    cached_attention cached;
    settings set, means;
    int ok = row_settings(b, e, l, &set);
    memset(&means, 0, sizeof means);
    memset(&cached, 0, sizeof cached);
    if (ok && e->row->kind == MEAN_KEY) ok = add_means(b, e, &set, &means);
    if (ok && e->row->kind == BUDGET) ok = spend(b, e, &set);
    cached.e = &b->e;
    cached.settings = set.layers;
    cached.sink = l->o.sink;
    cached.recent = l->o.recent;
    ok = ok && settings_bits(&b->e, set.layers, &e->r.bits)
         && evaluate(&b->e, &b->text, b->exact, attend_cached, &cached, windows_of(&l->o), s);
    settings_free(&set);
    settings_free(&means);
    return ok;
}

static int run_baseline(bench *b, entry *e, const line *l, score *s)
{
    baseline base;
    float *rotation = random_rotation(b->e.m.k_dim);
    int ok;
    memset(&base, 0, sizeof base);
    base.e = &b->e;
    base.kind = e->row->kind;
    base.sink = l->o.sink;
    base.recent = l->o.recent;
    base.rotation = rotation;
    ok = rotation && (b->e.m.k_dim == b->e.m.v_dim || complain("a rotation for K and V needs heads of one size"))
         && evaluate(&b->e, &b->text, b->exact, attend_baseline, &base, windows_of(&l->o), s);
    e->r.bits = baseline_bits(&b->e.m, e->row->kind);
    free(rotation);
    return ok;
}

/* The questions of `llm needle` over one context. */
static int ask_needles(bench *b, entry *e, const tokenizer *t, const settings *set, const line *l)
{
    needle n;
    needle_result found = { 0, 0, 0 };
    served s;
    mapped file;
    text prose;
    float *x = NULL, *logits = (float *)allocate((size_t)b->e.m.vocabulary, sizeof *logits);
    int i, ok = logits && needle_text(EVALUATION_TEXT, &file, &prose);
    if (!ok) { free(logits); return 0; }
    ok = needle_create(&b->e, t, prose, (int)e->row->amount, &n);
    memset(&s, 0, sizeof s);
    if (ok) x = (float *)allocate((size_t)n.count, (size_t)b->e.m.width * sizeof *x);
    ok = ok && x && served_open(&b->e, set->layers, n.count + 128, 2, &l->o, &s)
         && served_feed(&s, n.ids, n.count, l->o.chunk, x);
    for (i = 0; ok && i < NEEDLE_ASKED; i++)
        ok = needle_ask(&n, &s, i, x, logits, &found);
    served_close(&s);
    unmap_file(&file);
    free(n.ids);
    free(x);
    free(logits);
    if (!ok) return 0;
    e->r.kl = found.nll / found.asked;
    e->r.top1 = (double)found.right / found.asked;
    e->r.tokens = found.asked;
    return 1;
}

static int run_needle(bench *b, entry *e, line *l)
{
    tokenizer t;
    settings set;
    int ok = row_settings(b, e, l, &set) && settings_bits(&b->e, set.layers, &e->r.bits);
    if (ok) {
        ok = tokenizer_create(&b->e.m.data, &t);
        if (ok) {
            ok = ask_needles(b, e, &t, &set, l);
            tokenizer_free(&t);
        }
    }
    settings_free(&set);
    return ok;
}

static int run_entry(bench *b, entry *e)
{
    double start = seconds(), n;
    line l;
    score s = { 0, 0, 0, 0 };
    int ok, from;
    memset(&e->r, 0, sizeof e->r);
    if (!line_parse(&l, e->at->evaluate, e->row->cache)) return 0;
    from = windows_of(&l.o);
    if (e->row->kind == NEEDLE) ok = run_needle(b, e, &l);
    else {
        ok = bench_exact(b, e->at);
        if (ok && e->row->kind == EXACT) {
            e->r.bits = 16;
            e->r.top1 = 1;
            e->r.ppl = exact_ppl(b, from);
        } else if (ok)
            ok = e->row->kind == KIVI || e->row->kind == TURBOQUANT ? run_baseline(b, e, &l, &s)
                                                                    : run_cache(b, e, &l, &s);
        if (ok) e->r.exact_ppl = exact_ppl(b, from);
        n = (double)s.tokens;
        if (ok && s.tokens) {
            e->r.ppl = exp(s.nll / n);
            e->r.kl = s.kl / n;
            e->r.top1 = (double)s.top1 / n;
            e->r.tokens = s.tokens;
        }
    }
    e->r.seconds = seconds() - start;
    e->known = ok;
    return ok && result_keep(e);
}

/* Whether a name matches one of the patterns, a list with commas; NULL matches all. */
static int is_asked_for(const char *patterns, const char *name)
{
    char one[128];
    while (patterns && *patterns) {
        size_t length = strcspn(patterns, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, patterns);
        if (!fnmatch(one, name, 0)) return 1;
        patterns += length + (patterns[length] == ',');
    }
    return !patterns;
}

/* What is left, by the setups' guesses times how right they were so far. */
static void print_progress(const entry *entries, int count, const entry *now, double spent, double guessed)
{
    double left = 0;
    int i, done = 0, of = 0;
    for (i = 0; i < count; i++) {
        of += entries[i].wanted;
        done += entries[i].wanted && entries[i].known;
        if (entries[i].wanted && !entries[i].known) left += entries[i].at->seconds;
    }
    fprintf(stderr, "[%d/%d] %s.%s  KL %.4g  %.0f s; about %.0f min left\n", done, of, now->at->name, now->row->name,
            now->r.kl, now->r.seconds, left * (guessed > 0 ? spent / guessed : 1) / 60);
}

static void want_entries(const bench *b, entry *entries, int count, const char *pattern)
{
    int i;
    for (i = 0; i < count; i++) {
        char id[128], path[512];
        snprintf(id, sizeof id, "%s.%s", entries[i].at->name, entries[i].row->name);
        model_path(b->models, entries[i].at, path, sizeof path);
        entries[i].wanted = !entries[i].known && !access(path, R_OK) && is_asked_for(pattern, id);
    }
}

/* A row that fails ends the run. */
static int run_entries(bench *b, entry *entries, int count, const char *pattern)
{
    double spent = 0, guessed = 0;
    int i, ok = 1;
    want_entries(b, entries, count, pattern);
    for (i = 0; ok && i < count; i++) {
        if (!entries[i].wanted) continue;
        ok = bench_model(b, entries[i].at) && run_entry(b, &entries[i]);
        if (!ok) { complain("row %s.%s failed", entries[i].at->name, entries[i].row->name); break; }
        spent += entries[i].r.seconds;
        guessed += entries[i].at->seconds;
        print_progress(entries, count, &entries[i], spent, guessed);
    }
    bench_close(b);
    return ok;
}

/* == 6 TABLES ====================================================================================================== */

static const entry *entry_find(const entry *entries, int count, int which, int setup_bit, const char *name)
{
    int i;
    for (i = 0; i < count; i++)
        if (entries[i].known && entries[i].row->table == which && entries[i].at == &setups[setup_bit]
            && !strcmp(entries[i].row->name, name))
            return &entries[i];
    return NULL;
}

static int table_known(const entry *entries, int count, int which, int setup_bit)
{
    int i;
    for (i = 0; i < count; i++)
        if (entries[i].known && entries[i].row->table == which && entries[i].at == &setups[setup_bit]) return 1;
    return 0;
}

/* Whether the independent engine measured anything that stands in this table and column. */
static int has_reference(int which, int setup_bit)
{
    int i, reference = setups[setup_bit].reference;
    for (i = 0; reference >= 0 && i < ROWS; i++)
        if (rows[i].table == which && rows[i].setups >> setup_bit & 1 && rows[i].reference[reference] > 0) return 1;
    return 0;
}

static void print_kl(FILE *f, double kl) { fprintf(f, kl < 0.1 ? "%.4f |" : "%.3f |", kl); }

/* The cells of one row and setup: bits, perplexity, KL, that of the other engine, agreement. */
static void print_cells(FILE *f, const entry *e, int which, int setup_bit)
{
    int reference = has_reference(which, setup_bit);
    double known = e && reference ? e->row->reference[setups[setup_bit].reference] : 0, change;
    if (!e) { fprintf(f, reference ? " | | | | |" : " | | | |"); return; }
    if (e->row->kind == EXACT) {
        fprintf(f, " 16 | %.3f | 0 |%s 100 %% |", e->r.ppl, reference ? " |" : "");
        return;
    }
    change = 100 * (e->r.ppl / e->r.exact_ppl - 1);
    fprintf(f, fabs(change) < 9.95 ? " %.3f | %+.1f %% | " : " %.3f | %+.0f %% | ", e->r.bits, change);
    print_kl(f, e->r.kl);
    if (known > 0) { fprintf(f, " "); print_kl(f, known); } else if (reference) fprintf(f, " |");
    fprintf(f, " %.1f %% |", 100 * e->r.top1);
}

static void print_table(FILE *f, const entry *entries, int count, int which)
{
    int s, i, any = 0;
    for (s = 0; s < SETUPS; s++) any |= table_known(entries, count, which, s);
    if (!any) return;
    fprintf(f, "\n### %s\n\n%s\n\n| |", tables[which].title, tables[which].words);
    for (s = 0; s < SETUPS; s++)
        if (tables[which].columns >> s & 1)
            fprintf(f, " %s: bits | ppl | KL |%s top-1 |", setups[s].title,
                    has_reference(which, s) ? " NumPy KL |" : "");
    fprintf(f, "\n|---|");
    for (s = 0; s < SETUPS; s++)
        if (tables[which].columns >> s & 1) fprintf(f, "---|---|---|---|%s", has_reference(which, s) ? "---|" : "");
    fprintf(f, "\n");
    for (i = 0; i < ROWS; i++) {
        if (rows[i].table != which) continue;
        for (s = any = 0; s < SETUPS; s++) any |= entry_find(entries, count, which, s, rows[i].name) != NULL;
        if (!any || rows[i].kind == NEEDLE) continue;
        fprintf(f, "| %s |", rows[i].label);
        for (s = 0; s < SETUPS; s++)
            if (tables[which].columns >> s & 1)
                print_cells(f, entry_find(entries, count, which, s, rows[i].name), which, s);
        fprintf(f, "\n");
    }
}

/* Retrieval: methods down, lengths across, one table a model. */
static void print_needles(FILE *f, const entry *entries, int count)
{
    static const char *const methods_of[3] = { "exact", "oscar_head", "recommended" };
    static const char *const labels[3] = { "BF16 cache", "OSCAR per head, clip", "BALANCED recommended" };
    static const int lengths[4] = { 512, 1024, 2048, 4096 };
    int s, m, l;
    for (s = 0; s < SETUPS; s++) {
        if (!table_known(entries, count, NEEDLES, s)) continue;
        fprintf(f, "\n### %s: %s\n\n%s\n\n| | 512 | 1,024 | 2,048 | 4,096 |\n|---|---|---|---|---|\n",
                tables[NEEDLES].title, setups[s].title, tables[NEEDLES].words);
        for (m = 0; m < 3; m++) {
            fprintf(f, "| %s |", labels[m]);
            for (l = 0; l < 4; l++) {
                char name[64];
                const entry *e;
                snprintf(name, sizeof name, "needle.%s.%d", methods_of[m], lengths[l]);
                e = entry_find(entries, count, NEEDLES, s, name);
                if (e) fprintf(f, " %.0f, %.3f |", e->r.top1 * (double)e->r.tokens, e->r.kl);
                else fprintf(f, " |");
            }
            fprintf(f, "\n");
        }
    }
}

static void print_cpu(FILE *f)
{
    FILE *info = fopen("/proc/cpuinfo", "r");
    char text[256];
    while (info && fgets(text, sizeof text, info)) {
        char *colon = strchr(text, ':');
        if (strncmp(text, "model name", 10) || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        fprintf(f, "%s", colon + 1);
        break;
    }
    if (info) fclose(info);
}

static void print_tables(FILE *f, const entry *entries, int count)
{
    double spent = 0;
    int i, known = 0, version = oscar_version();
    for (i = 0; i < count; i++) if (entries[i].known) { spent += entries[i].r.seconds; known++; }
    fprintf(f, "Made by `make accuracy` with oscar.h %d.%d.%d, %d of %d rows in %.0f minutes of work on %ld cores of",
            version / 10000, version / 100 % 100, version % 100, known, count, spent / 60,
            sysconf(_SC_NPROCESSORS_ONLN));
    print_cpu(f);
#if defined(__clang__)
    fprintf(f, ", clang %d.%d.\n", __clang_major__, __clang_minor__);
#elif defined(__GNUC__)
    fprintf(f, ", gcc %d.%d.\n", __GNUC__, __GNUC_MINOR__);
#else
    fprintf(f, ".\n");
#endif
    for (i = 0; i < TABLES; i++) if (i != NEEDLES) print_table(f, entries, count, i);
    print_needles(f, entries, count);
}

static const char mark_first[] = "<!-- tables -->\n", mark_last[] = "<!-- end of tables -->\n";

/* Puts the tables between the marks of DIR/accuracy.md; the text outside of them stays. */
static int document_write(const char *out, const entry *entries, int count)
{
    char path[512];
    mapped old = { NULL, 0 };
    char *text = NULL, *first, *last;
    FILE *f;
    snprintf(path, sizeof path, "%s/accuracy.md", out);
    if (!access(path, R_OK)) {
        if (!map_file(path, &old)) return 0;
        text = (char *)allocate(old.size + 1, 1);
        if (text) memcpy(text, old.bytes, old.size);
        unmap_file(&old);
        if (!text) return 0;
    }
    first = text ? strstr(text, mark_first) : NULL;
    last = first ? strstr(first, mark_last) : NULL;
    if (text && !last) {
        free(text);
        return complain("%s has no lines %.15s and %.22s, so nothing in it was changed", path, mark_first, mark_last);
    }
    f = fopen(path, "w");
    if (!f) { free(text); return complain("cannot write %s: %s", path, strerror(errno)); }
    if (text) fwrite(text, 1, (size_t)(first - text), f);
    else fputs("# Accuracy\n\n", f);
    fputs(mark_first, f);
    print_tables(f, entries, count);
    fputs(text ? last : mark_last, f);
    free(text);
    printf("Wrote %s\n", path);
    return !fclose(f) || complain("%s cannot be written: %s", path, strerror(errno));
}

static void print_figures(const entry *entries, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        const entry *e = &entries[i];
        char name[160];
        if (!e->known) continue;
        snprintf(name, sizeof name, "accuracy.%s.%s", e->at->name, e->row->name);
        if (e->row->kind == NEEDLE) {
            printf("figure %s.right %.4g 1\nfigure %s.nll %.4g nat\n", name, e->r.top1, name, e->r.kl);
            continue;
        }
        printf("figure %s.ppl %.6g 1\n", name, e->r.ppl);
        if (e->row->kind == EXACT) continue;
        printf("figure %s.kl %.4g nat\nfigure %s.top1 %.4g 1\nfigure %s.bits %.4f bits\n", name, e->r.kl, name,
               e->r.top1, name, e->r.bits);
    }
}

/* == 7 PLOT ======================================================================================================== */

enum { PLOT_LEFT = 240, PLOT_WIDTH = 340, PLOT_TOP = 84, PLOT_HEIGHT = 380, PANEL = 600, POINTS_MAX = 64 };

typedef struct point { double x, y, label_y; const char *label; int on_curve; } point;

static double plot_x(double bits) { return PLOT_LEFT + (bits - 2) / 2.5 * PLOT_WIDTH; }

/* 10 to 0.0005, one length a decade. */
static double plot_y(double kl) { return PLOT_TOP + (1 - log10(kl < 0.0005 ? 0.0005 : kl)) / 4.302 * PLOT_HEIGHT; }

/* Points of a model, by height. */
static int plot_points(const entry *entries, int count, int setup_bit, point *points)
{
    int i, j, n = 0;
    for (i = 0; i < count && n < POINTS_MAX; i++) {
        const entry *e = &entries[i];
        point p;
        if (!e->known || e->at != &setups[setup_bit] || e->r.bits > 4.45 || e->r.kl <= 0
            || (e->row->table != METHODS && e->row->table != CURVE && e->row->table != QUICK_ROWS)
            || e->row->kind == NEEDLE)
            continue;
        p.x = plot_x(e->r.bits);
        p.y = p.label_y = plot_y(e->r.kl);
        p.label = e->row->table == CURVE ? NULL : e->row->label;
        p.on_curve = e->row->table == CURVE || !strcmp(e->row->name, "recommended")
                     || !strcmp(e->row->name, "recommended_k4");
        for (j = n++; j > 0 && points[j - 1].y > p.y; j--) points[j] = points[j - 1];
        points[j] = p;
    }
    return n;
}

/* Where a label goes: -1 left of the axis, 1 in a column beside the 2-bit points, 2 right of its point, 3 left of it,
   lower where 2 may be in the way. */
static int plot_side(const point *p)
{
    if (p->x > plot_x(2.9)) return p->x > plot_x(3.8) ? 3 : 2;
    return p->y > plot_y(0.06) ? -1 : 1;
}

/* From the top, each at its point's height or, where that is taken, below. */
static void plot_labels(FILE *f, point *points, int n)
{
    static const int sides[4] = { -1, 1, 2, 3 };
    int i, s;
    for (s = 0; s < 4; s++) {
        double free_from = PLOT_TOP - 20;
        for (i = 0; i < n; i++) {
            point *p = &points[i];
            double x = sides[s] < 0 ? PLOT_LEFT - 42 : sides[s] == 1 ? plot_x(2.95) : p->x + (sides[s] == 2 ? 8 : -8);
            int left = sides[s] < 0 || sides[s] == 3;
            if (!p->label || plot_side(p) != sides[s]) continue;
            if (p->label_y < free_from) p->label_y = free_from;
            free_from = p->label_y + 13;
            if (sides[s] < 2) fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#bdc1c6\"/>\n",
                                      p->x, p->y, left ? x + 3 : x - 3, p->label_y);
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"label\" text-anchor=\"%s\">%s</text>\n", x,
                    p->label_y + (sides[s] == 3 && p->y < plot_y(0.003) ? 16 : 3), left ? "end" : "start",
                    sides[s] == 2 && !strncmp(p->label, "recommended, ", 13) ? p->label + 13 : p->label);
        }
    }
}

static void plot_axes(FILE *f, const char *title)
{
    static const double levels[] = { 10, 1, 0.1, 0.01, 0.001 };
    int i;
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"title\">%s</text>\n", (int)PLOT_LEFT, PLOT_TOP - 16, title);
    for (i = 0; i < 5; i++)
        fprintf(f, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#e6e8eb\"/>\n<text x=\"%d\" y=\"%.1f\" "
                "class=\"tick\" text-anchor=\"end\">%g</text>\n", (int)PLOT_LEFT, plot_y(levels[i]),
                PLOT_LEFT + PLOT_WIDTH, plot_y(levels[i]), PLOT_LEFT - 5, plot_y(levels[i]) + 4, levels[i]);
    for (i = 0; i < 6; i++)
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" class=\"tick\" text-anchor=\"middle\">%.1f</text>\n",
                plot_x(2 + 0.5 * i), PLOT_TOP + PLOT_HEIGHT + 18, 2 + 0.5 * i);
    fprintf(f, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#80868b\"/>\n", (int)PLOT_LEFT,
            PLOT_TOP + PLOT_HEIGHT, PLOT_LEFT + PLOT_WIDTH, PLOT_TOP + PLOT_HEIGHT);
}

static void plot_model(FILE *f, const entry *entries, int count, int setup_bit, const char *colour)
{
    point points[POINTS_MAX];
    int n = plot_points(entries, count, setup_bit, points), i, begun = 0;
    plot_axes(f, setups[setup_bit].title);
    plot_labels(f, points, n);
    for (i = 0; i < n; i++) {   /* by height is by bits, from right to left or left to right */
        if (!points[i].on_curve) continue;
        fprintf(f, "%s%.1f,%.1f", begun ? " " : "<polyline fill=\"none\" stroke-width=\"1.5\" points=\"", points[i].x,
                points[i].y);
        begun = 1;
    }
    if (begun) fprintf(f, "\" stroke=\"%s\"/>\n", colour);
    for (i = 0; i < n; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\"/>\n", points[i].x, points[i].y,
                points[i].label ? "4" : "2.5", colour);
}

static int plot_write(const char *out, const entry *entries, int count, int quick)
{
    char path[512];
    FILE *f;
    snprintf(path, sizeof path, "%s/accuracy.svg", out);
    f = fopen(path, "w");
    if (!f) return complain("cannot write %s: %s", path, strerror(errno));
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"520\" viewBox=\"0 0 %d 520\" "
            "font-family=\"Helvetica, Arial, sans-serif\">\n<style>.title{font-size:14px;font-weight:600;fill:#202124}"
            ".tick{font-size:11px;fill:#5f6368}.label{font-size:10.5px;fill:#3c4043}.head{font-size:18px;"
            "font-weight:700;fill:#202124}</style>\n<rect width=\"%d\" height=\"520\" fill=\"#ffffff\"/>\n"
            "<text x=\"24\" y=\"36\" class=\"head\">KL divergence from the exact model (nats a token) against bits a "
            "cached value</text>\n", 2 * PANEL, 2 * PANEL, 2 * PANEL);
    plot_model(f, entries, count, quick ? 6 : 0, "#3d6fb4");
    fprintf(f, "<g transform=\"translate(%d 0)\">\n", (int)PANEL);
    plot_model(f, entries, count, quick ? 7 : 1, "#b3541e");
    fprintf(f, "</g>\n<text x=\"24\" y=\"508\" class=\"tick\">Windows (first and last tokens) stay exact in all of "
            "them and are not in the bits. Line: keys of 4 bits in more and more layers.</text>\n</svg>\n");
    printf("Wrote %s\n", path);
    return !fclose(f) || complain("%s cannot be written: %s", path, strerror(errno));
}

/* == 8 MAIN ======================================================================================================== */

/* Every row at each of its setups, setup by setup, so that exact rows are made once. Models that are absent are said
   here; their rows keep a key of nothing. */
static int entries_create(const char *models, int quick, entry *entries)
{
    int s, i, count = 0;
    for (s = 0; s < SETUPS; s++) {
        char path[512];
        struct stat info;
        int absent, first = count;
        model_path(models, &setups[s], path, sizeof path);
        absent = stat(path, &info) != 0;
        for (i = 0; i < ROWS; i++) {
            entry *e = &entries[count];
            if (!(rows[i].setups >> s & 1) || quick != (rows[i].table == QUICK_ROWS)) continue;
            memset(e, 0, sizeof *e);
            e->at = &setups[s];
            e->row = &rows[i];
            e->key = absent ? 0 : entry_key(e, info.st_size);
            count++;
        }
        if (absent && count > first)
            fprintf(stderr, "%s: skipped, %d rows: there is no %s (make models)\n", setups[s].name, count - first,
                    path);
    }
    return count;
}

static int usage(void)
{
    fputs("usage: accuracy [--rows PATTERN] [--quick] [--fresh] [--models DIR] [--out DIR]\n"
          "  --rows PATTERN  only rows whose name matches one of a list, such as 'smollm2.oscar*,gemma3.none'\n"
          "  --quick         a few rows, one chunk of 1,024 tokens; into " KEPT "quick\n"
          "  --fresh         measures again what is known; after a change of oscar.h or llm.c\n"
          "  --models DIR    where the GGUF files are (build/models)\n"
          "  --out DIR       where accuracy.md and accuracy.svg go (docs)\n", stderr);
    return 2;
}

int main(int count, char **words)
{
    static entry entries[ENTRIES_MAX];
    const char *pattern = NULL, *out = NULL;
    bench b;
    int i, n, quick = 0, ok;
    memset(&b, 0, sizeof b);
    b.models = "build/models";
    for (i = 1; i < count; i++) {
        const char **value = !strcmp(words[i], "--rows") ? &pattern : !strcmp(words[i], "--models") ? &b.models
                             : !strcmp(words[i], "--out") ? &out : NULL;
        if (!strcmp(words[i], "--quick")) quick = 1;
        else if (!strcmp(words[i], "--fresh")) fresh_after = time(NULL);
        else if (value && i + 1 < count) *value = words[++i];
        else return usage();
    }
    mkdir("build", 0777);
    mkdir("build/accuracy", 0777);
    if (!out) out = quick ? KEPT "quick" : "docs";
    mkdir(out, 0777);
    if (!self_checks()) return complain("the self-checks failed: nothing was measured"), 1;
    if (!texts_hash()) return 1;
    n = entries_create(b.models, quick, entries);
    if (!fresh_after) results_read(entries, n);
    ok = run_entries(&b, entries, n, pattern);
    print_figures(entries, n);
    return document_write(out, entries, n) && plot_write(out, entries, n, quick) && ok ? 0 : 1;
}
