/* The library against golden.h, an independent reading of the formats and the maths (golden.py). What makes bytes or is
   prescribed to the bit is compared exactly, on every instruction set of this build and machine; attention within the
   tolerance of its path, composition within 1e-6. */
#include "test.h"

#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "golden.h"

/* == MEMORY: freed together at the end of a test == */

static struct { void *block[256]; int count; } taken;

/* bytes, aligned to 64 */
static void *take(size_t bytes)
{
    char *p = (char *)malloc(bytes + 64);
    if (!p || taken.count == 256) { printf("test_golden: no memory\n"); exit(1); }
    taken.block[taken.count++] = p;
    return p + (64 - ((uintptr_t)p & 63));
}

static float *take_floats(size_t count) { return (float *)take(count * sizeof(float)); }

static void release(void)
{
    while (taken.count) free(taken.block[--taken.count]);
}

/* == COMPARISON == */

/* The first float whose bits differ, or -1. */
static int first_difference(const float *x, const uint32_t *bits, int n)
{
    int i;
    for (i = 0; i < n; i++) if (golden_bits(x[i]) != bits[i]) return i;
    return -1;
}

static void check_floats(const float *x, const uint32_t *bits, int n, const char *what)
{
    int at = first_difference(x, bits, n);
    if (at < 0) return;
    CHECK_MSG(at < 0, ("    %s, value %d: %.9g (%08x), expected %.9g (%08x)\n", what, at, (double)x[at],
              (unsigned)golden_bits(x[at]), (double)golden_float(bits[at]), (unsigned)bits[at]));
}

static double relative_error(const float *x, const double *want, int n)
{
    double d = 0, w = 0;
    int i;
    for (i = 0; i < n; i++) {
        double e = (double)x[i] - want[i];
        d += e * e;
        w += want[i] * want[i];
    }
    return w > 0 ? sqrt(d / w) : sqrt(d);
}

/* Largest difference over the largest entry. */
static double matrix_error(const float *x, const double *want, int rows, int columns, int row_step)
{
    double d = 0, w = 0;
    int i, j;
    for (i = 0; i < rows; i += row_step) {
        for (j = 0; j < columns; j++) {
            double expected = want[i / row_step * columns + j];
            d = fmax(d, fabs((double)x[i * columns + j] - expected));
            w = fmax(w, fabs(expected));
        }
    }
    return d / w;
}

static double product(float a, float b) { return (double)a * (double)b; }

static uint64_t fnv_add(uint64_t h, uint64_t value, int bytes)
{
    for (; bytes > 0; bytes--, value >>= 8) h = (h ^ (value & 255u)) * 1099511628211u;
    return h;
}

static uint64_t fnv_halves(const uint16_t *x, size_t count)
{
    uint64_t h = 14695981039346656037u;
    size_t i;
    for (i = 0; i < count; i++) h = fnv_add(h, x[i], 2);
    return h;
}

static unsigned hex_digit(char c) { return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10); }

static uint32_t hex_value(const char *s, int digits)
{
    uint32_t v = 0;
    for (; digits > 0; digits--) v = v * 16 + hex_digit(*s++);
    return v;
}

/* == THE GENERATOR, HALF FLOATS, TRANSFORMS == */

static void test_generator(void)
{
    float *x = take_floats(96), *f = take_floats(48 * 48), *b = take_floats(48 * 48);
    int i;
    TEST("golden: the generator gives the rows that the Python text saw");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_GENERATOR); i++) {
        golden_row(x, 96, i, 1);
        CHECK_MSG(golden_fnv_floats(x, 96) == GOLDEN_GENERATOR[i], ("    kind %d\n", i));
    }
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_GENERATOR_PAGES) - 2; i++) {
        golden_page_row(x, 48, i / 2, 2, 1, i % 2 ? 5 : -3);
        CHECK_MSG(golden_fnv_floats(x, 48) == GOLDEN_GENERATOR_PAGES[i], ("    style %d\n", i / 2));
    }
    golden_dense_pair(f, b, 48);
    CHECK(golden_fnv_floats(f, 48 * 48) == GOLDEN_GENERATOR_PAGES[i]);
    CHECK(golden_fnv_floats(b, 48 * 48) == GOLDEN_GENERATOR_PAGES[i + 1]);
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_GENERATOR_METRICS); i++) {
        golden_metric(f, 48, i + 1, 3);
        CHECK_MSG(golden_fnv_floats(f, 48 * 48) == GOLDEN_GENERATOR_METRICS[i], ("    metric %d\n", i + 1));
    }
    release();
}

static void test_halves(void)
{
    int i;
    TEST("golden: half floats");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_HALF); i++) {
        const golden_half *c = &GOLDEN_HALF[i];
        float x = golden_float(c->f32);
        uint16_t f16 = 0, bf16 = 0;
        oscar_convert(1, OSCAR_F32, &x, OSCAR_F16, &f16);
        oscar_convert(1, OSCAR_F32, &x, OSCAR_BF16, &bf16);
        CHECK_MSG(f16 == c->f16, ("    %08x: fp16 %04x against %04x\n", (unsigned)c->f32, f16, c->f16));
        CHECK_MSG(bf16 == c->bf16, ("    %08x: bf16 %04x against %04x\n", (unsigned)c->f32, bf16, c->bf16));
    }
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_HALF_BACK); i++) {
        const golden_half_back *c = &GOLDEN_HALF_BACK[i];
        float x = 0;
        oscar_convert(1, OSCAR_F16, &c->f16, OSCAR_F32, &x);
        CHECK_MSG(golden_bits(x) == c->f32, ("    %04x: %08x\n", c->f16, (unsigned)golden_bits(x)));
    }
}

static void test_bit_reversal(void)
{
    uint32_t i;
    TEST("golden: bit reversal");
    for (i = 0; i < 8; i++) CHECK(oscar_bitrev(i, 3) == GOLDEN_BITREV_8[i]);
    for (i = 0; i < 32; i++) CHECK(oscar_bitrev(i, 5) == GOLDEN_BITREV_32[i]);
    /* perm[bitrev(i)] = D - 1 - i */
    for (i = 0; i < 8; i++) CHECK(GOLDEN_PERM_8[oscar_bitrev(i, 3)] == 7 - i);
    for (i = 0; i < 64; i++) CHECK(GOLDEN_PERM_64[oscar_bitrev(i, 6)] == 63 - i);
}

