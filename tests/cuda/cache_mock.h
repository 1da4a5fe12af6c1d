/* cache_mock.h - cache_case.h over the mock driver: its control, and kernels for it. */
#ifndef OSCAR_TEST_CACHE_MOCK_H
#define OSCAR_TEST_CACHE_MOCK_H

#include "tests/cuda/cache_case.h"

static mock_control mock;

static const char *cuda_said(void) { return mock.message(); }
static void cuda_fresh(void) { mock.reset(); }
static void cuda_started(int late) { mock.set("late", late); }

static void cuda_left(int closed)
{
    if (closed) CHECK(!mock.live("module"));
    else CHECK(mock.live("memory") == 3 + 5 * LAYERS && !mock.live("host") && !mock.live("event"));
}

void cache_kernels_set(int layer, const int64_t *values);   /* of cache_kernels.c */

/* Kernels as C, under the names of a cubin that says nothing. */
static int prepare_shim(const char *nvrtc)
{
    oscar_cuda_desc desc;
    oscar_cuda_options options = options_of();
    oscar_cuda *cuda;
    int l;
    nvrtc_path = nvrtc;
    memset(&desc, 0, sizeof desc);
    desc.driver = cuda_path;
    desc.nvrtc = nvrtc;
    CHECK(oscar_cuda_open(&desc, &cuda) == OSCAR_OK);
    for (l = 0; l < LAYERS; l++) {
        oscar_layout layout;
        oscar__cu_plan plan;
        CHECK(oscar_page_layout(layer_of(l), 0, OSCAR_BF16, NULL, &layout) == OSCAR_OK);
        CHECK(oscar__cu_plan_here(cuda, &layout, &options, 90, &plan) == OSCAR_OK);
        cache_kernels_set(l, plan.constants.value);
    }
    oscar_cuda_close(cuda);
    return 1;
}

/* Kernels as PTX where there is an NVRTC, else through the shim. */
static int prepare(const char *driver, const char *nvrtc, int shim)
{
    oscar_cuda_options options;
    oscar_cuda_desc desc;
    int l;
    memset(&desc, 0, sizeof desc);
    desc.hooks.log = listen;
    cuda_path = driver;
    (void)open_mock(driver, &mock);
    make_desc();
    options = options_of();
    if (shim) return prepare_shim(nvrtc);
    for (l = 0; l < LAYERS; l++) {
        oscar_layout layout;
        oscar_result result;
        if (oscar_page_layout(layer_of(l), 0, OSCAR_BF16, NULL, &layout)) return 0;
        result = oscar_cuda_compile(&desc, &layout, &options, 90, 1, NULL, 0, &image_bytes[l]);
        if (result == OSCAR_ERR_NO_NVRTC) return prepare_shim(nvrtc);
        free(images[l]);
        images[l] = (char *)malloc(image_bytes[l]);
        if (!images[l]
            || oscar_cuda_compile(&desc, &layout, &options, 90, 1, images[l], image_bytes[l], &image_bytes[l])) {
            printf("the kernels do not compile: %s\n", said.text);
            exit(1);
        }
    }
    return 1;
}

#endif
