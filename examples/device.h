/* device.h - what an engine does on a GPU itself, by the driver's own calls: memory, and copies to it and back. Real
   engines have CUDA's headers for that, and kernels that leave q, k and v there. The context must be current. */
#ifndef OSCAR_EXAMPLES_DEVICE_H
#define OSCAR_EXAMPLES_DEVICE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#if defined(_WIN32)
#  include <windows.h>
#  define DEVICE_CALL __stdcall
#else
#  include <dlfcn.h>
#  define DEVICE_CALL
#endif

static struct {
    int (DEVICE_CALL *push)(void *context);
    int (DEVICE_CALL *pop)(void **context);
    int (DEVICE_CALL *alloc)(uint64_t *memory, size_t bytes);
    int (DEVICE_CALL *free)(uint64_t memory);
    int (DEVICE_CALL *to_device)(uint64_t to, const void *from, size_t bytes);
    int (DEVICE_CALL *to_host)(void *to, uint64_t from, size_t bytes);   /* waits for what is before it */
} device_calls;

#if defined(_WIN32)
static void *device_library(const char *path) { return (void *)LoadLibraryA(path); }
static void *device_symbol(void *library, const char *name)
{
    FARPROC function = GetProcAddress((HMODULE)library, name);
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}
#else
static void *device_library(const char *path) { return dlopen(path, RTLD_NOW); }
static void *device_symbol(void *library, const char *name) { return dlsym(library, name); }
#endif

static int device_find_one(void *library, void *to, const char *name)
{
    void *address = library ? device_symbol(library, name) : NULL;
    memcpy(to, &address, sizeof address);
    if (!address) fprintf(stderr, "the driver has no %s\n", name);
    return address != NULL;
}

/* The calls of the driver at path (oscar_cuda_info.driver_path); 0 if one is missing. */
static int device_find(const char *path)
{
    void *library = device_library(path);
    return device_find_one(library, &device_calls.push, "cuCtxPushCurrent_v2")
        && device_find_one(library, &device_calls.pop, "cuCtxPopCurrent_v2")
        && device_find_one(library, &device_calls.alloc, "cuMemAlloc_v2")
        && device_find_one(library, &device_calls.free, "cuMemFree_v2")
        && device_find_one(library, &device_calls.to_device, "cuMemcpyHtoD_v2")
        && device_find_one(library, &device_calls.to_host, "cuMemcpyDtoH_v2");
}

#endif