/* Signs of H as the transform of unit rows shows them; their hash. */
static uint64_t hadamard_signs(int d, signed char *sign)
{
    float *x = take_floats((size_t)d);
    uint64_t h = 14695981039346656037u;
    int i, j;
    for (i = 0; i < d; i++) {
        for (j = 0; j < d; j++) x[j] = i == j ? 1.0f : 0.0f;
        CHECK(oscar_fwht(d, 1, x, x) == OSCAR_OK);
        for (j = 0; j < d; j++) {
            sign[i * d + j] = (signed char)((x[j] > 0) - (x[j] < 0));
            h = fnv_add(h, (uint64_t)sign[i * d + j], 1);
        }
    }
    return h;
}

static void test_fwht(void)
{
    signed char *sign = (signed char *)take(128 * 128);
    int i, j;
    TEST("C2.1 C2.2 golden: Walsh-Hadamard transform, to the bit");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_FWHT); i++) {
        const golden_fwht_case *c = &GOLDEN_FWHT[i];
        float *x = take_floats((size_t)c->n * 2), *out = take_floats((size_t)c->n * 2);
        golden_row(x, c->n, c->kind, c->seed);
        memcpy(x + c->n, x, (size_t)c->n * sizeof(float));
        CHECK(oscar_fwht(c->n, 2, x, out) == OSCAR_OK);
        check_floats(out, c->out, c->n, "fwht");
        check_floats(out + c->n, c->out, c->n, "fwht, second row");
        CHECK(oscar_fwht(c->n, 2, x, x) == OSCAR_OK);
        check_floats(x, c->out, c->n, "fwht in place");
    }
    hadamard_signs(48, sign);
    for (i = 0; i < 48; i++)
        for (j = 0; j < 48; j++) CHECK("-0+"[sign[i * 48 + j] + 1] == GOLDEN_SIGNS_48[i][j]);
    CHECK(hadamard_signs(96, sign) == GOLDEN_SIGNS_HASH_96);
    CHECK(hadamard_signs(128, sign) == GOLDEN_SIGNS_HASH_128);
    release();
}

static void dense_pair(oscar_pair *pair, int d)
{
    float *f = take_floats((size_t)d * (size_t)d), *b = take_floats((size_t)d * (size_t)d);
    golden_dense_pair(f, b, d);
    pair->kind = OSCAR_DENSE;
    pair->to = f;
    pair->dual = b;
    pair->norm = (1.0f + (float)(d - 1) / 100.0f) * (1.0f + (float)(d - 1) / 77.0f);   /* a bound is enough here */
}

static void test_dense(void)
{
    int i;
    TEST("golden: dense transform, to the bit");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_DENSE_ROWS); i++) {
        const golden_dense_case *c = &GOLDEN_DENSE_ROWS[i];
        size_t d = (size_t)c->d;
        float *x = take_floats(d), *m = take_floats(d), *out = take_floats(d);
        oscar_pair pair = { OSCAR_DENSE, 0, NULL, NULL, NULL, 0, NULL };
        pair.dim = c->d;
        dense_pair(&pair, c->d);
        golden_row(x, c->d, GOLDEN_ROW_OUTLIER, c->seed);
        golden_row(m, c->d, GOLDEN_ROW_OFFSET, c->seed + 1);
        if (c->with_mean) pair.mean = m;
        else CHECK(oscar_rotate(c->d, 1, pair.to, x, out) == OSCAR_OK);
        if (!c->with_mean) check_floats(out, c->out, c->d, "oscar_rotate");
        CHECK(oscar_transform(&pair, OSCAR_FORWARD, 1, x, out) == OSCAR_OK);
        check_floats(out, c->out, c->d, "oscar_transform");
        release();
    }
}

/* == THE ROW CODEC == */

static void test_clip(void)
{
    float *x = take_floats(128), tau = 0;
    int i;
    TEST("C3.2 golden: clip thresholds");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_CLIPS); i++) {
        const golden_clip_case *c = &GOLDEN_CLIPS[i];
        golden_row(x, c->d, c->kind, c->seed);
        CHECK(oscar_clip_threshold(c->d, x, c->ratio, &tau) == OSCAR_OK);
        CHECK_MSG(golden_bits(tau) == c->tau, ("    D %d ratio %g: %.9g\n", c->d, c->ratio, (double)tau));
    }
    for (i = 0; i < 128; i++) x[i] = (float)(i % 2 ? 128 - i : -(128 - i));
    CHECK(oscar_clip_threshold(128, x, 0.96, &tau) == OSCAR_OK && tau == 123.0f);
    CHECK(oscar_clip_threshold(128, x, 0.92, &tau) == OSCAR_OK && tau == 118.0f);
    release();
}

static const float *metric_of(int d, int kind, int32_t seed)
{
    float *m;
    if (kind == GOLDEN_METRIC_NONE) return NULL;
    m = take_floats((size_t)d * (size_t)d);
    golden_metric(m, d, kind, seed);
    return m;
}

static void codec_of(const golden_codec_case *c, oscar_codec *codec)
{
    memset(codec, 0, sizeof *codec);
    codec->metric = metric_of(c->d, c->metric, c->seed + 7000);
    codec->fit = c->fit == GOLDEN_CLIP ? OSCAR_CLIP : OSCAR_UNBIASED;
    codec->bits = c->bits;
    codec->group = c->group;
    codec->clip = c->clip > 0 ? c->clip : -1;
    codec->metadata = c->meta32 ? OSCAR_F32 : OSCAR_F16;
}

/* Little-endian values of an encoded row against hexadecimal digits. */
static void check_metadata(const golden_codec_case *c, int n, const unsigned char *at, const char *want,
                           const char *what)
{
    int bytes = c->meta32 ? 4 : 2, groups = (int)strlen(want) / (2 * bytes), g, k;
    for (g = 0; g < groups; g++) {
        uint32_t expected = hex_value(want + g * 2 * bytes, 2 * bytes), got = 0;
        for (k = bytes - 1; k >= 0; k--) got = got << 8 | at[g * bytes + k];
        CHECK_MSG(got == expected, ("    case %d (D %d, G %d, kind %d): %s %d is %x, expected %x\n", n, c->d, c->group,
                  c->kind, what, g, (unsigned)got, (unsigned)expected));
    }
}

