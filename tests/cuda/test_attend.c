/* test_attend.c - the kernels of attention (query, decode, merge) against oscar.h's scalar code, on the CPU through
   shim.h or, where NVRTC is found and the program is built with KERNELS_PTX, as PTX in the interpreter.

       test_attend                    all shapes
       test_attend few                a few of each, for sanitizers
       test_attend random COUNT [SEED]   other random shapes
       test_attend case SEED [ORDER]  one random case, with its figures
       test_attend text dk=128 ...    the text for NVRTC with its constants (case_of_options)
       test_attend cubin FILE sm=90 ...  the same as NVRTC compiles it, with what ptxas reports (needs KERNELS_PTX)
       test_attend ptx ARCH [FROM TO]  random cases in the interpreter */
#include "tests/cuda/kernels.h"
#include "tests/test.h"
#if defined(KERNELS_PTX)
#  include "tests/cuda/kernels_ptx.h"
#endif
#include "tests/cuda/attend_case.h"

static void case_set(const oscar__cu_plan *plan) { kernels_set(plan); }

/* -- launches -- */

static oscar_result run_query(attend_case *c)
{
    oscar__cu_query_args a;
    memset(&a, 0, sizeof a);
    a.entries = kernels_at(c->entry);
    a.q = kernels_at(c->q);
    a.token_stride = c->q_token;
    a.head_stride = c->q_head;
    a.dual = kernels_at(c->k_kind == OSCAR_DENSE ? c->k_dual : NULL);
    a.mean = kernels_at(c->mean ? c->k_mean : NULL);
    a.scale = c->layout.layer.scale;
    a.fragments = kernels_at(c->fragments);
    a.sums = kernels_at(c->sums);
    a.row_blocks = c->row_blocks;
    a.entry_count = c->entries;
    return oscar__cu_launch_query(&kernels_cuda, &kernels_module, NULL, &a);
}

static oscar_result run_decode(attend_case *c)
{
    oscar__cu_decode_args a;
    memset(&a, 0, sizeof a);
    a.entries = kernels_at(c->entry);
    a.tables = kernels_at(c->tables);
    a.pool = kernels_at(c->pool);
    a.window_k = kernels_at(c->window_k);
    a.window_v = kernels_at(c->window_v);
    a.fragments = kernels_at(c->fragments);
    a.sums = kernels_at(c->sums);
    a.part_o = kernels_at(c->part_o);
    a.part_lse = kernels_at(c->part_lse);
    a.cap = c->layout.layer.softcap;
    a.row_blocks = c->row_blocks;
    a.window_splits = c->window_splits;
    a.splits = c->splits;
    a.entry_count = c->entries;
    return oscar__cu_launch_decode(&kernels_cuda, &kernels_module, NULL, &a);
}

static oscar_result run_merge(attend_case *c)
{
    oscar__cu_merge_args a;
    memset(&a, 0, sizeof a);
    a.entries = kernels_at(c->entry);
    a.part_o = kernels_at(c->part_o);
    a.part_lse = kernels_at(c->part_lse);
    a.dual = kernels_at(c->v_kind == OSCAR_DENSE ? c->v_dual : NULL);
    a.sink_logits = kernels_at(c->sink_logits);
    a.o = kernels_at(c->o);
    a.lse = kernels_at(c->lse);
    a.token_stride = c->o_token;
    a.head_stride = c->o_head;
    a.entry_count = c->entries;
    a.splits = c->splits;
    a.window_splits = c->window_splits;
    a.row_count = c->row_count;
    return oscar__cu_launch_merge(&kernels_cuda, &kernels_module, NULL, &a);
}

/* -- cases -- */

/* Builds, runs and compares. */
static int case_run(attend_case *c, const char *name)
{
    int ran;
    if (!case_build(c)) {
        case_free(c);
        return 0;
    }
    ran = !run_query(c) && !run_decode(c) && !run_merge(c);
    CHECK(ran);
    if (ran) case_compare(c, name, 5e-4);
    case_free(c);
    if (test_state.failed_now && getenv("KERNELS_STOP")) exit(1);   /* for seeded bugs: one failure is enough */
    return 1;
}

