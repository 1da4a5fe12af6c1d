/* cuda_driver.h - the calls of the CUDA driver and of NVRTC that a benchmark makes itself, both opened at run time
   (Linux). A call that fails ends the program with its name and the driver's word for it.

       gpu_open(&info); gpu_close();              of oscar_cuda_get_info: paths, context; the context becomes current
       uint64_t at = gpu_alloc(bytes);            device memory; gpu_upload, gpu_repeat, gpu_free
       gpu_capture(); ...; void *exec = gpu_captured();      what was launched on gpu.stream, as a graph
       double us = gpu_time(exec, times);         microseconds of one launch of the graph
       void *module = gpu_compile(text, parts);   what NVRTC makes of a text
   gpu.is_mock: the library is tests/cuda/mock_cuda.c, which runs PTX alone and whose times mean nothing. */
#ifndef OSCAR_BENCH_CUDA_DRIVER_H
#define OSCAR_BENCH_CUDA_DRIVER_H

#include "oscar_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU_CALLS(X) \
    X(push, "cuCtxPushCurrent_v2", (void *context)) \
    X(pop, "cuCtxPopCurrent_v2", (void **context)) \
    X(memory, "cuMemGetInfo_v2", (size_t *unused, size_t *total)) \
    X(alloc, "cuMemAlloc_v2", (uint64_t *memory, size_t bytes)) \
    X(free, "cuMemFree_v2", (uint64_t memory)) \
    X(copy_in, "cuMemcpyHtoD_v2", (uint64_t to, const void *from, size_t bytes)) \
    X(copy_out, "cuMemcpyDtoH_v2", (void *to, uint64_t from, size_t bytes)) \
    X(copy, "cuMemcpyDtoD_v2", (uint64_t to, uint64_t from, size_t bytes)) \
    X(copy_async, "cuMemcpyDtoDAsync_v2", (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    X(fill, "cuMemsetD8_v2", (uint64_t to, unsigned char value, size_t bytes)) \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags)) \
    X(stream_free, "cuStreamDestroy_v2", (void *stream)) \
    X(stream_wait, "cuStreamSynchronize", (void *stream)) \
    X(event_create, "cuEventCreate", (void **event, unsigned flags)) \
    X(event_free, "cuEventDestroy_v2", (void *event)) \
    X(event_record, "cuEventRecord", (void *event, void *stream)) \
    X(event_wait, "cuEventSynchronize", (void *event)) \
    X(event_time, "cuEventElapsedTime", (float *milliseconds, void *from, void *to)) \
    X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode)) \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph)) \
    X(graph_make, "cuGraphInstantiateWithFlags", (void **exec, void *graph, unsigned long long flags)) \
    X(graph_launch, "cuGraphLaunch", (void *exec, void *stream)) \
    X(graph_free, "cuGraphDestroy", (void *graph)) \
    X(exec_free, "cuGraphExecDestroy", (void *exec)) \
    X(module_load, "cuModuleLoadData", (void **module, const void *image)) \
    X(module_unload, "cuModuleUnload", (void *module)) \
    X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name)) \
    X(function_set, "cuFuncSetAttribute", (void *function, int attribute, int value)) \
    X(error_name, "cuGetErrorName", (int error, const char **name)) \
    X(launch, "cuLaunchKernel", (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
                                 unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, \
                                 void **extra))

#define GPU_NVRTC_CALLS(X) \
    X(create, "nvrtcCreateProgram", (void **program, const char *text, const char *name, int headers, \
                                     const char *const *header_texts, const char *const *header_names)) \
    X(destroy, "nvrtcDestroyProgram", (void **program)) \
    X(compile, "nvrtcCompileProgram", (void *program, int count, const char *const *options)) \
    X(ptx_size, "nvrtcGetPTXSize", (void *program, size_t *bytes)) \
    X(ptx, "nvrtcGetPTX", (void *program, char *out)) \
    X(cubin_size, "nvrtcGetCUBINSize", (void *program, size_t *bytes)) \
    X(cubin, "nvrtcGetCUBIN", (void *program, char *out)) \
    X(log_size, "nvrtcGetProgramLogSize", (void *program, size_t *bytes)) \
    X(log, "nvrtcGetProgramLog", (void *program, char *out))

#define GPU_MEMBER(member, symbol, arguments) int (*member) arguments;

static struct {
    GPU_CALLS(GPU_MEMBER)
    void *stream, *from, *to;        /* events around what is timed */
    oscar_cuda_info info;
    int is_mock;
} gpu;

static struct { GPU_NVRTC_CALLS(GPU_MEMBER) } nvrtc;

/* == CALLS == */

static void gpu_fail(const char *what, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(1);
}

static void gpu_check(int code, const char *what)
{
    const char *name = NULL;
    if (!code) return;
    if (gpu.error_name(code, &name) || !name) name = "an error of the driver";
    gpu_fail(what, name);
}

#define GPU(call) gpu_check(gpu.call, #call)

static void gpu_find(void *library, void *to, const char *name)
{
    void *symbol = library ? dlsym(library, name) : NULL;
    if (!symbol) gpu_fail(name, "not found: is the library too old?");
    memcpy(to, &symbol, sizeof symbol);
}

