/* test_loader.c - what of oscar_cuda.h runs without a GPU: search, text, compilation, contexts, images, the cache on
   disk, and every call failing in turn. Driver and NVRTC are the fakes of fake.c (build/cuda/libfake.so); the real ones
   are used where they are found. tests/cuda.sh builds and runs it. */
#define _DEFAULT_SOURCE   /* fork, mkdtemp, setenv */
#define OSCAR_IMPLEMENTATION
#include "oscar_cuda.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>

#include "../test.h"
#include "fake.h"

#ifndef FAKE_FOLDER
#define FAKE_FOLDER "build/cuda"
#endif
static const char fake_path[] = FAKE_FOLDER "/libfake.so";
static const char fake_lame[] = FAKE_FOLDER "/libfake_lame.so";   /* FAKE_LAME: without cuLaunchKernel */

/* == HELPERS == */

/* What the log said: every line, and how many errors. */
typedef struct witness { char text[8192]; int errors, infos, lines, longest; int64_t bytes; int left; } witness;

static void listen(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    witness *w = (witness *)user;
    size_t used = strlen(w->text);
    (void)code;
    (void)line;
    w->lines++;
    if (level == OSCAR_LOG_ERROR) w->errors++;
    if (level == OSCAR_LOG_INFO) w->infos++;
    if ((int)strlen(text) > w->longest) w->longest = (int)strlen(text);
    snprintf(w->text + used, sizeof w->text - used, "%s\n", text);
}

/* An allocator that counts, and fails when `left` allocations are used up (left 0: never). */
static void *take(void *user, size_t size, size_t align)
{
    witness *w = (witness *)user;
    void *memory = NULL;
    if (w->left && !--w->left) return NULL;
    if (posix_memalign(&memory, align, size)) return NULL;
    w->bytes += (int64_t)size;
    return memory;
}

static void give(void *user, void *memory, size_t size, size_t align)
{
    (void)align;
    ((witness *)user)->bytes -= (int64_t)size;
    free(memory);
}

static witness seen;

static int said(const char *what) { return strstr(seen.text, what) != NULL; }

static oscar_cuda_desc desc_of(const char *driver, const char *nvrtc)
{
    oscar_cuda_desc d;
    memset(&d, 0, sizeof d);
    memset(&seen, 0, sizeof seen);
    d.driver = driver;
    d.nvrtc = nvrtc;
    d.hooks.alloc = take;
    d.hooks.free = give;
    d.hooks.log = listen;
    d.hooks.user = &seen;
    return d;
}

static fake_state *fake;

/* The fake as a computer with two H100 and CUDA 12.4. */
static oscar_cuda_desc fresh(void)
{
    static const int archs[] = { 50, 60, 70, 75, 80, 86, 89, 90 };
    unsigned answer[32];   /* that of the layout, which is made before or after */
    int i;
    memcpy(answer, fake->answer, sizeof answer);
    memset(fake, 0, sizeof *fake);
    memcpy(fake->answer, answer, sizeof answer);
    fake->sm = 90;
    fake->shared_bytes = 232448;
    fake->driver_version = 12040;
    fake->devices = FAKE_DEVICES;
    fake->nvrtc_version = 12040;
    fake->arch_count = 8;
    memcpy(fake->archs, archs, sizeof archs);
    fake->proc_address = 1;
    for (i = 0; i < FAKE_CONTEXTS; i++) {
        fake->contexts[i].device = i % FAKE_DEVICES;
        fake->streams[i].context = &fake->contexts[i];
    }
    return desc_of(fake_path, fake_path);
}

static void make_current(fake_context *context)
{
    fake->depth = 1;
    fake->stack[0] = context;
}

/* Nothing is left behind: neither on the device nor here. */
static int is_clean(int depth)
{
    return !fake->retained && !fake->modules && !fake->memory && !fake->programs && fake->depth == depth && !seen.bytes;
}

static oscar_layout layout_of(int heads, int k_dim)
{
    oscar_layer layer;
    oscar_layout layout;
    memset(&layer, 0, sizeof layer);
    layer.q_heads = 4 * heads;
    layer.kv_heads = heads;
    layer.k_dim = k_dim;
    CHECK(oscar_page_layout(&layer, 0, OSCAR_BF16, NULL, &layout) == OSCAR_OK);
    for (k_dim = 0; k_dim < 32; k_dim++) fake->answer[k_dim] = (unsigned)k_dim;
    fake->answer[0] = (unsigned)layout.bytes;
    fake->answer[1] = (unsigned)layout.head_bytes;
    fake->answer[2] = 256 + 63 + 16;
    return layout;
}

static char *source_of(const oscar_layout *layout, const oscar_cuda_options *options)
{
    size_t size = 0, again = 0;
    char *text;
    CHECK(oscar_cuda_source(layout, options, 0, NULL, 0, &size) == OSCAR_OK);
    text = (char *)malloc(size + 1);
    CHECK(oscar_cuda_source(layout, options, 0, text, size - 1, &again) == OSCAR_ERR_MEMORY && again == size);
    text[size] = '#';
    CHECK(oscar_cuda_source(layout, options, 0, text, size, &again) == OSCAR_OK && again == size);
    CHECK(strlen(text) + 1 == size && text[size] == '#');
    return text;
}

/* == TEXT == */

/* The number behind `#define NAME `; fails where there is not exactly one. */
static long long constant(const char *text, const char *name)
{
    char line[64];
    const char *at;
    snprintf(line, sizeof line, "#define %s ", name);
    at = strstr(text, line);
    CHECK_MSG(at && !strstr(at + 1, line), ("    %s\n", name));
    return at ? atoll(at + strlen(line)) : -1;
}

static int rank_of(oscar_fit fit, double clip, int dim)
{
    return fit == OSCAR_CLIP && clip > 0 && clip < 1 ? (int)floor(clip * dim) : dim - 1;
}

static long long offset(size_t x) { return x == OSCAR_ABSENT ? 0 : (long long)x; }

