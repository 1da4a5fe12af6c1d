/* fuzz_pager.c - bytes become operations on the pager and on the model of pager_model.h, compared after each one.

       clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -Itests tests/fuzz_pager.c -lm -o fuzz_pager
       ./fuzz_pager -max_len=4096 -max_total_time=300

   Without libFuzzer, on files or on the bytes of a generator:

       cc -g -O1 -fsanitize=address,undefined -I. -Itests tests/fuzz_pager.c tests/fuzz_main.c -lm -o fuzz_pager

   The first 6 bytes choose sink, recent, page size, drafts, pages and the length limit; then each 4 bytes are one
   operation: which one, on which sequence, and a 16-bit number that becomes its argument. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "pager_model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(const char *text)
{
    if (!text) return;
    fprintf(stderr, "fuzz_pager: %s\n", text);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int sinks[4] = { -1, 0, 1, 100 }, recents[4] = { -1, 1, 64, 130 }, drafts[4] = { -1, 1, 0, 150 };
    model m;
    size_t i;
    if (size < 6) return 0;
    must(model_start(&m, sinks[data[0] % 4], recents[data[1] % 4], 64 * (1 + data[2] % 2), drafts[data[3] % 4],
                     data[4] % (MODEL_PAGES + 1), data[5] * 8, NULL));
    for (i = 6; i + 4 <= size; i += 4)
        must(model_do(&m, (model_op)(data[i] % MODEL_OPS), data[i + 1] % MODEL_SEQS,
                      (uint32_t)data[i + 2] | (uint32_t)data[i + 3] << 8));
    must(model_end(&m));
    return 0;
}
