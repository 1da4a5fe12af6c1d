/* report.c - what the benchmarks printed, as tables and as a plot: `make bench` runs it last.

       report OUT.md OUT.svg LOG...
       report --cuda OUT.md OUT.svg LOG...      of bench/cuda.c and bench/peer_cuda.py

   Reads the lines `figure NAME VALUE UNIT` and, of the first log that has them, `# cpu`, `# compiler`, `# flags` and
   `# isa` (or `# gpu`, `# driver`, `# peak`, `# read`). Of a name that comes twice the first value counts. A name is
   words between dots; for each table one word is the column and the others are the row. No date is written, so that
   a new run changes numbers only. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIGURES_MAX = 4096, NAME = 128, LABEL = NAME + 24, LINE = 512, LABELS_MAX = 256 };

typedef struct figure { char name[NAME], unit[16]; double value; int shown; } figure;

static figure figures[FIGURES_MAX];
static int figure_count;
static const char *const cpu_facts[4] = { "cpu", "compiler", "flags", "isa" };
static const char *const gpu_facts[4] = { "gpu", "driver", "peak", "read" };
static const char *const *facts = cpu_facts;
static char fact_text[4][LINE];

/* == READING == */

static const figure *find(const char *name)
{
    int i;
    for (i = 0; i < figure_count; i++)
        if (!strcmp(figures[i].name, name)) return &figures[i];
    return NULL;
}

static void read_line(const char *line)
{
    figure f;
    int i;
    memset(&f, 0, sizeof f);
    for (i = 0; i < 4; i++) {
        size_t length = strlen(facts[i]);
        if (fact_text[i][0] || line[0] != '#' || strncmp(line + 2, facts[i], length) || line[2 + length] != ' ')
            continue;
        line += 2 + length;
        line += strspn(line, " ");
        (void)snprintf(fact_text[i], sizeof fact_text[i], "%.*s", (int)strcspn(line, "\n"), line);
        return;
    }
    if (sscanf(line, "figure %127s %lf %15s", f.name, &f.value, f.unit) != 3 || find(f.name)) return;
    if (figure_count < FIGURES_MAX) figures[figure_count++] = f;
}

static void read_log(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[LINE];
    if (!file) { fprintf(stderr, "report: cannot read %s\n", path); exit(1); }
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

/* == TABLES == */

/* Which word of a name is the column: the second (the third where the second is `bf16`); the last; the one like D128;
   the instruction set at the end. */
typedef enum column { SECOND, LAST, DIMENSION, ISA } column;

/* Figures whose names start with one of the prefixes, which are separated by blanks. */
typedef struct subject { const char *title, *prefixes; column column; } subject;

static const subject subjects[] = {
    { "Memory of the GPU", "cuda.read_GBs cuda.copy_GBs cuda.peak_GBs", LAST },
    { "Decode attention on a GPU, a step of one layer",
      "cuda.us. cuda.of_ cuda.over_ cuda.bf16_us cuda.bf16_of_ cuda.step_", SECOND },
    { "The same beside peers", "cuda.flashinfer_ cuda.sdpa_", SECOND },
    { "Writes on a GPU", "cuda.write_", SECOND },
    { "Decode attention on a GPU, other figures", "cuda.", SECOND },
    { "Machine", "machine.", ISA },
    { "Bandwidth of reading", "bandwidth.", LAST },
    { "Decode attention beside peers", "attend.over_", LAST },
    { "Decode attention of one token", "attend.int2_over_ attend.fast_over_ attend.ns_per attend.cycles_per "
                                       "attend.fast_ns attend.fast_cycles attend.bytes_per attend.bf16_ns "
                                       "attend.bf16_cycles attend.bf16. attend.read", SECOND },
    { "Decode attention, other figures", "attend.", ISA },
    { "Transforms", "fwht. rotate.", DIMENSION },
    { "Row codec", "encode. decode.", DIMENSION },
    { "Append of one token", "append.", ISA },
    { "Calibration", "calib.", ISA },
    { "Eigensolver", "eigh.", DIMENSION },
    { "Others", "", ISA },
};

static int starts_with_one(const char *name, const char *prefixes)
{
    const char *p = prefixes;
    if (!*p) return 1;
    while (*p) {
        size_t length = strcspn(p, " ");
        if (!strncmp(name, p, length)) return 1;
        p += length;
        p += strspn(p, " ");
    }
    return 0;
}

static int is_isa(const char *word)
{
    static const char *const names[] = { "scalar", "avx2", "avx512", "amx", "neon" };
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(word, names[i])) return 1;
    return 0;
}

