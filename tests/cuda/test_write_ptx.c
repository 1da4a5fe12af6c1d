/* test_write_ptx.c - the kernels as NVRTC compiles them: no log, no spills for sm_75 .. sm_120; and the PTX of
   oscar_cu_write and oscar_cu_read, run by the interpreter, with and without contraction, makes the bytes of the CPU.
       test_write_ptx [short | quick]     short: two layouts; quick: for seeded faults, no cubins
       test_write_ptx shapes COUNT [SEED [FROM]]     random shapes as of test_write, FROM .. COUNT - 1 of them; only
                                          these two kernels are compiled */
#include "tests/cuda/kernels.h"
#include "tests/test.h"
#include "tests/cuda/write_kernels.h"
#include "tests/cuda/kernels_ptx.h"

static const write_shape write_layouts[] = {
    /* heads k   v   bits   clip  group   kind  f mean pm metric page types sink recent drafts entries before rows */
    { 1, 128, 128, 2, 2, 0, 0, 0, 0, 2, 0, 0, 1, 1, 1, 64, 2, 2, 4, 8, 1, 1, 75, 1, 1, 0 },
    { 2, 32, 48, 4, 2, 1, 0, 16, 0, 0, 2, 0, 1, 1, 0, 128, 3, 1, 2, 5, 4, 1, 134, 3, 1, 1 },
    { 1, 64, 64, 2, 2, 1, 1, 0, 0, 2, 2, 0, 0, 0, 0, 64, 2, 2, 0, 4, 1, 1, 67, 1, 1, 0 },
    { 1, 64, 64, 4, 4, 0, 0, 32, 0, 2, 0, 1, 1, 1, 2, 64, 3, 3, 0, 4, 1, 1, 67, 1, 1, 1 },
    { 1, 96, 112, 4, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 64, 1, 2, 3, 1, 1, 1, 67, 70, 1, 1 },
    { 1, 256, 256, 2, 2, 0, 0, 0, 0, 2, 0, 0, 1, 1, 1, 64, 2, 2, 4, 8, 1, 1, 75, 1, 1, 0 },
    { 1, 16, 528, 16, 2, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 64, 2, 2, 4, 8, 1, 1, 75, 1, 1, 0 }
};
/* Compiled only: their pages take the interpreter too long. */
static const write_shape write_wide =
    { 1, 512, 512, 2, 2, 0, 0, 0, 0, 2, 0, 0, 1, 1, 1, 64, 2, 2, 4, 8, 1, 1, 75, 1, 1, 0 };
enum { WRITE_LAYOUTS = sizeof write_layouts / sizeof *write_layouts };

