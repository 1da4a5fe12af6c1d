/* test_image.c - images that are made ahead of time (examples/cuda_image.c, whose options describe the layers here).

       test_image matrix [some|short]   the NVRTC of OSCAR_NVRTC_PATH, a library or its folder: every layer of the list
                                        and every architecture that it knows; some: half of the layers; short: one of
                                        each
       test_image load DRIVER FILE SM OPTIONS...   FILE is an image of the layer of these options: it loads on a device
                                        of that architecture (a mock, tests/cuda/mock_cuda.c); PTX also runs there */
#define _DEFAULT_SOURCE   /* setenv */
#define main cuda_image
#include "examples/cuda_image.c"
#undef main

#include <time.h>

#include "tests/test.h"

enum { ROOM = 16 << 20 };

static struct { char text[4096]; int lines; } seen;

static void listen(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    size_t used = strlen(seen.text);
    (void)user;
    (void)level;
    (void)code;
    (void)line;
    seen.lines++;
    snprintf(seen.text + used, sizeof seen.text - used, "%s\n", text);
}

/* -- what ptxas says of a kernel, out of a cubin -- */

typedef struct use { int registers, bytes; } use;   /* of a thread; bytes of local memory */

static const unsigned char *section(const unsigned char *cubin, unsigned index)
{
    return cubin + oscar__get64(cubin + 40) + (size_t)index * oscar__get16(cubin + 58);
}

static const char *section_name(const unsigned char *cubin, unsigned index)
{
    const unsigned char *names = section(cubin, oscar__get16(cubin + 62));
    return (const char *)cubin + oscar__get64(names + 24) + oscar__get32(section(cubin, index));
}

/* The number of a kernel's symbol, 0 if it has none. */
static unsigned symbol_of(const unsigned char *cubin, const unsigned char *symbols, const char *kernel)
{
    const unsigned char *names = section(cubin, oscar__get32(symbols + 40));
    uint64_t at;
    for (at = 0; at < oscar__get64(symbols + 32); at += 24) {
        const unsigned char *s = cubin + oscar__get64(symbols + 24) + at;
        if (!strcmp((const char *)cubin + oscar__get64(names + 24) + oscar__get32(s), kernel))
            return (unsigned)(at / 24);
    }
    return 0;
}

/* Of .nv.info: format 4, attribute (0x2f registers, 0x11 bytes), a size of 8, then a symbol's number and the value. */
static use use_of(const unsigned char *cubin, const char *kernel)
{
    unsigned count = oscar__get16(cubin + 60), i, symbol = 0;
    const unsigned char *info = NULL;
    use result = { -1, -1 };
    size_t at, size = 0;
    for (i = 0; i < count; i++) {
        const char *name = section_name(cubin, i);
        const unsigned char *s = section(cubin, i);
        if (!strcmp(name, ".symtab")) symbol = symbol_of(cubin, s, kernel);
        if (!strcmp(name, ".nv.info")) { info = cubin + oscar__get64(s + 24); size = (size_t)oscar__get64(s + 32); }
    }
    for (at = 0; info && at + 12 <= size; at += info[at] == 4 ? 4u + oscar__get16(info + at + 2) : 4u) {
        if (info[at] != 4 || oscar__get32(info + at + 4) != symbol) continue;
        if (info[at + 1] == 0x2f) result.registers = (int)oscar__get32(info + at + 8);
        if (info[at + 1] == 0x11) result.bytes = (int)oscar__get32(info + at + 8);
    }
    return result;
}

/* -- the matrix -- */

static const int archs[] = { 80, 75, 86, 89, 90, 100, 120 };
enum { ARCHS = sizeof archs / sizeof *archs };

/* Registers that a thread of decode may have: so many that the blocks of oscar__cu_shape_of fit a multiprocessor; on
   sm_75, too. The first layer is the short form's, every other one is for versions of NVRTC in the middle. */
