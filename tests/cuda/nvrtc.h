/* nvrtc.h - NVRTC for tests: opened at run time, no header of CUDA's. OSCAR_NVRTC_PATH names another library.

       char *ptx = nvrtc_compile(text, "compute_90", 0, &why);    NULL: why says what NVRTC said; free() it
       char *cubin = nvrtc_compile(text, "sm_90", 1, &why); */
#ifndef OSCAR_TEST_NVRTC_H
#define OSCAR_TEST_NVRTC_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *nvrtc_program;

static struct {
    int tried;
    void *library;
    int (*create)(nvrtc_program *, const char *, const char *, int, const char *const *, const char *const *);
    int (*destroy)(nvrtc_program *);
    int (*compile)(nvrtc_program, int, const char *const *);
    int (*ptx_size)(nvrtc_program, size_t *);
    int (*ptx)(nvrtc_program, char *);
    int (*cubin_size)(nvrtc_program, size_t *);
    int (*cubin)(nvrtc_program, char *);
    int (*log_size)(nvrtc_program, size_t *);
    int (*log)(nvrtc_program, char *);
    char text[16384];                /* of the last log */
} nvrtc;

static void nvrtc_symbol(void *to, const char *name)
{
    void *symbol = dlsym(nvrtc.library, name);
    memcpy(to, &symbol, sizeof symbol);
    if (!symbol) nvrtc.library = NULL;
}

/* Whether there is an NVRTC. */
static int nvrtc_open(void)
{
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};
    const char *path = getenv("OSCAR_NVRTC_PATH");
    size_t i;
    if (nvrtc.tried) return nvrtc.library != NULL;
    nvrtc.tried = 1;
    if (path) nvrtc.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (i = 0; i < sizeof names / sizeof names[0] && !path && !nvrtc.library; i++)
        nvrtc.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (nvrtc.library) nvrtc_symbol(&nvrtc.create, "nvrtcCreateProgram");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.destroy, "nvrtcDestroyProgram");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.compile, "nvrtcCompileProgram");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.ptx_size, "nvrtcGetPTXSize");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.ptx, "nvrtcGetPTX");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.cubin_size, "nvrtcGetCUBINSize");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.cubin, "nvrtcGetCUBIN");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.log_size, "nvrtcGetProgramLogSize");
    if (nvrtc.library) nvrtc_symbol(&nvrtc.log, "nvrtcGetProgramLog");
    return nvrtc.library != NULL;
}

static void nvrtc_read_log(nvrtc_program program)
{
    size_t n = 0;
    char *text;
    nvrtc.text[0] = 0;
    if (nvrtc.log_size(program, &n) || n < 2) return;
    text = (char *)malloc(n + 1);
    if (!text) return;
    if (!nvrtc.log(program, text)) {
        text[n] = 0;
        snprintf(nvrtc.text, sizeof nvrtc.text, "%s", text);
    }
    free(text);
}

/* PTX or a cubin of a text, with a 0 behind it; NULL if there is an error. options[0] is set to the architecture's:
   compute_NN for PTX, sm_NN for a cubin. */
static char *nvrtc_make(const char *text, const char *arch, int option_count, const char **options, int want_cubin,
                        size_t *bytes)
{
    char option[64];
    nvrtc_program program;
    size_t n = 0;
    char *out = NULL;
    int failed;
    snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
    options[0] = option;
    snprintf(nvrtc.text, sizeof nvrtc.text, "no NVRTC");
    if (!nvrtc_open() || nvrtc.create(&program, text, "kernels.cu", 0, NULL, NULL)) return NULL;
    failed = nvrtc.compile(program, option_count, options);
    nvrtc_read_log(program);
    if (!failed && !(want_cubin ? nvrtc.cubin_size(program, &n) : nvrtc.ptx_size(program, &n)))
        out = (char *)malloc(n + 1);
    if (out && (want_cubin ? nvrtc.cubin(program, out) : nvrtc.ptx(program, out))) {
        free(out);
        out = NULL;
    }
    if (out) out[n] = 0;
    if (bytes) *bytes = n;
    nvrtc.destroy(&program);
    return out;
}

/* The same; a log, as of a warning, counts as a failure. */
static char *nvrtc_compile(const char *text, const char *arch, int want_cubin, const char **why)
{
    const char *options[3];
    char *out;
    options[1] = "-lineinfo";
    options[2] = "-diag-suppress=177";   /* functions that a kernel does not use */
    out = nvrtc_make(text, arch, 3, options, want_cubin, NULL);
    *why = nvrtc.text;
    if (!nvrtc.text[0]) return out;
    free(out);
    return NULL;
}

#endif
