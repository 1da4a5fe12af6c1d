/* test_codec.c - rows to bytes and back, against the plain reading in reference.h.

       test_codec            the tests
       test_codec --hash     prints one hash of 200,000 encoded rows and some pages: it has to be the same for every
                             compiler, optimisation level and instruction set */
#include "test.h"

#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "reference.h"

/* Every codec that there is: fit, bits and type of metadata. */
static oscar_codec codec_number(int i)
{
    oscar_codec codec;
    memset(&codec, 0, sizeof codec);
    codec.fit = i & 1 ? OSCAR_CLIP : OSCAR_UNBIASED;
    codec.bits = i & 2 ? 4 : 2;
    codec.metadata = i & 4 ? OSCAR_F32 : OSCAR_F16;
    return codec;
}

static ref_codec reference_codec(const oscar_codec *codec, int dim)
{
    ref_codec r;
    r.fit = codec->fit;
    r.bits = codec->bits ? codec->bits : 2;
    r.group = codec->group ? codec->group : dim;
    r.clip = codec->clip == 0 ? 0.96 : codec->clip;
    r.wide = codec->metadata == OSCAR_F32;
    r.metric = codec->metric;
    return r;
}

static unsigned char *bytes_of(size_t size, int fill)
{
    unsigned char *p = (unsigned char *)malloc(size ? size : 1);
    memset(p, fill, size);
    return p;
}

static int all_equal(const unsigned char *p, size_t size, int value)
{
    size_t i;
    for (i = 0; i < size; i++) if (p[i] != value) return 0;
    return 1;
}

/* Encodes one row with both and compares result and bytes; decodes and compares values. Returns the result. */
static oscar_result compare_row(const oscar_codec *codec, int dim, const float *x)
{
    static ref_row row;
    static float want[REF_DIM_MAX];
    ref_codec r = reference_codec(codec, dim);
    size_t size = ref_pack_row(&r, dim, &row, NULL), i;
    unsigned char *expected = bytes_of(size, 0), *got = bytes_of(size, 0xa5);
    float *back = (float *)malloc((size_t)dim * sizeof(float));
    int ok = ref_encode_row(&r, dim, x, &row), good = 1;
    oscar_result result = oscar_encode(codec, dim, 1, x, got);

    CHECK_MSG(oscar_row_bytes(codec, dim) == size, ("    dim %d\n", dim));
    CHECK_MSG(result == (ok ? OSCAR_OK : OSCAR_ERR_NUMERIC),
              ("    dim %d fit %d bits %d group %d metadata %d: result %d, reference %d\n", dim, (int)r.fit, r.bits,
               r.group, (int)codec->metadata, (int)result, ok));
    if (!ok) CHECK(all_equal(got, size, 0xa5));
    if (ok && result == OSCAR_OK) {
        ref_pack_row(&r, dim, &row, expected);
        for (i = 0; i < size && got[i] == expected[i]; i++) {}
        CHECK_MSG(i == size, ("    dim %d fit %d bits %d group %d wide %d clip %g: byte %d of %d is %02x, not %02x\n",
                              dim, (int)r.fit, r.bits, r.group, r.wide, r.clip, (int)i, (int)size, got[i % size],
                              expected[i % size]));
        CHECK(oscar_decode(codec, dim, 1, expected, back) == OSCAR_OK);
        ref_unpack_row(&r, dim, expected, want);
        for (i = 0; i < (size_t)dim; i++) good = good && back[i] == want[i];
        CHECK_MSG(good, ("    decode: dim %d fit %d bits %d group %d\n", dim, (int)r.fit, r.bits, r.group));
    }
    free(expected);
    free(got);
    free(back);
    return result;
}

enum { ROW_KINDS = 14 };

/* Rows of many sorts: bell-shaped, with outliers, constant, one-hot, ties, tiny, huge. */
static void make_row(test_random *random, int kind, int dim, float *x)
{
    double size = pow(2, random_below(random, 12) - 6), constant = random_normal(random);
    int i, hot = random_below(random, dim);
    for (i = 0; i < dim; i++) {
        double n = random_normal(random);
        switch (kind) {
        case 0: case 1: n *= size; break;
        case 2: n *= random_below(random, 16) ? size : 40 * size; break;                     /* outliers */
        case 3: n = constant * size; break;                                                  /* all equal */
        case 4: n = i == hot ? constant * size : 0; break;                                   /* one-hot */
        case 5: n = random_below(random, 3) - 1; break;                                      /* ties, zeros */
        case 6: n *= ldexp(1, -24 - random_below(random, 8)); break;                         /* fp16 subnormal scales */
        case 7: n *= ldexp(1, -60 - random_below(random, 30)); break;                        /* S(x,x) underflows */
        case 8: n *= 20000 * (1 + random_below(random, 8)); break;                           /* about fp16 overflow */
        case 9: n *= ldexp(1, 40 + random_below(random, 88)); break;                         /* float overflow */
        case 10: n = constant * size + 0.01 * n * size; break;                               /* far from zero */
        case 11: n = random_below(random, 2) ? 0.0 : -0.0; break;
        case 12: n = size * (random_below(random, 17) - 8) / 8; break;                       /* on a grid */
        default: n *= i < dim / 2 ? size : size / 1024; break;                               /* groups far apart */
        }
        n = n > 3.4e38 ? 3.4e38 : n < -3.4e38 ? -3.4e38 : n;
        x[i] = (float)n;
    }
}

static int random_group(test_random *random, int dim)
{
    int group;
    do group = 16 * random_below(random, dim / 16 + 1); while (group && dim % group);
    return group;
}