static const struct { const char *name, *options; int budget, budget_75; } layers[] = {
    { "D 64, HADAMARD", "--q-heads 8 --kv-heads 2 --dim 64", 128, 128 },
    { "D 128, HADAMARD, groups of 4", "--q-heads 4 --kv-heads 1 --dim 128", 168, 168 },
    { "D 128, dense, mean, metric", "--q-heads 16 --kv-heads 2 --dim 128 --dense --mean --metric", 168, 168 },
    { "D 128, CLIP", "--q-heads 8 --kv-heads 1 --dim 128 --clip 0 --window-type f16 --row-type bf16", 168, 255 },
    { "D 128, steps of 8 rows", "--q-heads 8 --kv-heads 1 --dim 128 --step-rows 8", 255, 255 },
    { "D 64, 4 bits, groups of 32", "--q-heads 8 --kv-heads 1 --dim 64 --bits 4 --group 32 --dense --metric", 255,
      255 },
    { "D 256, dense, mean, metric", "--q-heads 8 --kv-heads 1 --dim 256 --dense --mean --metric", 255, 255 },
    { "Dk 192, Dv 128, sliding", "--q-heads 4 --kv-heads 1 --k-dim 192 --v-dim 128 --v-bits 4 --window 512 --softcap "
                                 "--window-type f32", 255, 255 }
};
enum { LAYERS = sizeof layers / sizeof *layers };

static request request_of(const char *options)
{
    static char words[512];
    char *argv[64], *word;
    int argc = 1;
    request r;
    memset(&r, 0, sizeof r);
    snprintf(words, sizeof words, "%s", options);
    for (word = strtok(words, " "); word && argc < 64; word = strtok(NULL, " ")) argv[argc++] = word;
    r.sm = 80;
    take(&r, argc, argv);
    return r;
}

static void check_use(const unsigned char *cubin, int sm, int l)
{
    int k;
    for (k = 0; k < OSCAR__CU_KERNEL_COUNT; k++) {
        const char *kernel = oscar__cu_kernel_names[k];
        int decode = sm == 75 ? layers[l].budget_75 : layers[l].budget, budget = k == OSCAR__CU_DECODE ? decode : 255;
        use u = use_of(cubin, kernel);
        CHECK_MSG(u.registers > 0 && u.registers <= budget && !u.bytes,
                  ("    sm_%d, %s, %s: %d registers, %d bytes of local memory\n", sm, layers[l].name, kernel,
                   u.registers, u.bytes));
        if (getenv("TEST_VERBOSE"))
            printf("use sm_%d, %s, %s: %d registers, %d bytes\n", sm, layers[l].name, kernel, u.registers, u.bytes);
    }
}

/* 1: compiled, 0: NVRTC does not know the architecture and says so. */
static int check_compile(const oscar_cuda_desc *desc, unsigned char *image, int sm, int l)
{
    request r = request_of(layers[l].options);
    oscar_layout layout;
    oscar_result result;
    size_t size = 0;
    char sentence[64];
    memset(&seen, 0, sizeof seen);
    CHECK(layout_of_request(&r, &desc->hooks, &layout));
    result = oscar_cuda_compile(desc, &layout, &r.options, sm, 0, image, ROOM, &size);
    if (result == OSCAR_ERR_UNSUPPORTED && sm != 80) {
        snprintf(sentence, sizeof sentence, "makes no cubin for sm_%d; the newest it knows is sm_", sm);
        CHECK_MSG(strstr(seen.text, sentence) && seen.lines == 1, ("    sm_%d: %s\n", sm, seen.text));
        return 0;
    }
    CHECK_MSG(result == OSCAR_OK && !seen.lines, ("    sm_%d, %s: %s\n", sm, layers[l].name, seen.text));
    if (!result) check_use(image, sm, l);
    return 1;
}

