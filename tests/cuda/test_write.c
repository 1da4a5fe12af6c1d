/* test_write.c - oscar_cu_write and oscar_cu_read against oscar_page_write and oscar_page_read: equal bytes. The
   kernels run on the CPU through the shim, for random layers, windows and steps. Each other instruction set of the CPU
   that the program was built with makes the same pages, too.
       test_write [shapes [seed]]      0 shapes: the list of fixed ones only */
#include "tests/cuda/kernels.h"
#include "tests/test.h"
#include "tests/cuda/write_kernels.h"

static void write_check(const write_shape *shape, unsigned seed)
{
    write_case *c = write_case_new(shape, seed);
    char text[512];
    write_describe(c, text);
    CHECK_MSG(write_case_run(c) == 0 && write_check_isas(c) == 0, ("    %s\n", text));
    write_case_free(c);
}

static void test_fixed(int orders)
{
    size_t i;
    int order;
    TEST("write and read: shapes on purpose");
    for (i = 0; i < sizeof write_fixed / sizeof *write_fixed; i++)
        for (order = 0; order < orders; order++) {
            shim_order = (unsigned)(order == 2 ? 1000 + i : (unsigned)order);
            write_check(&write_fixed[i], (unsigned)(77 + i));
        }
}

static void test_shapes(int count, unsigned seed)
{
    test_random r = { seed };
    int i;
    TEST("write and read: random shapes");
    for (i = 0; i < count; i++) {
        write_shape shape;
        write_shape_random(&r, &shape);
        shim_order = i % 3 == 2 ? (unsigned)(1000 + i) : (unsigned)(i % 3);
        write_check(&shape, random_u32(&r));
    }
}

static void test_limit(void)
{
    static const float norms[] = { 0.0f, 1.0f, 0.37f, 3.5f, 1e-3f, 7e4f, 1e-25f };
    size_t i;
    TEST("the longest row as a float");
    for (i = 0; i < sizeof norms / sizeof *norms; i++) {
        float limit = oscar__cu_limit(norms[i]);
        double most = 32000 / (norms[i] > 0 ? (double)norms[i] : 1);
        CHECK(sqrt((double)limit) <= most);
        CHECK(limit >= FLT_MAX || sqrt((double)nextafterf(limit, FLT_MAX)) > most);
    }
}

static void name_isas(int shapes)
{
    int isa;
    printf("%d random shapes; pages by the kernels", shapes);
    for (isa = OSCAR_ISA_SCALAR; isa < OSCAR_ISA_COUNT; isa++)
        if (!oscar_isa_force((oscar_isa)isa)) printf(", %s", oscar_isa_name((oscar_isa)isa));
    puts("");
}

int main(int argc, char **argv)
{
    int shapes = argc > 1 ? atoi(argv[1]) : 200;
    unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1u;
    kernels_open();
    name_isas(shapes);
    (void)oscar_isa_force(OSCAR_ISA_SCALAR);
    test_limit();
    test_fixed(shapes ? 3 : 1);
    test_shapes(shapes, seed);
    return test_end("test_write");
}
