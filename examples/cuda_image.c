/* cuda_image.c - kernels of oscar_cuda.h for one layer's shape, made ahead of time: for programs that are shipped
   without NVRTC. Needs no GPU.

       cc -O2 -I. examples/cuda_image.c -o cuda_image -lm

       ./cuda_image --q-heads 32 --kv-heads 8 --dim 128 --sm 90 -o layer.cubin         NVRTC makes a cubin
       ./cuda_image --q-heads 32 --kv-heads 8 --dim 128 --sm 80 --ptx -o layer.ptx     or PTX, for sm 80 and later
       ./cuda_image --q-heads 32 --kv-heads 8 --dim 128 --sm 80 --source -o layer.cu   the text, for nvcc or clang:

       nvcc -cubin -arch=sm_90 layer.cu -o layer.cubin
       nvcc -fatbin -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] layer.cu \
           -o layer.fatbin
       clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -Xclang -target-feature \
           -Xclang +ptx74 -O3 -S layer.cu -o layer.ptx

   oscar_cuda_load takes the bytes of any of these files, for the layer and options that are named here. --header NAME
   writes a C array in place of a file. All options: cuda_image --help. */

#define OSCAR_NO_SIMD          /* layouts and text need no vectors, which take long to compile */
#define OSCAR_IMPLEMENTATION
#include "oscar_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: cuda_image --q-heads N --kv-heads N --dim N [options] -o FILE\n"
    "what to write:\n"
    "  --sm N             architecture, 75 or more (80)\n"
    "  --ptx              PTX for it and later ones, in place of a cubin\n"
    "  --source           the text itself: no NVRTC is needed\n"
    "  --header NAME      as a C array NAME and its size NAME_size\n"
    "  --nvrtc PATH       NVRTC library or its folder (searched for)\n"
    "the layer, as in oscar_layer:\n"
    "  --q-heads --kv-heads --dim --k-dim --v-dim N\n"
    "  --bits --k-bits --v-bits N     2, 4 or 16 (2)\n"
    "  --clip --k-clip --v-clip Q     CLIP fit with this quantile, 0: 0.96 and 0.92 (UNBIASED fit)\n"
    "  --group --k-group --v-group N  channels that share a scale (all)\n"
    "  --no-page-mean --window N --softcap --folded\n"
    "its pairs: HADAMARD, if nothing is said\n"
    "  --dense --k-dense --v-dense --k-identity --v-identity\n"
    "  --mean --metric    K's pairs have a mean, a metric\n"
    "pages, windows and steps, as in oscar_page_layout and oscar_cuda_options:\n"
    "  --page N --window-type T --row-type T (bf16, f16, f32) --sink N --recent N --max-draft N --step-rows N\n";

/* What the command line asks for. The kernels depend on which arrays a pair has, not on what is in them. */
typedef struct request {
    oscar_layer layer;
    oscar_cuda_options options;
    oscar_type window_type;
    int page, sm, ptx, source;
    const char *nvrtc, *out, *name;
    oscar_kind k_kind, v_kind;
    int mean, metric;
} request;

static void report(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)code;
    (void)line;
    if (level != OSCAR_LOG_INFO) fprintf(stderr, "cuda_image: %s\n", text);
}

/* ---- command line ---- */

static int is(const char *word, const char *name) { return strcmp(word, name) == 0; }

/* Options without a value; 0 if the word is none. */
static int take_switch(request *r, const char *word)
{
    if (is(word, "--ptx")) r->ptx = 1;
    else if (is(word, "--source")) r->source = 1;
    else if (is(word, "--no-page-mean")) r->layer.k_page_mean = -1;
    else if (is(word, "--softcap")) r->layer.softcap = 1;
    else if (is(word, "--folded")) r->layer.v_folded = 1;
    else if (is(word, "--dense")) r->k_kind = r->v_kind = OSCAR_DENSE;
    else if (is(word, "--k-dense")) r->k_kind = OSCAR_DENSE;
    else if (is(word, "--v-dense")) r->v_kind = OSCAR_DENSE;
    else if (is(word, "--k-identity")) r->k_kind = OSCAR_IDENTITY;
    else if (is(word, "--v-identity")) r->v_kind = OSCAR_IDENTITY;
    else if (is(word, "--mean")) r->mean = 1;
    else if (is(word, "--metric")) r->metric = 1;
    else return 0;
    return 1;
}

static oscar_type type_of(const char *name)
{
    if (is(name, "bf16")) return OSCAR_BF16;
    if (is(name, "f16")) return OSCAR_F16;
    if (is(name, "f32")) return OSCAR_F32;
    fprintf(stderr, "cuda_image: %s is not bf16, f16 or f32\n", name);
    exit(2);
}

/* Options with a word behind them. */
static int take_word(request *r, const char *word, const char *value)
{
    if (is(word, "-o")) r->out = value;
    else if (is(word, "--header")) r->name = value;
    else if (is(word, "--nvrtc")) r->nvrtc = value;
    else if (is(word, "--window-type")) r->window_type = type_of(value);
    else if (is(word, "--row-type")) r->options.row_type = type_of(value);
    else return 0;
    return 1;
}

static int take_clip(request *r, const char *word, double value)
{
    int k = is(word, "--clip") || is(word, "--k-clip"), v = is(word, "--clip") || is(word, "--v-clip");
    if (k) { r->layer.k_fit = OSCAR_CLIP; r->layer.k_clip = value; }
    if (v) { r->layer.v_fit = OSCAR_CLIP; r->layer.v_clip = value; }
    return k || v;
}