/* Every constant of the text against the layout and the options. */
static void check_constants(const oscar_layout *l, const oscar_cuda_options *o, int k_kind, int v_kind, int mean,
                            int metric)
{
    const oscar_layer *a = &l->layer;
    int sink = o && o->sink ? (o->sink < 0 ? 0 : o->sink) : 64;
    int recent = o && o->recent ? (o->recent < 0 ? 0 : o->recent) : 256;
    int draft = o && o->max_draft ? (o->max_draft < 0 ? 1 : o->max_draft) : 16;
    struct { const char *name; long long value; } want[] = {
        { "OSCAR_KV_HEADS", a->kv_heads }, { "OSCAR_GROUP", a->q_heads / a->kv_heads }, { "OSCAR_DK", a->k_dim },
        { "OSCAR_DV", a->v_dim }, { "OSCAR_K_BITS", a->k_bits }, { "OSCAR_V_BITS", a->v_bits },
        { "OSCAR_K_CLIP", a->k_bits < 16 && a->k_fit == OSCAR_CLIP },
        { "OSCAR_V_CLIP", a->v_bits < 16 && a->v_fit == OSCAR_CLIP }, { "OSCAR_V_FOLDED", a->v_folded },
        { "OSCAR_K_RANK", rank_of(a->k_fit, a->k_clip, a->k_dim) },
        { "OSCAR_V_RANK", rank_of(a->v_fit, a->v_clip, a->v_dim) },
        { "OSCAR_K_GROUP", a->k_group }, { "OSCAR_V_GROUP", a->v_group },
        { "OSCAR_K_KIND", k_kind }, { "OSCAR_V_KIND", v_kind }, { "OSCAR_K_MEAN", mean },
        { "OSCAR_K_PAGE_MEAN", a->k_page_mean == 1 }, { "OSCAR_K_METRIC", metric },
        { "OSCAR_PAGE", l->page_tokens }, { "OSCAR_PAGE_BYTES", (long long)l->bytes },
        { "OSCAR_HEAD_BYTES", (long long)l->head_bytes }, { "OSCAR_V_CODES", offset(l->v_codes) },
        { "OSCAR_K_SCALE", offset(l->k_scale) }, { "OSCAR_K_MINIMUM", offset(l->k_min) },
        { "OSCAR_V_SCALE", offset(l->v_scale) }, { "OSCAR_V_MINIMUM", offset(l->v_min) },
        { "OSCAR_MEAN", offset(l->mean) }, { "OSCAR_MEAN_SCALE", offset(l->mean_scale) },
        { "OSCAR_SINK", sink }, { "OSCAR_RECENT", recent }, { "OSCAR_RING", recent + l->page_tokens - 1 + draft },
        { "OSCAR_WINDOW_TYPE", (int)l->window_type },
        { "OSCAR_ROW_TYPE", o && o->row_type ? (int)o->row_type : (int)OSCAR_F32 },
        { "OSCAR_SLIDING", a->window }, { "OSCAR_SOFTCAP", a->softcap > 0 }
    };
    char *text = source_of(l, o);
    size_t i;
    for (i = 0; i < sizeof want / sizeof *want; i++) {
        long long have = constant(text, want[i].name);
        CHECK_MSG(have == want[i].value, ("    %s is %lld, not %lld\n", want[i].name, have, want[i].value));
    }
    CHECK(strstr(text, "#define OSCAR_SM ") != NULL);
    CHECK(!strstr(text, "#include"));
    free(text);
}

static void test_constants(void)
{
    static const int dims[] = { 16, 64, 96, 128, 256, 512 }, bits[] = { 2, 4, 16 };
    static const oscar_type types[] = { OSCAR_F32, OSCAR_BF16, OSCAR_F16 };
    static const int counts[] = { 0, -1, 7 };
    test_random random = { 5 };
    int i;
    TEST("constants: every one is in the text and equals the layout, 200 layers");
    for (i = 0; i < 200; i++) {
        oscar_layer layer;
        oscar_layout layout;
        oscar_cuda_options options;
        memset(&layer, 0, sizeof layer);
        layer.kv_heads = 1 + random_below(&random, 8);
        layer.q_heads = layer.kv_heads * (1 + random_below(&random, 8));
        layer.k_dim = dims[random_below(&random, 6)];
        layer.v_dim = dims[random_below(&random, 6)];
        layer.k_bits = bits[random_below(&random, 3)];
        layer.v_bits = bits[random_below(&random, 3)];
        layer.k_fit = random_below(&random, 2) ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.v_fit = random_below(&random, 2) ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.k_clip = random_below(&random, 2) ? 0.9 : random_below(&random, 2) ? -1 : 0;
        layer.k_group = random_below(&random, 2) ? 16 : 0;
        layer.k_page_mean = random_below(&random, 2) ? -1 : 0;
        layer.v_folded = random_below(&random, 2);
        layer.window = random_below(&random, 2) ? 1000 : 0;
        layer.softcap = random_below(&random, 2) ? 50.0f : 0.0f;
        options.sink = counts[random_below(&random, 3)];
        options.recent = counts[random_below(&random, 3)];
        options.max_draft = counts[random_below(&random, 3)];
        options.row_type = types[random_below(&random, 3)];
        options.step_rows = random_below(&random, 3);
        CHECK(oscar_page_layout(&layer, 64 * (1 + random_below(&random, 3)), types[random_below(&random, 3)], NULL,
                                &layout) == OSCAR_OK);
        check_constants(&layout, i % 4 ? &options : NULL, layer.k_bits == 16 ? OSCAR_IDENTITY : OSCAR_HADAMARD,
                        layer.v_bits == 16 || layer.v_folded ? OSCAR_IDENTITY : OSCAR_HADAMARD, 0, 0);
    }
}

static void test_pairs(void)
{
    static float matrix[16 * 16], mean[16];
    oscar_pair k[2], v[2];
    oscar_layer layer;
    oscar_layout layout;
    oscar_cuda_options options = { -1, -2, 0, OSCAR_F32, 0 };
    size_t size;
    TEST("constants: kinds, mean and metric of pairs; heads that differ are refused");
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    memset(&layer, 0, sizeof layer);
    k[0].dim = k[1].dim = v[0].dim = v[1].dim = 16;
    k[0].kind = k[1].kind = OSCAR_DENSE;
    k[0].to = k[1].to = matrix;
    k[1].mean = mean;
    k[0].metric = k[1].metric = matrix;
    v[0].kind = v[1].kind = OSCAR_IDENTITY;
    layer.q_heads = layer.kv_heads = 2;
    layer.k_dim = 16;
    layer.k = k;
    layer.v = v;
    CHECK(oscar_page_layout(&layer, 0, OSCAR_F16, NULL, &layout) == OSCAR_OK);
    check_constants(&layout, NULL, OSCAR_DENSE, OSCAR_IDENTITY, 1, 1);
    k[1].metric = NULL;
    CHECK(oscar_cuda_source(&layout, NULL, 0, NULL, 0, &size) == OSCAR_ERR_UNSUPPORTED);
    layout.layer.k_fit = OSCAR_CLIP;   /* which knows no metric */
    CHECK(oscar_cuda_source(&layout, NULL, 0, NULL, 0, &size) == OSCAR_OK);
    layout.layer.k_fit = OSCAR_UNBIASED;
    k[0].metric = NULL;
    check_constants(&layout, NULL, OSCAR_DENSE, OSCAR_IDENTITY, 1, 0);
    v[1].kind = OSCAR_HADAMARD;
    CHECK(oscar_cuda_source(&layout, NULL, 0, NULL, 0, &size) == OSCAR_ERR_UNSUPPORTED);
    v[1].kind = OSCAR_IDENTITY;

    CHECK(oscar_cuda_source(NULL, NULL, 0, NULL, 0, &size) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cuda_source(&layout, NULL, 0, NULL, 0, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cuda_source(&layout, &options, 0, NULL, 0, &size) == OSCAR_ERR_ARGUMENT);
    options.recent = INT32_MAX;
    CHECK(oscar_cuda_source(&layout, &options, 0, NULL, 0, &size) == OSCAR_ERR_SHAPE);
    options.recent = 0;
    options.row_type = (oscar_type)9;
    CHECK(oscar_cuda_source(&layout, &options, 0, NULL, 0, &size) == OSCAR_ERR_ARGUMENT);
    options.row_type = OSCAR_F16;
    CHECK(oscar_cuda_source(&layout, &options, 74, NULL, 0, &size) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cuda_source(&layout, &options, 75, NULL, 0, &size) == OSCAR_OK);
    options.step_rows = -1;
    CHECK(oscar_cuda_source(&layout, &options, 0, NULL, 0, &size) == OSCAR_ERR_ARGUMENT);
}

/* == SEARCH == */

typedef struct listing { char text[65536]; size_t used; int count; const char *accept; } listing;

static int list(void *user, const char *path)
{
    listing *l = (listing *)user;
    l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "\n%s\n", path);
    l->count++;
    return l->accept && !strcmp(l->accept, path);
}