static void test_random_shapes(void)
{
    static const double clips[9] = { 0, 0.96, 0.92, 0.5, 0.01, 0.999999, 1, 7, -1 };
    static float x[REF_DIM_MAX];
    test_random random = { 31 };
    static float m[REF_DIM_MAX * REF_DIM_MAX];
    int i, dim, refused = 0, written = 0;
    TEST("every dimension, fit, width, metadata: bytes of the reference");
    for (dim = 16; dim <= 1024; dim += 16)
        for (i = 0; i < 32; i++) {
            oscar_codec codec = codec_number(i % 8);
            codec.group = random_group(&random, dim);
            codec.clip = clips[random_below(&random, 9)];
            if (i == dim / 16 % 4 * 2) {                       /* one row of each dimension is refined */
                ref_random_metric(&random, REF_METRIC_USUAL, dim, m);
                codec.metric = m;
            }
            make_row(&random, random_below(&random, ROW_KINDS), dim, x);
            if (compare_row(&codec, dim, x) == OSCAR_OK) written++;
            else refused++;
        }
    for (i = 0; i < 8000; i++) {
        oscar_codec codec = codec_number(i % 8);
        dim = 16 << random_below(&random, 4);
        codec.group = random_group(&random, dim);
        codec.clip = clips[random_below(&random, 9)];
        if (random_below(&random, 4) == 0) {
            ref_random_metric(&random, random_below(&random, 3) ? random_below(&random, 2)
                              : random_below(&random, REF_METRICS), dim, m);
            codec.metric = m;
        }
        make_row(&random, i / 8 % ROW_KINDS, dim, x);
        if (compare_row(&codec, dim, x) == OSCAR_OK) written++;
        else refused++;
    }
    CHECK_MSG(written > 5000 && refused > 300, ("    written %d, refused %d\n", written, refused));

    TEST("many rows in one call");
    for (i = 0; i < 40; i++) {
        oscar_codec codec = codec_number(i % 8);
        int rows = 1 + random_below(&random, 9), r;
        float *many, *back, one[256];
        unsigned char *got, *single;
        size_t size;
        dim = 16 * (1 + random_below(&random, 16));
        size = oscar_row_bytes(&codec, dim);
        many = (float *)malloc((size_t)(rows * dim) * sizeof(float));
        back = (float *)malloc((size_t)(rows * dim) * sizeof(float));
        got = bytes_of(size * (size_t)rows, 0);
        single = bytes_of(size, 0);
        for (r = 0; r < rows; r++) make_row(&random, r % 6, dim, many + r * dim);
        CHECK(oscar_encode(&codec, dim, (size_t)rows, many, got) == OSCAR_OK);
        CHECK(oscar_decode(&codec, dim, (size_t)rows, got, back) == OSCAR_OK);
        for (r = 0; r < rows; r++) {
            CHECK(oscar_encode(&codec, dim, 1, many + r * dim, single) == OSCAR_OK);
            CHECK(!memcmp(single, got + (size_t)r * size, size));
            CHECK(oscar_decode(&codec, dim, 1, single, one) == OSCAR_OK);
            CHECK(!memcmp(one, back + r * dim, (size_t)dim * sizeof(float)));
        }
        free(many);
        free(back);
        free(got);
        free(single);
    }
}

/* Positions of D codes, one after the other, against quarters: channels i, i + D/4, i + D/2, i + 3D/4 in one byte. */
static void quarters_of(int dim, const unsigned char *neighbours, unsigned char *quarters)
{
    unsigned char codes[REF_DIM_MAX];
    int i;
    oscar_unpack2((size_t)dim, neighbours, codes);
    for (i = 0; i < dim / 4; i++)
        quarters[i] = (unsigned char)(codes[i] | codes[i + dim / 4] << 2 | codes[i + dim / 2] << 4
                                      | codes[i + 3 * dim / 4] << 6);
}

static void neighbours_of(int dim, const unsigned char *quarters, unsigned char *neighbours)
{
    unsigned char codes[REF_DIM_MAX];
    int i;
    for (i = 0; i < dim; i++) codes[i] = (unsigned char)(quarters[i % (dim / 4)] >> 2 * (i / (dim / 4)) & 3);
    oscar_pack2((size_t)dim, codes, neighbours);
}

static void test_packing(void)
{
    static const unsigned char codes[8] = { 0, 1, 2, 3, 3, 2, 1, 0 };
    unsigned char packed[64], quarters[64], again[64], back[256], random_codes[256];
    test_random random = { 5 };
    int i, count;
    TEST("C3.1 the layout of packed codes: neighbours E4 1B, low bits first; quarters 78 2D by a converter");
    oscar_pack2(8, codes, packed);
    CHECK(packed[0] == 0xe4 && packed[1] == 0x1b);
    oscar_unpack2(8, packed, back);
    CHECK(!memcmp(back, codes, 8));
    quarters_of(8, packed, quarters);
    CHECK(quarters[0] == 0x78 && quarters[1] == 0x2d);
    neighbours_of(8, quarters, again);
    CHECK(!memcmp(again, packed, 2));
    for (i = 0; i < 256; i++) random_codes[i] = (unsigned char)random_below(&random, 4);
    oscar_pack2(256, random_codes, packed);
    quarters_of(256, packed, quarters);
    neighbours_of(256, quarters, again);
    CHECK(!memcmp(again, packed, 64));

    TEST("C3.1 any count, also odd; nothing behind the end is touched");
    for (count = 0; count < 40; count++) {
        size_t size = (size_t)(count + 3) / 4;
        unsigned char *tight = bytes_of(size, 0xff), *open = bytes_of((size_t)count, 0xee);
        oscar_pack2((size_t)count, random_codes, tight);
        oscar_unpack2((size_t)count, tight, open);
        CHECK(!memcmp(open, random_codes, (size_t)count));
        if (count % 4) CHECK(tight[size - 1] >> count % 4 * 2 == 0);
        free(tight);
        free(open);
    }

    TEST("C3.1 codes of an encoded row have the same order");
    {
        float x[16];
        unsigned char encoded[6];
        for (i = 0; i < 16; i++) x[i] = (float)codes[i % 8] - 1.5f;          /* its own codes: u = x, s = 1 */
        CHECK(oscar_encode(NULL, 16, 1, x, encoded) == OSCAR_OK);
        CHECK(encoded[0] == 0xe4 && encoded[1] == 0x1b && encoded[2] == 0xe4 && encoded[3] == 0x1b);
        CHECK(encoded[4] == 0x00 && encoded[5] == 0x3c);                     /* fp16 1.0, little endian */
    }
}