static void run_seed(uint64_t seed)
{
    char name[64];
    attend_case c = case_random(seed);
    snprintf(name, sizeof name, "seed %d", (int)seed);
    if (!case_run(&c, name)) SKIP(name, "no block fits");
}

/* -- tests -- */

static void test_random_cases(int from, int to)
{
    int seed;
    TEST("attention: random shapes, kernels against the scalar code");
    for (seed = from; seed < to; seed++) {
        shim_order = (unsigned)(seed % 3 == 2 ? seed : seed % 3);
        run_seed((uint64_t)seed);
    }
    shim_order = 0;
}

/* A group of each way: folded, one tile, two tiles. */
static void sweep_pages(int most)
{
    static const int groups[] = {1, 4, 8, 16};
    int g, pages, splits;
    TEST("attention: every page count through several turns of the pipeline, more splits than pages");
    for (g = 0; g < 4; g++)
        for (pages = 0; pages <= most; pages++)
            for (splits = 1; splits <= 5; splits += 4) {
                attend_case c = case_plain();
                c.layer.q_heads = groups[g];
                c.layer.k_dim = g == 2 ? 128 : 64;
                c.pages[0] = pages;
                c.splits = splits;
                c.seed = (uint64_t)(1000 + pages);
                case_run(&c, "pages");
            }
}

static void sweep_windows(int step)
{
    static const oscar_type types[] = {OSCAR_BF16, OSCAR_F16, OSCAR_F32};
    int recent, pages;
    TEST("attention: every length of the windows");
    for (pages = 0; pages < 2; pages++)
        for (recent = 1; recent <= 8 + 64; recent += step) {
            attend_case c = case_plain();
            c.layer.k_dim = 48;
            c.window_type = types[recent % 3];
            c.layer.q_heads = recent & 1 ? 4 : 8;
            c.pages[0] = pages;
            c.recent[0] = recent;
            c.seed = (uint64_t)(2000 + recent);
            case_run(&c, "windows");
        }
    for (recent = 1; recent <= 9; recent++) {   /* no more tokens than the sink has, and a few */
        attend_case c = case_plain();
        c.layer.k_dim = 32;
        c.pages[0] = 0;
        c.sink = 7;
        c.total[0] = recent;
        case_run(&c, "sink");
    }
}

static void sweep_sliding(int step)
{
    int window;
    TEST("attention: sliding windows that end anywhere in the history");
    for (window = 1; window < 300; window += step) {
        attend_case c = case_plain();
        c.layer.k_dim = 32;
        c.layer.q_heads = 2;
        c.layer.window = window;
        c.drafts = c.rows[0] = 2;
        c.splits = 1 + window % 3;
        c.pages[0] = 4;
        case_run(&c, "sliding");
    }
}

/* Every pair of bits, fits and group sizes. */
static void sweep_sides(void)
{
    static const int bits[] = {2, 4, 16}, groups[] = {0, 16, 32, 48, 64};
    int k, v, fits, g;
    TEST("attention: bits, fits and groups of both sides");
    for (k = 0; k < 3; k++)
        for (v = 0; v < 3; v++)
            for (fits = 0; fits < 4; fits++) {
                attend_case c = case_plain();
                c.layer.k_dim = 64;
                c.layer.v_dim = 96;
                c.layer.k_bits = bits[k];
                c.layer.v_bits = bits[v];
                c.layer.k_fit = (oscar_fit)(fits & 1);
                c.layer.v_fit = (oscar_fit)(fits >> 1);
                c.layer.q_heads = fits & 1 ? 3 : 6;
                case_run(&c, "sides");
            }
    for (g = 0; g < 5; g++)
        for (k = 0; k < 4; k++) {
            attend_case c = case_plain();
            c.layer.k_dim = c.layer.v_dim = 192;
            c.layer.k_group = c.layer.v_group = groups[g];
            c.layer.k_bits = c.layer.v_bits = k & 1 ? 4 : 2;
            c.layer.k_fit = c.layer.v_fit = (oscar_fit)(k >> 1);
            c.layer.q_heads = g & 1 ? 2 : 7;
            case_run(&c, "groups");
        }
}

