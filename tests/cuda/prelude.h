/* prelude.h - the prelude of oscar_cuda.h, before the kernels of sample.h when NVRTC compiles them: the device's
   side of the names that shim.h lists. */
#ifndef OSCAR_TEST_PRELUDE_H
#define OSCAR_TEST_PRELUDE_H

#define OSCAR_IMPLEMENTATION   /* section 3 alone */
#define OSCAR__IMPLEMENTED
#define OSCAR__CUDA_IMPLEMENTED
#include "oscar_cuda.h"
#undef OSCAR_CU

#include <stdio.h>

static const char *sample_prelude(void)
{
    static char text[16384];
    snprintf(text, sizeof text, "%s%s%s", oscar__cu_prelude, oscar__cu_prelude_80, oscar__cu_prelude_75);
    return text;
}

#endif