static void test_threshold(void)
{
    float x[1024], tau = -7, nan_row[4] = { 1, NAN, 2, 3 };
    unsigned char with[1024], without[1024];
    int i;
    oscar_codec codec;
    for (i = 0; i < 1024; i++) x[i] = (float)((i * 37 % 128 + 1) * (i % 2 ? -1 : 1));   /* |x| = 1..128, shuffled */

    TEST("C3.2 edge values of the clip ratio");
    CHECK(oscar_clip_threshold(128, x, 0.96, &tau) == OSCAR_OK && tau == 123);
    CHECK(oscar_clip_threshold(128, x, 0.92, &tau) == OSCAR_OK && tau == 118);
    CHECK(oscar_clip_threshold(128, x, 1.0, &tau) == OSCAR_OK && tau == 128);
    CHECK(oscar_clip_threshold(128, x, 0, &tau) == OSCAR_OK && tau == 128);
    CHECK(oscar_clip_threshold(128, x, -1, &tau) == OSCAR_OK && tau == 128);
    CHECK(oscar_clip_threshold(128, x, 2, &tau) == OSCAR_OK && tau == 128);
    CHECK(oscar_clip_threshold(128, x, 1e-9, &tau) == OSCAR_OK && tau == 1);
    tau = -7;
    CHECK(oscar_clip_threshold(128, x, (double)NAN, &tau) == OSCAR_ERR_ARGUMENT && tau == -7);
    for (i = 0; i < 64; i++) x[i] = (float)((i * 37 % 64 + 1) * (i % 2 ? -1 : 1));
    CHECK(oscar_clip_threshold(64, x, 0.96, &tau) == OSCAR_OK && tau == 62);
    CHECK(oscar_clip_threshold(64, x, 0.92, &tau) == OSCAR_OK && tau == 59);
    for (i = 0; i < 4; i++) x[i] = (float)(4 - i);
    CHECK(oscar_clip_threshold(4, x, 0.96, &tau) == OSCAR_OK && tau == 4);
    CHECK(oscar_clip_threshold(1, x, 0.5, &tau) == OSCAR_OK && tau == 4);
    tau = -7;
    CHECK(oscar_clip_threshold(0, x, 0.5, &tau) == OSCAR_ERR_SHAPE && tau == -7);
    CHECK(oscar_clip_threshold(1025, x, 0.5, &tau) == OSCAR_ERR_SHAPE && tau == -7);
    CHECK(oscar_clip_threshold(4, nan_row, 0.5, &tau) == OSCAR_ERR_NUMERIC && tau == -7);

    TEST("C3.2 ratios against sorting");
    {
        test_random random = { 77 };
        int n;
        for (n = 1; n <= 1024; n += n < 70 ? 1 : 53) {
            double ratio = random_unit(&random);
            make_row(&random, n % 6, n, x);
            CHECK(oscar_clip_threshold(n, x, ratio, &tau) == OSCAR_OK && tau == ref_threshold(n, x, ratio));
        }
    }

    TEST("C3.2 off is off: -1, 1 and 2 give equal bytes; ties and all-equal rows do not change");
    memset(&codec, 0, sizeof codec);
    codec.fit = OSCAR_CLIP;
    for (i = 0; i < 128; i++) x[i] = (float)((i * 37 % 128 + 1) * (i % 2 ? -1 : 1));
    codec.clip = -1;
    CHECK(oscar_encode(&codec, 128, 1, x, without) == OSCAR_OK);
    codec.clip = 1;
    CHECK(oscar_encode(&codec, 128, 1, x, with) == OSCAR_OK && !memcmp(with, without, 36));
    codec.clip = 2;
    CHECK(oscar_encode(&codec, 128, 1, x, with) == OSCAR_OK && !memcmp(with, without, 36));
    codec.clip = 0;
    CHECK(oscar_encode(&codec, 128, 1, x, with) == OSCAR_OK && memcmp(with, without, 36));
    codec.clip = (double)NAN;
    memset(with, 0xa5, sizeof with);
    CHECK(oscar_encode(&codec, 128, 1, x, with) == OSCAR_ERR_ARGUMENT && all_equal(with, 36, 0xa5));
    for (i = 0; i < 128; i++) x[i] = i < 64 ? 2.0f : -2.0f;
    codec.clip = -1;
    CHECK(oscar_encode(&codec, 128, 1, x, without) == OSCAR_OK);
    codec.clip = 0.5;
    CHECK(oscar_encode(&codec, 128, 1, x, with) == OSCAR_OK && !memcmp(with, without, 36));
}

static void test_constant_rows(void)
{
    static const float constants[8] = { 0.0f, -0.0f, 0.01f, 5.0f, -5.0f, 300.0f, 1e-7f, -65504.0f };
    float x[128], back[128];
    unsigned char encoded[128];
    int c, i, kind, dim;
    TEST("C3.3 rows where max equals min");
    for (kind = 0; kind < 8; kind++)
        for (dim = 16; dim <= 128; dim *= 2)
            for (c = 0; c < 8; c++) {
                oscar_codec codec = codec_number(kind);
                double tolerance = fabs((double)constants[c]) * (codec.metadata == OSCAR_F32 ? 2e-7 : 0.0005) + 6e-8;
                if (codec.fit == OSCAR_UNBIASED) tolerance += 6e-7;          /* u s: 7.5 half-steps of 2^-24 */
                for (i = 0; i < dim; i++) x[i] = constants[c];
                CHECK(oscar_encode(&codec, dim, 1, x, encoded) == OSCAR_OK);
                CHECK(oscar_decode(&codec, dim, 1, encoded, back) == OSCAR_OK);
                for (i = 0; i < dim; i++) {
                    if (constants[c] == 0) CHECK(back[i] == 0);
                    else CLOSE(back[i], constants[c], tolerance);
                }
                if (constants[c] == 0)
                    CHECK(all_equal(encoded, oscar_row_bytes(&codec, dim), 0));   /* -0 as a minimum is stored as +0 */
            }

    TEST("C3.3 one channel non-zero");
    for (kind = 0; kind < 8; kind++)
        for (c = 2; c < 8; c++) {
            oscar_codec codec = codec_number(kind);
            memset(x, 0, sizeof x);
            x[77] = constants[c];
            CHECK(oscar_encode(&codec, 128, 1, x, encoded) == OSCAR_OK);
            CHECK(oscar_decode(&codec, 128, 1, encoded, back) == OSCAR_OK);
            for (i = 0; i < 128; i++) CHECK(fabs((double)back[i]) <= 2 * fabs((double)constants[c]) + 1e-6);
        }
}