/* Whether a unit is a word of the text already, as in `encode.ns` and `ns_per_token`. */
static int names_unit(const char *text, const char *unit)
{
    const char *at = text;
    size_t length = strlen(unit);
    while ((at = strstr(at, unit)) != NULL) {
        if ((at == text || strchr("._", at[-1])) && strchr("._", at[length])) return 1;   /* or at[length] is 0 */
        at++;
    }
    return 0;
}

static int is_column(column which, int index, const char *word, const char *next, const char *before)
{
    if (which == SECOND) return (index == 1 && strcmp(word, "bf16")) || (index == 2 && !strcmp(before, "bf16"));
    if (which == LAST) return !next;
    if (which == ISA) return !next && is_isa(word);
    return word[0] == 'D' && word[1] >= '0' && word[1] <= '9';
}

/* Splits a name into the word that is the column, with the unit where a column has one, and the rest. */
static void split(const figure *f, column which, char row[LABEL], char head[LABEL])
{
    char copy[NAME], *word, *next, *before = copy;
    int index = 0, taken = 0;
    size_t used = 0;
    memcpy(copy, f->name, NAME);
    row[0] = head[0] = 0;
    for (word = copy; word; before = word, word = next, index++) {
        next = strchr(word, '.');
        if (next) *next++ = 0;
        if (!taken && is_column(which, index, word, next, before)) {
            taken = 1;
            (void)snprintf(head, LABEL, "%s", word);
        } else if (which != SECOND || taken) {
            used += (size_t)snprintf(row + used, LABEL - used, "%s%s", used ? "." : "", word);
        }
    }
    if (!taken) (void)snprintf(head, LABEL, which == ISA ? "by itself" : "value");
    word = which == SECOND ? head : row;
    if (!strcmp(f->unit, "1") || names_unit(word, f->unit)) return;
    used = strlen(word);
    (void)snprintf(word + used, LABEL - used, ", %s", f->unit);
}

/* The number of a label in a list, which grows by it if it is new. */
static int label_of(char labels[LABELS_MAX][LABEL], int *count, const char *label)
{
    int i;
    for (i = 0; i < *count; i++)
        if (!strcmp(labels[i], label)) return i;
    if (*count == LABELS_MAX) { fprintf(stderr, "report: too many rows\n"); exit(1); }
    memcpy(labels[*count], label, LABEL);
    return (*count)++;
}

static void write_table(FILE *out, const subject *s)
{
    static char rows[LABELS_MAX][LABEL], heads[LABELS_MAX][LABEL];
    static const figure *cells[LABELS_MAX][32];
    char row[LABEL], head[LABEL];
    int row_count = 0, head_count = 0, i, r, h;
    memset(cells, 0, sizeof cells);
    for (i = 0; i < figure_count; i++) {
        figure *f = &figures[i];
        if (f->shown || !starts_with_one(f->name, s->prefixes)) continue;
        split(f, s->column, row, head);
        r = label_of(rows, &row_count, row);
        h = label_of(heads, &head_count, head);
        if (h >= 32) { fprintf(stderr, "report: too many columns\n"); exit(1); }
        cells[r][h] = f;
        f->shown = 1;
    }
    if (!row_count) return;
    fprintf(out, "\n## %s\n\n|", s->title);
    for (h = 0; h < head_count; h++) fprintf(out, " | %s", heads[h]);
    fprintf(out, " |\n|---|");
    for (h = 0; h < head_count; h++) fprintf(out, "---|");
    for (r = 0; r < row_count; r++) {
        fprintf(out, "\n| %s |", rows[r]);
        for (h = 0; h < head_count; h++) {
            if (cells[r][h]) fprintf(out, fabs(cells[r][h]->value) < 1000 ? " %.4g |" : " %.0f |", cells[r][h]->value);
            else fprintf(out, " |");
        }
    }
    fprintf(out, "\n");
}

static const char cpu_words[] = "# Results of the benchmarks\n\nWritten by `make bench`; what the figures mean "
    "stands in [README.md](README.md). A figure that ends in an instruction set is of the library forced to it, "
    "without one of what it takes by itself. Ratios `over` and `int2_over` are time of the other over time of the "
    "library: above 1 the library is faster.\n\n";
static const char gpu_words[] = "# Results of the benchmarks on a GPU\n\nWritten by `make bench-cuda`; what the "
    "figures mean stands in [README.md](README.md).\n\n";