/* What a query needs is loaded again for each use: many channels, and groups. */
static attend_case case_wide(int groups)
{
    attend_case c = case_plain();
    c.pages[0] = 2;
    c.layer.q_heads = groups ? 4 : 7;
    c.layer.k_dim = groups ? 192 : 576;
    c.layer.v_dim = groups ? 192 : 512;
    c.layer.k_group = c.layer.v_group = groups ? 48 : 0;
    c.layer.k_page_mean = 1;
    return c;
}

static void test_wide(void)
{
    int i;
    TEST("attention: heads that do not fit registers");
    for (i = 0; i < 2; i++) {
        attend_case c = case_wide(i);
        case_run(&c, "wide");
    }
}

static void test_large(void)
{
    static const int dims[] = {512, 768, 1024};
    int i;
    TEST("C6.7, C6.16 attention: heads of up to 1024 channels, older devices");
    for (i = 0; i < 3; i++) {
        attend_case c = case_plain();
        c.layer.k_dim = dims[i];
        c.layer.v_dim = dims[2 - i];
        c.layer.q_heads = i ? 2 : 6;
        c.pages[0] = 2;
        c.window_type = OSCAR_F16;
        case_run(&c, "large");
    }
    for (i = 0; i < 3; i++) {
        attend_case c = case_plain();
        c.sm = 75;
        c.pages[0] = 7;
        c.layer.q_heads = 1 << (2 * i);
        case_run(&c, "sm_75");
    }
}

/* An attention sink: one logit far above all others. */
static void test_peaks(void)
{
    int i;
    TEST("attention: peaked attention");
    for (i = 0; i < 12; i++) {
        attend_case c = case_plain();
        c.spread = 1 + i * 0.35;
        c.layer.q_heads = i & 1 ? 8 : 4;
        c.pages[0] = 12;
        c.seed = (uint64_t)(77 + i);
        case_run(&c, "peaks");
    }
    for (i = 0; i < 6; i++) {   /* the reference of the sums moves in later blocks, too */
        attend_case c = case_plain();
        c.spread = 1.5;
        c.rise = 0.75;
        c.layer.v_fit = (oscar_fit)(i / 3);
        c.layer.q_heads = 4 << (i % 3);
        c.pages[0] = 14;
        c.splits = 1;
        c.seed = (uint64_t)(177 + i);
        case_run(&c, "rise");
    }
    for (i = 0; i < 12; i++) {   /* logits so large that their rounding tells: P still fits 16 bits */
        attend_case c = case_plain();
        c.spread = 300000;
        c.layer.v_fit = (oscar_fit)(i / 6);
        c.layer.v_group = i % 6 < 3 ? 0 : 64;
        c.layer.q_heads = 4 << (i % 3);
        c.pages[0] = 6;
        c.splits = 1;
        c.seed = (uint64_t)(277 + i);
        case_run(&c, "huge");
    }
}

/* Options of the form name=number over the plain case: the shapes of the compile matrix. */
static attend_case case_of_options(int count, char **options)
{
    attend_case c = case_plain();
    int i;
    for (i = 0; i < count; i++) {
        const char *equals = strchr(options[i], '=');
        int n = equals ? atoi(equals + 1) : 0;
        if (!strncmp(options[i], "dk=", 3)) c.layer.k_dim = n;
        if (!strncmp(options[i], "dv=", 3)) c.layer.v_dim = n;
        if (!strncmp(options[i], "group=", 6)) c.layer.q_heads = n;
        if (!strncmp(options[i], "heads=", 6)) c.layer.kv_heads = n;
        if (!strncmp(options[i], "bits=", 5)) c.layer.k_bits = c.layer.v_bits = n;
        if (!strncmp(options[i], "vbits=", 6)) c.layer.v_bits = n;
        if (!strncmp(options[i], "clip=", 5)) c.layer.k_fit = c.layer.v_fit = (oscar_fit)n;
        if (!strncmp(options[i], "mean=", 5)) c.layer.k_page_mean = n;
        if (!strncmp(options[i], "g=", 2)) c.layer.k_group = c.layer.v_group = n;
        if (!strncmp(options[i], "sm=", 3)) c.sm = n;
        if (!strncmp(options[i], "type=", 5)) c.window_type = (oscar_type)n;
        if (!strncmp(options[i], "sliding=", 8)) c.layer.window = n;
        if (!strncmp(options[i], "cap=", 4)) c.layer.softcap = (float)n;
        if (!strncmp(options[i], "dense=", 6)) c.k_kind = c.v_kind = n ? OSCAR_DENSE : OSCAR_HADAMARD;
        if (!strncmp(options[i], "metric=", 7)) c.metric = n;
        if (!strncmp(options[i], "kmean=", 6)) c.mean = n;
        if (!strncmp(options[i], "alone=", 6)) c.alone = n;
    }
    c.layer.q_heads *= c.layer.kv_heads;
    return c;
}