/* layer_step: 1 all layers, 2 every other one, LAYERS: one, and one architecture. */
static void test_matrix(int layer_step)
{
    const char *path = getenv("OSCAR_NVRTC_PATH");
    unsigned char *image = (unsigned char *)malloc(ROOM);
    oscar_cuda_desc desc;
    oscar_cuda_info info;
    int a, l, compiled = 0, unknown = 0, less = layer_step == LAYERS;
    memset(&desc, 0, sizeof desc);
    desc.hooks.log = listen;
    desc.nvrtc = path;
    (void)oscar_cuda_probe(&desc, &info);
    TEST("C6.1, C6.7 every layer compiles for every architecture without a word, a spill, or a register too many");
    CHECK_MSG(image && info.nvrtc_version, ("    %s\n", info.sentence));
    for (a = 0; info.nvrtc_version && a < (less ? 1 : ARCHS); a++)
        for (l = 0; l < LAYERS; l += layer_step) {
            if (check_compile(&desc, image, archs[a], l)) { compiled++; continue; }
            unknown++;
            break;
        }
    CHECK(less || compiled >= 5 * LAYERS / layer_step);
    printf("NVRTC %d.%d: %d compilations, %.0f s; %d architectures are newer\n", info.nvrtc_version / 1000,
           info.nvrtc_version % 1000 / 10, compiled, (double)clock() / CLOCKS_PER_SEC, unknown);
    free(image);
}

/* -- an image on a device -- */

static unsigned char *file_bytes(const char *path, size_t *size)
{
    unsigned char *bytes = (unsigned char *)calloc(1, ROOM);
    FILE *file = fopen(path, "rb");
    *size = bytes && file ? fread(bytes, 1, ROOM - 1, file) : 0;
    if (file) (void)fclose(file);
    return bytes;
}

static void test_load(const char *driver, const char *path, int sm, int argc, char **argv)
{
    request r;
    size_t size;
    unsigned char *image = file_bytes(path, &size);
    oscar_layout layout, other;
    oscar_cuda_desc desc;
    oscar_cuda *cuda = NULL;
    int is_ptx = image[0] != 0x7f && image[0] != 0x50;
    char setting[32];
    TEST("C6.1 an image that was made ahead of time loads; that of another layer does not");
    memset(&r, 0, sizeof r);
    take(&r, argc, argv);
    memset(&desc, 0, sizeof desc);
    desc.hooks.log = listen;
    desc.driver = driver;
    snprintf(setting, sizeof setting, "capability=%d", sm);
    setenv("OSCAR_MOCK", setting, 1);
    CHECK(layout_of_request(&r, &desc.hooks, &layout) && size > 0);
    CHECK_MSG(oscar_cuda_open(&desc, &cuda) == OSCAR_OK, ("    %s\n", seen.text));
    if (!cuda) return;
    CHECK_MSG(oscar_cuda_load(cuda, &layout, &r.options, image, size) == OSCAR_OK, ("    %s\n", seen.text));
    CHECK(oscar_cuda_ready(cuda, &layout, &r.options) == OSCAR_OK);
    if (is_ptx)
        CHECK_MSG(oscar_cuda_check(cuda, &layout, &r.options, NULL) == OSCAR_OK, ("    %s\n", seen.text));
    r.page += 128;
    CHECK(layout_of_request(&r, &desc.hooks, &other));
    CHECK(oscar_cuda_load(cuda, &other, &r.options, image, size) == OSCAR_ERR_VERSION);
    oscar_cuda_close(cuda);
    free(image);
}

/* A cubin has no kernels for the mock: it only loads. */
int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic_bytes,
                      void **params);
int oscar_mock_parameters(const char *name, size_t *bytes);

int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic_bytes,
                      void **params)
{
    (void)name;
    (void)grid;
    (void)block;
    (void)dynamic_bytes;
    (void)params;
    return 1;
}

int oscar_mock_parameters(const char *name, size_t *bytes)
{
    (void)name;
    (void)bytes;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && is(argv[1], "matrix")) test_matrix(argc < 3 ? 1 : is(argv[2], "some") ? 2 : LAYERS);
    else if (argc > 4 && is(argv[1], "load"))
        test_load(argv[2], argv[3], atoi(argv[4]), argc - 4, argv + 4);
    else { puts("usage: see tests/cuda/test_image.c"); return 2; }
    return test_end("test_image");
}