static void write_tables(const char *path, const char *plot)
{
    FILE *out = fopen(path, "w");
    size_t i;
    const char *slash = strrchr(plot, '/');
    if (!out) { fprintf(stderr, "report: cannot write %s\n", path); exit(1); }
    fprintf(out, "%s", facts == gpu_facts ? gpu_words : cpu_words);
    for (i = 0; i < 4; i++) fprintf(out, "- %s: %s\n", facts[i], fact_text[i][0] ? fact_text[i] : "not told");
    fprintf(out, "\n![%s](%s)\n", facts == gpu_facts ? "bandwidth against bytes" : "GFLOP/s against bytes",
            slash ? slash + 1 : plot);
    for (i = 0; i < sizeof subjects / sizeof subjects[0]; i++) write_table(out, &subjects[i]);
    fclose(out);
}

/* == PLOT: GFLOP/s over flops a byte, both as logarithms == */

enum { WIDTH = 860, HEIGHT = 520, LEFT = 80, RIGHT = 600, TOP = 70, BOTTOM = 450 };

/* Of one token and KV head: 4 query heads, 128 channels of K and of V, a product and a sum each. */
static const double FLOPS = 4.0 * 128 * 2 * 2;
static const double X_LEAST = 2, X_MOST = 64;
static double y_least = 0.5, y_most = 400;

static double x_of(double intensity)
{
    return LEFT + (RIGHT - LEFT) * log(intensity / X_LEAST) / log(X_MOST / X_LEAST);
}

static double y_of(double rate) { return BOTTOM - (BOTTOM - TOP) * log(rate / y_least) / log(y_most / y_least); }

static void draw_line(FILE *f, double x1, double y1, double x2, double y2, const char *style)
{
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

/* anchor: start, middle, end */
static void draw_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"tick\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

static const char *const grid = "stroke=\"#e6e8eb\"", *const roof = "stroke=\"#5f6368\" stroke-width=\"1.5\"";

/* What is drawn: figures NAME.CASE with a case that ends in `1t`, in ns. bytes: 0 = attend.bytes_per_token_head. */
static const struct { const char *name, *label, *colour; double bytes; } series[] = {
    { "attend.ns_per_token_head.", "INT2, the library", "#1f3f7a", 0 },
    { "attend.fast_ns_per_token_head.", "INT2, low precision", "#4f86c6", 0 },
    { "attend.bf16_ns_per_token_head.", "BF16, the faster one", "#c58b4b", 512 },
    { "attend.ggml_f16_ns_per_token_head.", "ggml f16", "#9aa0a6", 512 },
    { "attend.ggml_q8_0_ns_per_token_head.", "ggml q8_0", "#7d4fa0", 272 },
    { "attend.ggml_q4_0_ns_per_token_head.", "ggml q4_0", "#6aa6a6", 144 },
};

static void draw_axes(FILE *f)
{
    char text[32];
    double v;
    for (v = X_LEAST; v <= X_MOST; v *= 2) {
        (void)snprintf(text, sizeof text, "%g", v);
        draw_line(f, x_of(v), TOP, x_of(v), BOTTOM, grid);
        draw_text(f, x_of(v), BOTTOM + 18, "middle", text);
    }
    for (v = 1; v <= y_most; v *= 10) {
        (void)snprintf(text, sizeof text, "%g", v);
        draw_line(f, LEFT, y_of(v), RIGHT, y_of(v), grid);
        draw_text(f, LEFT - 8, y_of(v) + 4, "end", text);
    }
    draw_text(f, (LEFT + RIGHT) / 2, BOTTOM + 40, "middle", "float operations a byte of the cache");
    draw_text(f, LEFT - 8, TOP - 14, "middle", "GFLOP/s");
}

/* A bandwidth in GB/s is a slope: rate = intensity times it, up to the rate of multiply-adds. */
static void draw_bandwidth(FILE *f, const char *name, const char *label, double top)
{
    const figure *b = find(name);
    char text[64];
    double end;
    if (!b) return;
    end = top > 0 ? fmin(top / b->value, X_MOST) : X_MOST;
    if (end < X_LEAST) return;
    draw_line(f, x_of(X_LEAST), y_of(X_LEAST * b->value), x_of(end), y_of(end * b->value), roof);
    (void)snprintf(text, sizeof text, "%s %.3g GB/s", label, b->value);
    draw_text(f, x_of(X_LEAST) + 34, y_of(X_LEAST * b->value) + 2, "start", text);
}

static void draw_roofs(FILE *f)
{
    const figure *fma = find("machine.float_fma");
    char text[64];
    draw_bandwidth(f, "bandwidth.2GiB.1t", "memory", fma ? fma->value : 0);
    draw_bandwidth(f, "bandwidth.4GiB.1t", "memory", fma ? fma->value : 0);
    draw_bandwidth(f, "bandwidth.8MiB.1t", "third cache", fma ? fma->value : 0);
    if (!fma) return;
    draw_line(f, LEFT, y_of(fma->value), RIGHT, y_of(fma->value), roof);
    (void)snprintf(text, sizeof text, "multiply-adds in float %.3g GFLOP/s", fma->value);
    draw_text(f, RIGHT - 6, y_of(fma->value) - 6, "end", text);
}

/* The points of one series; returns how many. fastest: ns of the lowest one. */
static int draw_series(FILE *f, size_t which, double *fastest)
{
    size_t length = strlen(series[which].name);
    int i, count = 0;
    for (i = 0; i < figure_count; i++) {
        const figure *p = &figures[i];
        size_t end = strlen(p->name);
        double bytes = series[which].bytes;
        char name[NAME];
        const figure *found;
        if (strncmp(p->name, series[which].name, length) || end < 3 || strcmp(p->name + end - 3, ".1t")) continue;
        (void)snprintf(name, sizeof name, "attend.bytes_per_token_head.%.90s", p->name + length);
        found = find(name);
        if (bytes <= 0 && !found) continue;
        if (bytes <= 0) bytes = found->value;
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\" fill-opacity=\"0.75\"><title>%s: %.4g "
                "ns</title></circle>\n", x_of(FLOPS / bytes), y_of(FLOPS / p->value), series[which].colour,
                p->name + length, p->value);
        if (!count++ || p->value < *fastest) *fastest = p->value;
    }
    return count;
}