static void check_codec_case(int n)
{
    const golden_codec_case *c = &GOLDEN_CODEC[n];
    oscar_codec codec;
    float *x = take_floats((size_t)c->d);
    unsigned char *row;
    int i, per = 8 / c->bits, code_bytes = c->d / per, meta = (c->meta32 ? 4 : 2) * (c->d / c->group), bad = -1;
    codec_of(c, &codec);
    golden_row(x, c->d, c->kind, c->seed);
    CHECK(oscar_row_bytes(&codec, c->d) == (size_t)(code_bytes + meta * (c->fit == GOLDEN_CLIP ? 2 : 1)));
    row = (unsigned char *)take(oscar_row_bytes(&codec, c->d));
    CHECK(oscar_encode(&codec, c->d, 1, x, row) == OSCAR_OK);
    for (i = 0; i < c->d && bad < 0; i++) {
        unsigned code = (unsigned)row[i / per] >> (i % per * c->bits) & ((1u << c->bits) - 1u);
        if (code != hex_digit(c->codes[i])) bad = i;
    }
    CHECK_MSG(bad < 0, ("    case %d (D %d, G %d, fit %d, %d bits, kind %d, metric %d): code of channel %d\n", n, c->d,
              c->group, c->fit, c->bits, c->kind, c->metric, bad));
    CHECK_MSG(golden_fnv(row, (size_t)code_bytes) == c->packed, ("    case %d: packed bytes\n", n));
    check_metadata(c, n, row + code_bytes, c->scales, "scale");
    check_metadata(c, n, row + code_bytes + meta, c->minima, "minimum");
    CHECK(oscar_decode(&codec, c->d, 1, row, x) == OSCAR_OK);
    for (i = 0; i < c->d; i++) x[i] += 0.0f;
    CHECK_MSG(golden_fnv_floats(x, (size_t)c->d) == c->decoded, ("    case %d: decoded row\n", n));
    release();
}

static void test_codec(void)
{
    unsigned char packed[2];
    const unsigned char codes[8] = { 0, 1, 2, 3, 3, 2, 1, 0 };
    int i;
    TEST("C3.3 golden: the row codec");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_CODEC); i++) check_codec_case(i);
    TEST("C3.1 golden: packing");
    oscar_pack2(8, codes, packed);
    CHECK(memcmp(packed, GOLDEN_PACK2, 2) == 0);
}

static void check_edge(const golden_edge *c, uint32_t bits, uint64_t packed, uint16_t scale)
{
    oscar_codec codec;
    float *x = take_floats(16);
    unsigned char encoded[16];
    size_t codes = (size_t)(2 * c->bits);
    memset(&codec, 0, sizeof codec);
    codec.bits = c->bits;
    codec.metric = metric_of(16, GOLDEN_METRIC_STEEP, c->seed + 7000);
    golden_row(x, 16, GOLDEN_ROW_FLOAT, c->seed);
    x[c->channel] = golden_float(bits);
    CHECK(oscar_encode(&codec, 16, 1, x, encoded) == OSCAR_OK);
    CHECK_MSG(golden_fnv(encoded, codes) == packed, ("    %d bits, seed %d: codes\n", c->bits, (int)c->seed));
    CHECK_MSG((encoded[codes] | encoded[codes + 1] << 8) == scale, ("    %d bits, seed %d: scale\n", c->bits,
              (int)c->seed));
    release();
}

static void test_edges(void)
{
    int i;
    TEST("golden: neighbouring floats where refined codes change");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_EDGES); i++) {
        const golden_edge *c = &GOLDEN_EDGES[i];
        check_edge(c, c->at, c->packed, c->scale);
        check_edge(c, c->at + 1, c->next_packed, c->next_scale);
    }
}

static void test_refusals(void)
{
    float x[16];
    unsigned char row[16];
    int i, k;
    TEST("C3.4 golden: rows at the edge of fp16, infinities, NaN");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_REFUSALS); i++) {
        const golden_refusal *c = &GOLDEN_REFUSALS[i];
        oscar_codec codec;
        oscar_result result;
        memset(&codec, 0, sizeof codec);
        codec.fit = c->fit == GOLDEN_CLIP ? OSCAR_CLIP : OSCAR_UNBIASED;
        codec.bits = c->bits;
        codec.clip = -1;
        for (k = 0; k < 16; k++) x[k] = golden_float(c->value);
        result = oscar_encode(&codec, 16, 1, x, row);
        CHECK_MSG(result == (c->refused ? OSCAR_ERR_NUMERIC : OSCAR_OK), ("    fit %d, %d bits, value %g: %s\n", c->fit,
                  c->bits, (double)x[0], oscar_result_text(result)));
    }
}

/* == PAGES == */

static oscar_kind kind_of(int golden)
{
    return golden == GOLDEN_DENSE ? OSCAR_DENSE : golden == GOLDEN_IDENTITY ? OSCAR_IDENTITY : OSCAR_HADAMARD;
}

static oscar_type type_of(int golden)
{
    return golden == GOLDEN_F32 ? OSCAR_F32 : golden == GOLDEN_F16 ? OSCAR_F16 : OSCAR_BF16;
}

static oscar_pair *pairs_of(const golden_page *p, int is_v)
{
    int kind = is_v ? p->v_kind : p->k_kind, d = is_v ? p->dv : p->dk, h;
    oscar_pair *pairs = (oscar_pair *)take((size_t)p->heads * sizeof *pairs);
    memset(pairs, 0, (size_t)p->heads * sizeof *pairs);
    for (h = 0; h < p->heads; h++) {
        pairs[h].kind = kind_of(kind);
        pairs[h].dim = d;
        if (kind == GOLDEN_DENSE && h == 0) dense_pair(&pairs[0], d);
        if (kind == GOLDEN_DENSE && h > 0) pairs[h] = pairs[0];
        if (!is_v && p->k_mean) {
            float *mean = take_floats((size_t)d);
            golden_row(mean, d, h ? GOLDEN_ROW_OFFSET : GOLDEN_ROW_BELL, p->seed + 500 + h);
            pairs[h].mean = mean;
        }
        if (!is_v) pairs[h].metric = metric_of(d, p->k_metric, p->seed + 600 + h);
    }
    return pairs;
}