/* The number before a word in ptxas's report on a kernel; -1 if there is none. */
static long write_reported(const char *kernel, const char *word)
{
    char start[80];
    const char *at, *end;
    snprintf(start, sizeof start, "Compiling entry function '%s'", kernel);
    at = strstr(nvrtc.text, start);
    end = at ? strstr(at + 1, "Compiling entry") : NULL;
    at = at ? strstr(at, word) : NULL;
    if (!at || (end && at > end)) return -1;
    while (at > nvrtc.text && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9'))) at--;
    return strtol(at, NULL, 10);
}

/* Bytes that a kernel may spill: write and decode of heads of more than 256 channels, and decode over pages with values
   in F32, which no model has: their two limbs beside codes of keys fill the registers. */
static long write_allowed(const char *kernel)
{
    if (oscar_test.WINDOW_TYPE == 1 && oscar_test.V_BITS == 16 && !strcmp(kernel, "oscar_cu_decode")) return 40;
    if (oscar_test.DK <= 256) return 0;
    return !strcmp(kernel, "oscar_cu_decode") || !strcmp(kernel, "oscar_cu_write") ? 96 : 0;
}

static void write_archs(const char *text, const char *name, int count)
{
    static const char *const archs[] = { "sm_90", "sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120" };
    int i, k;
    for (i = 0; i < count && i < 7; i++) {
        char *cubin = kernels_compile(text, archs[i], 1, 1);
        if (!cubin && strstr(nvrtc.text, "invalid value")) { SKIP(archs[i], "NVRTC does not know it"); continue; }
        CHECK_MSG(cubin && !strstr(nvrtc.text, "warning") && !strstr(nvrtc.text, "error"),
                  ("    %s: %s\n", archs[i], nvrtc.text));
        for (k = 0; k < OSCAR__CU_KERNEL_COUNT; k++) {
            const char *kernel = oscar__cu_kernel_names[k];
            long spilled = write_reported(kernel, "bytes spill stores"), stack = write_reported(kernel, "bytes stack");
            CHECK_MSG(spilled >= 0 && spilled <= write_allowed(kernel) && stack <= write_allowed(kernel),
                      ("    %s %s %s: spills %ld, stack %ld\n", archs[i], kernel, name, spilled, stack));
            if (getenv("TEST_VERBOSE")) printf("    %s %s: %ld bytes spilled\n", archs[i], kernel, spilled);
        }
        free(cubin);
    }
}

static void write_check_ptx(const write_shape *shape, unsigned seed, const char *arch, int fmad)
{
    write_case *c = write_case_new(shape, seed);
    char name[512];
    int loaded = kernels_load_ptx(arch, fmad);
    write_describe(c, name);
    CHECK_MSG(loaded, ("    %s: %s\n", arch, nvrtc.text));
    if (loaded) CHECK_MSG(write_case_run(c) == 0, ("    %s, contraction %i: %s\n", arch, fmad, name));
    if (getenv("TEST_VERBOSE")) printf("    %s %s: %llu thread instructions\n", arch, name, kernels_executed);
    kernels_executed = 0;
    kernels_free_ptx();
    write_case_free(c);
}

static void test_archs(int layouts, int archs)
{
    int i;
    TEST("C6.1, C6.7 all kernels of a layer compile without a word, and without spills");
    for (i = layouts > 1 ? -1 : 0; i < layouts; i++) {
        write_case *c = write_case_new(i < 0 ? &write_wide : &write_layouts[i], 1);
        char *text = kernels_text(), name[512];
        write_describe(c, name);
        write_archs(text, name, archs);
        free(text);
        write_case_free(c);
    }
}

static void test_ptx(int layouts, int ways)
{
    int i;
    TEST("C6.1 the PTX of write and read makes the CPU's bytes");
    for (i = 0; i < layouts; i++) {
        kernels_order = i % 3 == 2 ? 99u : (unsigned)(i % 3);
        write_check_ptx(&write_layouts[i], 500u + (unsigned)i, i % 2 ? "compute_75" : "compute_90", 1);
        if (ways > 1) write_check_ptx(&write_layouts[i], 900u + (unsigned)i, i % 2 ? "compute_90" : "compute_80", 0);
    }
}

/* Leaves the chunks of attention out of the text, which then compiles in a third of the time. */
static void leave_attention_out(void)
{
    static const char *kept[128];
    size_t i, count = 0;
    int skipping = 0;
    for (i = 0; i < kernels_chunk_count && count < 128; i++) {
        const char *chunk = kernels_chunks[i];
        if (strstr(chunk, ":oscar__cu_text_decode_types\"")) skipping = 1;
        if (strstr(chunk, ":oscar__cu_text_check")) skipping = 0;
        if (!skipping && !strstr(chunk, ":oscar__cu_text_query")) kept[count++] = chunk;
    }
    kernels_chunks = kept;
    kernels_chunk_count = count;
}

static void test_shapes(int count, unsigned seed, int from)
{
    static const char *const archs[] = { "compute_90", "compute_75", "compute_80" };
    test_random r = { seed };
    int i;
    TEST("C6.1 the PTX of write and read makes the CPU's bytes: random shapes");
    leave_attention_out();
    for (i = 0; i < count && !test_state.failed_now; i++) {
        write_shape shape;
        unsigned own;
        write_shape_random(&r, &shape);
        own = random_u32(&r);
        if (i < from) continue;
        kernels_order = i % 3 == 2 ? 99u : (unsigned)(i % 3);
        write_check_ptx(&shape, own, archs[i % 3], i % 4 != 3);
        if (i % 50 == 49) printf("%d of %d shapes\n", i + 1, count);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int quick = argc > 1 && !strcmp(argv[1], "quick"), less = quick || argc > 1;
    if (!kernels_can_compile()) {
        SKIP("test_write_ptx", "no NVRTC library: set OSCAR_NVRTC_PATH");
        return test_end("test_write_ptx");
    }
    kernels_open();
    kernels_way = kernels_on_ptx;
    if (argc > 2 && !strcmp(argv[1], "shapes")) {
        (void)oscar_isa_force(OSCAR_ISA_SCALAR);
        test_shapes(atoi(argv[2]), argc > 3 ? (unsigned)atoi(argv[3]) : 1u, argc > 4 ? atoi(argv[4]) : 0);
        return test_end("test_write_ptx");
    }
    if (!quick) test_archs(less ? 1 : WRITE_LAYOUTS - 1, less ? 2 : 7);
    test_ptx(less ? 2 : WRITE_LAYOUTS, less ? 1 : 2);
    return test_end("test_write_ptx");
}