static void test_bad_values(void)
{
    static const float bad[3] = { NAN, INFINITY, -INFINITY };
    float x[8 * 64];
    test_random random = { 9 };
    int kind, b, i, row;
    TEST("C3.4 inf and NaN in one row: ERR_NUMERIC, rows before it written, it and later ones untouched");
    for (kind = 0; kind < 8; kind++)
        for (b = 0; b < 3; b++)
            for (row = 0; row < 8; row += 3) {
                oscar_codec codec = codec_number(kind);
                size_t size = oscar_row_bytes(&codec, 64);
                unsigned char *good = bytes_of(8 * size, 0xa5), *got = bytes_of(8 * size, 0xa5);
                for (i = 0; i < 8 * 64; i++) x[i] = (float)random_normal(&random);
                CHECK(oscar_encode(&codec, 64, 8, x, good) == OSCAR_OK);
                x[row * 64 + 17] = bad[b];                     /* beyond the clip threshold too */
                CHECK(oscar_encode(&codec, 64, 8, x, got) == OSCAR_ERR_NUMERIC);
                CHECK(!memcmp(got, good, (size_t)row * size));
                CHECK(all_equal(got + (size_t)row * size, (size_t)(8 - row) * size, 0xa5));
                free(good);
                free(got);
            }

    TEST("C3.4 metadata beyond fp16: refused with fp16 metadata, kept with fp32");
    for (kind = 0; kind < 8; kind++) {
        oscar_codec codec = codec_number(kind);
        unsigned char encoded[64];
        float back[16];
        for (i = 0; i < 16; i++) x[i] = i % 2 ? -1.2e6f : 1.2e6f;
        CHECK(oscar_encode(&codec, 16, 1, x, encoded) == (kind & 4 ? OSCAR_OK : OSCAR_ERR_NUMERIC));
        if (kind & 4) {
            CHECK(oscar_decode(&codec, 16, 1, encoded, back) == OSCAR_OK);
            for (i = 0; i < 16; i++) CLOSE(back[i], x[i], 1);
        }
        for (i = 0; i < 16; i++) x[i] = i % 2 ? -3e38f : 3e38f;              /* max - min and S(x,x) are infinite */
        CHECK(oscar_encode(&codec, 16, 1, x, encoded) == OSCAR_ERR_NUMERIC);
    }

    TEST("C3.4 the largest row that fits: a scale that rounds to 65504, and one that does not");
    for (i = 0; i < 16; i++) x[i] = 98279.0f;                                /* / 1.5 = 65519.3 */
    {
        unsigned char encoded[8];
        CHECK(oscar_encode(NULL, 16, 1, x, encoded) == OSCAR_OK && encoded[4] == 0xff && encoded[5] == 0x7b);
        for (i = 0; i < 16; i++) x[i] = 98281.0f;                            /* / 1.5 = 65520.7 */
        CHECK(oscar_encode(NULL, 16, 1, x, encoded) == OSCAR_ERR_NUMERIC);
    }
}

static void test_sizes(void)
{
    static const int wrong[9] = { 0, 1, 8, 36, 100, -4, -16, 1040, 1 << 20 };
    oscar_codec codec;
    float x[1024];
    unsigned char encoded[2048];
    int i, dim, kind;
    memset(x, 0, sizeof x);

    TEST("C3.5 metadata starts at a multiple of its size; rows of 36 and 100 channels are refused");
    for (dim = 16; dim <= 1024; dim += 16)
        for (kind = 0; kind < 8; kind++) {
            size_t each = kind & 4 ? 4 : 2, codes = (size_t)(dim * (kind & 2 ? 4 : 2)) / 8;
            codec = codec_number(kind);
            CHECK(codes % each == 0 && oscar_row_bytes(&codec, dim) == codes + each * (kind & 1 ? 2 : 1));
            codec.group = 16;
            CHECK(oscar_row_bytes(&codec, dim) == codes + each * (kind & 1 ? 2 : 1) * (size_t)(dim / 16));
        }
    for (i = 0; i < 9; i++) {
        memset(encoded, 0xa5, sizeof encoded);
        CHECK(oscar_row_bytes(NULL, wrong[i]) == 0);
        CHECK(oscar_encode(NULL, wrong[i], 1, x, encoded) == OSCAR_ERR_SHAPE);
        CHECK(oscar_decode(NULL, wrong[i], 1, encoded, x) == OSCAR_ERR_SHAPE);
        CHECK(all_equal(encoded, sizeof encoded, 0xa5));
    }

    TEST("C10.3 bytes of a row: 36 for D = 128, 20 for D = 64 with two values a group");
    memset(&codec, 0, sizeof codec);
    codec.fit = OSCAR_CLIP;
    codec.group = 128;
    CHECK(oscar_row_bytes(&codec, 128) == 36);
    codec.group = 64;
    CHECK(oscar_row_bytes(&codec, 64) == 20);
    CHECK(oscar_row_bytes(NULL, 64) == 18 && oscar_row_bytes(NULL, 128) == 34 && oscar_row_bytes(NULL, 256) == 66);

    TEST("codecs that do not exist are refused");
    for (i = 0; i < 9; i++) {
        memset(&codec, 0, sizeof codec);
        if (i == 0) codec.bits = 3;
        if (i == 1) codec.bits = 8;
        if (i == 2) codec.bits = -2;
        if (i == 3) codec.group = 24;
        if (i == 4) codec.group = 48;
        if (i == 5) codec.group = -16;
        if (i == 6) codec.group = 128;
        if (i == 7) codec.metadata = OSCAR_BF16;
        if (i == 8) codec.group = 8;
        memset(encoded, 0xa5, sizeof encoded);
        CHECK_MSG(oscar_row_bytes(&codec, 64) == 0, ("    case %d\n", i));
        CHECK(oscar_encode(&codec, 64, 1, x, encoded) != OSCAR_OK);
        CHECK(oscar_decode(&codec, 64, 1, encoded, x) != OSCAR_OK);
        CHECK(all_equal(encoded, sizeof encoded, 0xa5));
    }
    CHECK(oscar_encode(NULL, 64, 0, x, encoded) == OSCAR_OK && all_equal(encoded, sizeof encoded, 0xa5));
    CHECK(oscar_encode(NULL, 64, 1, NULL, encoded) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_encode(NULL, 64, 1, x, NULL) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_decode(NULL, 64, 1, NULL, x) == OSCAR_ERR_ARGUMENT);
    CHECK(oscar_decode(NULL, 64, 1, encoded, NULL) == OSCAR_ERR_ARGUMENT);
}