static void layer_of(const golden_page *p, oscar_layer *layer)
{
    memset(layer, 0, sizeof *layer);
    layer->q_heads = layer->kv_heads = p->heads;
    layer->k_dim = p->dk;
    layer->v_dim = p->dv;
    layer->k_bits = p->k_bits;
    layer->v_bits = p->v_bits;
    layer->k_fit = p->k_fit == GOLDEN_CLIP ? OSCAR_CLIP : OSCAR_UNBIASED;
    layer->v_fit = p->v_fit == GOLDEN_CLIP ? OSCAR_CLIP : OSCAR_UNBIASED;
    layer->k_clip = p->clip_k > 0 ? p->clip_k : -1;
    layer->v_clip = p->clip_v > 0 ? p->clip_v : -1;
    layer->k_group = p->k_bits == 16 || p->k_group == p->dk ? 0 : p->k_group;
    layer->v_group = p->v_bits == 16 || p->v_group == p->dv ? 0 : p->v_group;
    layer->k_page_mean = p->page_mean || p->k_bits == 16 ? 0 : -1;
    layer->k = pairs_of(p, 0);
    layer->v = pairs_of(p, 1);
}

/* Rows of tokens first .. first + count - 1, [token][head][dim], in the window type. */
static void *rows_of(const golden_page *p, int is_v, int first, int count)
{
    int d = is_v ? p->dv : p->dk, style = is_v ? p->style_v : p->style_k, t, h;
    size_t values = (size_t)count * (size_t)p->heads * (size_t)d;
    float *x = take_floats(values), *row = x;
    void *out = take(values * sizeof(float));
    for (t = first; t < first + count; t++)
        for (h = 0; h < p->heads; h++, row += d) golden_page_row(row, d, style, p->seed + (is_v ? 50000 : 0), h, t);
    oscar_convert(values, OSCAR_F32, x, type_of(p->window), out);
    return out;
}

static int offset_is(size_t got, long want) { return want < 0 ? got == OSCAR_ABSENT : got == (size_t)want; }

static void check_layout(const golden_page *p, const oscar_layout *o)
{
    CHECK_MSG(offset_is(o->k_codes, p->k_codes) && offset_is(o->v_codes, p->v_codes), ("    %s: codes\n", p->name));
    CHECK_MSG(offset_is(o->k_scale, p->k_scales) && offset_is(o->k_min, p->k_minima), ("    %s: K\n", p->name));
    CHECK_MSG(offset_is(o->v_scale, p->v_scales) && offset_is(o->v_min, p->v_minima), ("    %s: V\n", p->name));
    CHECK_MSG(offset_is(o->mean, p->mean_bytes), ("    %s: mean\n", p->name));
    CHECK_MSG(offset_is(o->mean_scale, p->mean_scales), ("    %s: mean scale\n", p->name));
    CHECK_MSG(offset_is(o->head_bytes, p->head_bytes), ("    %s: %ld\n", p->name, (long)o->head_bytes));
    CHECK_MSG(offset_is(o->bytes, p->page_bytes), ("    %s: %ld\n", p->name, (long)o->bytes));
}

static oscar_view view_of(const void *data, oscar_type type)
{
    oscar_view view = { NULL, OSCAR_TYPE_DEFAULT, 0, 0 };
    view.data = data;
    view.type = type;
    return view;
}

static oscar_out out_of(void *data, oscar_type type)
{
    oscar_out out = { NULL, OSCAR_TYPE_DEFAULT, 0, 0 };
    out.data = data;
    out.type = type;
    return out;
}

/* The page of golden rows; what was in its memory before must not show. */
static unsigned char *write_page(const golden_page *p, const oscar_layout *layout)
{
    unsigned char *page = (unsigned char *)take(layout->bytes);
    oscar_view k = view_of(rows_of(p, 0, 0, p->tokens), type_of(p->window));
    oscar_view v = view_of(rows_of(p, 1, 0, p->tokens), type_of(p->window));
    memset(page, 0xff, layout->bytes);
    CHECK(oscar_page_write(layout, &k, &v, page, take(layout->scratch)) == OSCAR_OK);
    return page;
}

static int clear_signs(const golden_page *p, const oscar_layout *o, const unsigned char *page)
{
    int h, t, count = 0;
    for (h = 0; h < p->heads; h++)
        for (t = 0; t < p->tokens; t++)
            count += !(page[(size_t)h * o->head_bytes + o->k_scale + 2 * (size_t)t + 1] & 0x80);
    return count;
}

/* Names the array of the first byte that differs from the full listing. */
static void check_bytes(const golden_page *p, const unsigned char *page)
{
    long i = 0;
    if (p->full) {
        while (i < p->page_bytes && page[i] == p->full[i]) i++;
        CHECK_MSG(i == p->page_bytes, ("    %s: byte %ld (%ld of the head's part) is %02x, expected %02x\n", p->name, i,
                  i % p->head_bytes, page[i], p->full[i]));
    }
    CHECK_MSG(golden_fnv(page, (size_t)p->page_bytes) == p->hash, ("    %s: bytes of the page\n", p->name));
}

static void check_mean(const golden_page *p, const oscar_layout *o, const unsigned char *page)
{
    int h, got;
    if (!p->page_mean) return;
    for (h = 0; h < p->heads; h++) {
        const unsigned char *at = page + o->mean_scale + 2 * (size_t)h;
        CHECK_MSG((at[0] | at[1] << 8) == p->mean_scale[h], ("    %s: mean scale of head %d\n", p->name, h));
    }
    got = clear_signs(p, o, page);
    CHECK_MSG(got == p->subtracted, ("    %s: %d rows subtract the mean, expected %d\n", p->name, got, p->subtracted));
}