/* Place of a path in the list, -1 if it is not there. */
static long place(const listing *l, const char *path)
{
    char line[600];
    const char *at;
    snprintf(line, sizeof line, "\n%s\n", path);
    at = strstr(l->text, line);
    return at ? (long)(at - l->text) : -1;
}

static listing search(int windows, const char *given, const char *over, const char *cuda, const char *env, int newest)
{
    static listing l;
    oscar__cu_search s;
    memset(&l, 0, sizeof l);
    memset(&s, 0, sizeof s);
    s.windows = windows;
    s.given = given;
    s.over = over;
    s.variables[OSCAR__CU_CUDA_PATH] = cuda;
    s.variables[OSCAR__CU_VIRTUAL_ENV] = env;
    s.newest = newest;
    s.visit = list;
    s.user = &l;
    CHECK(!oscar__cu_search_nvrtc(&s));
    return l;
}

static void test_candidates(void)
{
    static const char *const names[] = { "libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
                                         "libnvrtc.so.11.1", "libnvrtc.so.11.0", "libnvrtc.so" };
    static const char *const dlls[] = { "nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll" };
    static listing l;
    size_t i;
    TEST("C6.4 names and places of NVRTC, newest first");
    l = search(0, NULL, NULL, "/cuda", "/venv", 0);
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_MSG(place(&l, names[i]) >= 0, ("    %s\n", names[i]));
        if (i) CHECK(place(&l, names[i - 1]) < place(&l, names[i]));
    }
    CHECK(place(&l, "/cuda/lib64/libnvrtc.so.13") > place(&l, "libnvrtc.so.13"));
    CHECK(place(&l, "/cuda/lib64/libnvrtc.so.13") < place(&l, "libnvrtc.so.12"));
    CHECK(place(&l, "/usr/local/cuda/lib64/libnvrtc.so.12") >= 0);
    CHECK(place(&l, "/venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12") >= 0);
    CHECK(place(&l, "/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13") >= 0);
    l = search(0, NULL, "/mine/libnvrtc.so.12", NULL, NULL, 0);
    CHECK(place(&l, "/mine/libnvrtc.so.12") == 0 && place(&l, "libnvrtc.so.13") > 0);
    l = search(0, NULL, "", NULL, "", 0);
    CHECK(place(&l, "libnvrtc.so.13") >= 0 && !strstr(l.text, "\n/lib/python"));
    l = search(0, "/given", "/mine", "/cuda", "/venv", 0);
    CHECK(place(&l, "/given") == 0 && place(&l, "/given/libnvrtc.so.12") > 0);
    CHECK(!strstr(l.text, "/mine") && !strstr(l.text, "/cuda") && place(&l, "libnvrtc.so.13") < 0);

    TEST("C6.4 names and places on Windows");
    l = search(1, NULL, NULL, "C:\\CUDA", "C:\\venv", 0);
    for (i = 0; i < sizeof dlls / sizeof *dlls; i++) CHECK_MSG(place(&l, dlls[i]) >= 0, ("    %s\n", dlls[i]));
    CHECK(place(&l, "C:\\CUDA\\bin\\nvrtc64_120_0.dll") >= 0);
    CHECK(place(&l, "C:\\venv\\Lib\\site-packages\\nvidia\\cuda_nvrtc\\bin\\nvrtc64_120_0.dll") >= 0);
    CHECK(!strstr(l.text, "libnvrtc.so"));

    TEST("C6.3 an NVRTC of a newer major version than the driver comes last");
    l = search(0, NULL, NULL, "/cuda", NULL, 12);
    CHECK(place(&l, "libnvrtc.so.12") < place(&l, "libnvrtc.so.13") && place(&l, "libnvrtc.so.13") >= 0);
    CHECK(place(&l, "libnvrtc.so.13") < place(&l, "libnvrtc.so"));
    CHECK(place(&l, "/cuda/lib64/libnvrtc.so.11.2") < place(&l, "libnvrtc.so.13"));
}

/* == CHOICE == */

static oscar__cu_target choose(int sm, int driver, int nvrtc, int has_cubin, int newest, int *found)
{
    static const int archs[] = { 75, 80, 86, 89, 90, 100, 120 };
    oscar__cu_target t;
    int count = 0;
    while (count < 7 && archs[count] <= newest) count++;
    *found = oscar__cu_choose(sm, driver, nvrtc, has_cubin, archs, count, &t);
    return t;
}

static void test_choice(void)
{
    oscar__cu_target t;
    int found;
    TEST("C6.2 what to compile for");
    t = choose(121, 13000, 12000, 1, 90, &found);
    CHECK(found && t.ptx && t.sm == 90);
    t = choose(70, 13000, 12000, 1, 90, &found);
    CHECK(!found);
    t = choose(90, 12000, 13000, 1, 120, &found);
    CHECK(found && !t.ptx && t.sm == 90);
    t = choose(90, 12000, 12000, 0, 90, &found);   /* an NVRTC without cubins */
    CHECK(found && t.ptx && t.sm == 90);
    t = choose(103, 12080, 12090, 1, 100, &found);   /* PTX would be newer than the driver */
    CHECK(found && !t.ptx && t.sm == 100);
    t = choose(121, 12000, 12040, 1, 90, &found);
    CHECK(!found);
    t = choose(75, 12000, 12000, 1, 0, &found);
    CHECK(!found);
    t = choose(121, 0, 12040, 1, 90, &found);
    CHECK(found && t.ptx);
}

static void test_choice_on_devices(void)
{
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64);
    oscar_cuda *cuda = NULL;
    TEST("C6.2 a device that NVRTC does not know");
    fake->sm = 121;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(!strcmp(fake->arch, "compute_90"));
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));
    d = fresh();
    fake->sm = 121;
    fake->driver_version = 12020;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_ERR_UNSUPPORTED);
    CHECK(said("sm_121") && said("sm_90") && said("12.2") && said("12.4") && said("libfake.so"));
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("C6.7 a device below the floor");
    d = fresh();
    fake->sm = 70;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_UNSUPPORTED && said("7.0") && said("7.5") && is_clean(0));

    TEST("an NVRTC that cannot be asked for architectures");
    d = fresh();
    fake->sm = 86;
    fake->arch_count = 0;
    fake->nvrtc_version = 11010;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(!strcmp(fake->arch, "sm_86"));
    oscar_cuda_close(cuda);
}