static void test_defaults(void)
{
    static const int dims[3] = { 64, 128, 256 };
    test_random random = { 3 };
    int i, d;
    TEST("C9.2 a zeroed codec and NULL are UNBIASED, 2 bits, one group, fp16");
    for (d = 0; d < 3; d++) {
        oscar_codec zero, full;
        float x[256], a[256], b[256];
        unsigned char e[3][80];
        size_t size;
        memset(&zero, 0, sizeof zero);
        memset(&full, 0, sizeof full);
        full.fit = OSCAR_UNBIASED;
        full.bits = 2;
        full.group = dims[d];
        full.metadata = OSCAR_F16;
        size = oscar_row_bytes(&full, dims[d]);
        CHECK(size == (size_t)dims[d] / 4 + 2);
        CHECK(oscar_row_bytes(NULL, dims[d]) == size && oscar_row_bytes(&zero, dims[d]) == size);
        for (i = 0; i < dims[d]; i++) x[i] = (float)random_normal(&random);
        CHECK(oscar_encode(NULL, dims[d], 1, x, e[0]) == OSCAR_OK);
        CHECK(oscar_encode(&zero, dims[d], 1, x, e[1]) == OSCAR_OK);
        CHECK(oscar_encode(&full, dims[d], 1, x, e[2]) == OSCAR_OK);
        CHECK(!memcmp(e[0], e[1], size) && !memcmp(e[0], e[2], size));
        CHECK(oscar_decode(NULL, dims[d], 1, e[0], a) == OSCAR_OK);
        CHECK(oscar_decode(&full, dims[d], 1, e[0], b) == OSCAR_OK);
        CHECK(!memcmp(a, b, (size_t)dims[d] * sizeof(float)));
    }
    TEST("C9.2 the default clip of a zeroed CLIP codec is 0.96");
    {
        oscar_codec zero, full;
        float x[128];
        unsigned char e[2][36];
        memset(&zero, 0, sizeof zero);
        zero.fit = OSCAR_CLIP;
        full = zero;
        full.clip = 0.96;
        for (i = 0; i < 128; i++) x[i] = (float)random_normal(&random);
        CHECK(oscar_encode(&zero, 128, 1, x, e[0]) == OSCAR_OK && oscar_encode(&full, 128, 1, x, e[1]) == OSCAR_OK);
        CHECK(!memcmp(e[0], e[1], 36));
    }

    TEST("C3.8 each codec has its own fit, width, clip and group: two of them, used in turn, do not mix");
    {
        oscar_codec k = codec_number(1), v = codec_number(2);
        float x[128];
        unsigned char first[2][128], again[2][128];
        k.clip = 0.9;
        k.group = 32;
        v.group = 64;
        for (i = 0; i < 128; i++) x[i] = (float)random_normal(&random);
        CHECK(oscar_encode(&k, 128, 1, x, first[0]) == OSCAR_OK && oscar_encode(&v, 128, 1, x, first[1]) == OSCAR_OK);
        CHECK(compare_row(&k, 128, x) == OSCAR_OK && compare_row(&v, 128, x) == OSCAR_OK);
        CHECK(oscar_encode(&k, 128, 1, x, again[0]) == OSCAR_OK && oscar_encode(&v, 128, 1, x, again[1]) == OSCAR_OK);
        CHECK(!memcmp(first[0], again[0], oscar_row_bytes(&k, 128)));
        CHECK(!memcmp(first[1], again[1], oscar_row_bytes(&v, 128)));
    }
}

