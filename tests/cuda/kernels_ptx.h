/* kernels_ptx.h - the kernels of oscar_cuda.h as NVRTC compiles them: what it says of cubins, and PTX in the
   interpreter. After kernels.h; link ptx.c. */
#ifndef OSCAR_TEST_KERNELS_PTX_H
#define OSCAR_TEST_KERNELS_PTX_H

#include <unistd.h>

#include "tests/cuda/nvrtc.h"
#include "tests/cuda/ptx.h"

/* What an image is compiled by: KERNELS_COMPILER in the environment, a command that is given an architecture
   (compute_80), a file of text and one for PTX, and prints nothing; else NVRTC. */
static const char *kernels_compiler(void) { return getenv("KERNELS_COMPILER"); }

static int kernels_can_compile(void) { return kernels_compiler() || nvrtc_open(); }

/* A whole file; NULL if there is none. */
static char *kernels_file(const char *path, size_t most)
{
    FILE *file = fopen(path, "rb");
    char *bytes = (char *)calloc(1, most + 1);
    if (file && bytes && !fread(bytes, 1, most, file)) *bytes = 0;
    if (!file) { free(bytes); bytes = NULL; }
    if (file) fclose(file);
    return bytes;
}

/* PTX by another compiler. What it prints is the log. */
static char *kernels_compile_elsewhere(const char *text, const char *arch)
{
    char source[64], ptx[64], log[64], command[1024], *out, *said;
    FILE *file;
    int failed;
    snprintf(source, sizeof source, "build/cuda/text.%ld.cu", (long)getpid());
    snprintf(ptx, sizeof ptx, "build/cuda/text.%ld.ptx", (long)getpid());
    snprintf(log, sizeof log, "build/cuda/text.%ld.log", (long)getpid());
    file = fopen(source, "wb");
    if (!file) return NULL;
    fputs(text, file);
    fclose(file);
    snprintf(command, sizeof command, "%s %s %s %s >%s 2>&1", kernels_compiler(), arch, source, ptx, log);
    failed = system(command);
    said = kernels_file(log, sizeof nvrtc.text - 1);
    snprintf(nvrtc.text, sizeof nvrtc.text, "%s", said ? said : "");
    if (failed && !nvrtc.text[0]) snprintf(nvrtc.text, sizeof nvrtc.text, "%s ended with %d", command, failed);
    out = failed ? NULL : kernels_file(ptx, 16 << 20);
    free(said);
    remove(source);
    remove(ptx);
    remove(log);
    return out;
}

/* PTX or a cubin; NULL and a text in nvrtc.text if there is an error. The log has ptxas's report, too. */
static char *kernels_compile_sized(const char *text, const char *arch, int cubin, int fmad, size_t *size)
{
    const char *options[4];
    options[1] = fmad ? "--fmad=true" : "--fmad=false";
    options[2] = cubin ? "--ptxas-options=-v" : "-lineinfo";
    options[3] = "-default-device";
    if (!cubin && kernels_compiler()) return kernels_compile_elsewhere(text, arch);
    return nvrtc_make(text, arch, 4, options, cubin, size);
}

static char *kernels_compile(const char *text, const char *arch, int cubin, int fmad)
{
    return kernels_compile_sized(text, arch, cubin, fmad, NULL);
}

static ptx_module *kernels_ptx;
static unsigned kernels_order;
static unsigned long long kernels_executed;   /* thread instructions */

static void kernels_free_ptx(void)
{
    if (kernels_ptx) ptx_free(kernels_ptx);
    kernels_ptx = NULL;
}

/* The kernels with the constants of now; 0 and a text in nvrtc.text if there is an error or a warning. */
static int kernels_load_ptx(const char *arch, int fmad)
{
    char *text = kernels_text(), *ptx = kernels_compile(text, arch, 0, fmad), error[512];
    free(text);
    kernels_free_ptx();
    if (ptx && !nvrtc.text[0]) {
        kernels_ptx = ptx_load(ptx, error, sizeof error);
        if (!kernels_ptx) snprintf(nvrtc.text, sizeof nvrtc.text, "%s", error);
    }
    free(ptx);
    return kernels_ptx != NULL;
}

static int kernels_on_ptx(const char *name, const kernels_grid *of, void **params)
{
    ptx_options options;
    ptx_size grid, block;
    int result;
    memset(&options, 0, sizeof options);
    options.order = kernels_order;
    options.check_races = 1;
    grid.x = of->x;
    grid.y = of->y;
    grid.z = of->z;
    block.x = of->threads;
    block.y = block.z = 1;
    result = ptx_launch(kernels_ptx, name, grid, block, of->shared, params, &options);
    kernels_executed += options.executed;
    if (result) printf("%s: %s\n", name, options.error);
    return result;
}

#endif