static void test_fallback(void)
{
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64);
    oscar_cuda *cuda = NULL;
    TEST("C6.3 a cubin that loads: PTX is never made");
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(fake->compiles == 1 && !strcmp(fake->arch, "sm_90") && seen.lines == 0);
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("C6.3 a cubin that fails: PTX is tried, without noise");
    d = fresh();
    fake->cubin_code = 209;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(fake->compiles == 2 && !strcmp(fake->arch, "compute_90") && seen.errors == 0);
    CHECK(oscar_cuda_check(cuda, &l, NULL, NULL) == OSCAR_OK);
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("C6.3 both fail: an error with both reasons");
    d = fresh();
    fake->cubin_code = 209;
    fake->ptx_code = 222;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_ERR_CUDA);
    CHECK(seen.errors == 1 && said("209") && said("222") && said("12.4") && said("libfake.so"));
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("no memory on the device is no reason to try PTX");
    d = fresh();
    fake->cubin_code = 2;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_ERR_MEMORY);
    CHECK(fake->compiles == 1 && seen.errors == 1);
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));
}

/* == LOG == */

static void test_log(void)
{
    static char text[2000];
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64);
    oscar_cuda *cuda = NULL;
    unsigned char room[8];
    size_t size = 0;
    TEST("C6.6 a failed compilation: the whole log, and where it comes from");
    memset(text, 'x', 1200);
    strcpy(text + 1200, "\noscar_cuda.h:oscar__cu_check(1): error\n\n  the caret\n");
    fake->log = text;
    fake->compile_code = 6;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_ERR_COMPILE);
    CHECK(!strcmp(oscar_cuda_get_log(cuda), text) && seen.longest == 1200 && seen.lines == 4);
    CHECK(said("sm_90") && said("NVRTC 12.4") && said("CUDA 12.4") && said("libfake.so"));
    CHECK(oscar_cuda_ready(cuda, &l, NULL) == OSCAR_ERR_STATE);
    fake->compile_code = 0;
    fake->log = NULL;
    CHECK(oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK && !*oscar_cuda_get_log(cuda));
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));
    CHECK(!*oscar_cuda_get_log(NULL));

    TEST("C6.6 a warning of NVRTC is a warning here");
    d = fresh();
    fake->log = "a warning";
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(!strcmp(oscar_cuda_get_log(cuda), "a warning") && seen.lines == 1 && seen.errors == 0);
    oscar_cuda_close(cuda);

    TEST("C6.5 builtins that are missing, and builtins that are loaded from NVRTC's folder");
    d = fresh();
    fake->compile_code = 7;
    fake->nvrtc_version = 12050;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_ERR_COMPILE);
    CHECK(said("builtins") && said("libfake.so") && said("folder") && !cuda->nvrtc.builtins);
    oscar_cuda_close(cuda);
    d = fresh();   /* cuda.sh makes libnvrtc-builtins.so.12.4 */
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(cuda->nvrtc.builtins);
    oscar_cuda_close(cuda);

    TEST("oscar_cuda_compile: sizes, unknown architectures");
    d = fresh();
    CHECK(oscar_cuda_compile(&d, &l, NULL, 90, 0, NULL, 0, &size) == OSCAR_OK && size > 64);
    CHECK(oscar_cuda_compile(&d, &l, NULL, 90, 0, room, 8, &size) == OSCAR_ERR_MEMORY);
    CHECK(oscar_cuda_compile(&d, &l, NULL, 100, 0, NULL, 0, &size) == OSCAR_ERR_UNSUPPORTED && said("sm_100"));
    CHECK(oscar_cuda_compile(&d, &l, NULL, 70, 1, NULL, 0, &size) == OSCAR_ERR_UNSUPPORTED && said("7.5"));
    CHECK(oscar_cuda_compile(&d, &l, NULL, 90, 0, NULL, 0, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cuda_compile(&d, NULL, NULL, 90, 0, NULL, 0, &size) == OSCAR_ERR_ARGUMENT);
    d.nvrtc = "/nowhere";
    CHECK(oscar_cuda_compile(&d, &l, NULL, 90, 0, NULL, 0, &size) == OSCAR_ERR_NO_NVRTC && said("/nowhere"));
    CHECK(is_clean(0));
}

/* == CONTEXTS == */

/* One of each call, also failing ones; the current context has to stay what it is. */
static void use_device(const oscar_cuda_desc *d, void *stream)
{
    oscar_layout l = layout_of(2, 64), other = layout_of(3, 64);
    oscar_cuda *cuda = NULL;
    void *current = fake->depth ? fake->stack[fake->depth - 1] : NULL;
    int depth = fake->depth;
    l = layout_of(2, 64);
    CHECK(oscar_cuda_open(d, &cuda) == OSCAR_OK && fake->depth == depth);
    if (!cuda) return;
    CHECK(oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK && fake->depth == depth);
    CHECK(oscar_cuda_check(cuda, &l, NULL, stream) == OSCAR_OK && fake->depth == depth);
    CHECK(oscar_cuda_check(cuda, &other, NULL, stream) == OSCAR_ERR_STATE && fake->depth == depth);
    CHECK(oscar_cuda_load(cuda, &other, NULL, "rubbish", 8) == OSCAR_ERR_FORMAT && fake->depth == depth);
    oscar_cuda_close(cuda);
    CHECK(fake->depth == depth && (depth ? fake->stack[depth - 1] : NULL) == current && is_clean(depth));
}

static void test_contexts(void)
{
    oscar_cuda_desc d;
    oscar_cuda_info info;
    oscar_cuda *cuda = NULL;
    char path[1000];
    int i;
    TEST("C6.9 the primary context is retained and released, 100 times; the current one never changes");
    d = fresh();
    for (i = 0; i < 100; i++) use_device(&d, NULL);
    make_current(&fake->contexts[1]);   /* of the other device */
    use_device(&d, &fake->streams[0]);
    CHECK(fake->depth == 1);

    TEST("C6.10 a current context of the device is used, not retained");
    d = fresh();
    make_current(&fake->contexts[2]);
    use_device(&d, &fake->streams[2]);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && fake->retained == 0);
    oscar_cuda_get_info(cuda, &info);
    CHECK(info.context == &fake->contexts[2] && info.device == 0 && !strcmp(info.name, "Fake 0"));
    oscar_cuda_close(cuda);

    TEST("C6.10 a given context, also with another one current");
    d = fresh();
    d.context = &fake->contexts[3];
    use_device(&d, &fake->streams[3]);
    make_current(&fake->contexts[0]);
    use_device(&d, &fake->streams[3]);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
    oscar_cuda_get_info(cuda, &info);
    CHECK(info.context == &fake->contexts[3] && info.device == 1 && info.sm == 90 && info.multiprocessors == 132);
    CHECK(info.shared_bytes == 232448 && info.memory_bytes == (size_t)2 << 30);
    CLOSE(info.bandwidth, 3.352e12, 1e9);
    oscar_cuda_close(cuda);
    d.device = 1;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
    oscar_cuda_close(cuda);
    d.context = &fake->contexts[2];
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_ARGUMENT && said("not of device 1"));
    d.context = &d;   /* no context at all */
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_ARGUMENT && is_clean(1));

    TEST("C6.11 device 1 while a context of device 0 is current");
    d = fresh();
    d.device = 1;
    make_current(&fake->contexts[0]);
    use_device(&d, &fake->streams[1]);

    TEST("device -1 is that of the current context");
    d = fresh();
    d.device = -1;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_STATE && said("current context"));
    make_current(&fake->contexts[3]);
    use_device(&d, &fake->streams[3]);
    d.device = -2;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_ARGUMENT);
    d.device = 2;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_NO_DEVICE && said("2 GPUs"));
    CHECK(is_clean(1));

    TEST("a path of the cache that is too long");
    d = fresh();
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    d.cache = path;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_ARGUMENT && is_clean(0));
}