static void gpu_open(const oscar_cuda_info *info)
{
    void *library = dlopen(info->driver_path, RTLD_NOW), *compiler = dlopen(info->nvrtc_path, RTLD_NOW);
#define GPU_FIND(member, symbol, arguments) gpu_find(library, &gpu.member, symbol);
    GPU_CALLS(GPU_FIND)
#undef GPU_FIND
#define GPU_FIND(member, symbol, arguments) gpu_find(compiler, &nvrtc.member, symbol);
    GPU_NVRTC_CALLS(GPU_FIND)
#undef GPU_FIND
    gpu.info = *info;
    gpu.is_mock = dlsym(library, "oscar_mock_reset") != NULL;
    GPU(push(info->context));
    GPU(stream_create(&gpu.stream, 1));    /* 1: does not wait for the default stream */
    GPU(event_create(&gpu.from, 0));
    GPU(event_create(&gpu.to, 0));
}

static void gpu_close(void)
{
    GPU(stream_free(gpu.stream));
    GPU(event_free(gpu.from));
    GPU(event_free(gpu.to));
    GPU(pop(NULL));
}

/* == MEMORY == */

static uint64_t gpu_alloc(size_t bytes)
{
    uint64_t at = 0;
    GPU(alloc(&at, bytes));
    return at;
}

static uint64_t gpu_upload(const void *from, size_t bytes)
{
    uint64_t at = gpu_alloc(bytes);
    GPU(copy_in(at, from, bytes));
    return at;
}

static void gpu_free(uint64_t at)
{
    if (at) GPU(free(at));
}

/* The first `bytes` bytes from `at` on, again and again up to `all` bytes. */
static void gpu_repeat(uint64_t at, size_t bytes, size_t all)
{
    while (bytes < all) {
        size_t more = bytes < all - bytes ? bytes : all - bytes;
        GPU(copy(at + bytes, at, more));
        bytes += more;
    }
}

/* == GRAPHS, TIME == */

static void gpu_capture(void) { GPU(capture_begin(gpu.stream, 2)); }   /* 2: relaxed */

static void *gpu_captured(void)
{
    void *graph = NULL, *exec = NULL;
    GPU(capture_end(gpu.stream, &graph));
    GPU(graph_make(&exec, graph, 0));
    GPU(graph_free(graph));
    return exec;
}

static double gpu_time(void *exec, int times)
{
    float milliseconds = 0;
    int i;
    GPU(event_record(gpu.from, gpu.stream));
    for (i = 0; i < times; i++) GPU(graph_launch(exec, gpu.stream));
    GPU(event_record(gpu.to, gpu.stream));
    GPU(event_wait(gpu.to));
    GPU(event_time(&milliseconds, gpu.from, gpu.to));
    return 1000.0 * milliseconds / times;
}

static void gpu_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, size_t shared,
                       void **arguments)
{
    GPU(launch(function, x, y, z, threads, 1, 1, (unsigned)shared, gpu.stream, arguments, NULL));
}

/* == COMPILE == */

static char *gpu_join_text(const char *first, const char *const *parts, int count)
{
    size_t bytes = strlen(first) + 1;
    char *text;
    int i;
    for (i = 0; i < count; i++) bytes += strlen(parts[i]);
    text = (char *)malloc(bytes);
    if (!text) gpu_fail("a text", "no memory");
    strcpy(text, first);
    for (i = 0; i < count; i++) strcat(text, parts[i]);
    return text;
}

static void gpu_show_log(void *program)
{
    size_t bytes = 0;
    char *log;
    if (nvrtc.log_size(program, &bytes) || bytes < 2 || !(log = (char *)malloc(bytes + 1))) return;
    if (!nvrtc.log(program, log)) fprintf(stderr, "%.*s\n", (int)bytes, log);
    free(log);
}

/* NULL where NVRTC does not take the architecture or the text. */
static char *gpu_image(const char *text, const char *arch, int want_ptx)
{
    char option[48];
    const char *options[1];
    void *program = NULL;
    char *image = NULL;
    size_t bytes = 0;
    (void)snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
    options[0] = option;
    if (nvrtc.create(&program, text, "bench.cu", 0, NULL, NULL)) return NULL;
    if (!nvrtc.compile(program, 1, options) && !(want_ptx ? nvrtc.ptx_size : nvrtc.cubin_size)(program, &bytes))
        image = (char *)malloc(bytes + 1);
    if (!image) gpu_show_log(program);
    else if ((want_ptx ? nvrtc.ptx : nvrtc.cubin)(program, image)) {
        free(image);
        image = NULL;
    }
    (void)nvrtc.destroy(&program);
    return image;
}

/* A cubin for the device; PTX for the mock, and where NVRTC is older than the device. */
static void *gpu_compile(const char *constants, const char *const *parts, int count)
{
    char *text = gpu_join_text(constants, parts, count), *image = NULL;
    char arch[24];
    void *module = NULL;
    (void)snprintf(arch, sizeof arch, "sm_%d", gpu.info.sm);
    if (!gpu.is_mock) image = gpu_image(text, arch, 0);
    (void)snprintf(arch, sizeof arch, "compute_%d", gpu.is_mock ? 80 : gpu.info.nvrtc_newest);
    if (!image) image = gpu_image(text, arch, 1);
    if (!image) gpu_fail("kernels of the benchmark", "NVRTC does not compile them");
    GPU(module_load(&module, image));
    free(image);
    free(text);
    return module;
}

static void *gpu_function(void *module, const char *name, size_t shared)
{
    void *function = NULL;
    GPU(module_function(&function, module, name));
    if (shared > 49152) GPU(function_set(function, 8, (int)shared));   /* 8: most dynamic shared memory */
    return function;
}

#endif