static int print_text(attend_case c)
{
    char *text;
    if (!case_build(&c)) return 1;
    text = kernels_text();
    fputs(text, stdout);
    free(text);
    fprintf(stderr, "shared %d stages %d warps %d blocks %d pairs %d\n",
            (int)oscar__cu_shared(OSCAR__CU_DECODE, &c.plan), c.shape.stages, c.shape.warps, c.shape.blocks,
            c.shape.pairs);
    case_free(&c);
    return 0;
}

#if defined(KERNELS_PTX)
/* The text with oscar_cu_decode as its only kernel, which compiles several times as fast. Frees the text. */
static char *decode_alone(char *text)
{
    static const char word[] = "#define OSCAR_KERNEL(threads, blocks)", start[] = "OSCAR_KERNEL(32 * OSCAR_WARPS";
    static const char none[] = "\n#undef OSCAR_KERNEL\n#define OSCAR_KERNEL(threads, blocks) OSCAR_DEVICE void\n";
    char *define = strstr(text, word), *end = strchr(define, '\n'), *kernel = strstr(end, start);
    char *name = strstr(kernel, "oscar_cu_decode("), *out = (char *)malloc(strlen(text) + 500);
    sprintf(out, "%.*s%s%.*s\n#undef OSCAR_KERNEL\n%.*s\n%.*s%s%s", (int)(define - text), text, none + 1,
            (int)(kernel - end), end, (int)(end - define), define, (int)(name - kernel), kernel, none, name);
    free(text);
    return out;
}

static int write_cubin(const char *path, attend_case c)
{
    char arch[16], *text, *cubin = NULL;
    size_t bytes = 0;
    FILE *file;
    c.cubin = 1;
    if (c.sm < 75) c.sm = 90;
    c.pages[0] = c.recent[0] = 0;
    snprintf(arch, sizeof arch, "sm_%d", c.sm);
    if (!nvrtc_open()) { puts("no NVRTC library"); return 1; }
    if (!case_build(&c)) { puts("unsupported: no block of the grid fits"); return 1; }
    text = kernels_text();
    if (c.alone) text = decode_alone(text);
    cubin = kernels_compile_sized(text, arch, 1, 1, &bytes);
    printf("%s", nvrtc.text);
    printf("shape: shared %d stages %d warps %d blocks %d pairs %d\n", (int)oscar__cu_shared(OSCAR__CU_DECODE, &c.plan),
           c.shape.stages, c.shape.warps, c.shape.blocks, c.shape.pairs);
    file = cubin ? fopen(path, "wb") : NULL;
    if (file) { fwrite(cubin, 1, bytes, file); fclose(file); }
    free(text);
    free(cubin);
    case_free(&c);
    return !file;
}

/* A case whose text is compiled to PTX first. */
static void run_ptx(attend_case c, const char *arch, const char *name)
{
    attend_case again = c;
    int loaded;
    c.sm = again.sm = atoi(arch + 8);
    if (!case_build(&c)) { case_free(&c); return; }
    loaded = kernels_load_ptx(arch, 1);
    CHECK_MSG(loaded, ("    %s: %s\n", name, nvrtc.text));
    case_free(&c);
    kernels_way = kernels_on_ptx;
    kernels_order = shim_order;
    if (loaded) case_run(&again, name);
    kernels_way = kernels_here;
    kernels_free_ptx();
}