static void test_streams(void)
{
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64);
    oscar_cuda *cuda = NULL;
    int calls;
    TEST("C6.10 a stream of another context is refused before anything is launched");
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(oscar_cuda_check(cuda, &l, NULL, &fake->streams[1]) == OSCAR_ERR_ARGUMENT && said("stream"));
    CHECK(fake->launches == 0 && fake->memory == 0 && fake->depth == 0);
    fake->answer[1]++;
    CHECK(oscar_cuda_check(cuda, &l, NULL, &fake->streams[0]) == OSCAR_ERR_STATE && said("wrong answer"));
    oscar_cuda_close(cuda);

    TEST("C6.13 kernels that are not loaded: not ready, and no call is made");
    d = fresh();
    l = layout_of(2, 64);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
    calls = fake->calls;
    CHECK(oscar_cuda_ready(cuda, &l, NULL) == OSCAR_ERR_STATE && said("oscar_cuda_load"));
    CHECK(oscar_cuda_check(cuda, &l, NULL, NULL) == OSCAR_ERR_STATE);
    CHECK(fake->calls == calls && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    calls = fake->calls;
    CHECK(oscar_cuda_ready(cuda, &l, NULL) == OSCAR_OK && fake->calls == calls);
    CHECK(oscar_cuda_ready(NULL, &l, NULL) == OSCAR_ERR_ARGUMENT);
    oscar_cuda_close(cuda);

    TEST("C6.14 debug_sync waits for each launch and names the kernel");
    d = fresh();
    d.debug_sync = 1;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(oscar_cuda_check(cuda, &l, NULL, NULL) == OSCAR_OK && fake->launches == 1 && fake->syncs == 2);
    fake->fail_at = 4;   /* push, alloc, launch, wait */
    fake->fail_code = 700;
    CHECK(oscar_cuda_check(cuda, &l, NULL, NULL) == OSCAR_ERR_CUDA && said("oscar_cu_check") && said("700"));
    CHECK(!strcmp(fake->failed, "cuStreamSynchronize"));
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));
}

/* == MODULES, IMAGES == */

static void test_modules(void)
{
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64), same, other = layout_of(2, 128);
    oscar_cuda_options drafts = { 0, 0, 4, OSCAR_TYPE_DEFAULT, 0 }, spelled = { 64, 256, 16, OSCAR_F32, 1 };
    oscar_cuda *cuda = NULL;
    TEST("layers of equal constants compile once");
    same = l;
    same.layer.scale = 3;
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
    CHECK(oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK && fake->compiles == 1);
    CHECK(oscar_cuda_load(cuda, &same, &spelled, NULL, 0) == OSCAR_OK && fake->compiles == 1);
    CHECK(oscar_cuda_load(cuda, &other, NULL, NULL, 0) == OSCAR_OK && fake->compiles == 2);
    CHECK(oscar_cuda_load(cuda, &l, &drafts, NULL, 0) == OSCAR_OK && fake->compiles == 3 && fake->modules == 3);
    CHECK(oscar_cuda_ready(cuda, &l, &spelled) == OSCAR_OK);
    CHECK(oscar_cuda_load(NULL, &l, NULL, NULL, 0) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cuda_load(cuda, &other, &drafts, NULL, 7) == OSCAR_ERR_ARGUMENT);
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("C6.16 heads that need more shared memory than a block has");
    d = fresh();
    fake->sm = 75;
    fake->shared_bytes = 65536;
    other = layout_of(2, 1024);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &other, NULL, NULL, 0) == OSCAR_OK);
    other.layer.k_bits = other.layer.v_bits = 4;
    CHECK(oscar_page_layout(&other.layer, 0, OSCAR_BF16, NULL, &other) == OSCAR_OK);
    CHECK(oscar_cuda_load(cuda, &other, NULL, NULL, 0) == OSCAR_ERR_UNSUPPORTED && said("65536") && said("sm_75"));
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("C6.16 shared memory beyond the device's limit");
    d = fresh();
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
    CHECK(oscar__cu_allow_shared(cuda, cuda->modules->functions[0], "kernel", 0) == OSCAR_OK);
    CHECK(oscar__cu_allow_shared(cuda, cuda->modules->functions[0], "kernel", 47 * 1024) == OSCAR_OK);
    CHECK(fake->set_attribute == 0);
    CHECK(oscar__cu_allow_shared(cuda, cuda->modules->functions[0], "kernel", 232448 - 1024) == OSCAR_OK);
    CHECK(fake->set_attribute == 8 && fake->set_value == 232448 - 1024);
    CHECK(oscar__cu_allow_shared(cuda, cuda->modules->functions[0], "kernel", 232448 - 1023) == OSCAR_ERR_UNSUPPORTED);
    CHECK(said("kernel needs 232449") && fake->set_value == 232448 - 1024);
    oscar_cuda_close(cuda);
}