static void open_plot(FILE *f, const char *title)
{
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"Helvetica, Arial, sans-serif\">\n<style>.tick{font-size:12px;fill:#5f6368}"
            ".head{font-size:17px;font-weight:700;fill:#202124}</style>\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n<text x=\"28\" y=\"34\" class=\"head\">%s</text>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, title);
}

/* The axis of rates holds the roof and the slowest point. */
static void scale_axes(void)
{
    const figure *fma = find("machine.float_fma");
    int i;
    if (fma) y_most = fmax(y_most, 1.6 * fma->value);
    for (i = 0; i < figure_count; i++)
        if (strstr(figures[i].name, "ns_per_token_head.") && !strncmp(figures[i].name, "attend.", 7))
            y_least = fmin(y_least, 0.7 * FLOPS / figures[i].value);
}

static void write_plot(const char *path)
{
    FILE *f = fopen(path, "w");
    double y = TOP + 20;
    size_t i;
    if (!f) { fprintf(stderr, "report: cannot write %s\n", path); exit(1); }
    scale_axes();
    open_plot(f, "Decode attention, one thread: speed against what memory allows");
    draw_axes(f);
    draw_roofs(f);
    for (i = 0; i < sizeof series / sizeof series[0]; i++) {
        double fastest = 0;
        char text[96];
        if (!draw_series(f, i, &fastest)) continue;
        (void)snprintf(text, sizeof text, "%s: best %.3g ns", series[i].label, fastest);
        fprintf(f, "<circle cx=\"%d\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", RIGHT + 24, y - 4, series[i].colour);
        draw_text(f, RIGHT + 36, y, "start", text);
        y += 24;
    }
    draw_text(f, RIGHT + 18, y + 12, "start", "ns: one token and KV head,");
    draw_text(f, RIGHT + 18, y + 28, "start", "4 query heads of 128 channels;");
    draw_text(f, RIGHT + 18, y + 44, "start", "a point for each context.");
    fprintf(f, "</svg>\n");
    fclose(f);
}

/* == PLOT OF A GPU: bytes a second, as a share of what a plain kernel reads, over the bytes of a step == */

/* Names without the point at their end: microseconds of a step, and its MB. */
static const struct { const char *time, *bytes, *label, *colour; } gpu_series[] = {
    { "cuda.us.", "cuda.step_MB.", "INT2, the library", "#1f3f7a" },
    { "cuda.bf16_us.", "cuda.bf16_MB.", "BF16, plain", "#c58b4b" },
    { "cuda.flashinfer_us.", "cuda.bf16_MB.", "BF16, FlashInfer", "#7d4fa0" },
    { "cuda.sdpa_us.", "cuda.bf16_MB.", "BF16, PyTorch", "#9aa0a6" },
};
static const double MB_LEAST = 1, MB_MOST = 1e5, SHARE_MOST = 1.2;