/* page_read of everything, as float and as bf16, and of some tokens alone. */
static void check_read(const golden_page *p, const oscar_layout *o, const unsigned char *page)
{
    size_t nk = (size_t)p->tokens * (size_t)p->heads * (size_t)p->dk;
    size_t nv = (size_t)p->tokens * (size_t)p->heads * (size_t)p->dv;
    float *k = take_floats(nk), *v = take_floats(nv), *some = take_floats(3 * nk / (size_t)p->tokens);
    uint16_t *k16 = (uint16_t *)take(2 * nk), *v16 = (uint16_t *)take(2 * nv);
    void *scratch = take(o->scratch);
    oscar_out ko = out_of(k, OSCAR_F32), vo = out_of(v, OSCAR_F32), so = out_of(some, OSCAR_F32);
    oscar_out kb = out_of(k16, OSCAR_BF16), vb = out_of(v16, OSCAR_BF16);
    CHECK(oscar_page_read(o, page, 0, p->tokens, &ko, &vo, scratch) == OSCAR_OK);
    CHECK_MSG(golden_fnv_floats(k, nk) == p->read_k_f32, ("    %s: K as float\n", p->name));
    CHECK_MSG(golden_fnv_floats(v, nv) == p->read_v_f32, ("    %s: V as float\n", p->name));
    CHECK(oscar_page_read(o, page, 0, p->tokens, &kb, &vb, scratch) == OSCAR_OK);
    CHECK_MSG(fnv_halves(k16, nk) == p->read_k_bf16, ("    %s: K as bf16\n", p->name));
    CHECK_MSG(fnv_halves(v16, nv) == p->read_v_bf16, ("    %s: V as bf16\n", p->name));
    CHECK(oscar_page_read(o, page, 17, 3, &so, NULL, scratch) == OSCAR_OK);
    CHECK(memcmp(some, k + 17 * p->heads * p->dk, sizeof(float) * (size_t)(3 * p->heads * p->dk)) == 0);
}

static void check_page(const golden_page *p)
{
    oscar_layer layer;
    oscar_layout layout;
    unsigned char *page;
    oscar_result result;
    layer_of(p, &layer);
    result = oscar_page_layout(&layer, p->tokens, type_of(p->window), NULL, &layout);
    CHECK_MSG(result == OSCAR_OK, ("    %s: %s\n", p->name, oscar_result_text(result)));
    if (result == OSCAR_OK) {
        check_layout(p, &layout);
        if (!p->layout_only) {
            page = write_page(p, &layout);
            check_bytes(p, page);
            check_mean(p, &layout, page);
            check_read(p, &layout, page);
        }
    }
    release();
}

static void check_reads_of(int n)
{
    const golden_page *p = &GOLDEN_PAGES[n];
    oscar_layer layer;
    oscar_layout layout;
    unsigned char *page;
    int i;
    layer_of(p, &layer);
    if (oscar_page_layout(&layer, p->tokens, type_of(p->window), NULL, &layout) != OSCAR_OK) return;
    page = write_page(p, &layout);
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_READS); i++) {
        const golden_read *r = &GOLDEN_READS[i];
        int d = r->is_v ? p->dv : p->dk;
        float *x;
        oscar_out out;
        if (r->page != n) continue;
        x = take_floats((size_t)p->heads * (size_t)d);
        out = out_of(x, OSCAR_F32);
        CHECK(oscar_page_read(&layout, page, r->token, 1, r->is_v ? NULL : &out, r->is_v ? &out : NULL,
                              take(layout.scratch)) == OSCAR_OK);
        check_floats(x + r->head * d, r->out, d, p->name);
    }
    release();
}

static void test_pages(void)
{
    int i;
    TEST("golden: page layouts, page bytes, reading back");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_PAGES); i++) check_page(&GOLDEN_PAGES[i]);
    TEST("golden: rows read back");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_PAGES); i++) if (!GOLDEN_PAGES[i].layout_only) check_reads_of(i);
}

/* == COMPOSITION == */

typedef struct { float *q, *k, *v; } golden_tokens;

static void tokens_of(const golden_compose *c, golden_tokens *out)
{
    size_t d = (size_t)c->d, n = (size_t)c->tokens;
    int t;
    out->q = take_floats(2 * n * d);
    out->k = take_floats(n * d);
    out->v = take_floats(n * d);
    for (t = 0; t < c->tokens; t++) {
        size_t at = (size_t)t * d;
        golden_calibration_token(out->q + 2 * at, out->k + at, out->v + at, c->d, c->seed, t);
    }
}

/* One layer of one KV head and `group` query heads, all sums, both passes over one chunk. */
static oscar_calib *calibrate(int d, int tokens, int group, const float *q, const float *k, const float *v,
                              const golden_compose *attention, int rope)
{
    static const int shifts[2] = { 37, 500 };
    oscar_calib_desc desc;
    oscar_layer layer;
    oscar_rope turn;
    oscar_chunk chunk;
    oscar_calib *calib = NULL;
    memset(&desc, 0, sizeof desc);
    memset(&layer, 0, sizeof layer);
    memset(&turn, 0, sizeof turn);
    memset(&chunk, 0, sizeof chunk);
    layer.q_heads = group;
    layer.kv_heads = 1;
    layer.k_dim = d;
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.sums = OSCAR_SUM_Q | OSCAR_SUM_K | OSCAR_SUM_V | OSCAR_SUM_S;
    desc.weights = attention ? OSCAR_WEIGHTS_ATTENTION : OSCAR_WEIGHTS_PLAIN;
    desc.sink = attention ? attention->sink : 0;
    desc.recent = attention ? attention->recent : 0;
    turn.halves = 1;
    if (rope) { desc.ropes = &turn; desc.shifts = shifts; desc.shift_count = 2; }
    chunk.tokens = tokens;
    chunk.q = view_of(q, OSCAR_F32);
    chunk.k = view_of(k, OSCAR_F32);
    chunk.v = view_of(v, OSCAR_F32);
    CHECK(oscar_calib_create(&desc, &calib) == OSCAR_OK);
    if (!calib) return NULL;
    CHECK(oscar_calib_add(calib, 0, &chunk) == OSCAR_OK);
    CHECK(oscar_calib_freeze_q(calib) == OSCAR_OK);
    CHECK(oscar_calib_add(calib, 0, &chunk) == OSCAR_OK);
    return calib;
}