/* Options with a number, which may go to two fields. */
static int take_number(request *r, const char *word, int value)
{
    const struct { const char *word; int *to, *and_to; } list[] = {
        { "--sm", &r->sm, NULL }, { "--q-heads", &r->layer.q_heads, NULL }, { "--kv-heads", &r->layer.kv_heads, NULL },
        { "--dim", &r->layer.k_dim, &r->layer.v_dim }, { "--k-dim", &r->layer.k_dim, NULL },
        { "--v-dim", &r->layer.v_dim, NULL }, { "--bits", &r->layer.k_bits, &r->layer.v_bits },
        { "--k-bits", &r->layer.k_bits, NULL }, { "--v-bits", &r->layer.v_bits, NULL },
        { "--group", &r->layer.k_group, &r->layer.v_group }, { "--k-group", &r->layer.k_group, NULL },
        { "--v-group", &r->layer.v_group, NULL }, { "--window", &r->layer.window, NULL }, { "--page", &r->page, NULL },
        { "--sink", &r->options.sink, NULL }, { "--recent", &r->options.recent, NULL },
        { "--max-draft", &r->options.max_draft, NULL }, { "--step-rows", &r->options.step_rows, NULL }
    };
    size_t i;
    for (i = 0; i < sizeof list / sizeof *list; i++) {
        if (!is(word, list[i].word)) continue;
        *list[i].to = value;
        if (list[i].and_to) *list[i].and_to = value;
        return 1;
    }
    return 0;
}

static void take(request *r, int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        if (is(argv[i], "--help")) { fputs(help, stdout); exit(0); }
        if (take_switch(r, argv[i])) continue;
        if (i + 1 < argc && (take_word(r, argv[i], argv[i + 1]) || take_number(r, argv[i], atoi(argv[i + 1]))
                             || take_clip(r, argv[i], atof(argv[i + 1])))) {
            i++;
            continue;
        }
        fprintf(stderr, "cuda_image: %s is no option, or has no value; see --help\n", argv[i]);
        exit(2);
    }
}

/* ---- the layout ---- */

/* Pairs that have the arrays which were asked for. */
static const oscar_pair *pairs_of(const request *r, int is_k)
{
    oscar_kind kind = is_k ? r->k_kind : r->v_kind;
    int heads = r->layer.kv_heads, dim = is_k || !r->layer.v_dim ? r->layer.k_dim : r->layer.v_dim, h;
    int mean = is_k && r->mean, metric = is_k && r->metric;
    float *zeros;
    oscar_pair *pairs;
    if ((kind == OSCAR_HADAMARD && !mean && !metric) || heads < 1 || dim < 1 || dim > 1024) return NULL;
    zeros = (float *)calloc((size_t)dim * (size_t)dim, sizeof *zeros);
    pairs = (oscar_pair *)calloc((size_t)heads, sizeof *pairs);
    if (!zeros || !pairs) { fprintf(stderr, "cuda_image: no memory\n"); exit(1); }
    for (h = 0; h < heads; h++) {
        pairs[h].kind = kind;
        pairs[h].dim = dim;
        if (kind == OSCAR_DENSE) pairs[h].to = zeros;
        if (mean) pairs[h].mean = zeros;
        if (metric) pairs[h].metric = zeros;
    }
    return pairs;
}

/* The layout of a request; 0 if there is none, and the hooks were told why. */
static int layout_of_request(request *r, const oscar_hooks *hooks, oscar_layout *layout)
{
    r->layer.k = pairs_of(r, 1);
    r->layer.v = pairs_of(r, 0);
    return oscar_page_layout(&r->layer, r->page, r->window_type, hooks, layout) == OSCAR_OK;
}

/* ---- making, writing ---- */

static oscar_result make(const request *r, const oscar_layout *layout, const oscar_cuda_desc *desc, char *out,
                         size_t capacity, size_t *size)
{
    if (r->source) return oscar_cuda_source(layout, &r->options, r->sm, out, capacity, size);
    return oscar_cuda_compile(desc, layout, &r->options, r->sm, r->ptx, out, capacity, size);
}

static int write_array(FILE *file, const char *name, const unsigned char *bytes, size_t size)
{
    size_t i;
    fprintf(file, "static const unsigned char %s[] = {", name);
    for (i = 0; i < size; i++) fprintf(file, "%s%d,", i % 24 ? "" : "\n", bytes[i]);
    return fprintf(file, "\n};\nstatic const unsigned long %s_size = %luul;\n", name, (unsigned long)size) > 0;
}

/* The final 0 of a text is not part of a file, but of an array. */
static int write_out(const request *r, const char *bytes, size_t size)
{
    size_t n = r->source || r->ptx ? size - 1 : size;
    FILE *file = r->out && !is(r->out, "-") ? fopen(r->out, "wb") : stdout;
    int ok = file != NULL;
    if (ok && r->name) ok = write_array(file, r->name, (const unsigned char *)bytes, size);
    else if (ok) ok = fwrite(bytes, 1, n, file) == n;
    if (file && file != stdout) ok &= fclose(file) == 0;
    else if (file) ok &= fflush(file) == 0;
    return ok;
}

int main(int argc, char **argv)
{
    enum { ROOM = 16 << 20 };
    static request r;
    static char image[ROOM];
    oscar_cuda_desc desc;
    oscar_layout layout;
    oscar_result result;
    size_t size = 0;
    r.sm = 80;
    take(&r, argc, argv);
    memset(&desc, 0, sizeof desc);
    desc.nvrtc = r.nvrtc;
    desc.hooks.log = report;
    if (!layout_of_request(&r, &desc.hooks, &layout)) return 1;
    result = make(&r, &layout, &desc, image, ROOM, &size);
    if (result) {
        fprintf(stderr, "cuda_image: %s\n", oscar_result_text(result));
        return 1;
    }
    if (write_out(&r, image, size)) return 0;
    fprintf(stderr, "cuda_image: %s cannot be written\n", r.out ? r.out : "the output");
    return 1;
}