static void test_images(void)
{
    static const struct { int made, ptx, device, shared; } archs[] = {
        { 80, 0, 86, 101376 }, { 80, 0, 80, 166912 }, { 86, 0, 89, 101376 }, { 75, 1, 86, 101376 },
        { 90, 1, 120, 101376 }, { 80, 1, 90, 232448 }
    };
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64), other = layout_of(2, 128);
    oscar_cuda *cuda = NULL;
    unsigned char *image, *ptx, fatbin[120] = { 0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0 };
    size_t size = 0, ptx_size = 0, i;
    int sm;
    CHECK(oscar_cuda_compile(&d, &l, NULL, 90, 0, NULL, 0, &size) == OSCAR_OK);
    CHECK(oscar_cuda_compile(&d, &l, NULL, 80, 1, NULL, 0, &ptx_size) == OSCAR_OK);
    image = (unsigned char *)malloc(size);
    ptx = (unsigned char *)malloc(ptx_size);
    CHECK(oscar_cuda_compile(&d, &l, NULL, 90, 0, image, size, &size) == OSCAR_OK);
    CHECK(oscar_cuda_compile(&d, &l, NULL, 80, 1, ptx, ptx_size, &ptx_size) == OSCAR_OK);

    TEST("a shipped image needs no NVRTC");
    d.nvrtc = "/nowhere";
    l = layout_of(2, 64);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
    CHECK(oscar_cuda_load(cuda, &other, NULL, NULL, 0) == OSCAR_ERR_NO_NVRTC);
    CHECK(oscar_cuda_load(cuda, &l, NULL, image, size) == OSCAR_OK);
    CHECK(oscar_cuda_check(cuda, &l, NULL, NULL) == OSCAR_OK);
    oscar_cuda_close(cuda);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, ptx, ptx_size) == OSCAR_OK);
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));

    TEST("an image of an older architecture of the family, and PTX of an older one");
    for (i = 0; i < sizeof archs / sizeof *archs; i++) {
        size_t bytes = 0;
        unsigned char *older;
        d = fresh();
        CHECK(oscar_cuda_compile(&d, &l, NULL, archs[i].made, archs[i].ptx, NULL, 0, &bytes) == OSCAR_OK);
        older = (unsigned char *)malloc(bytes);
        CHECK(oscar_cuda_compile(&d, &l, NULL, archs[i].made, archs[i].ptx, older, bytes, &bytes) == OSCAR_OK);
        fake->sm = archs[i].device;
        fake->shared_bytes = archs[i].shared;
        CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, older, bytes) == OSCAR_OK);
        CHECK(oscar_cuda_ready(cuda, &l, NULL) == OSCAR_OK);
        CHECK(cuda->modules->plan.constants.value[OSCAR__CU_SM] == archs[i].made);
        CHECK(fake->set_attribute == 0 || fake->set_value <= archs[i].shared);
        oscar_cuda_close(cuda);
        CHECK(is_clean(0));
        free(older);
    }
    d = fresh();
    d.nvrtc = "/nowhere";

    TEST("an image of another layer, architecture, or without a kernel");
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
    CHECK(oscar_cuda_load(cuda, &other, NULL, image, size) == OSCAR_ERR_VERSION && said("not of this layout"));
    image[48] = 80;
    CHECK(oscar_cuda_load(cuda, &l, NULL, image, size) == OSCAR_ERR_VERSION && said("sm_80") && said("sm_90"));
    image[48] = 90;
    for (i = 64; i + 14 < size; i++)
        if (!memcmp(image + i, "oscar_cu_check", 14)) image[i + 9] = 'C';
    CHECK(oscar_cuda_load(cuda, &l, NULL, image, size) == OSCAR_ERR_VERSION && said("no kernel oscar_cu_check"));
    fake->cubin_code = 209;
    CHECK(oscar_cuda_load(cuda, &l, NULL, image, size) == OSCAR_ERR_CUDA && said("209"));

    TEST("an image that is cut short or is none never gets to the driver");
    fake->cubin_code = fake->ptx_code = 0;
    for (i = 1; i < size; i += i < 70 ? 1 : 97) {
        unsigned char *part = (unsigned char *)malloc(i);   /* ends where the memory ends */
        memcpy(part, image, i);
        CHECK(oscar_cuda_load(cuda, &l, NULL, part, i) == OSCAR_ERR_FORMAT);
        free(part);
    }
    oscar_cuda_close(cuda);
    CHECK(is_clean(0));
    free(image);
    free(ptx);

    TEST("a fatbin is told by its first bytes and its size");
    fatbin[8] = 100;
    for (sm = 0, i = 1; i <= sizeof fatbin; i++)
        CHECK(oscar__cu_image_form(fatbin, i, &sm) == (i < 116 ? OSCAR__CU_DAMAGED : OSCAR__CU_FATBIN) && sm == 0);
}

/* == CACHE FOLDER == */

static char folder[] = FAKE_FOLDER "/cache.XXXXXX";

/* The one file of the cache. */
static void file_of(char *out, size_t capacity, int *count)
{
    char command[600];
    FILE *pipe;
    snprintf(command, sizeof command, "ls %s", folder);
    pipe = popen(command, "r");
    *count = 0;
    out[0] = 0;
    while (pipe && fgets(command, sizeof command, pipe)) {
        command[strcspn(command, "\n")] = 0;
        snprintf(out, capacity, "%s/%s", folder, command);
        ++*count;
    }
    if (pipe) pclose(pipe);
}

/* Opens, loads, checks, closes; how many compilations it took, -1 for a failure. */
static int run_cached(const oscar_cuda_desc *d, const oscar_layout *l)
{
    oscar_cuda *cuda = NULL;
    int before = fake->compiles, ok;
    if (oscar_cuda_open(d, &cuda)) return -1;
    ok = oscar_cuda_load(cuda, l, NULL, NULL, 0) == OSCAR_OK && oscar_cuda_check(cuda, l, NULL, NULL) == OSCAR_OK;
    oscar_cuda_close(cuda);
    return ok ? fake->compiles - before : -1;
}

static void damage(const char *path, long at, int cut)
{
    FILE *file = fopen(path, "rb+");
    int byte;
    CHECK(file != NULL);
    if (!file) return;
    if (cut) CHECK(ftruncate(fileno(file), at) == 0);
    else {
        fseek(file, at, SEEK_SET);
        byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 1, file);
    }
    fclose(file);
}

static void test_cache(void)
{
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64);
    char path[700], junk[800];
    FILE *file;
    struct stat status;
    int count;
    long at;
    TEST("C6.15 no file without a folder; with one the second run compiles nothing");
    CHECK(mkdtemp(folder) != NULL);
    CHECK(run_cached(&d, &l) == 1);
    file_of(path, sizeof path, &count);
    CHECK(count == 0);
    d.cache = folder;
    CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0);
    file_of(path, sizeof path, &count);
    CHECK(count == 1 && stat(path, &status) == 0);

    TEST("C6.15 a damaged file is made again: every byte of the header, some of the image, cut anywhere");
    for (at = 0; at < (long)status.st_size; at += at < 48 ? 1 : 397) {
        damage(path, at, 0);
        CHECK_MSG(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0, ("    byte %ld\n", at));
        damage(path, at, 1);
        CHECK_MSG(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0, ("    cut at %ld\n", at));
    }
    file = fopen(path, "ab");
    CHECK(file != NULL);
    if (file) { fputc(0, file); fclose(file); }
    CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0 && seen.errors == 0 && seen.infos > 0);

    TEST("C6.15 another NVRTC, another layer, another architecture: another file");
    fake->nvrtc_version = 12030;
    CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0);
    fake->sm = 80;
    CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0);
    l = layout_of(3, 64);
    CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 0);
    file_of(path, sizeof path, &count);
    CHECK(count == 4);

    TEST("C6.15 a cached cubin that the driver refuses is compiled again");
    snprintf(junk, sizeof junk, "rm -r %s/*", folder);
    CHECK(system(junk) == 0 && run_cached(&d, &l) == 1);
    fake->cubin_code = 209;
    CHECK(run_cached(&d, &l) == 2);   /* cubin, then PTX */
    fake->cubin_code = 0;

    TEST("C6.15 a missing and a read-only folder only cost the compilation");
    snprintf(junk, sizeof junk, "%s/none", folder);
    d.cache = junk;
    memset(&seen, 0, sizeof seen);
    CHECK(run_cached(&d, &l) == 1 && seen.errors == 0 && seen.infos == 1 && said("writable"));
    d.cache = "/dev/null";   /* also where root may write everywhere */
    CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 1 && seen.errors == 0);
    snprintf(junk, sizeof junk, "rm -r %s/*; chmod 555 %s", folder, folder);
    CHECK(system(junk) == 0);
    d.cache = folder;
    if (geteuid() == 0) SKIP("C6.15 a folder without write permission", "root may write everywhere");
    else CHECK(run_cached(&d, &l) == 1 && run_cached(&d, &l) == 1 && seen.errors == 0);
    snprintf(junk, sizeof junk, "chmod 755 %s", folder);
    CHECK(system(junk) == 0 && is_clean(0));
    d.cache = "";
    CHECK(run_cached(&d, &l) == 1);
}