static void test_ptx(const char *arch, int from, int to)
{
    int seed;
    char name[80];
    TEST("C6.1 attention: the PTX of random shapes in the interpreter");
    if (!kernels_can_compile()) { SKIP("PTX of attention", "no NVRTC"); return; }
    for (seed = from; seed < to; seed++) {
        snprintf(name, sizeof name, "%s seed %d", arch, seed);
        shim_order = (unsigned)(seed % 3 == 2 ? seed : seed % 3);
        run_ptx(case_random((uint64_t)seed), arch, name);
    }
    for (seed = 0; seed < 4; seed++) {
        attend_case c = case_plain();
        c.pages[0] = 14;
        c.splits = 1;
        c.layer.q_heads = 1 << (seed + 1);
        run_ptx(c, arch, "pipeline");
    }
    for (seed = 0; seed < 2; seed++) run_ptx(case_wide(seed), arch, "wide");
    shim_order = 0;
}
#endif

/* Grids of long histories fill the multiprocessors, of short ones have no more splits than blocks of tokens. */
static void test_splits(void)
{
    oscar_layer layer;
    oscar_layout layout;
    oscar__cu_shape shape;
    int entries;
    TEST("splits: waves of blocks are full, and no split is empty");
    memset(&layer, 0, sizeof layer);
    memset(&shape, 0, sizeof shape);
    layer.q_heads = 32;
    layer.kv_heads = 8;
    layer.k_dim = 128;
    CHECK(oscar_page_layout(&layer, 0, OSCAR_BF16, NULL, &layout) == OSCAR_OK);
    shape.blocks = 2;
    shape.warps = shape.pairs = 4;
    for (entries = 1; entries <= 300; entries++) {
        int64_t tokens, units = 8 * entries, wave = 2 * 132;
        for (tokens = 0; tokens < 5000; tokens += 97) {
            int splits = oscar__cu_splits(&layout, &shape, entries, 1, tokens, 132);
            CHECK(splits >= 1 && (splits == 1 || splits <= (tokens / 64 + 3) / 4));
        }
        tokens = 131072;
        units *= oscar__cu_splits(&layout, &shape, entries, 1, tokens, 132);
        CHECK_MSG((double)units / (double)((units + wave - 1) / wave * wave) > 0.85,
                  ("    %d entries: %d blocks\n", entries, (int)units));
    }
}

int main(int argc, char **argv)
{
    int few = argc > 1 && !strcmp(argv[1], "few"), tiny = argc > 1 && !strcmp(argv[1], "tiny");
    kernels_open();
    if (argc > 1 && !strcmp(argv[1], "text")) {
        attend_case c = case_of_options(argc - 2, argv + 2);
        return print_text(c);
    }
#if defined(KERNELS_PTX)
    if (argc > 2 && !strcmp(argv[1], "cubin")) return write_cubin(argv[2], case_of_options(argc - 3, argv + 3));
#endif
    oscar_isa_force(OSCAR_ISA_SCALAR);
    if (argc > 2 && !strcmp(argv[1], "case")) {
        shim_order = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
        TEST("one case");
        run_seed((uint64_t)atoi(argv[2]));
    }
#if defined(KERNELS_PTX)
    else if (argc > 2 && !strcmp(argv[1], "ptx"))
        test_ptx(argv[2], argc > 4 ? atoi(argv[3]) : 1, argc > 4 ? atoi(argv[4]) : 6);
#endif
    else if (argc > 2 && !strcmp(argv[1], "random")) {
        int from = argc > 3 ? 100000 * atoi(argv[3]) : 1;
        test_random_cases(from, from + atoi(argv[2]));
    } else if (tiny) {
        sweep_pages(1);
        test_random_cases(1, 4);
    } else {
        test_splits();
        test_random_cases(1, few ? 15 : 121);
        test_wide();
        sweep_pages(few ? 2 : 26);
        sweep_windows(few ? 13 : 1);
        sweep_sliding(few ? 61 : 7);
        sweep_sides();
        test_large();
        test_peaks();
    }
    case_report();
#if defined(KERNELS_PTX)
    printf("PTX instructions %llu\n", kernels_executed);
#endif
    return test_end("test_cuda_attend");
}
