/* tiles.h - the tile instructions of AMX in plain C, for tests of the AMX kernels on machines without it. Include it
   before oscar.h: it puts its own operations in the place of the header's, and AMX then counts as there wherever
   AVX-512 is.

   Every operation checks what the processor checks: no use without a configuration, palette, reserved bytes, rows and
   bytes of a row within the palette and both zero or none, shapes that fit each other in a product. And what it does
   not check, but no kernel here should do: a second configuration before a release, rows stored over each other, a tile
   that is read before it was written. The first fault ends the program with its name. */
#ifndef TILES_H
#define TILES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tile { int rows, bytes, set; unsigned char data[16][64]; } tile;

/* The state of a thread, and what it has done. */
static __thread struct {
    int configured;
    long configs, zeros, loads, stores, dots;
    tile of[8];
} tiles;

static void tiles_fault(const char *operation, const char *what, int number)
{
    printf("tiles.h: %s, tile %d: %s\n", operation, number, what);
    fflush(stdout);
    abort();
}

static void tiles_config(const void *operand)
{
    unsigned char bytes[64];
    int i;
    memcpy(bytes, operand, 64);
    if (tiles.configured) tiles_fault("ldtilecfg", "configured already", -1);
    if (bytes[0] != 1) tiles_fault("ldtilecfg", "palette", -1);
    for (i = 1; i < 16; i++) if (bytes[i]) tiles_fault("ldtilecfg", "start row or reserved bytes", -1);
    for (i = 0; i < 16; i++) {
        int row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i], rows = bytes[48 + i];
        if (rows > 16 || row_bytes > 64 || !rows != !row_bytes) tiles_fault("ldtilecfg", "shape", i);
        if (i >= 8 && (rows || row_bytes)) tiles_fault("ldtilecfg", "beyond the palette", i);
        if (row_bytes % 4) tiles_fault("ldtilecfg", "no whole number of columns", i);
        if (i >= 8) continue;
        tiles.of[i].rows = rows;
        tiles.of[i].bytes = row_bytes;
        tiles.of[i].set = 0;
    }
    tiles.configured = 1;
    tiles.configs++;
}

static void tiles_release(void)
{
    if (!tiles.configured) tiles_fault("tilerelease", "not configured", -1);
    tiles.configured = 0;
}

static tile *tiles_at(const char *operation, int number, int read)
{
    tile *t = &tiles.of[number];
    if (!tiles.configured) tiles_fault(operation, "not configured", number);
    if (!t->rows) tiles_fault(operation, "without rows", number);
    if (read && !t->set) tiles_fault(operation, "never written", number);
    return t;
}

/* Rows and columns beyond the shape become zeros, as in the processor. */
static void tiles_zero(int number)
{
    tile *t = tiles_at("tilezero", number, 0);
    memset(t->data, 0, sizeof t->data);
    t->set = 1;
    tiles.zeros++;
}

static void tiles_load(int number, const void *from, ptrdiff_t stride)
{
    tile *t = tiles_at("tileloadd", number, 0);
    int r;
    memset(t->data, 0, sizeof t->data);
    for (r = 0; r < t->rows; r++) memcpy(t->data[r], (const unsigned char *)from + r * stride, (size_t)t->bytes);
    t->set = 1;
    tiles.loads++;
}

static void tiles_store(int number, void *to, ptrdiff_t stride)
{
    const tile *t = tiles_at("tilestored", number, 1);
    int r;
    if (stride < t->bytes) tiles_fault("tilestored", "stride", number);
    for (r = 0; r < t->rows; r++) memcpy((unsigned char *)to + r * stride, t->data[r], (size_t)t->bytes);
    tiles.stores++;
}

/* tdpbsud: c [m][n] += a [m][4 k] b [k][4 n], a signed bytes, b unsigned, sums modulo 2^32. */
static void tiles_dot(int c_number, int a_number, int b_number)
{
    tile *c = tiles_at("tdpbsud", c_number, 1);
    const tile *a = tiles_at("tdpbsud", a_number, 1), *b = tiles_at("tdpbsud", b_number, 1);
    int m, k, n, i;
    if (c == a || c == b || a == b) tiles_fault("tdpbsud", "the same tile twice", c_number);
    if (c->rows != a->rows || a->bytes != 4 * b->rows || c->bytes != b->bytes)
        tiles_fault("tdpbsud", "shapes", c_number);
    for (m = 0; m < c->rows; m++) {
        int32_t sum[16];
        memcpy(sum, c->data[m], sizeof sum);
        for (k = 0; k < b->rows; k++)
            for (n = 0; n < c->bytes / 4; n++)
                for (i = 0; i < 4; i++)
                    sum[n] = (int32_t)((uint32_t)sum[n]
                                       + (uint32_t)((signed char)a->data[m][4 * k + i] * (int)b->data[k][4 * n + i]));
        memcpy(c->data[m], sum, sizeof sum);
    }
    tiles.dots++;
}

#define OSCAR__TILE_CONFIG(config) tiles_config(config)
#define OSCAR__TILE_RELEASE() tiles_release()
#define OSCAR__TILE_ZERO(number) tiles_zero(number)
#define OSCAR__TILE_LOAD(number, from, stride) tiles_load(number, from, stride)
#define OSCAR__TILE_STORE(number, to, stride) tiles_store(number, to, stride)
#define OSCAR__TILE_DOT(c, a, b) tiles_dot(c, a, b)
#define OSCAR__TILE_ALLOWED(seven, saved) 1

#endif