static void test_processes(void)
{
    enum { PROCESSES = 8, ROUNDS = 20 };
    oscar_cuda_desc d = fresh();
    oscar_layout l = layout_of(2, 64);
    char path[700];
    pid_t children[PROCESSES];
    int i, round, count, status;
    TEST("C6.15 8 processes at once, one of which cuts the file short");
    d.cache = folder;
    fake->compile_ms = 2;
    fflush(stdout);
    for (i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (round = 0; round < ROUNDS; round++) {
            int done = run_cached(&d, &l);
            if (done < 0 || seen.errors) _exit(1);
            file_of(path, sizeof path, &count);
            if (i == 0 && strlen(path) > 6 && !strcmp(path + strlen(path) - 6, ".cubin"))
                (void)!truncate(path, 100 * round);
        }
        _exit(0);
    }
    for (i = 0; i < PROCESSES; i++) {
        CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(run_cached(&d, &l) >= 0);
    file_of(path, sizeof path, &count);
    CHECK(count == 1);   /* no temporary file is left */
    snprintf(path, sizeof path, "rm -r %s", folder);
    CHECK(system(path) == 0);
}

/* == FAULTS == */

/* Calls whose failure need not fail anything: what is given back, what may be unknown. */
static int may_fail(const char *call)
{
    static const char *const names[] = {
        "cuDevicePrimaryCtxRelease_v2", "cuModuleUnload", "nvrtcDestroyProgram", "nvrtcGetNumSupportedArchs",
        "nvrtcGetSupportedArchs", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2", "cuModuleLoadData"
    };
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(call, names[i])) return 1;
    return 0;
}

/* A whole life of an object; the first result that is not OK. */
static oscar_result live(const oscar_cuda_desc *d, const oscar_layout *l)
{
    oscar_cuda *cuda = NULL;
    oscar_result result = oscar_cuda_open(d, &cuda);
    if (!result) result = oscar_cuda_load(cuda, l, NULL, NULL, 0);
    if (!result) result = oscar_cuda_check(cuda, l, NULL, &fake->streams[0]);
    if (!result) result = oscar_cuda_ready(cuda, l, NULL);
    oscar_cuda_close(cuda);
    return result;
}

static void test_faults(void)
{
    static const int codes[] = { 2, 201, 999 };
    oscar_cuda_desc d = fresh();
    oscar_layout l;
    oscar_result result;
    size_t i;
    int n, faults = 0, with_current;
    TEST("every call of driver and NVRTC failing in turn: a clean error, a sentence, no leak");
    for (with_current = 0; with_current < 2; with_current++)
        for (i = 0; i < sizeof codes / sizeof *codes; i++)
            for (n = 1;; n++) {
                d = fresh();
                l = layout_of(2, 64);
                fake->log = "a warning";
                if (with_current) make_current(&fake->contexts[1]);
                fake->fail_at = n;
                fake->fail_code = codes[i];
                result = live(&d, &l);
                if (fake->fail_at > 0) break;   /* there are fewer calls than n */
                faults++;
                CHECK_MSG(is_clean(with_current), ("    call %d, %s\n", n, fake->failed));
                CHECK_MSG(result ? seen.errors > 0 : may_fail(fake->failed), ("    call %d, %s\n", n, fake->failed));
            }
    CHECK_MSG(faults > 200, ("    only %d faults\n", faults));
    CHECK(result == OSCAR_OK && is_clean(1));

    TEST("every allocation failing in turn");
    for (n = 1;; n++) {
        d = fresh();
        l = layout_of(2, 64);
        seen.left = n;
        result = live(&d, &l);
        CHECK(is_clean(0));
        if (seen.left) break;
        CHECK(result == OSCAR_ERR_MEMORY && seen.errors > 0);
    }
    CHECK(n > 4 && result == OSCAR_OK);
    d = fresh();
    d.hooks.free = NULL;
    CHECK(live(&d, &l) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_cuda_open(&d, NULL) == OSCAR_ERR_ARGUMENT);
}

/* == PROBE == */

static void test_probe(void)
{
    oscar_cuda_desc d = fresh();
    oscar_cuda_info info;
    oscar_cuda *cuda = NULL;
    int n;
    TEST("probe: all there");
    make_current(&fake->contexts[1]);
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_OK && !info.sentence[0] && fake->retained == 0 && fake->depth == 1);
    CHECK(info.driver_version == 12040 && info.nvrtc_version == 12040 && info.nvrtc_newest == 90 && info.sm == 90);
    CHECK(strstr(info.driver_path, "libfake.so") && strstr(info.nvrtc_path, "libfake.so") && info.devices == 2);

    TEST("C6.8 no GPU, no driver, no NVRTC, an old GPU: probe and open say so, nothing runs elsewhere");
    d = fresh();
    fake->init_code = 100;
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_NO_DEVICE && strstr(info.sentence, "GPU"));
    CHECK(info.driver_version == 12040 && info.nvrtc_version == 12040 && info.sm == 0);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_NO_DEVICE);
    d = fresh();
    fake->devices = 0;
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_NO_DEVICE && oscar_cuda_open(&d, &cuda) == OSCAR_ERR_NO_DEVICE);
    d = desc_of("/nowhere/libcuda.so.1", fake_path);
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_NO_DRIVER && strstr(info.sentence, "/nowhere/libcuda.so.1"));
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_NO_DRIVER);
    CHECK(info.driver_version == 0 && !info.driver_path[0] && info.nvrtc_version == 12040);
    d = fresh();
    d.nvrtc = "/nowhere";
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_NO_NVRTC && strstr(info.sentence, "/nowhere"));
    CHECK(info.sm == 90 && info.nvrtc_version == 0 && !strcmp(info.name, "Fake 0"));
    d = fresh();
    fake->sm = 61;
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_UNSUPPORTED && info.sm == 61 && info.nvrtc_version == 12040);
    d = fresh();
    fake->driver_version = 10020;
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_NO_DRIVER && strstr(info.sentence, "10.2"));
    d = desc_of(fake_lame, fake_path);
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_ERR_NO_DRIVER && strstr(info.sentence, "cuLaunchKernel"));
    CHECK(oscar_cuda_probe(NULL, NULL) == OSCAR_ERR_ARGUMENT && oscar_cuda_probe(&d, NULL) == OSCAR_ERR_ARGUMENT);

    TEST("probe: every call failing in turn");
    for (n = 1;; n++) {
        oscar_result result;
        d = fresh();
        fake->fail_at = n;
        fake->fail_code = 999;
        result = oscar_cuda_probe(&d, &info);
        if (fake->fail_at > 0) break;
        CHECK_MSG(result ? info.sentence[0] != 0 : may_fail(fake->failed), ("    call %d, %s\n", n, fake->failed));
        CHECK(is_clean(0));
    }
    CHECK(n > 10);

    TEST("symbols: found by cuGetProcAddress, else by their versioned names");
    for (n = 0; n < 2; n++) {
        d = fresh();
        fake->proc_address = n;
        CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK);
        oscar_cuda_close(cuda);
    }

    TEST("OSCAR_NVRTC_PATH: a library, a folder, and one that is wrong");
    d = fresh();
    d.nvrtc = NULL;
    setenv("OSCAR_NVRTC_PATH", fake_path, 1);
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_OK && strstr(info.nvrtc_path, "libfake.so"));
    setenv("OSCAR_NVRTC_PATH", FAKE_FOLDER, 1);   /* cuda.sh makes libnvrtc.so.12 there, another name of the fake */
    CHECK(oscar_cuda_probe(&d, &info) == OSCAR_OK && strstr(info.nvrtc_path, "libfake.so") && seen.lines == 0);
    setenv("OSCAR_NVRTC_PATH", "/nowhere", 1);
    if (oscar_cuda_probe(&d, &info) == OSCAR_OK) CHECK(said("OSCAR_NVRTC_PATH /nowhere"));
    else CHECK(strstr(info.sentence, "no NVRTC"));
    unsetenv("OSCAR_NVRTC_PATH");
}