static void test_properties(void)
{
    test_random random = { 12 };
    int i, j, g;
    TEST("UNBIASED: <x^, x> = |x|^2 in every group, to the rounding of the scale");
    for (i = 0; i < 2000; i++) {
        oscar_codec codec = codec_number(i % 4 * 2);                         /* 2 and 4 bits, fp16 and fp32 */
        int dim = 16 << random_below(&random, 5), group;
        float x[256], back[256];
        unsigned char encoded[256];
        codec.group = random_group(&random, dim);
        group = codec.group ? codec.group : dim;
        make_row(&random, random_below(&random, 3), dim, x);
        CHECK(oscar_encode(&codec, dim, 1, x, encoded) == OSCAR_OK);
        CHECK(oscar_decode(&codec, dim, 1, encoded, back) == OSCAR_OK);
        for (g = 0; g < dim; g += group) {
            double cross = 0, square = 0;
            for (j = g; j < g + group; j++) {
                cross += (double)back[j] * (double)x[j];
                square += (double)x[j] * (double)x[j];
            }
            CLOSE(cross / square, 1, codec.metadata == OSCAR_F32 ? 1e-6 : 0.0004891);   /* 2^-11 and a little */
        }
    }

    TEST("encode, decode, encode: CLIP without clipping gives the same bytes, 2-bit UNBIASED the same values");
    for (i = 0; i < 1000; i++) {
        oscar_codec codec = codec_number(i % 4 == 3 ? 3 : i % 4 == 2 ? 0 : 1);
        int dim = 16 << random_below(&random, 4);
        size_t size = oscar_row_bytes(&codec, dim);
        float x[128], back[128], again[128];
        unsigned char first[128], second[128];
        codec.clip = -1;
        make_row(&random, 0, dim, x);
        CHECK(oscar_encode(&codec, dim, 1, x, first) == OSCAR_OK);
        CHECK(oscar_decode(&codec, dim, 1, first, back) == OSCAR_OK);
        CHECK(oscar_encode(&codec, dim, 1, back, second) == OSCAR_OK);
        CHECK(oscar_decode(&codec, dim, 1, second, again) == OSCAR_OK);
        if (codec.fit == OSCAR_CLIP) CHECK(!memcmp(first, second, size));
        else for (j = 0; j < dim; j++) CLOSE(again[j], back[j], fabs((double)back[j]) * 0.00098 + 1e-7);
    }

    TEST("C3.7 rows and bytes at odd addresses");
    for (i = 0; i < 64; i++) {
        oscar_codec codec = codec_number(i % 8);
        size_t size = oscar_row_bytes(&codec, 64);
        unsigned char *odd = bytes_of(size + 1, 0), *even = bytes_of(size, 0);
        float x[64], a[64], b[64];
        make_row(&random, 0, 64, x);
        CHECK(oscar_encode(&codec, 64, 1, x, even) == OSCAR_OK);
        CHECK(oscar_encode(&codec, 64, 1, x, odd + 1) == OSCAR_OK && !memcmp(odd + 1, even, size));
        CHECK(oscar_decode(&codec, 64, 1, even, a) == OSCAR_OK && oscar_decode(&codec, 64, 1, odd + 1, b) == OSCAR_OK);
        CHECK(!memcmp(a, b, sizeof a));
        free(odd);
        free(even);
    }
}

/* x M y^T over the channels first .. first + count - 1 of y */
static double through_metric(int dim, const float *m, const float *x, const float *y, int first, int count)
{
    double sum = 0;
    int i, j;
    for (i = 0; i < dim; i++)
        for (j = first; j < first + count; j++)
            sum += (double)x[i] * (double)m[i * dim + j] * (double)y[j];
    return sum;
}

static void test_metric(void)
{
    test_random random = { 21 };
    int i, j, g, moved = 0;
    double plain_error[2] = { 0, 0 }, refined_error[2] = { 0, 0 };
    TEST("a metric: <x^, x> = |x|^2 under M in every group, and e M e^T falls");
    for (i = 0; i < 400; i++) {
        oscar_codec codec = codec_number(i % 4 * 2), plain = codec;
        int dim = 16 << random_below(&random, 4), group;
        size_t size;
        float x[128], back[128], error[128], m[128 * 128];
        unsigned char encoded[2][128];
        plain.group = codec.group = random_group(&random, dim);
        group = codec.group ? codec.group : dim;
        size = oscar_row_bytes(&codec, dim);
        ref_random_metric(&random, REF_METRIC_USUAL, dim, m);
        codec.metric = m;
        make_row(&random, 0, dim, x);
        CHECK(oscar_row_bytes(&codec, dim) == size);
        CHECK(oscar_encode(&plain, dim, 1, x, encoded[0]) == OSCAR_OK);
        CHECK(oscar_encode(&codec, dim, 1, x, encoded[1]) == OSCAR_OK);
        CHECK(oscar_decode(&plain, dim, 1, encoded[0], back) == OSCAR_OK);
        for (j = 0; j < dim; j++) error[j] = back[j] - x[j];
        plain_error[codec.bits == 4] += through_metric(dim, m, error, error, 0, dim)
                                        / through_metric(dim, m, x, x, 0, dim);
        CHECK(oscar_decode(&codec, dim, 1, encoded[1], back) == OSCAR_OK);
        for (j = 0; j < dim; j++) error[j] = back[j] - x[j];
        refined_error[codec.bits == 4] += through_metric(dim, m, error, error, 0, dim)
                                          / through_metric(dim, m, x, x, 0, dim);
        if (!memcmp(encoded[0], encoded[1], size)) continue;   /* nothing to gain, or too much would change */
        moved++;
        for (g = 0; g < dim; g += group)
            CLOSE(through_metric(dim, m, x, back, g, group) / through_metric(dim, m, x, x, g, group), 1,
                  codec.metadata == OSCAR_F32 ? 1e-5 : 0.0005);
    }
    CHECK_MSG(moved > 300, ("    %d rows of 400\n", moved));
    for (i = 0; i < 2; i++)
        CHECK_MSG(refined_error[i] < 0.75 * plain_error[i], ("    %.4f against %.4f\n", refined_error[i],
                                                             plain_error[i]));

    TEST("a metric that is zero, negative or no number changes nothing; CLIP takes no notice of any");
    for (i = 0; i < 200; i++) {
        oscar_codec codec = codec_number(i % 8), plain = codec;
        float x[64], m[64 * 64];
        unsigned char encoded[2][128];
        plain.group = codec.group = i % 3 ? 0 : 32;
        make_row(&random, 0, 64, x);
        ref_random_metric(&random, i % 4 == 0 ? REF_METRIC_ZERO : i % 4 == 1 ? REF_METRIC_NEGATIVE : REF_METRIC_USUAL,
                          64, m);
        if (i % 4 == 2) m[random_below(&random, 64 * 64)] = NAN;
        if (i % 4 == 3) m[random_below(&random, 64 * 64)] = INFINITY;
        if (codec.fit == OSCAR_CLIP) ref_random_metric(&random, REF_METRIC_USUAL, 64, m);
        codec.metric = m;
        CHECK(oscar_encode(&plain, 64, 1, x, encoded[0]) == OSCAR_OK);
        CHECK(oscar_encode(&codec, 64, 1, x, encoded[1]) == OSCAR_OK);
        CHECK_MSG(!memcmp(encoded[0], encoded[1], oscar_row_bytes(&codec, 64)), ("    case %d\n", i));
    }
}