static oscar_rotations *solve(const oscar_calib *calib, oscar_method method, oscar_target target, int v_balanced,
                              int k_metric, oscar_layer *layer)
{
    oscar_compose compose;
    oscar_rotations *out = NULL;
    memset(&compose, 0, sizeof compose);
    compose.method = method;
    compose.k_target = compose.v_target = target;
    compose.v_balanced = v_balanced;
    compose.k_metric = k_metric;
    CHECK(oscar_calib_solve(calib, &compose, &out) == OSCAR_OK);
    if (out) CHECK(oscar_rotations_layer(out, 0, layer) == OSCAR_OK);
    return out;
}

static void check_matrix(const golden_compose *c, const float *got, const double *want, const char *what)
{
    double error;
    if (!want) return;
    CHECK_MSG(got != NULL, ("    D %d, %s: absent\n", c->d, what));
    if (!got) return;
    error = matrix_error(got, want, c->d, c->d, c->row_step);
    CHECK_MSG(error <= 1e-6, ("    D %d, %s: off by %.3g of the largest entry\n", c->d, what, error));
}

static void check_mean_key(const golden_compose *c, const float *got, const double *want, const char *what)
{
    if (!want) return;
    CHECK_MSG(got && matrix_error(got, want, 1, c->d, 1) <= 1e-6, ("    D %d, %s\n", c->d, what));
}

static void check_oscar(const golden_compose *c, const oscar_calib *calib)
{
    oscar_layer layer;
    oscar_rotations *r = solve(calib, OSCAR_METHOD_OSCAR, OSCAR_TARGET_DEFAULT, 0, 0, &layer);
    if (r) {
        check_matrix(c, layer.k->to, c->oscar_k, "OSCAR K");
        check_matrix(c, layer.v->to, c->oscar_v, "OSCAR V");
        CHECK(layer.k->dual == NULL && layer.k->mean == NULL && layer.k->metric == NULL);
    }
    oscar_rotations_destroy(r);
    r = solve(calib, OSCAR_METHOD_OSCAR, OSCAR_TARGET_DEFAULT, 0, 1, &layer);
    if (r) {
        check_matrix(c, layer.k->to, c->oscar_k, "OSCAR K, with a metric");
        check_matrix(c, layer.k->metric, c->oscar_k_m, "OSCAR K, M");
    }
    oscar_rotations_destroy(r);
    if (c->row_step > 1) return;
    r = solve(calib, OSCAR_METHOD_OSCAR, OSCAR_TARGET_SELF, 0, -1, &layer);
    if (r) {
        check_matrix(c, layer.k->to, c->oscar_k_self, "OSCAR K, own target");
        check_matrix(c, layer.v->to, c->oscar_v_self, "OSCAR V, own target");
    }
    oscar_rotations_destroy(r);
}

/* U, U H and H P of K, from the golden U, signs and permutation; D = 16. */
static void check_ablations(const golden_compose *c, const oscar_calib *calib)
{
    double want[16 * 16];
    oscar_layer layer;
    oscar_rotations *r = solve(calib, OSCAR_METHOD_U, OSCAR_TARGET_DEFAULT, 0, -1, &layer);
    int i, j, k;
    if (r) check_matrix(c, layer.k->to, c->u_k, "U");
    oscar_rotations_destroy(r);
    for (i = 0; i < 16; i++) {
        for (j = 0; j < 16; j++) {
            want[i * 16 + j] = 0;
            for (k = 0; k < 16; k++) want[i * 16 + j] += c->u_k[i * 16 + k] * golden_sign(16, k, j) / 4;
        }
    }
    r = solve(calib, OSCAR_METHOD_UH, OSCAR_TARGET_DEFAULT, 0, -1, &layer);
    if (r) check_matrix(c, layer.k->to, want, "U H");
    oscar_rotations_destroy(r);
    for (i = 0; i < 16; i++)
        for (j = 0; j < 16; j++) want[i * 16 + j] = golden_sign(16, i, GOLDEN_PERM_16[j]) / 4.0;
    r = solve(calib, OSCAR_METHOD_HP, OSCAR_TARGET_DEFAULT, 0, -1, &layer);
    if (r) check_matrix(c, layer.k->to, want, "H P");
    oscar_rotations_destroy(r);
}

static void check_balanced(const golden_compose *c, const oscar_calib *calib)
{
    oscar_layer layer;
    oscar_rotations *r = solve(calib, OSCAR_METHOD_BALANCED, OSCAR_TARGET_DEFAULT, 1, -1, &layer);
    if (r) {
        check_mean_key(c, layer.k->mean, c->m, "mean key");
        check_matrix(c, layer.k->to, c->balanced_k_f, "BALANCED K, F");
        check_matrix(c, layer.k->dual, c->balanced_k_b, "BALANCED K, B");
        check_matrix(c, layer.v->to, c->balanced_v_f, "BALANCED V, F");
        check_matrix(c, layer.v->dual, c->balanced_v_b, "BALANCED V, B");
        CHECK(layer.k->metric == NULL && layer.v->metric == NULL);
    }
    oscar_rotations_destroy(r);
    r = solve(calib, OSCAR_METHOD_BALANCED, OSCAR_TARGET_DEFAULT, 1, 0, &layer);
    if (r) {
        check_mean_key(c, layer.k->mean, c->m, "metric, mean key");
        check_matrix(c, layer.k->to, c->refined_k_f, "metric, F");
        check_matrix(c, layer.k->dual, c->refined_k_b, "metric, B");
        check_matrix(c, layer.k->metric, c->refined_k_m, "metric, M");
        check_matrix(c, layer.v->to, c->balanced_v_f, "metric of K, F of V");
        CHECK(layer.v->metric == NULL);
    }
    oscar_rotations_destroy(r);
}

