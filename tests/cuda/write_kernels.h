/* write_kernels.h - how write_case.h runs kernels here: those of kernels.h, over memory of the host. */
#ifndef OSCAR_TEST_WRITE_KERNELS_H
#define OSCAR_TEST_WRITE_KERNELS_H

#include "tests/cuda/write_case.h"

static void write_set(const oscar__cu_plan *plan) { kernels_set(plan); }

static int write_run_step(write_case *c, int what)
{
    oscar__cu_write_args a;
    memset(&a, 0, sizeof a);
    a.entries = kernels_at(c->entry);
    a.tables = kernels_at(c->tables);
    a.k = kernels_at(c->k_rows);
    a.v = kernels_at(c->v_rows);
    a.k_token_stride = c->stride[0];
    a.k_head_stride = c->stride[1];
    a.v_token_stride = c->stride[2];
    a.v_head_stride = c->stride[3];
    a.window_k = kernels_at(c->windows[0][0]);
    a.window_v = kernels_at(c->windows[1][0]);
    a.pool = kernels_at(c->pool[0]);
    a.constants = kernels_at(&c->constants);
    a.status = kernels_at(&c->status);
    a.layer = WRITE_LAYER;
    a.what = what;
    a.parts = 1 + (int)(c->seed % (unsigned)oscar__cu_write_parts(&c->layout));   /* 1 .. most */
    a.entry_count = c->shape.entries + 1;
    a.most_pages = c->most_pages;
    return oscar__cu_launch_write(&kernels_cuda, &kernels_module, NULL, &a) ? -1 : 0;
}

static int write_run_read(write_case *c, int type, int windows, oscar_cu_rows *items, int count, void *k, void *v,
                          const long long *stride, int rows)
{
    oscar__cu_read_args a;
    (void)rows;
    memset(&a, 0, sizeof a);
    a.items = kernels_at(items);
    a.pool = kernels_at(c->pool[1]);
    a.k = kernels_at(k);
    a.v = kernels_at(v);
    a.k_token_stride = stride[0];
    a.k_head_stride = stride[1];
    a.v_token_stride = stride[2];
    a.v_head_stride = stride[3];
    a.out_type = type;
    a.windows = windows;
    a.constants = kernels_at(&c->constants);
    a.item_count = count;
    a.most_rows = c->shape.page;
    return oscar__cu_launch_read(&kernels_cuda, &kernels_module, NULL, &a) ? -1 : 0;
}

#endif