static void test_metric_limits(void)
{
    test_random random = { 22 };
    int i, j, kept = 0, over = 0;
    TEST("a metric that would take a scale beyond fp16 leaves the row as it is; with fp32 metadata it does not");
    for (i = 0; i < 400; i++) {
        oscar_codec codec = codec_number(i % 4 * 2), wide = codec;
        float x[64], m[64 * 64], scale[2];
        ref_codec r;
        ref_row row;
        wide.metadata = OSCAR_F32;
        wide.group = codec.group = i % 3 ? 0 : 32;
        make_row(&random, 0, 64, x);
        r = reference_codec(&wide, 64);
        CHECK(ref_encode_row(&r, 64, x, &row));
        for (scale[0] = 0, j = 0; j < (codec.group ? 2 : 1); j++) scale[0] = fmaxf(scale[0], row.scale[j]);
        for (j = 0; j < 64; j++) x[j] *= 65400.0f / scale[0];                /* just below 65504 */
        ref_random_metric(&random, REF_METRIC_USUAL, 64, m);
        wide.metric = codec.metric = m;
        CHECK(compare_row(&codec, 64, x) == OSCAR_OK && compare_row(&wide, 64, x) == OSCAR_OK);
        r = reference_codec(&wide, 64);
        CHECK(ref_encode_row(&r, 64, x, &row));
        over += row.scale[0] > 65504 || (codec.group && row.scale[1] > 65504);
        kept++;
    }
    CHECK_MSG(over > kept / 8, ("    %d of %d rows\n", over, kept));

    TEST("a gradient that is no number gives the lowest level");
    for (i = 0; i < 4; i++) {
        oscar_codec codec = codec_number(i * 2);
        float x[16], m[16 * 16] = { 0 };
        unsigned char encoded[32];
        for (j = 0; j < 16; j++) {
            x[j] = j == 3 ? 0.0f : (float)(64 - 8 * j);
            m[17 * j] = j == 3 ? 3e38f : 1.0f;                               /* times a scale: infinite */
        }
        codec.metric = m;
        CHECK(compare_row(&codec, 16, x) == OSCAR_OK);
        CHECK(oscar_encode(&codec, 16, 1, x, encoded) == OSCAR_OK);
        CHECK((codec.bits == 2 ? encoded[0] >> 6 : encoded[1] >> 4) == 0);
    }
}

static void test_convert(void)
{
    test_random random = { 8 };
    uint32_t u;
    int bad = 0;
    TEST("fp16 and BF16: all 65536 values, and floats near every boundary, against frexp");
    for (u = 0; u < 65536; u++) {
        uint16_t half = (uint16_t)u;
        float x, y = ref_half_value(u);
        oscar_convert(1, OSCAR_F16, &half, OSCAR_F32, &x);
        bad += !(x == y || (x != x && y != y));
        oscar_convert(1, OSCAR_BF16, &half, OSCAR_F32, &x);
        y = ref_get(OSCAR_BF16, &half, 0);
        bad += !(x == y || (x != x && y != y));
    }
    CHECK_MSG(bad == 0, ("    %d values\n", bad));
    for (bad = 0, u = 0; u < 200000; u++) {
        uint32_t bits = random_u32(&random);
        uint16_t got;
        float x, back;
        if (u % 2) bits = (bits & 0xfffff000u) | (u % 3 ? 0 : u % 5 ? 1 : 0xfff);          /* ties and neighbours */
        if (u % 4 < 2) bits = (bits & 0x80ffffffu) | (uint32_t)(0x30 + random_below(&random, 0x18)) << 24;
        memcpy(&x, &bits, 4);
        oscar_convert(1, OSCAR_F32, &x, OSCAR_F16, &got);
        if (x == x) bad += got != ref_half_bits(x);
        oscar_convert(1, OSCAR_F32, &x, OSCAR_BF16, &got);
        back = ref_get(OSCAR_BF16, &got, 0);
        bad += x == x ? back != ref_round(OSCAR_BF16, x) : back == back;
    }
    CHECK_MSG(bad == 0, ("    %d values\n", bad));
}

/* == THE HASH: integers only up to the row, so that no math library enters == */