/* == THE REAL ONES, WHERE THEY ARE == */

static void test_this_computer(void)
{
    oscar_cuda_desc d = desc_of(NULL, NULL);
    oscar_cuda_info info;
    oscar_cuda *cuda = NULL;
    oscar_result result = oscar_cuda_probe(&d, &info);
    static const char stub[] = "/usr/local/cuda/lib64/stubs/libcuda.so";
    TEST("probe of this computer: a device, or a result and a sentence what to do");
    printf("probe: %s; %s\n", oscar_result_text(result), info.sentence);
    CHECK(!result == !info.sentence[0]);
    CHECK(result == OSCAR_OK || result == OSCAR_ERR_NO_DRIVER || result == OSCAR_ERR_NO_DEVICE
          || result == OSCAR_ERR_NO_NVRTC || result == OSCAR_ERR_UNSUPPORTED);
    if (result == OSCAR_ERR_NO_DRIVER) CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_NO_DRIVER && !seen.bytes);

    if (access(stub, R_OK)) { SKIP("the toolkit's stub is not taken for a driver", "no toolkit here"); return; }
    TEST("the toolkit's stub is not taken for a driver");
    d = desc_of(stub, NULL);
    CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_ERR_NO_DRIVER && said("stub") && !seen.bytes);
}

/* Compiles the kernels for every architecture that the NVRTC found here knows; the fake driver takes the cubins. */
static void test_real_nvrtc(int all)
{
    static const int archs[] = { 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121 };
    oscar_cuda_desc d = desc_of(NULL, NULL), fake_driver;
    oscar_cuda_info info;
    oscar_layout l;
    enum { ROOM = 8 << 20 };
    unsigned char *image;
    size_t i, size = 0;
    int compiled = 0;
    (void)oscar_cuda_probe(&d, &info);
    if (!info.nvrtc_version) { SKIP("C6.1, C6.7 compilation", "no NVRTC here"); return; }
    printf("NVRTC %d.%d, %s\n", info.nvrtc_version / 1000, info.nvrtc_version % 1000 / 10, info.nvrtc_path);
    TEST("C6.1, C6.7 the kernels compile for every architecture, without a header and without a word in the log");
    unsetenv("CUDA_PATH");
    unsetenv("CUDA_HOME");
    fake_driver = fresh();
    fake_driver.nvrtc = info.nvrtc_path;
    d.nvrtc = info.nvrtc_path;
    l = layout_of(2, 64);
    image = (unsigned char *)malloc(ROOM);
    for (i = 0; i < sizeof archs / sizeof *archs; i++) {
        int ptx = archs[i] == 90, often = archs[i] == 75 || archs[i] == 80 || ptx || archs[i] == 120;
        oscar_cuda *cuda = NULL;
        oscar_result result;
        if (!all && !often) continue;
        result = oscar_cuda_compile(&d, &l, NULL, archs[i], 0, image, ROOM, &size);
        if (result == OSCAR_ERR_UNSUPPORTED && archs[i] != 80) continue;
        CHECK_MSG(result == OSCAR_OK && seen.lines == 0, ("    sm_%d: %s\n", archs[i], seen.text));
        fake->sm = archs[i];
        CHECK(oscar_cuda_open(&fake_driver, &cuda) == OSCAR_OK);
        CHECK(oscar_cuda_load(cuda, &l, NULL, image, size) == OSCAR_OK);
        oscar_cuda_close(cuda);
        CHECK(!ptx || oscar_cuda_compile(&d, &l, NULL, archs[i], 1, image, ROOM, &size) == OSCAR_OK);
        CHECK(!ptx || (strstr((const char *)image, ".target sm_90") && strlen((const char *)image) + 1 == size));
        compiled++;
    }
    free(image);
    CHECK(compiled >= (all ? 4 : 3) && is_clean(0));
    memset(&seen, 0, sizeof seen);
    CHECK(oscar_cuda_compile(&d, &l, NULL, 999, 0, NULL, 0, &size) == OSCAR_ERR_UNSUPPORTED && said("sm_999"));
}

static void test_device(void)
{
    oscar_cuda_desc d = desc_of(NULL, NULL);
    oscar_cuda_info info;
    oscar_layout l = layout_of(2, 64);
    oscar_cuda *cuda = NULL;
    int i;
    if (oscar_cuda_probe(&d, &info)) { SKIP("C6.9 on a GPU", info.sentence); return; }
    TEST("C6.9 on a GPU: load and check, 20 times");
    printf("%s, sm_%d, driver of CUDA %d.%d\n", info.name, info.sm, info.driver_version / 1000,
           info.driver_version % 1000 / 10);
    for (i = 0; i < 20; i++) {
        CHECK(oscar_cuda_open(&d, &cuda) == OSCAR_OK && oscar_cuda_load(cuda, &l, NULL, NULL, 0) == OSCAR_OK);
        CHECK(oscar_cuda_check(cuda, &l, NULL, NULL) == OSCAR_OK);
        oscar_cuda_close(cuda);
        cuda = NULL;
    }
}

/* With an argument: a few architectures for the real NVRTC. */
int main(int argc, char **argv)
{
    void *library = dlopen(fake_path, RTLD_NOW | RTLD_LOCAL), *function = library ? dlsym(library, "fake_get") : NULL;
    fake_state *(*get)(void);
    (void)argv;
    memcpy(&get, &function, sizeof get);
    if (!function) { printf("%s is missing: run tests/cuda.sh\n", fake_path); return 1; }
    fake = get();
    unsetenv("OSCAR_NVRTC_PATH");
    test_constants();
    test_pairs();
    test_candidates();
    test_choice();
    test_choice_on_devices();
    test_fallback();
    test_log();
    test_contexts();
    test_streams();
    test_modules();
    test_images();
    test_cache();
    test_processes();
    test_faults();
    test_probe();
    test_this_computer();
    test_real_nvrtc(argc < 2);
    test_device();
    return test_end("test_loader");
}