static void check_attention_weights(const golden_compose *c, const golden_tokens *x)
{
    oscar_layer layer;
    oscar_calib *calib = calibrate(c->d, c->tokens, 2, x->q, x->k, x->v, c, 0);
    oscar_rotations *r = calib ? solve(calib, OSCAR_METHOD_BALANCED, OSCAR_TARGET_DEFAULT, 0, -1, &layer) : NULL;
    if (r) {
        check_mean_key(c, layer.k->mean, c->m_attention, "ATTENTION, mean key");
        check_matrix(c, layer.k->to, c->attention_k_f, "ATTENTION, F");
        check_matrix(c, layer.k->dual, c->attention_k_b, "ATTENTION, B");
        CHECK(layer.v->kind == OSCAR_HADAMARD);
    }
    oscar_rotations_destroy(r);
    r = calib ? solve(calib, OSCAR_METHOD_BALANCED, OSCAR_TARGET_DEFAULT, 0, 1, &layer) : NULL;
    if (r) check_matrix(c, layer.k->metric, c->attention_k_m, "ATTENTION, M");
    oscar_rotations_destroy(r);
    oscar_calib_destroy(calib);
    if (!c->m_rope) return;
    calib = calibrate(c->d, c->tokens, 2, x->q, x->k, x->v, c, 1);
    r = calib ? solve(calib, OSCAR_METHOD_BALANCED, OSCAR_TARGET_DEFAULT, 0, -1, &layer) : NULL;
    if (r) {
        check_mean_key(c, layer.k->mean, c->m_rope, "shifted positions, mean key");
        check_matrix(c, layer.k->to, c->rope_k_f, "shifted positions, F");
    }
    oscar_rotations_destroy(r);
    oscar_calib_destroy(calib);
}

/* The spectra, by oscar_eigh of sums made here. */
static void check_spectrum(const golden_compose *c, const golden_tokens *x)
{
    size_t d = (size_t)c->d, i, j, t, rows = 2 * (size_t)c->tokens;
    double *a = (double *)take(d * d * sizeof *a), *u = (double *)take(d * d * sizeof *u);
    double *w = (double *)take(d * sizeof *w);
    for (i = 0; i < d * d; i++) a[i] = 0;
    for (t = 0; t < rows; t++)
        for (i = 0; i < d; i++)
            for (j = 0; j < d; j++) a[i * d + j] += product(x->q[t * d + i], x->q[t * d + j]) / (double)rows;
    CHECK(oscar_eigh(c->d, a, u, w, take(oscar_eigh_scratch(c->d))) == OSCAR_OK);
    for (i = 0; i < d; i++) CLOSE(w[i], c->spectrum_q[i], 1e-8 * c->spectrum_q[i]);
    for (i = 0; c->u_k && i < d * d; i++) CLOSE(u[i], c->u_k[i], 1e-8);
}

/* D = 2 of the case stands in the first two of 16 channels. */
static void test_c14(void)
{
    float q[2 * 16] = { 0 }, k[2 * 16] = { 0 }, v[2 * 16] = { 0 };
    oscar_calib *calib;
    oscar_rotations *r;
    oscar_layer layer;
    int i, j;
    TEST("C1.4 golden: score-weighted value covariance");
    q[0] = q[16] = 2;
    q[1] = 1;
    q[17] = -1;
    k[0] = k[17] = 1;
    v[0] = 1;
    v[17] = 2;
    calib = calibrate(16, 2, 1, q, k, v, NULL, 0);
    r = calib ? solve(calib, OSCAR_METHOD_U, OSCAR_TARGET_DEFAULT, 0, -1, &layer) : NULL;
    /* C_S = U diag(0, ..., 0, 0.8, 0.8) U^T: the projection on the last two columns, 0.8 times. */
    for (i = 0; r && i < 16; i++) {
        for (j = 0; j < 16; j++) {
            const float *a = layer.v->to + i * 16, *b = layer.v->to + j * 16;
            double expected = i == j && i < 2 ? GOLDEN_C14_CS[i] : 0;
            CLOSE(0.8 * (product(a[14], b[14]) + product(a[15], b[15])), expected, 1e-6);
        }
    }
    oscar_rotations_destroy(r);
    oscar_calib_destroy(calib);
    CLOSE(GOLDEN_C14_WEIGHTS[0], 1.6, 1e-12);
    CLOSE(GOLDEN_C14_WEIGHTS[1], 0.4, 1e-12);
}

static void test_compose(void)
{
    int i;
    TEST("C2.8 golden: eigenvectors, their signs, and composition");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_COMPOSE); i++) {
        const golden_compose *c = &GOLDEN_COMPOSE[i];
        golden_tokens x;
        oscar_calib *calib;
        tokens_of(c, &x);
        calib = calibrate(c->d, c->tokens, 2, x.q, x.k, x.v, NULL, 0);
        if (calib) {
            check_oscar(c, calib);
            check_balanced(c, calib);
            if (c->d == 16) check_ablations(c, calib);
        }
        oscar_calib_destroy(calib);
        check_attention_weights(c, &x);
        check_spectrum(c, &x);
        release();
    }
}

/* == ATTENTION == */

/* The layer of the cases without a page, as golden.h describes it. */
static golden_page rows_only(void)
{
    golden_page p;
    memset(&p, 0, sizeof p);
    p.name = "rows only";
    p.heads = 2;
    p.dk = p.k_group = 32;
    p.dv = p.v_group = 16;
    p.k_bits = p.v_bits = 16;
    p.k_kind = p.v_kind = GOLDEN_HADAMARD;
    p.style_k = GOLDEN_DRIFT;
    p.style_v = GOLDEN_PLAIN;
    p.seed = 4000;
    return p;
}

typedef struct { float *o, *lse; } part;

static part take_part(int heads, int dv)
{
    part p;
    p.o = take_floats((size_t)heads * (size_t)dv);
    p.lse = take_floats((size_t)heads);
    return p;
}

static void check_output(const golden_page *p, const golden_attention *c, const part *got, const double *o,
                         const double *lse, double tolerance, const char *what)
{
    int x;
    for (x = 0; x < c->q_heads; x++) {
        double error = relative_error(got->o + x * p->dv, o + x * p->dv, p->dv);
        CHECK_MSG(error <= tolerance, ("    %s, %s, head %d: o off by %.3g\n", p->name, what, x, error));
        if (lse[x] <= -HUGE_VAL) CHECK(got->lse[x] <= -HUGE_VALF);
        else CLOSE(got->lse[x], lse[x], fmax(tolerance, 1e-4 * fabs(lse[x]) * (tolerance > 1e-4 ? 1 : 0.1)));
    }
}