static double gpu_x(double mb) { return LEFT + (RIGHT - LEFT) * log(mb / MB_LEAST) / log(MB_MOST / MB_LEAST); }
static double gpu_y(double share) { return BOTTOM - (BOTTOM - TOP) * fmin(share, SHARE_MOST) / SHARE_MOST; }

static void draw_gpu_axes(FILE *f, double read)
{
    const figure *peak = find("cuda.peak_GBs");
    char text[64];
    double v;
    for (v = MB_LEAST; v <= MB_MOST; v *= 10) {
        (void)snprintf(text, sizeof text, "%g", v);
        draw_line(f, gpu_x(v), TOP, gpu_x(v), BOTTOM, grid);
        draw_text(f, gpu_x(v), BOTTOM + 18, "middle", text);
    }
    for (v = 0; v < SHARE_MOST; v += 0.2) {
        (void)snprintf(text, sizeof text, "%.1f", v);
        draw_line(f, LEFT, gpu_y(v), RIGHT, gpu_y(v), grid);
        draw_text(f, LEFT - 8, gpu_y(v) + 4, "end", text);
    }
    draw_text(f, (LEFT + RIGHT) / 2, BOTTOM + 40, "middle", "MB that a step of one layer reads and writes");
    draw_line(f, LEFT, gpu_y(1), RIGHT, gpu_y(1), roof);
    (void)snprintf(text, sizeof text, "a plain kernel reads %.0f GB/s", read);
    draw_text(f, LEFT + 6, gpu_y(1) + 14, "start", text);
    if (!peak) return;
    draw_line(f, LEFT, gpu_y(peak->value / read), RIGHT, gpu_y(peak->value / read), roof);
    (void)snprintf(text, sizeof text, "peak %.0f GB/s", peak->value);
    draw_text(f, LEFT + 6, gpu_y(peak->value / read) - 6, "start", text);
}

/* The points of one series; returns the largest share. */
static double draw_gpu_series(FILE *f, size_t which, double read)
{
    size_t length = strlen(gpu_series[which].time);
    double best = 0;
    int i;
    for (i = 0; i < figure_count; i++) {
        const figure *p = &figures[i], *mb;
        char name[NAME];
        double share;
        if (strncmp(p->name, gpu_series[which].time, length)) continue;
        (void)snprintf(name, sizeof name, "%s%.90s", gpu_series[which].bytes, p->name + length);
        mb = find(name);
        if (!mb || p->value <= 0 || mb->value < MB_LEAST) continue;
        share = 1000 * mb->value / p->value / read;
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\" fill-opacity=\"0.75\"><title>%s: %.4g us, "
                "%.2f</title></circle>\n", gpu_x(mb->value), gpu_y(share), gpu_series[which].colour, p->name + length,
                p->value, share);
        best = fmax(best, share);
    }
    return best;
}

static void write_gpu_plot(const char *path)
{
    const figure *read = find("cuda.read_GBs");
    FILE *f = fopen(path, "w");
    double y = TOP + 20;
    size_t i;
    if (!f) { fprintf(stderr, "report: cannot write %s\n", path); exit(1); }
    open_plot(f, "Decode attention on a GPU: share of the bandwidth of reading");
    if (read) draw_gpu_axes(f, read->value);
    for (i = 0; read && i < sizeof gpu_series / sizeof gpu_series[0]; i++) {
        double best = draw_gpu_series(f, i, read->value);
        char text[96];
        if (best <= 0) continue;
        (void)snprintf(text, sizeof text, "%s: best %.2f", gpu_series[i].label, best);
        fprintf(f, "<circle cx=\"%d\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", RIGHT + 24, y - 4, gpu_series[i].colour);
        draw_text(f, RIGHT + 36, y, "start", text);
        y += 24;
    }
    draw_text(f, RIGHT + 18, y + 12, "start", "A point for each shape, batch, context.");
    fprintf(f, "</svg>\n");
    fclose(f);
}

int main(int argc, char **argv)
{
    int i, gpu = argc > 1 && !strcmp(argv[1], "--cuda");
    argv += gpu;
    argc -= gpu;
    if (argc < 4) {
        fprintf(stderr, "usage: report [--cuda] OUT.md OUT.svg LOG...\n");
        return 2;
    }
    if (gpu) facts = gpu_facts;
    for (i = 3; i < argc; i++) read_log(argv[i]);
    write_tables(argv[1], argv[2]);
    if (gpu) write_gpu_plot(argv[2]);
    else write_plot(argv[2]);
    printf("Wrote %s and %s: %d figures.\n", argv[1], argv[2], figure_count);
    return 0;
}
