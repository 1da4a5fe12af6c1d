/* calls.h - calls of the CUDA driver that tests make themselves: cu.MemAlloc and so on, out of a library that was
   opened, a driver or the mock. After tests/test.h. */
#ifndef OSCAR_TEST_CALLS_H
#define OSCAR_TEST_CALLS_H

#include "tests/cuda/mock.h"
#include <dlfcn.h>
#include <stdint.h>

#define CU_CALLS(X) \
    X(Init, "cuInit", (unsigned flags)) \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, int device)) \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    X(CtxCreate, "cuCtxCreate_v2", (void **context, unsigned flags, int device)) \
    X(CtxDestroy, "cuCtxDestroy_v2", (void *context)) \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (void *context)) \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (void **context)) \
    X(CtxGetCurrent, "cuCtxGetCurrent", (void **context)) \
    X(CtxSynchronize, "cuCtxSynchronize", (void)) \
    X(MemAlloc, "cuMemAlloc_v2", (uint64_t *memory, size_t bytes)) \
    X(MemFree, "cuMemFree_v2", (uint64_t memory)) \
    X(MemHostAlloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags)) \
    X(MemFreeHost, "cuMemFreeHost", (void *memory)) \
    X(MemcpyHtoD, "cuMemcpyHtoD_v2", (uint64_t to, const void *from, size_t bytes)) \
    X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, uint64_t from, size_t bytes)) \
    X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (uint64_t to, const void *from, size_t bytes, void *stream)) \
    X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, uint64_t from, size_t bytes, void *stream)) \
    X(MemsetD8Async, "cuMemsetD8Async", (uint64_t to, unsigned char value, size_t bytes, void *stream)) \
    X(ModuleLoadData, "cuModuleLoadData", (void **module, const void *image)) \
    X(ModuleUnload, "cuModuleUnload", (void *module)) \
    X(ModuleGetFunction, "cuModuleGetFunction", (void **function, void *module, const char *name)) \
    X(FuncSetAttribute, "cuFuncSetAttribute", (void *function, int attribute, int value)) \
    X(LaunchKernel, "cuLaunchKernel", (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, \
                                       void *stream, void **arguments, void **extra)) \
    X(StreamCreate, "cuStreamCreate", (void **stream, unsigned flags)) \
    X(StreamDestroy, "cuStreamDestroy_v2", (void *stream)) \
    X(StreamSynchronize, "cuStreamSynchronize", (void *stream)) \
    X(StreamQuery, "cuStreamQuery", (void *stream)) \
    X(StreamIsCapturing, "cuStreamIsCapturing", (void *stream, int *capturing)) \
    X(StreamBeginCapture, "cuStreamBeginCapture_v2", (void *stream, int mode)) \
    X(StreamEndCapture, "cuStreamEndCapture", (void *stream, void **graph)) \
    X(StreamWaitEvent, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags)) \
    X(EventCreate, "cuEventCreate", (void **event, unsigned flags)) \
    X(EventRecord, "cuEventRecord", (void *event, void *stream)) \
    X(EventDestroy, "cuEventDestroy_v2", (void *event)) \
    X(GraphInstantiate, "cuGraphInstantiateWithFlags", (void **exec, void *graph, unsigned long long flags)) \
    X(GraphLaunch, "cuGraphLaunch", (void *exec, void *stream)) \
    X(GraphDestroy, "cuGraphDestroy", (void *graph)) \
    X(GraphExecDestroy, "cuGraphExecDestroy", (void *exec))

#define CU_MEMBER(member, symbol, arguments) int (*member) arguments;
static struct { CU_CALLS(CU_MEMBER) } cu;

/* Ends the program where the library has no such function. */
static void find(void *library, void *to, const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        printf("no %s in the driver\n", name);
        exit(1);
    }
    memcpy(to, &symbol, sizeof symbol);
}

static void find_calls(void *library)
{
#define CU_FIND(member, symbol, arguments) find(library, &cu.member, symbol);
    CU_CALLS(CU_FIND)
#undef CU_FIND
}

/* The mock and its calls. */
static TEST_UNUSED void *open_mock(const char *path, mock_control *mock)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    find(library, &mock->reset, "oscar_mock_reset");
    find(library, &mock->set, "oscar_mock_set");
    find(library, &mock->fail, "oscar_mock_fail");
    find(library, &mock->calls, "oscar_mock_calls");
    find(library, &mock->log, "oscar_mock_log");
    find(library, &mock->message, "oscar_mock_message");
    find(library, &mock->live, "oscar_mock_live");
    find_calls(library);
    return library;
}

#endif