/* The parts by hand, joined: sink and recent rows as two spans, the page. */
static void check_parts(const golden_page *p, const golden_attention *c, const oscar_layer *layer, const float *q,
                        const float *sinks, double tolerance)
{
    oscar_layout layout;
    oscar_attend_desc desc;
    oscar_row_span span[2];
    part rows = take_part(c->q_heads, p->dv), history = take_part(c->q_heads, p->dv);
    part all = take_part(c->q_heads, p->dv);
    const float *o[2], *lse[2];
    oscar_type type = type_of(p->window);
    memset(&desc, 0, sizeof desc);
    memset(span, 0, sizeof span);
    CHECK(oscar_page_layout(layer, c->page < 0 ? 0 : p->tokens, type, NULL, &layout) == OSCAR_OK);
    desc.layout = &layout;
    desc.q = view_of(q, OSCAR_F32);
    desc.queries = 1;
    desc.position = c->sink + p->tokens + c->recent - 1;
    span[0].k = view_of(rows_of(p, 0, -c->sink, c->sink), type);
    span[0].v = view_of(rows_of(p, 1, -c->sink, c->sink), type);
    span[0].count = c->sink;
    span[1].k = view_of(rows_of(p, 0, p->tokens, c->recent), type);
    span[1].v = view_of(rows_of(p, 1, p->tokens, c->recent), type);
    span[1].count = c->recent;
    span[1].position = c->sink + p->tokens;
    CHECK(oscar_attend_rows(&desc, span, 2, rows.o, rows.lse) == OSCAR_OK);
    o[0] = rows.o;
    lse[0] = rows.lse;
    if (c->page >= 0) {
        const void *page = write_page(p, &layout);
        oscar_page_list list;
        memset(&list, 0, sizeof list);
        list.pages = &page;
        list.count = 1;
        list.position = c->sink;
        CHECK(oscar_attend_pages(&desc, &list, history.o, history.lse) == OSCAR_OK);
        check_output(p, c, &history, c->page_o, c->page_lse, tolerance, "page");
        o[1] = history.o;
        lse[1] = history.lse;
    }
    oscar_attend_join(c->page < 0 ? 1 : 2, o, lse, 1, c->q_heads, p->dv, sinks, all.o, all.lse);
    check_output(p, c, &all, c->o, c->lse, tolerance, "joined");
}

/* The same through a cache whose windows hold exactly these rows. */
static void check_cache(const golden_page *p, const golden_attention *c, const oscar_layer *layer, const float *q,
                        const float *sinks, double tolerance)
{
    oscar_cache_desc desc;
    oscar_cache *cache = NULL;
    oscar_batch batch = { 0, 0, 0 };
    int n = c->sink + p->tokens + c->recent;
    oscar_view k = view_of(rows_of(p, 0, -c->sink, n), type_of(p->window));
    oscar_view v = view_of(rows_of(p, 1, -c->sink, n), type_of(p->window)), qv = view_of(q, OSCAR_F32);
    part all = take_part(c->q_heads, p->dv);
    oscar_out o = out_of(all.o, OSCAR_F32);
    memset(&desc, 0, sizeof desc);
    desc.layers = layer;
    desc.layer_count = 1;
    desc.window_type = type_of(p->window);
    desc.max_sequences = 1;
    desc.max_pages = 2;
    desc.sink = c->sink ? c->sink : -1;
    desc.recent = c->recent ? c->recent : -1;
    desc.page_tokens = c->page < 0 ? 0 : p->tokens;
    CHECK(oscar_cache_create(&desc, &cache) == OSCAR_OK);
    if (!cache) return;
    CHECK(oscar_cache_open(cache, &batch.seq) == OSCAR_OK);
    CHECK(oscar_cache_reserve(cache, batch.seq, n, 0) == OSCAR_OK);
    batch.rows = n;
    CHECK(oscar_append(cache, 0, &batch, 1, &k, &v) == OSCAR_OK);
    batch.rows = 1;
    CHECK(oscar_attend(cache, 0, &batch, 1, &qv, sinks, &o, all.lse) == OSCAR_OK);
    check_output(p, c, &all, c->o, c->lse, tolerance, "cache");
    oscar_cache_destroy(cache);
}

static void check_attention(const golden_attention *c, double tolerance)
{
    golden_page p = c->page < 0 ? rows_only() : GOLDEN_PAGES[c->page];
    oscar_layer layer;
    float *q = take_floats((size_t)c->q_heads * (size_t)p.dk), *sinks = take_floats((size_t)c->q_heads);
    int x;
    layer_of(&p, &layer);
    layer.q_heads = c->q_heads;
    layer.softcap = (float)c->softcap;
    layer.window = c->window;
    for (x = 0; x < c->q_heads; x++) {
        golden_row(q + x * p.dk, p.dk, GOLDEN_ROW_BELL, c->q_seed + x);
        sinks[x] = 0.5f * (float)x - 1.0f;
    }
    check_parts(&p, c, &layer, q, c->sinks ? sinks : NULL, tolerance);
    check_cache(&p, c, &layer, q, c->sinks ? sinks : NULL, tolerance);
    release();
}

static void test_attention(double tolerance)
{
    int i;
    TEST("C5.4 golden: attention against double (GQA, softcap, window, sink logit)");
    for (i = 0; i < GOLDEN_COUNT(GOLDEN_ATTENTION); i++) check_attention(&GOLDEN_ATTENTION[i], tolerance);
}

/* == MAIN == */

static void test_isa(oscar_isa isa)
{
    test_fwht();
    test_dense();
    test_clip();
    test_codec();
    test_edges();
    test_refusals();
    test_pages();
    test_attention(isa == OSCAR_ISA_SCALAR ? 1e-5 : 1e-3);
}

int main(void)
{
    int isa;
    test_generator();
    test_halves();
    test_bit_reversal();
    test_compose();
    test_c14();
    for (isa = OSCAR_ISA_SCALAR; isa < OSCAR_ISA_COUNT; isa++)
        if (oscar_isa_force((oscar_isa)isa) == OSCAR_OK) test_isa((oscar_isa)isa);
    return test_end("test_golden");
}