static uint64_t hash_bytes(uint64_t hash, const unsigned char *p, size_t size)
{
    size_t i;
    for (i = 0; i < size; i++) hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

/* A bell-shaped number: the sum of four 16-bit integers, at most 2^-14 steps. */
static float hash_value(test_random *random)
{
    uint32_t a = random_u32(random), b = random_u32(random);
    int sum = (int)(a & 0xffff) + (int)(a >> 16) + (int)(b & 0xffff) + (int)(b >> 16) - 131070;
    return (float)sum / 16384.0f;
}

/* M = A^T A + I/2 over the first eight rows of a */
static void hash_metric(int dim, const float *a, float *m)
{
    int i, j, k;
    for (i = 0; i < dim; i++)
        for (j = 0; j < dim; j++) {
            float p = 0.0f;
            for (k = 0; k < 8; k++) p = fmaf(a[k * dim + i], a[k * dim + j], p);
            m[i * dim + j] = ref_f32(p) + (i == j ? 0.5f : 0.0f);
        }
}

/* One row through a pair and a codec. Codec, pair and whether there is a metric change with i. */
static void hash_setup(int i, int dim, const float *matrix, const float *mean, const float *metric, oscar_pair *pair,
                       oscar_codec *codec)
{
    *codec = codec_number(i % 4);
    codec->group = i / 4 % 2 ? 32 : 0;
    memset(pair, 0, sizeof *pair);
    pair->dim = dim;
    pair->kind = i / 8 % 4 ? OSCAR_HADAMARD : OSCAR_DENSE;
    pair->to = pair->kind == OSCAR_DENSE ? matrix : NULL;
    pair->mean = i / 8 % 2 ? mean : NULL;
    codec->metric = i / 32 % 8 ? NULL : metric;
}

/* The hash of that many encoded rows, by the library or by the reference. */
static uint64_t hash_rows(int rows, int by_reference)
{
    enum { DIM = 64 };
    static float matrix[DIM * DIM], mean[DIM], metric[DIM * DIM], x[DIM], y[DIM];
    static ref_row row;
    test_random random = { 2026 };
    uint64_t hash = 14695981039346656037u;
    int i, j, ok = 1;
    for (i = 0; i < DIM * DIM; i++) matrix[i] = hash_value(&random) / 8;
    for (i = 0; i < DIM; i++) mean[i] = hash_value(&random);
    hash_metric(DIM, matrix, metric);
    for (i = 0; i < rows; i++) {
        unsigned char encoded[64];
        oscar_pair pair;
        oscar_codec codec;
        ref_codec r;
        hash_setup(i, DIM, matrix, mean, metric, &pair, &codec);
        r = reference_codec(&codec, DIM);
        for (j = 0; j < DIM; j++) x[j] = hash_value(&random);
        if (by_reference) {
            ref_forward(&pair, DIM, x, y);
            ok = ok && ref_encode_row(&r, DIM, y, &row);
            ref_pack_row(&r, DIM, &row, encoded);
        } else {
            ok = ok && oscar_transform(&pair, OSCAR_FORWARD, 1, x, y) == OSCAR_OK;
            ok = ok && oscar_encode(&codec, DIM, 1, y, encoded) == OSCAR_OK;
        }
        hash = hash_bytes(hash, encoded, ref_pack_row(&r, DIM, &row, NULL));
    }
    return ok ? hash : 0;
}

/* Pages of drifting keys, so that the page mean is used: all fits and widths; some with metrics. */
static uint64_t hash_pages(int by_reference)
{
    enum { DIM = 96, TOKENS = 64, HEADS = 2 };
    static float k[TOKENS * HEADS * DIM], v[TOKENS * HEADS * DIM], a[8 * DIM], metric[HEADS][DIM * DIM];
    test_random random = { 7 };
    uint64_t hash = 14695981039346656037u;
    int i, j, ok = 1;
    oscar_pair pairs[HEADS];
    memset(pairs, 0, sizeof pairs);
    for (i = 0; i < HEADS; i++) {
        for (j = 0; j < 8 * DIM; j++) a[j] = hash_value(&random) / 8;
        hash_metric(DIM, a, metric[i]);
        pairs[i].dim = DIM;
        pairs[i].metric = metric[i];
    }
    for (i = 0; i < 24; i++) {
        oscar_layer layer;
        oscar_layout layout;
        oscar_view k_view, v_view;
        unsigned char *page;
        void *scratch;
        ref_page want;
        memset(&layer, 0, sizeof layer);
        memset(&k_view, 0, sizeof k_view);
        layer.q_heads = layer.kv_heads = HEADS;
        layer.k_dim = DIM;
        layer.k_fit = i & 1 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.v_fit = i & 2 ? OSCAR_CLIP : OSCAR_UNBIASED;
        layer.k_bits = i & 4 ? 4 : 2;
        layer.v_bits = i & 8 ? 4 : 2;
        if (i & 16) layer.k = pairs;
        for (j = 0; j < TOKENS * HEADS * DIM; j++) {
            k[j] = hash_value(&random) / 2 + (float)(j % DIM % 5) - (float)(j % 64) / 64;
            v[j] = hash_value(&random);
        }
        v_view = k_view;
        k_view.data = k;
        v_view.data = v;
        want = ref_page_of(&layer, TOKENS, OSCAR_F32);
        page = bytes_of(want.bytes, 0);
        if (by_reference) ok = ok && ref_page_write(&want, &k_view, &v_view, page);
        else {
            ok = ok && oscar_page_layout(&layer, TOKENS, OSCAR_F32, NULL, &layout) == OSCAR_OK;
            scratch = ok ? oscar__alloc(NULL, layout.scratch) : NULL;
            ok = ok && oscar_page_write(&layout, &k_view, &v_view, page, scratch) == OSCAR_OK;
            oscar__free(NULL, scratch, layout.scratch);
        }
        hash = hash_bytes(hash, page, want.bytes);
        free(page);
    }
    return ok ? hash : 0;
}

static void test_hash(void)
{
    uint64_t rows = hash_rows(4000, 0), pages = hash_pages(0);
    TEST("4,000 rows through transforms and codecs hash as the reference does, and as on other machines");
    CHECK(rows == hash_rows(4000, 1) && rows == 0xd59aa399d67035e3u);
    TEST("pages of drifting keys hash as the reference does, and as on other machines");
    CHECK(pages == hash_pages(1) && pages == 0xa450b12dcc44fb3bu);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--hash")) {
        uint64_t rows = hash_rows(200000, 0), pages = hash_pages(0);
        printf("rows %08x%08x pages %08x%08x\n", (unsigned)(rows >> 32), (unsigned)(rows & 0xffffffffu),
               (unsigned)(pages >> 32), (unsigned)(pages & 0xffffffffu));
        return rows == 0 || pages == 0;
    }
    test_packing();
    test_threshold();
    test_convert();
    test_constant_rows();
    test_bad_values();
    test_sizes();
    test_defaults();
    test_random_shapes();
    test_properties();
    test_metric();
    test_metric_limits();
    test_hash();
    return test_end("test_codec");
}
