/* ptx.c - the PTX interpreter of ptx.h. Parts: types and opcodes, the parser, values, memory, instructions of a thread,
   of a warp, blocks. "PTX ISA" is NVIDIA's manual of that name. */
#include "tests/cuda/ptx.h"

#include <ctype.h>
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* == TYPES == */

/* Generic addresses of shared, local and parameter memory lie in windows that no host pointer reaches. */
#define SHARED_WINDOW 0x7f01000000000000u
#define LOCAL_WINDOW 0x7f02000000000000u
#define PARAM_WINDOW 0x7f03000000000000u

enum { NO_SPACE, GLOBAL, SHARED, LOCAL, PARAM, GENERIC };
enum { MAX_OPERANDS = 20, MAX_PARAMETERS = 64, MAX_COPIES = 128, MAX_THREADS = 1024, MAX_CALLS = 16 };

/* kind: u s b f, h half, B bfloat16, p predicate. packed: two of 16 bits, in 32. */
typedef struct type { char kind; unsigned char bits, packed; } type;

typedef enum operand_kind { SINK, REGISTER, IMMEDIATE, SPECIAL, SYMBOL, DYNAMIC_SYMBOL } operand_kind;

typedef struct operand {
    operand_kind kind;
    int negated;          /* a predicate with ! */
    int reg;              /* number of the register or special register */
    int64_t value;        /* immediate, address of a symbol, offset from a register */
} operand;

/* What a modifier means, where it means anything. */
enum {
    F_WIDE = 1, F_HIGH = 1 << 1, F_SATURATE = 1 << 2, F_FLUSH = 1 << 3, F_TO = 1 << 4, F_TRANSPOSE = 1 << 5,
    F_ZERO = 1 << 6, F_DOWN = 1 << 7, F_UP = 1 << 8, F_INTEGER = 1 << 9, F_LEFT = 1 << 10, F_WRAP = 1 << 11,
    F_NAN = 1 << 12, F_COMMIT = 1 << 13, F_WAIT = 1 << 14, F_ALL = 1 << 15, F_WARP = 1 << 16, F_SHIFT = 1 << 17,
    F_UNPACK = 1 << 18, F_PAIR = 1 << 19, F_NEAREST = 1 << 20
};

/* Modes: the operation of atom, red, redux, vote, shfl, and of the second part of setp. */
typedef enum mode {
    NO_MODE, M_ADD, M_MIN, M_MAX, M_AND, M_OR, M_XOR, M_EXCH, M_CAS, M_INC, M_DEC, M_BALLOT, M_ANY, M_ALL, M_UNI,
    M_UPWARD, M_DOWNWARD, M_BUTTERFLY, M_INDEX, M_M16N8K32, M_M16N8K16, M_M16N8K8, M_M8N8K16
} mode;

typedef enum compare { NO_COMPARE, C_EQ, C_NE, C_LT, C_LE, C_GT, C_GE, C_NUM, C_NAN } compare;

typedef struct instruction instruction;
typedef struct machine machine;
typedef struct thread thread;
typedef void (*handler)(machine *, thread *, const instruction *);

struct instruction {
    handler run;
    const char *name;
    int code;                          /* which of the operations that a handler knows */
    unsigned flags;
    mode mode;
    compare compare;
    int unordered;                     /* ltu, equ, ...: true for NaN */
    int vector;                        /* elements of ld and st; of ldmatrix */
    int space, other_space;
    int types, operands;
    int guard, guard_negated;          /* register of the predicate, or -1 */
    int target;                        /* of bra: instruction; of call: function */
    int result_at;                     /* of call: local memory for the result; the operands are that of parameters */
    int line, source;                  /* in the PTX, in the kernel */
    type type[4];
    operand operand[MAX_OPERANDS];
};

typedef struct symbol { char *name; int space; uint64_t value; size_t bytes, alignment; int is_dynamic; } symbol;
typedef struct declaration { char *name; int count, first, depth; } declaration;   /* count 0: one register */
typedef struct label { char *name; int at, depth; } label;

/* Functions are kernels, too. Nothing calls itself, so registers, local memory and what calls pass on have places of
   their own in each thread, which no other kernel or function of the module shares. */
typedef struct kernel {
    char *name;
    int is_function;
    size_t result_bytes, result_at;    /* of a function, in local memory, as its parameters */
    instruction *code;
    int length, room;
    struct { size_t offset, bytes; } parameter[MAX_PARAMETERS];
    int parameters;
    size_t parameter_bytes, shared_bytes, dynamic_alignment;
    unsigned max_threads;              /* of .maxntid or .reqntid, or 0 */
    int uses_dynamic;
    symbol *symbol;
    int symbols;
    declaration *declared;
    int declarations;
    label *label, *jump;               /* jump: names that bra uses; at: the instruction */
    int labels, jumps;
} kernel;

struct ptx_module {
    kernel *kernel;
    int kernels;
    symbol *symbol;                    /* global and const: value is the address of memory of ours */
    int symbols, registers;
    size_t local_bytes;
    struct { char *name; int kernel, at; } call[256];
    int calls;
};

/* == WORDS == */

static int find_type(const char *word, type *out)
{
    static const struct { const char *name; type type; } types[] = {
        {"u8", {'u', 8, 0}}, {"u16", {'u', 16, 0}}, {"u32", {'u', 32, 0}}, {"u64", {'u', 64, 0}},
        {"s8", {'s', 8, 0}}, {"s16", {'s', 16, 0}}, {"s32", {'s', 32, 0}}, {"s64", {'s', 64, 0}},
        {"b8", {'b', 8, 0}}, {"b16", {'b', 16, 0}}, {"b32", {'b', 32, 0}}, {"b64", {'b', 64, 0}},
        {"f16", {'h', 16, 0}}, {"f32", {'f', 32, 0}}, {"f64", {'f', 64, 0}}, {"pred", {'p', 1, 0}},
        {"bf16", {'B', 16, 0}}, {"f16x2", {'h', 32, 1}}, {"bf16x2", {'B', 32, 1}}
    };
    size_t i;
    for (i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(types[i].name, word)) {
            *out = types[i].type;
            return 1;
        }
    return 0;
}

typedef struct word_meaning { const char *word; unsigned flags; int value; } word_meaning;

static const word_meaning flag_words[] = {
    {"wide", F_WIDE, 0}, {"hi", F_HIGH, 0}, {"sat", F_SATURATE, 0}, {"ftz", F_FLUSH, 0}, {"to", F_TO, 0},
    {"trans", F_TRANSPOSE, 0}, {"rn", F_NEAREST, 0}, {"rz", F_ZERO, 0}, {"rm", F_DOWN, 0}, {"rp", F_UP, 0},
    {"rni", F_INTEGER, 0}, {"rzi", F_INTEGER | F_ZERO, 0}, {"rmi", F_INTEGER | F_DOWN, 0}, {"rpi", F_INTEGER | F_UP, 0},
    {"l", F_LEFT, 0}, {"wrap", F_WRAP, 0}, {"NaN", F_NAN, 0}, {"commit_group", F_COMMIT, 0}, {"wait_group", F_WAIT, 0},
    {"wait_all", F_WAIT | F_ALL, 0}, {"warp", F_WARP, 0}, {"shiftamt", F_SHIFT, 0}, {NULL, 0, 0}
};

static const word_meaning mode_words[] = {
    {"add", 0, M_ADD}, {"min", 0, M_MIN}, {"max", 0, M_MAX}, {"and", 0, M_AND}, {"or", 0, M_OR}, {"xor", 0, M_XOR},
    {"exch", 0, M_EXCH}, {"cas", 0, M_CAS}, {"inc", 0, M_INC}, {"dec", 0, M_DEC}, {"ballot", 0, M_BALLOT},
    {"any", 0, M_ANY}, {"all", 0, M_ALL}, {"uni", 0, M_UNI}, {"up", 0, M_UPWARD}, {"down", 0, M_DOWNWARD},
    {"bfly", 0, M_BUTTERFLY}, {"idx", 0, M_INDEX}, {"m16n8k32", 0, M_M16N8K32}, {"m16n8k16", 0, M_M16N8K16},
    {"m16n8k8", 0, M_M16N8K8}, {"m8n8k16", 0, M_M8N8K16}, {NULL, 0, 0}
};

static const word_meaning space_words[] = {
    {"global", 0, GLOBAL}, {"const", 0, GLOBAL}, {"shared", 0, SHARED}, {"shared::cta", 0, SHARED}, {"local", 0, LOCAL},
    {"param", 0, PARAM}, {NULL, 0, 0}
};

static const word_meaning vector_words[] = {
    {"v2", 0, 2}, {"v4", 0, 4}, {"v8", 0, 8}, {"x1", 0, 1}, {"x2", 0, 2}, {"x4", 0, 4}, {NULL, 0, 0}
};

/* flags: 1 is the form that is true for NaN. lo, ls, hi, hs are the unsigned comparisons. */
static const word_meaning compare_words[] = {
    {"eq", 0, C_EQ}, {"ne", 0, C_NE}, {"lt", 0, C_LT}, {"le", 0, C_LE}, {"gt", 0, C_GT}, {"ge", 0, C_GE},
    {"lo", 0, C_LT}, {"ls", 0, C_LE}, {"hi", 0, C_GT}, {"hs", 0, C_GE}, {"equ", 1, C_EQ}, {"neu", 1, C_NE},
    {"ltu", 1, C_LT}, {"leu", 1, C_LE}, {"gtu", 1, C_GT}, {"geu", 1, C_GE}, {"num", 0, C_NUM}, {"nan", 0, C_NAN},
    {NULL, 0, 0}
};

static const word_meaning *find_word(const word_meaning *list, const char *word)
{
    for (; list->word; list++)
        if (!strcmp(list->word, word)) return list;
    return NULL;
}

static const char *const special_names[] = {
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x",
    "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt",
    "%lanemask_ge", "%clock", "%clock64", NULL
};

/* == OPCODES == */

/* Operations of the two arithmetic handlers. */
enum {
    I_ADD, I_SUB, I_MUL, I_MAD, I_DIV, I_REM, I_ABS, I_NEG, I_MIN, I_MAX, I_AND, I_OR, I_XOR, I_NOT, I_SHL, I_SHR,
    I_SHF, I_LOP3, I_PRMT, I_BFE, I_BFI, I_BFIND, I_BREV, I_CLZ, I_POPC, I_DP4A
};
enum {
    X_ADD, X_SUB, X_MUL, X_FMA, X_DIV, X_RCP, X_SQRT, X_RSQRT, X_EX2, X_LG2, X_SIN, X_COS, X_TANH, X_NEG, X_ABS, X_MIN,
    X_MAX, X_COPYSIGN
};
enum { W_SHUFFLE, W_VOTE, W_REDUX, W_SYNC, W_MMA, W_LDMATRIX };

static void run_integer(machine *, thread *, const instruction *);
static void run_float(machine *, thread *, const instruction *);
static void run_compare(machine *, thread *, const instruction *);
static void run_select(machine *, thread *, const instruction *);
static void run_move(machine *, thread *, const instruction *);
static void run_convert(machine *, thread *, const instruction *);
static void run_load(machine *, thread *, const instruction *);
static void run_store(machine *, thread *, const instruction *);
static void run_address(machine *, thread *, const instruction *);
static void run_atomic(machine *, thread *, const instruction *);
static void run_copy(machine *, thread *, const instruction *);
static void run_branch(machine *, thread *, const instruction *);
static void run_call(machine *, thread *, const instruction *);
static void run_return(machine *, thread *, const instruction *);
static void run_exit(machine *, thread *, const instruction *);
static void run_trap(machine *, thread *, const instruction *);
static void run_barrier(machine *, thread *, const instruction *);
static void run_warp(machine *, thread *, const instruction *);
static void run_nothing(machine *, thread *, const instruction *);
static void run_active(machine *, thread *, const instruction *);

/* kinds: of the first type, "" where there is none. words: the modifiers known, besides types. */
typedef struct opcode {
    const char *name, *kinds, *words;
    int least, most;                   /* operands */
    handler run;
    int code;
} opcode;

#define MEMORY_WORDS "global shared shared::cta local param const v2 v4 v8 volatile relaxed acquire release weak nc " \
    "cta gpu sys ca cg cs lu cv wb wt"

static const opcode opcodes[] = {
    {"add", "us", "", 3, 3, run_integer, I_ADD}, {"sub", "us", "", 3, 3, run_integer, I_SUB},
    {"mul", "us", "lo hi wide", 3, 3, run_integer, I_MUL}, {"mad", "us", "lo hi wide", 4, 4, run_integer, I_MAD},
    {"div", "us", "", 3, 3, run_integer, I_DIV}, {"rem", "us", "", 3, 3, run_integer, I_REM},
    {"abs", "s", "", 2, 2, run_integer, I_ABS}, {"neg", "s", "", 2, 2, run_integer, I_NEG},
    {"min", "us", "", 3, 3, run_integer, I_MIN}, {"max", "us", "", 3, 3, run_integer, I_MAX},
    {"and", "bp", "", 3, 3, run_integer, I_AND}, {"or", "bp", "", 3, 3, run_integer, I_OR},
    {"xor", "bp", "", 3, 3, run_integer, I_XOR}, {"not", "bp", "", 2, 2, run_integer, I_NOT},
    {"shl", "b", "", 3, 3, run_integer, I_SHL}, {"shr", "usb", "", 3, 3, run_integer, I_SHR},
    {"shf", "b", "l r wrap clamp", 4, 4, run_integer, I_SHF}, {"lop3", "b", "", 5, 5, run_integer, I_LOP3},
    {"prmt", "b", "", 4, 4, run_integer, I_PRMT}, {"bfe", "us", "", 4, 4, run_integer, I_BFE},
    {"bfi", "b", "", 5, 5, run_integer, I_BFI}, {"bfind", "us", "shiftamt", 2, 2, run_integer, I_BFIND},
    {"brev", "b", "", 2, 2, run_integer, I_BREV}, {"clz", "b", "", 2, 2, run_integer, I_CLZ},
    {"popc", "b", "", 2, 2, run_integer, I_POPC}, {"dp4a", "us", "", 4, 4, run_integer, I_DP4A},

    {"add", "f", "rn rz rm rp ftz sat", 3, 3, run_float, X_ADD}, {"add", "hB", "rn sat", 3, 3, run_float, X_ADD},
    {"sub", "f", "rn rz rm rp ftz sat", 3, 3, run_float, X_SUB}, {"sub", "hB", "rn sat", 3, 3, run_float, X_SUB},
    {"mul", "f", "rn rz rm rp ftz sat", 3, 3, run_float, X_MUL}, {"mul", "hB", "rn sat", 3, 3, run_float, X_MUL},
    {"fma", "f", "rn rz rm rp ftz sat", 4, 4, run_float, X_FMA}, {"fma", "hB", "rn sat", 4, 4, run_float, X_FMA},
    {"mad", "f", "rn rz rm rp ftz sat", 4, 4, run_float, X_FMA},
    {"div", "f", "rn approx full ftz", 3, 3, run_float, X_DIV},
    {"rcp", "f", "rn approx ftz", 2, 2, run_float, X_RCP}, {"sqrt", "f", "rn approx ftz", 2, 2, run_float, X_SQRT},
    {"rsqrt", "f", "approx ftz", 2, 2, run_float, X_RSQRT}, {"ex2", "f", "approx ftz", 2, 2, run_float, X_EX2},
    {"lg2", "f", "approx ftz", 2, 2, run_float, X_LG2}, {"sin", "f", "approx ftz", 2, 2, run_float, X_SIN},
    {"cos", "f", "approx ftz", 2, 2, run_float, X_COS}, {"tanh", "f", "approx", 2, 2, run_float, X_TANH},
    {"neg", "fhB", "ftz", 2, 2, run_float, X_NEG}, {"abs", "fhB", "ftz", 2, 2, run_float, X_ABS},
    {"min", "fhB", "ftz NaN", 3, 4, run_float, X_MIN}, {"max", "fhB", "ftz NaN", 3, 4, run_float, X_MAX},
    {"copysign", "f", "", 3, 3, run_float, X_COPYSIGN},

    {"setp", "usbfhB", "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan ftz and or xor", 3, 5,
     run_compare, 0},
    {"selp", "usbf", "", 4, 4, run_select, 0}, {"mov", "usbfp", "", 2, 5, run_move, 0},
    {"cvt", "usfhB", "rn rz rni rzi rmi rpi ftz sat", 2, 3, run_convert, 0},
    {"cvta", "u", "to global shared shared::cta local const param", 2, 2, run_address, 0},
    {"ld", "usbf", MEMORY_WORDS, 2, 9, run_load, 0}, {"ldu", "usbf", MEMORY_WORDS, 2, 9, run_load, 0},
    {"st", "usbf", MEMORY_WORDS, 2, 9, run_store, 0},
    {"atom", "usbf", "global shared shared::cta relaxed acquire release acq_rel gpu cta sys add min max and or xor "
     "exch cas inc dec", 3, 4, run_atomic, 1},
    {"red", "usbf", "global shared shared::cta relaxed release gpu cta sys add min max and or xor inc dec", 2, 2,
     run_atomic, 0},
    {"cp", "", "async ca cg shared shared::cta global commit_group wait_group wait_all", 0, 4, run_copy, 0},

    {"bra", "", "uni", 0, 0, run_branch, 0}, {"ret", "", "uni", 0, 0, run_return, 0},
    {"call", "", "uni", 0, 0, run_call, 0}, {"exit", "", "", 0, 0, run_exit, 0}, {"trap", "", "", 0, 0, run_trap, 0},
    {"bar", "", "sync warp cta", 1, 1, run_barrier, W_SYNC},
    {"barrier", "", "sync cta aligned", 1, 1, run_barrier, W_SYNC},
    {"membar", "", "gl cta sys", 0, 0, run_nothing, 0}, {"fence", "", "sc acq_rel gpu cta sys", 0, 0, run_nothing, 0},
    {"prefetch", "", "global L1 L2", 1, 1, run_nothing, 0}, {"activemask", "b", "", 1, 1, run_active, 0},

    {"shfl", "b", "sync up down bfly idx", 5, 6, run_warp, W_SHUFFLE},
    {"vote", "bp", "sync ballot any all uni", 3, 3, run_warp, W_VOTE},
    {"redux", "usb", "sync add min max and or xor", 3, 3, run_warp, W_REDUX},
    {"mma", "sf", "sync aligned row col m16n8k32 m16n8k16 m16n8k8 m8n8k16", 6, 14, run_warp, W_MMA},
    {"ldmatrix", "b", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta", 2, 5, run_warp, W_LDMATRIX},
    {NULL, NULL, NULL, 0, 0, NULL, 0}
};

/* Whether a word stands in a list of words. Hints to caches (L1::..., L2::...) may stand at any access. */
static int in_list(const char *list, const char *word)
{
    size_t n = strlen(word);
    const char *at = list;
    if (!strncmp(word, "L1::", 4) || !strncmp(word, "L2::", 4)) return strstr(list, "global") != NULL;
    while ((at = strstr(at, word)) != NULL) {
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
        at += n;
    }
    return 0;
}

/* == PARSER == */

typedef struct parser {
    const char *at;
    int line, source, depth;
    ptx_module *module;
    kernel *kernel;                  /* NULL between kernels */
    char *error;
    size_t error_bytes;
    jmp_buf stop;
} parser;

static void parse_fail(parser *p, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(p->error, p->error_bytes, "PTX line %d: %s", p->line, text);
    longjmp(p->stop, 1);
}

static void *grow(void *list, int count, size_t size)   /* room for one more */
{
    void *bigger;
    if (count & (count - 1)) return list;   /* doubles at powers of 2 */
    bigger = realloc(list, (count ? (size_t)count * 2 : 1) * size);
    if (!bigger) abort();
    return bigger;
}

static char *copy_text(const char *text, size_t n)
{
    char *copy = (char *)malloc(n + 1);
    if (!copy) abort();
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

static int is_name(int c) { return isalnum(c) || c == '_' || c == '$' || c == '%'; }

static void skip_space(parser *p)
{
    for (; *p->at; p->at++) {
        if (p->at[0] == '/' && p->at[1] == '/') {
            while (p->at[1] && p->at[1] != '\n') p->at++;
        } else if (p->at[0] == '/' && p->at[1] == '*') {
            for (p->at += 2; *p->at && !(p->at[0] == '*' && p->at[1] == '/'); p->at++) p->line += *p->at == '\n';
            if (!*p->at) parse_fail(p, "a comment without an end");
            p->at++;
        } else if (*p->at == '\n') p->line++;
        else if (!isspace((unsigned char)*p->at)) return;
    }
}

static void skip_line(parser *p)
{
    while (*p->at && *p->at != '\n') p->at++;
}

static void expect(parser *p, char c)
{
    skip_space(p);
    if (*p->at != c) parse_fail(p, "'%c' expected before '%.20s'", c, p->at);
    p->at++;
}

static int accept(parser *p, char c)
{
    skip_space(p);
    if (*p->at != c) return 0;
    p->at++;
    return 1;
}

/* A name of letters, digits, _ $ %; with `colons` also ::. */
static void read_name(parser *p, char *name, size_t room, int colons)
{
    size_t n = 0;
    while (is_name((unsigned char)*p->at) || (colons && *p->at == ':')) {
        if (n + 1 == room) parse_fail(p, "a name of more than %d letters", (int)room - 1);
        name[n++] = *p->at++;
    }
    name[n] = 0;
    if (!n) parse_fail(p, "a name expected before '%.20s'", p->at);
}

static int64_t read_number(parser *p)
{
    char *end;
    int64_t value;
    skip_space(p);
    if (p->at[0] == '0' && strchr("fFdD", p->at[1]) && p->at[1]) value = (int64_t)strtoull(p->at + 2, &end, 16);
    else if (*p->at == '-') value = strtoll(p->at, &end, 0);
    else value = (int64_t)strtoull(p->at, &end, 0);
    if (end == p->at || (end == p->at + 1 && *p->at == '-')) parse_fail(p, "a number expected before '%.20s'", p->at);
    p->at = end;
    if (*p->at == 'U') p->at++;
    return value;
}

/* -- variables -- */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static symbol *find_symbol(symbol *list, int count, const char *name)
{
    int i;
    for (i = count - 1; i >= 0; i--)   /* the innermost: each call declares param0 anew */
        if (!strcmp(list[i].name, name)) return &list[i];
    return NULL;
}

static symbol *add_symbol(symbol **list, int *count, const char *name)
{
    symbol *s;
    *list = (symbol *)grow(*list, *count, sizeof **list);
    s = &(*list)[(*count)++];
    memset(s, 0, sizeof *s);
    s->name = copy_text(name, strlen(name));
    return s;
}

typedef struct variable { char name[256]; type type; size_t bytes, alignment; int has_values; } variable;

/* What follows .shared, .param and so on: `.align 4 .b8 name[16]`. */
static void read_variable(parser *p, variable *v)
{
    char word[64];
    size_t count = 1;
    memset(v, 0, sizeof *v);
    while (accept(p, '.')) {
        read_name(p, word, sizeof word, 1);
        if (!strcmp(word, "align")) v->alignment = (size_t)read_number(p);
        else if (!strcmp(word, "ptr")) {   /* of a parameter: where it points, which says nothing about itself */
            while (accept(p, '.')) {
                read_name(p, word, sizeof word, 0);
                if (!strcmp(word, "align")) read_number(p);
            }
        } else if (!find_type(word, &v->type)) parse_fail(p, "unknown type .%s", word);
    }
    if (!v->type.bits) parse_fail(p, "a variable without a type");
    read_name(p, v->name, sizeof v->name, 0);
    while (accept(p, '[')) {
        count = accept(p, ']') ? 0 : count * (size_t)read_number(p);
        if (count) expect(p, ']');
    }
    v->bytes = count * (v->type.bits / 8u);
    if (!v->alignment) v->alignment = v->type.bits / 8u;
    v->has_values = accept(p, '=');
}

static void read_values(parser *p, const variable *v, unsigned char *memory)
{
    size_t element = v->type.bits / 8u, at = 0;
    int braces = accept(p, '{');
    do {
        int64_t value = read_number(p);
        if (at + element > v->bytes) parse_fail(p, "too many values for %s", v->name);
        memcpy(memory + at, &value, element);   /* little endian, as the device */
        at += element;
    } while (braces && accept(p, ','));
    if (braces) expect(p, '}');
}

static void read_module_variable(parser *p, const char *space, int is_extern)
{
    variable v;
    symbol *s;
    read_variable(p, &v);
    s = add_symbol(&p->module->symbol, &p->module->symbols, v.name);
    s->bytes = v.bytes;
    s->alignment = v.alignment;
    s->space = !strcmp(space, "shared") ? SHARED : GLOBAL;
    s->is_dynamic = s->space == SHARED && is_extern;
    if (s->space == GLOBAL) {
        unsigned char *memory = (unsigned char *)calloc(1, v.bytes + 64);
        if (!memory) abort();
        s->value = (uint64_t)(uintptr_t)memory;
        if (s->value % v.alignment) parse_fail(p, "%s: no memory of alignment %d", v.name, (int)v.alignment);
        if (v.has_values) read_values(p, &v, memory);
    }
    expect(p, ';');
}

static void place_symbol(symbol *s, size_t *total, const variable *v)
{
    *total = round_up(*total, v->alignment);
    s->value = *total;
    s->bytes = v->bytes;
    s->alignment = v->alignment;
    *total += v->bytes;
}

static void read_kernel_variable(parser *p, const char *space)
{
    kernel *k = p->kernel;
    variable v;
    symbol *s;
    int is_shared = !strcmp(space, "shared");
    read_variable(p, &v);
    s = add_symbol(&k->symbol, &k->symbols, v.name);
    s->space = is_shared ? SHARED : LOCAL;
    place_symbol(s, is_shared ? &k->shared_bytes : &p->module->local_bytes, &v);
    expect(p, ';');
}

/* A variable by its name. Shared ones of the module get their place in each kernel that names them. */
static symbol *use_symbol(parser *p, const char *name)
{
    kernel *k = p->kernel;
    symbol *s = find_symbol(k->symbol, k->symbols, name), *of_module;
    if (s) return s;
    of_module = find_symbol(p->module->symbol, p->module->symbols, name);
    if (!of_module || of_module->space != SHARED) return of_module;
    if (k->is_function) parse_fail(p, "a function that names shared memory: %s", name);
    s = add_symbol(&k->symbol, &k->symbols, name);
    s->space = SHARED;
    s->bytes = of_module->bytes;
    s->alignment = of_module->alignment;
    s->is_dynamic = of_module->is_dynamic;
    if (s->is_dynamic) {
        k->uses_dynamic = 1;
        if (s->alignment > k->dynamic_alignment) k->dynamic_alignment = s->alignment;
    } else {
        k->shared_bytes = round_up(k->shared_bytes, s->alignment);
        s->value = k->shared_bytes;
        k->shared_bytes += s->bytes;
    }
    return s;
}

/* -- registers -- */

static void read_registers(parser *p)
{
    kernel *k = p->kernel;
    type t;
    char word[64], name[256];
    expect(p, '.');
    read_name(p, word, sizeof word, 0);
    if (!find_type(word, &t)) parse_fail(p, "registers of an unknown type .%s", word);
    do {
        declaration *d;
        skip_space(p);
        read_name(p, name, sizeof name, 0);
        k->declared = (declaration *)grow(k->declared, k->declarations, sizeof *k->declared);
        d = &k->declared[k->declarations++];
        d->name = copy_text(name, strlen(name));
        d->first = p->module->registers;
        d->depth = p->depth;
        d->count = 0;
        if (accept(p, '<')) {
            d->count = (int)read_number(p);
            expect(p, '>');
        }
        p->module->registers += d->count ? d->count : 1;
    } while (accept(p, ','));
    expect(p, ';');
}

/* The innermost declaration holds. */
static int find_register(parser *p, const char *name)
{
    kernel *k = p->kernel;
    int i;
    for (i = k->declarations - 1; i >= 0; i--) {
        const declaration *d = &k->declared[i];
        size_t n = strlen(d->name);
        if (strncmp(d->name, name, n)) continue;
        if (!d->count) {
            if (!name[n]) return d->first;
        } else if (isdigit((unsigned char)name[n])) {
            char *end;
            long number = strtol(name + n, &end, 10);
            if (!*end && number < d->count) return d->first + (int)number;
        }
    }
    return -1;
}

static void end_scope(parser *p)
{
    kernel *k = p->kernel;
    p->depth--;
    while (k->declarations && k->declared[k->declarations - 1].depth > p->depth)
        free(k->declared[--k->declarations].name);
}

/* -- instructions -- */

static void read_operand(parser *p, instruction *i, operand *o)
{
    char name[256];
    const symbol *s;
    int j;
    memset(o, 0, sizeof *o);
    skip_space(p);
    if (accept(p, '!')) o->negated = 1;
    if (isdigit((unsigned char)*p->at) || *p->at == '-') {
        o->kind = IMMEDIATE;
        o->value = read_number(p);
        return;
    }
    read_name(p, name, sizeof name, 0);
    if (!strcmp(name, "_")) return;
    if (*p->at == '.' && name[0] == '%') {
        size_t n = strlen(name);
        name[n] = '.';
        p->at++;
        read_name(p, name + n + 1, sizeof name - n - 1, 0);
    }
    for (j = 0; special_names[j]; j++)
        if (!strcmp(special_names[j], name)) {
            o->kind = SPECIAL;
            o->reg = j;
            return;
        }
    o->reg = find_register(p, name);
    o->kind = REGISTER;
    if (o->reg >= 0) return;
    s = use_symbol(p, name);
    if (!s) parse_fail(p, "neither a register nor a variable: %s", name);
    o->kind = s->is_dynamic ? DYNAMIC_SYMBOL : SYMBOL;
    o->value = (int64_t)s->value;
    if (i && i->space == PARAM) i->space = s->space;   /* what calls pass on lies in local memory */
}

static void read_operands(parser *p, instruction *i)
{
    skip_space(p);
    if (*p->at == '{') i->flags |= F_UNPACK;
    while (!accept(p, ';')) {
        operand *o = &i->operand[i->operands];
        if (accept(p, ',') || accept(p, '{') || accept(p, '}')) continue;
        if (accept(p, '|')) {
            i->flags |= F_PAIR;
            continue;
        }
        if (i->operands == MAX_OPERANDS) parse_fail(p, "%s: too many operands", i->name);
        if (accept(p, '[')) {
            read_operand(p, i, o);
            if (accept(p, '+')) o->value += read_number(p);
            expect(p, ']');
        } else
            read_operand(p, i, o);
        i->operands++;
    }
}

/* The modifiers of one instruction, and the type of it that chooses the row of the table. */
typedef struct modifiers { char word[24][32]; int words; } modifiers;

static void read_modifiers(parser *p, instruction *i, modifiers *m)
{
    type t;
    m->words = 0;
    while (*p->at == '.') {
        p->at++;
        if (m->words == 24) parse_fail(p, "too many modifiers");
        read_name(p, m->word[m->words], sizeof m->word[0], 1);
        if (find_type(m->word[m->words], &t)) {
            if (i->types == 4) parse_fail(p, "too many types");
            i->type[i->types++] = t;
        } else
            m->words++;
    }
}

static void apply_word(parser *p, instruction *i, const char *word)
{
    const word_meaning *w;
    if (!strcmp(i->name, "setp") && (w = find_word(compare_words, word)) != NULL) {
        i->compare = (compare)w->value;
        i->unordered = w->flags == 1;
    } else if ((w = find_word(space_words, word)) != NULL) {
        if (i->space) i->other_space = w->value;
        else i->space = w->value;
    } else if ((w = find_word(vector_words, word)) != NULL) i->vector = w->value;
    else if ((w = find_word(flag_words, word)) != NULL) i->flags |= w->flags;
    else if ((w = find_word(mode_words, word)) != NULL) {
        if (i->mode) parse_fail(p, "%s: two modes", i->name);
        i->mode = (mode)w->value;
    }
}

static const opcode *find_opcode(parser *p, const char *name, const instruction *i, const modifiers *m)
{
    const opcode *o;
    const char *unknown = NULL;
    int j, seen = 0;
    for (o = opcodes; o->name; o++) {
        if (strcmp(o->name, name)) continue;
        seen = 1;
        if (i->types ? !strchr(o->kinds, i->type[0].kind) : o->kinds[0] != 0) continue;
        for (unknown = NULL, j = 0; j < m->words; j++)
            if (!in_list(o->words, m->word[j])) unknown = m->word[j];
        if (!unknown) return o;
    }
    if (unknown) parse_fail(p, "%s: unknown modifier .%s", name, unknown);
    parse_fail(p, seen ? "%s: not with this type" : "unknown opcode %s", name);
    return NULL;
}

/* -- what the table cannot say -- */

static int is_float(type t) { return t.kind == 'f' || t.kind == 'h' || t.kind == 'B'; }

static void check_mma(parser *p, const instruction *i)
{
    const type *t = i->type;
    int integers = t[0].kind == 's' && t[0].bits == 32 && t[1].bits == 8 && t[2].bits == 8 && strchr("us", t[1].kind) &&
        strchr("us", t[2].kind) && t[3].kind == 's' && t[3].bits == 32;
    int halves = t[0].kind == 'f' && t[0].bits == 32 && t[1].kind == t[2].kind && strchr("hB", t[1].kind) &&
        t[1].bits == 16 && t[3].kind == 'f' && t[3].bits == 32;
    int of_integers = i->mode == M_M16N8K32 || i->mode == M_M16N8K16 || i->mode == M_M8N8K16;
    int of_halves = i->mode == M_M16N8K16 || i->mode == M_M16N8K8;
    int want = i->mode == M_M8N8K16 ? 6 : i->mode == M_M16N8K8 || (i->mode == M_M16N8K16 && integers) ? 11 : 14;
    int known = i->types == 4 && ((integers && of_integers) || (halves && of_halves));
    if (!known) parse_fail(p, "mma of this shape or these types");
    if (i->operands != want) parse_fail(p, "mma: %d operands, not %d", i->operands, want);
}

/* Conversions that this interpreter rounds as a GPU does. */
static void check_convert(parser *p, const instruction *i)
{
    type to = i->type[0], from = i->type[1];
    int rounds = (i->flags & (F_ZERO | F_DOWN | F_UP)) && !(i->flags & F_INTEGER);
    if (i->types != 2) parse_fail(p, "cvt needs two types");
    if (from.packed || from.kind == 'b') parse_fail(p, "cvt from this type");
    if (to.packed != (i->operands == 3)) parse_fail(p, "cvt: operands");
    if (to.packed && (from.kind != 'f' || from.bits != 32)) parse_fail(p, "cvt to a pair from another type than f32");
    if (rounds && (to.kind == 'f' || !is_float(from))) parse_fail(p, "cvt: this rounding");
    if (is_float(from) && !is_float(to) && !(i->flags & F_INTEGER)) parse_fail(p, "cvt to an integer without .r?i");
}

static void check_instruction(parser *p, const instruction *i, const opcode *o)
{
    if (i->operands < o->least || i->operands > o->most)
        parse_fail(p, "%s: %d operands", i->name, i->operands);
    if (o->code == W_MMA && o->run == run_warp) check_mma(p, i);
    if (o->run == run_convert) check_convert(p, i);
    if (o->run == run_compare && (!i->compare || i->operands - !!(i->flags & F_PAIR) - !!i->mode != 3))
        parse_fail(p, "setp: comparison or operands");
    if (o->run == run_atomic && !i->mode) parse_fail(p, "%s without an operation", i->name);
    if (o->run == run_atomic && i->type[0].kind == 'f' && i->mode != M_ADD && i->mode != M_EXCH)
        parse_fail(p, "%s: this operation of floats", i->name);
    if (o->run == run_load && i->operands != i->vector + 1) parse_fail(p, "ld: operands");
    if (o->run == run_store && i->operands != i->vector + 1) parse_fail(p, "st: operands");
    if (o->run == run_copy && !(i->flags & (F_COMMIT | F_WAIT)) && i->operands < 3) parse_fail(p, "cp.async: operands");
    if (o->run == run_warp && o->code == W_LDMATRIX && i->operands != i->vector + 1)
        parse_fail(p, "ldmatrix: operands");
    if (o->run == run_warp && (o->code == W_SHUFFLE || o->code == W_VOTE || o->code == W_REDUX) && !i->mode)
        parse_fail(p, "%s without an operation", i->name);
    if (o->run == run_integer && (o->code == I_MUL || o->code == I_MAD) && i->flags & F_WIDE && i->type[0].bits > 32)
        parse_fail(p, "%s.wide of 64 bits", i->name);
    if (o->run == run_move && i->operands == 5 && i->type[0].bits < 32) parse_fail(p, "mov of a vector");
}

/* (result), function, (parameters): names of .param variables, which must exist. */
static void read_call(parser *p, instruction *i)
{
    ptx_module *m = p->module;
    char name[256];
    operand result;
    if (accept(p, '(')) {
        read_operand(p, NULL, &result);
        i->result_at = (int)result.value;
        expect(p, ')');
        expect(p, ',');
    }
    skip_space(p);
    read_name(p, name, sizeof name, 0);
    if (m->calls == 256) parse_fail(p, "more than 256 calls");
    m->call[m->calls].name = copy_text(name, strlen(name));
    m->call[m->calls].kernel = (int)(p->kernel - m->kernel);
    m->call[m->calls++].at = p->kernel->length;
    if (accept(p, ',')) {
        expect(p, '(');
        while (!accept(p, ')')) {
            if (i->operands == MAX_OPERANDS) parse_fail(p, "a call with more than %d parameters", MAX_OPERANDS);
            read_operand(p, NULL, &i->operand[i->operands++]);
            accept(p, ',');
        }
    }
    expect(p, ';');
}

static void read_jump(parser *p)
{
    kernel *k = p->kernel;
    char target[256];
    skip_space(p);
    read_name(p, target, sizeof target, 0);
    k->jump = (label *)grow(k->jump, k->jumps, sizeof *k->jump);
    k->jump[k->jumps].name = copy_text(target, strlen(target));
    k->jump[k->jumps++].at = k->length;
    expect(p, ';');
}

static void read_instruction(parser *p, const char *name, int guard, int guard_negated)
{
    kernel *k = p->kernel;
    const opcode *o;
    instruction *i;
    modifiers m;
    int j;
    k->code = (instruction *)grow(k->code, k->length, sizeof *k->code);
    i = &k->code[k->length];
    memset(i, 0, sizeof *i);
    i->name = name;
    i->guard = guard;
    i->guard_negated = guard_negated;
    i->vector = 1;
    i->line = p->line;
    i->source = p->source;
    read_modifiers(p, i, &m);
    o = find_opcode(p, name, i, &m);
    i->name = o->name;
    i->run = o->run;
    i->code = o->code;
    for (j = 0; j < m.words; j++)
        if (strcmp(m.word[j], "uni") || o->run == run_warp) apply_word(p, i, m.word[j]);
    if (o->run == run_branch) read_jump(p);
    else if (o->run == run_call) read_call(p, i);
    else {
        read_operands(p, i);
        check_instruction(p, i, o);
    }
    k->length++;
}

/* -- statements -- */

static void read_directive(parser *p)
{
    char word[64];
    read_name(p, word, sizeof word, 0);
    if (!strcmp(word, "reg")) read_registers(p);
    else if (!strcmp(word, "shared") || !strcmp(word, "local") || !strcmp(word, "param")) read_kernel_variable(p, word);
    else if (!strcmp(word, "loc")) {
        read_number(p);
        p->source = (int)read_number(p);
        skip_line(p);
    } else if (!strcmp(word, "pragma")) {
        while (*p->at && *p->at != ';') p->at++;
        expect(p, ';');
    } else
        parse_fail(p, "unknown directive .%s", word);
}

static void add_label(parser *p, const char *name)
{
    kernel *k = p->kernel;
    k->label = (label *)grow(k->label, k->labels, sizeof *k->label);
    k->label[k->labels].name = copy_text(name, strlen(name));
    k->label[k->labels++].at = k->length;
}

static void end_kernel(parser *p)
{
    kernel *k = p->kernel;
    int i, j;
    for (i = 0; i < k->jumps; i++) {
        for (j = 0; j < k->labels && strcmp(k->label[j].name, k->jump[i].name); j++) {}
        if (j == k->labels) parse_fail(p, "no label %s", k->jump[i].name);
        k->code[k->jump[i].at].target = k->label[j].at;
    }
    p->kernel = NULL;
}

static void read_statement(parser *p)
{
    char name[256];
    int guard = -1, negated = 0;
    if (accept(p, '{')) {
        p->depth++;
        return;
    }
    if (accept(p, '}')) {
        end_scope(p);
        if (!p->depth) end_kernel(p);
        return;
    }
    if (accept(p, '.')) {
        read_directive(p);
        return;
    }
    if (accept(p, '@')) {
        negated = accept(p, '!');
        read_name(p, name, sizeof name, 0);
        guard = find_register(p, name);
        if (guard < 0) parse_fail(p, "no predicate %s", name);
        skip_space(p);
    }
    read_name(p, name, sizeof name, 0);
    if (guard < 0 && accept(p, ':')) add_label(p, name);
    else read_instruction(p, name, guard, negated);
}

/* Of a kernel in the parameter space, of a function in local memory, where a call copies them to. */
static void read_parameters(parser *p)
{
    kernel *k = p->kernel;
    variable v;
    if (!accept(p, '(')) return;
    while (!accept(p, ')')) {
        symbol *s;
        char word[64];
        expect(p, '.');
        read_name(p, word, sizeof word, 0);
        if (strcmp(word, "param")) parse_fail(p, ".param expected, not .%s", word);
        read_variable(p, &v);
        if (k->parameters == MAX_PARAMETERS) parse_fail(p, "more than %d parameters", MAX_PARAMETERS);
        s = add_symbol(&k->symbol, &k->symbols, v.name);
        s->space = k->is_function ? LOCAL : PARAM;
        place_symbol(s, k->is_function ? &p->module->local_bytes : &k->parameter_bytes, &v);
        k->parameter[k->parameters].offset = (size_t)s->value;
        k->parameter[k->parameters++].bytes = v.bytes;
        accept(p, ',');
    }
}

/* The result of a function is declared as its parameters are. */
static void read_result(parser *p)
{
    kernel *k = p->kernel;
    read_parameters(p);
    if (k->parameters > 1) parse_fail(p, "a function with %d results", k->parameters);
    if (!k->parameters) return;
    k->result_at = k->parameter[0].offset;
    k->result_bytes = k->parameter[0].bytes;
    k->parameters = 0;
}

static void read_kernel(parser *p, int is_function)
{
    char name[256];
    kernel *k;
    p->module->kernel = (kernel *)grow(p->module->kernel, p->module->kernels, sizeof *p->module->kernel);
    k = p->kernel = &p->module->kernel[p->module->kernels++];
    memset(k, 0, sizeof *k);
    k->is_function = is_function;
    if (is_function) read_result(p);
    skip_space(p);
    read_name(p, name, sizeof name, 0);
    k->name = copy_text(name, strlen(name));
    k->dynamic_alignment = 16;
    read_parameters(p);
    while (accept(p, '.')) {   /* hints: only the number of threads binds a launch */
        unsigned numbers[3] = {1, 1, 1}, count = 0;
        read_name(p, name, sizeof name, 0);
        do {
            skip_space(p);
            if (!isdigit((unsigned char)*p->at)) break;
            numbers[count++] = (unsigned)read_number(p);
        } while (count < 3 && accept(p, ','));
        if (!strcmp(name, "maxntid") || !strcmp(name, "reqntid")) k->max_threads = numbers[0] * numbers[1] * numbers[2];
    }
    if (is_function && accept(p, ';')) {   /* declared only: the body comes later, under the same name */
        k->is_function = 2;
        p->kernel = NULL;
        return;
    }
    expect(p, '{');
    p->depth = 1;
}

/* A section of debugging data: braces and what is in them. */
static void skip_section(parser *p)
{
    while (*p->at && *p->at != '{') p->at++;
    while (*p->at && *p->at != '}') p->line += *p->at++ == '\n';
    expect(p, '}');
}

static void read_outside(parser *p)
{
    char word[64];
    int is_extern = 0;
    expect(p, '.');
    for (;;) {
        read_name(p, word, sizeof word, 0);
        is_extern |= !strcmp(word, "extern");
        if (strcmp(word, "visible") && strcmp(word, "extern") && strcmp(word, "weak")) break;
        expect(p, '.');
    }
    if (!strcmp(word, "version") || !strcmp(word, "target") || !strcmp(word, "address_size") || !strcmp(word, "file"))
        skip_line(p);
    else if (!strcmp(word, "section")) skip_section(p);
    else if (!strcmp(word, "entry") || !strcmp(word, "func")) read_kernel(p, word[0] == 'f');
    else if (!strcmp(word, "shared") || !strcmp(word, "global") || !strcmp(word, "const"))
        read_module_variable(p, word, is_extern);
    else parse_fail(p, ".%s is not supported", word);
}

static void resolve_calls(parser *p)
{
    ptx_module *m = p->module;
    int c, j;
    for (c = 0; c < m->calls; c++) {
        instruction *i = &m->kernel[m->call[c].kernel].code[m->call[c].at];
        p->line = i->line;
        for (j = 0; j < m->kernels; j++)
            if (m->kernel[j].is_function == 1 && !strcmp(m->kernel[j].name, m->call[c].name)) break;
        if (j == m->kernels) parse_fail(p, "no function %s", m->call[c].name);
        if (m->kernel[j].parameters != i->operands) parse_fail(p, "%s: other parameters", m->call[c].name);
        i->target = j;
    }
}

/* Whether all of the text was understood. */
static int read_module(parser *p, const char *text)
{
    if (setjmp(p->stop)) return 0;
    if (!strstr(text, ".version")) parse_fail(p, "no .version: not PTX");
    for (skip_space(p); *p->at; skip_space(p)) {
        if (p->kernel) read_statement(p);
        else read_outside(p);
    }
    if (p->kernel) parse_fail(p, "the text ends inside a kernel");
    resolve_calls(p);
    return 1;
}

ptx_module *ptx_load(const char *text, char *error, size_t error_bytes)
{
    parser p;
    memset(&p, 0, sizeof p);
    p.module = (ptx_module *)calloc(1, sizeof *p.module);
    if (!p.module) return NULL;
    p.at = text;
    p.line = 1;
    p.error = error;
    p.error_bytes = error_bytes;
    if (read_module(&p, text)) return p.module;
    ptx_free(p.module);
    return NULL;
}

static void free_kernel(kernel *k)
{
    int i;
    for (i = 0; i < k->symbols; i++) free(k->symbol[i].name);
    for (i = 0; i < k->declarations; i++) free(k->declared[i].name);
    for (i = 0; i < k->labels; i++) free(k->label[i].name);
    for (i = 0; i < k->jumps; i++) free(k->jump[i].name);
    free(k->symbol);
    free(k->declared);
    free(k->label);
    free(k->jump);
    free(k->code);
    free(k->name);
}

void ptx_free(ptx_module *module)
{
    int i;
    if (!module) return;
    for (i = 0; i < module->kernels; i++) free_kernel(&module->kernel[i]);
    for (i = 0; i < module->calls; i++) free(module->call[i].name);
    for (i = 0; i < module->symbols; i++) {
        if (module->symbol[i].space == GLOBAL) free((void *)(uintptr_t)module->symbol[i].value);
        free(module->symbol[i].name);
    }
    free(module->kernel);
    free(module->symbol);
    free(module);
}

static kernel *find_kernel(const ptx_module *module, const char *name)
{
    int i;
    for (i = 0; i < module->kernels; i++)
        if (!module->kernel[i].is_function && !strcmp(module->kernel[i].name, name)) return &module->kernel[i];
    return NULL;
}

int ptx_parameters(const ptx_module *module, const char *name, size_t *bytes)
{
    const kernel *k = find_kernel(module, name);
    int i;
    if (!k) return -1;
    for (i = 0; i < k->parameters && bytes; i++) bytes[i] = k->parameter[i].bytes;
    return k->parameters;
}

/* == VALUES == */

typedef enum thread_state { READY, AT_WARP, AT_BARRIER, DONE } thread_state;
typedef struct async_copy { uint64_t to; size_t bytes; int group, line; unsigned char data[16]; } async_copy;

struct thread {
    uint64_t *reg;
    int number, pc;
    thread_state state;
    const instruction *at;            /* what it runs or waits at */
    const kernel *code;               /* the kernel or function that pc counts in */
    struct { const kernel *code; int pc; } caller[MAX_CALLS];
    int depth;
    uint32_t mask, barrier;
    unsigned char *local, *local_written;
    int groups, copies;
    async_copy copy[MAX_COPIES];
};

/* Who touched a byte of shared memory last; stale when the epoch is another. several: other lanes of its warp, too. */
typedef struct touch { int16_t thread, several; uint32_t epoch, warp_epoch; } touch;
typedef struct shadow { touch writer, reader, other_reader; uint32_t block; unsigned char written, atomic; } shadow;

struct machine {
    ptx_module *module;
    kernel *kernel;
    ptx_options *options;
    thread *thread, *now;             /* now: whom a fault is reported for */
    unsigned threads;
    unsigned char *shared, *parameter;
    size_t shared_bytes, dynamic_at;
    shadow *shadow;
    uint32_t epoch, warp_epoch[MAX_THREADS / 32], block_number;
    ptx_size block, grid, index;
    uint64_t random;
    jmp_buf stop;
};

static const type U32 = {'u', 32, 0}, U64 = {'u', 64, 0}, B32 = {'b', 32, 0}, PREDICATE = {'p', 1, 0};

static void fail(machine *x, const char *format, ...)
{
    char text[256];
    const instruction *i = x->now ? x->now->at : NULL;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(x->options->error, sizeof x->options->error,
             "%s: kernel %s, block (%u, %u, %u), thread %d, PTX line %d (%s), source line %d", text, x->kernel->name,
             x->index.x, x->index.y, x->index.z, x->now ? x->now->number : -1, i ? i->line : 0, i ? i->name : "-",
             i ? i->source : 0);
    longjmp(x->stop, 1);
}

static type bits_of(type t)   /* the same width without a meaning */
{
    t.kind = t.kind == 'p' ? 'p' : 'b';
    t.packed = 0;
    return t;
}

/* The value as the type holds it: cut, and the sign spread. */
static inline uint64_t fit(uint64_t v, type t)
{
    if (t.bits >= 64) return v;
    v &= ((uint64_t)1 << t.bits) - 1;
    if (t.kind == 's' && v >> (t.bits - 1) & 1) v |= ~(uint64_t)0 << t.bits;
    return v;
}

static uint64_t special(machine *x, const thread *t, int which)
{
    unsigned n = (unsigned)t->number, lane = n & 31, bit = 1u << lane;
    switch (which) {
    case 0: return n % x->block.x;
    case 1: return n / x->block.x % x->block.y;
    case 2: return n / x->block.x / x->block.y;
    case 3: return x->block.x;
    case 4: return x->block.y;
    case 5: return x->block.z;
    case 6: return x->index.x;
    case 7: return x->index.y;
    case 8: return x->index.z;
    case 9: return x->grid.x;
    case 10: return x->grid.y;
    case 11: return x->grid.z;
    case 12: return lane;
    case 13: return n / 32;
    case 14: return bit;
    case 15: return bit - 1;
    case 16: return bit | (bit - 1);
    case 17: return ~(bit | (bit - 1)) & 0xffffffffu;
    case 18: return ~(bit - 1) & 0xffffffffu;
    default: return x->options->executed;   /* a clock */
    }
}

static uint64_t get_other(machine *x, const thread *t, const operand *o, type ty)
{
    uint64_t v = 0;
    switch (o->kind) {
    case IMMEDIATE: case SYMBOL: v = (uint64_t)o->value; break;
    case DYNAMIC_SYMBOL: v = x->dynamic_at + (uint64_t)o->value; break;
    case SPECIAL: v = special(x, t, o->reg); break;
    case REGISTER: case SINK: break;
    }
    return fit(v, ty);
}

/* Most of all time goes by here: registers first. */
static inline uint64_t get(machine *x, const thread *t, const operand *o, type ty)
{
    if (o->kind != REGISTER) return get_other(x, t, o, ty);
    return fit((t->reg[o->reg] + (uint64_t)o->value) ^ (uint64_t)o->negated, ty);
}

static inline void put(thread *t, const operand *o, uint64_t v, type ty)
{
    if (o->kind == REGISTER) t->reg[o->reg] = fit(v, ty);
}

/* -- floating point -- */

static float float_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, 4);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static double half_value(uint32_t h)
{
    int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
    double v = exponent == 31 ? (fraction ? NAN : INFINITY) :
        exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -v : v;
}

static double decode(uint64_t bits, type t)
{
    if (t.kind == 'h') return half_value((uint32_t)bits & 0xffff);
    if (t.kind == 'B') return float_of((bits & 0xffff) << 16);
    if (t.bits == 32) return float_of(bits);
    {
        double d;
        memcpy(&d, &bits, 8);
        return d;
    }
}

/* To a format of 16 bits: to nearest, ties to even, or towards 0. */
static uint32_t encode_small(double x, type t, int towards_zero)
{
    int bits = t.kind == 'h' ? 10 : 7, lowest = t.kind == 'h' ? -14 : -126, highest = t.kind == 'h' ? 15 : 127, e;
    uint32_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint32_t)(highest - lowest + 2) << bits;
    double a = fabs(x), q;
    if (x != x) return 0x7fff;
    if (isinf(x)) return sign | infinity;
    if (a == 0) return sign;
    frexp(a, &e);
    e = e - 1 < lowest ? lowest : e - 1;
    q = ldexp(a, bits - e);
    q = towards_zero ? floor(q) : rint(q);
    if (q >= ldexp(2, bits)) {   /* the next power of 2 */
        q /= 2;
        e++;
    }
    if (e > highest) return sign | (towards_zero ? infinity - 1 : infinity);
    if (q < ldexp(1, bits)) return sign | (uint32_t)q;   /* subnormal */
    return sign | (((uint32_t)(e - lowest) << bits) + (uint32_t)q);   /* q holds the hidden bit */
}

static double flush(double x) { return fabs(x) < 1.1754943508222875e-38 ? copysign(0, x) : x; }

static uint64_t encode(double x, type t, unsigned flags)
{
    if (flags & F_SATURATE) x = x > 0 ? (x < 1 ? x : 1) : 0;   /* NaN: 0 */
    if (t.kind != 'f') return encode_small(x, t, (flags & (F_ZERO | F_INTEGER)) == F_ZERO);
    if (t.bits == 64) {
        uint64_t bits;
        memcpy(&bits, &x, 8);
        return bits;
    }
    if (x != x) return 0x7fffffff;
    x = (float)x;
    return bits_of_float((float)(flags & F_FLUSH ? flush(x) : x));
}

/* The smaller of two, -0 below +0; a NaN loses, but for .NaN. */
static double smaller(double a, double b, int keep_nan)
{
    if (a != a || b != b) return keep_nan ? NAN : a != a ? b : a;
    if (a == b) return signbit(a) ? a : b;
    return a < b ? a : b;
}

/* Sums and products that round down, up or towards 0. volatile: the compiler must not take them across fesetround. */
static double rounded_otherwise(const instruction *i, double a, double b, double c)
{
    int is_f32 = i->type[0].bits == 32;
    volatile float fa = (float)a, fb = (float)b, fc = (float)c, f = 0;
    volatile double da = a, db = b, dc = c, d = 0;
    fesetround(i->flags & F_DOWN ? FE_DOWNWARD : i->flags & F_UP ? FE_UPWARD : FE_TOWARDZERO);
    switch (i->code) {
    case X_ADD: f = fa + fb; d = da + db; break;
    case X_SUB: f = fa - fb; d = da - db; break;
    case X_MUL: f = fa * fb; d = da * db; break;
    default: f = fmaf(fa, fb, fc); d = fma(da, db, dc);
    }
    fesetround(FE_TONEAREST);
    return is_f32 ? (double)f : d;
}

/* Sums, products, quotients and roots of floats are right in double too: its 53 bits are more than 2 x 24 + 2. */
static double float_result(machine *x, const instruction *i, double a, double b, double c)
{
    int is_f32 = i->type[0].kind == 'f' && i->type[0].bits == 32, keep = (i->flags & F_NAN) != 0;
    if (i->flags & (F_ZERO | F_DOWN | F_UP)) return rounded_otherwise(i, a, b, c);
    switch (i->code) {
    case X_ADD: return a + b;
    case X_SUB: return a - b;
    case X_MUL: return a * b;
    case X_FMA: return is_f32 ? (double)fmaf((float)a, (float)b, (float)c) : fma(a, b, c);
    case X_DIV: return a / b;
    case X_RCP: return 1 / a;
    case X_SQRT: return sqrt(a);
    case X_RSQRT: return 1 / sqrt(a);
    case X_EX2: return exp2f((float)a);
    case X_LG2: return log2f((float)a);
    case X_SIN: return sinf((float)a);
    case X_COS: return cosf((float)a);
    case X_TANH: return tanhf((float)a);
    case X_MIN: a = smaller(a, b, keep); return i->operands == 4 ? smaller(a, c, keep) : a;
    case X_MAX: a = -smaller(-a, -b, keep); return i->operands == 4 ? -smaller(-a, -c, keep) : a;
    case X_COPYSIGN: return copysign(b, a);
    default: fail(x, "float operation"); return 0;
    }
}

static uint64_t float_bits(machine *x, const instruction *i, uint64_t a, uint64_t b, uint64_t c, type t)
{
    double u = decode(a, t), v = decode(b, t), w = decode(c, t);
    if (i->flags & F_FLUSH && t.kind == 'f' && t.bits == 32) {
        u = flush(u);
        v = flush(v);
        w = flush(w);
    }
    return encode(float_result(x, i, u, v, w), t, i->flags);
}

/* neg and abs are changes of the sign, of a NaN too. */
static uint64_t change_sign(const instruction *i, uint64_t v, type t)
{
    uint64_t sign = t.packed ? 0x80008000u : (uint64_t)1 << (t.bits - 1);
    if (i->flags & F_FLUSH && t.kind == 'f' && t.bits == 32) v = bits_of_float((float)flush(float_of(v)));
    return i->code == X_NEG ? v ^ sign : v & ~sign;
}

static void run_float(machine *x, thread *t, const instruction *i)
{
    type ty = i->type[0], bits = bits_of(ty), half = ty;
    uint64_t a = get(x, t, &i->operand[1], bits), b = 0, c = 0, r;
    if (i->operands > 2) b = get(x, t, &i->operand[2], bits);
    if (i->operands > 3) c = get(x, t, &i->operand[3], bits);
    half.bits = 16;
    half.packed = 0;
    if (i->code == X_NEG || i->code == X_ABS) r = change_sign(i, a, ty);
    else if (ty.packed)
        r = float_bits(x, i, a, b, c, half) | float_bits(x, i, a >> 16, b >> 16, c >> 16, half) << 16;
    else r = float_bits(x, i, a, b, c, ty);
    put(t, &i->operand[0], r, bits);
}

/* -- conversions -- */

static uint64_t saturate_integer(uint64_t v, type to, type from)
{
    int64_t s = (int64_t)v, highest, lowest;
    if (from.kind == 'u' && s < 0) s = INT64_MAX;
    if (to.bits == 64) return to.kind == 'u' ? (from.kind == 's' && (int64_t)v < 0 ? 0 : v) : (uint64_t)s;
    highest = to.kind == 's' ? ((int64_t)1 << (to.bits - 1)) - 1 : ((int64_t)1 << to.bits) - 1;
    lowest = to.kind == 's' ? -highest - 1 : 0;
    return (uint64_t)(s < lowest ? lowest : s > highest ? highest : s);
}

static double round_to_integer(double x, unsigned flags)
{
    if (flags & F_ZERO) return trunc(x);
    if (flags & F_DOWN) return floor(x);
    if (flags & F_UP) return ceil(x);
    return rint(x);
}

/* Out of range gives the nearest that there is; a NaN gives 0, or the largest power of 2 of 64 bits. */
static uint64_t float_to_integer(double x, type to)
{
    double highest = ldexp(1, to.kind == 's' ? to.bits - 1 : to.bits), lowest = to.kind == 's' ? -highest : 0;
    if (x != x) return to.bits == 64 ? (uint64_t)1 << 63 : 0;
    if (x >= highest)
        return to.kind == 's' ? ((uint64_t)1 << (to.bits - 1)) - 1 : to.bits == 64 ? ~(uint64_t)0 :
            ((uint64_t)1 << to.bits) - 1;
    if (x < lowest) x = lowest;
    return to.kind == 's' ? (uint64_t)(int64_t)x : (uint64_t)x;
}

static uint64_t convert(const instruction *i, uint64_t v)
{
    type to = i->type[0], from = i->type[1];
    double x;
    if (!is_float(from) && !is_float(to)) return i->flags & F_SATURATE ? saturate_integer(v, to, from) : v;
    if (!is_float(from)) {   /* one rounding, from all 64 bits */
        if (to.kind == 'f' && to.bits == 32)
            return bits_of_float(from.kind == 's' ? (float)(int64_t)v : (float)v);
        return encode(from.kind == 's' ? (double)(int64_t)v : (double)v, to, i->flags);
    }
    x = decode(v, from);
    if (i->flags & F_FLUSH && from.kind == 'f' && from.bits == 32) x = flush(x);
    if (i->flags & F_INTEGER) x = round_to_integer(x, i->flags);
    return is_float(to) ? encode(x, to, i->flags) : float_to_integer(x, to);
}

static void run_convert(machine *x, thread *t, const instruction *i)
{
    type to = i->type[0], from = i->type[1];
    if (to.packed) {   /* the first source is the upper half */
        uint64_t high = convert(i, get(x, t, &i->operand[1], B32)), low = convert(i, get(x, t, &i->operand[2], B32));
        put(t, &i->operand[0], high << 16 | low, B32);
        return;
    }
    put(t, &i->operand[0], convert(i, get(x, t, &i->operand[1], is_float(from) ? bits_of(from) : from)),
        is_float(to) ? bits_of(to) : to);
}

/* -- comparisons, choice, moves -- */

static int compare_floats(const instruction *i, double a, double b)
{
    if (i->compare == C_NUM || i->compare == C_NAN) return (a != a || b != b) == (i->compare == C_NAN);
    if (a != a || b != b) return i->unordered;
    switch (i->compare) {
    case C_EQ: return a == b;
    case C_NE: return a != b;
    case C_LT: return a < b;
    case C_LE: return a <= b;
    case C_GT: return a > b;
    default: return a >= b;
    }
}

static int compare_integers(compare c, uint64_t a, uint64_t b, int is_signed)
{
    if (is_signed) {   /* in the order of unsigned numbers */
        a ^= (uint64_t)1 << 63;
        b ^= (uint64_t)1 << 63;
    }
    switch (c) {
    case C_EQ: return a == b;
    case C_NE: return a != b;
    case C_LT: return a < b;
    case C_LE: return a <= b;
    case C_GT: return a > b;
    default: return a >= b;
    }
}

static void run_compare(machine *x, thread *t, const instruction *i)
{
    type ty = i->type[0], bits = is_float(ty) ? bits_of(ty) : ty;
    int first = i->flags & F_PAIR ? 2 : 1, r, other;
    uint64_t a = get(x, t, &i->operand[first], bits), b = get(x, t, &i->operand[first + 1], bits), c = 0;
    if (is_float(ty)) {
        double u = decode(a, ty), v = decode(b, ty);
        int flushes = i->flags & F_FLUSH && ty.bits == 32;
        r = compare_floats(i, flushes ? flush(u) : u, flushes ? flush(v) : v);
    } else
        r = compare_integers(i->compare, a, b, ty.kind == 's');
    other = !r;
    if (i->mode) c = get(x, t, &i->operand[first + 2], PREDICATE);
    if (i->mode == M_AND) {
        r = r && c;
        other = other && c;
    } else if (i->mode == M_OR) {
        r = r || c;
        other = other || c;
    } else if (i->mode == M_XOR) {
        r = r ^ (int)c;
        other = other ^ (int)c;
    }
    put(t, &i->operand[0], (uint64_t)r, PREDICATE);
    if (first == 2) put(t, &i->operand[1], (uint64_t)other, PREDICATE);
}

static void run_select(machine *x, thread *t, const instruction *i)
{
    type bits = bits_of(i->type[0]);
    int which = get(x, t, &i->operand[3], PREDICATE) ? 1 : 2;
    put(t, &i->operand[0], get(x, t, &i->operand[which], bits), bits);
}

/* Plain, or {a, b} = v, or v = {a, b}: the first is the lowest part. */
static void run_move(machine *x, thread *t, const instruction *i)
{
    type bits = bits_of(i->type[0]), part = bits;
    int parts = i->operands - 1, j;
    uint64_t v = 0;
    if (parts == 1) {
        put(t, &i->operand[0], get(x, t, &i->operand[1], bits), bits);
        return;
    }
    part.bits = (unsigned char)(bits.bits / parts);
    if (i->flags & F_UNPACK) {
        v = get(x, t, &i->operand[parts], bits);
        for (j = 0; j < parts; j++) put(t, &i->operand[j], v >> part.bits * j, part);
        return;
    }
    for (j = 0; j < parts; j++) v |= get(x, t, &i->operand[1 + j], part) << part.bits * j;
    put(t, &i->operand[0], v, bits);
}

/* == INTEGERS == */

/* The upper 64 bits of a product of 64 x 64. */
static uint64_t multiply_high(uint64_t a, uint64_t b, int is_signed)
{
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (middle & 0xffffffffu);
    uint64_t high = a1 * b1 + (middle >> 32) + (other >> 32);
    if (is_signed && a >> 63) high -= b;
    if (is_signed && b >> 63) high -= a;
    return high;
}

static uint64_t multiply(const instruction *i, uint64_t a, uint64_t b)
{
    type t = i->type[0];
    if (!(i->flags & F_HIGH)) return a * b;
    if (t.bits == 64) return multiply_high(a, b, t.kind == 's');
    return t.kind == 's' ? (uint64_t)((int64_t)(a * b) >> t.bits) : a * b >> t.bits;
}

/* By 0: all ones, as GPUs do; the manual leaves it open. */
static uint64_t divide(int code, uint64_t a, uint64_t b, int is_signed)
{
    if (!b) return code == I_DIV ? ~(uint64_t)0 : a;
    if (!is_signed) return code == I_DIV ? a / b : a % b;
    if ((int64_t)b == -1) return code == I_DIV ? 0 - a : 0;
    return (uint64_t)(code == I_DIV ? (int64_t)a / (int64_t)b : (int64_t)a % (int64_t)b);
}

static uint64_t shift_right(uint64_t a, uint64_t n, type t)
{
    if (t.kind == 's') return (uint64_t)((int64_t)a >> (n > 63 ? 63 : n));
    return n >= t.bits ? 0 : a >> n;
}

/* shf: 32 bits out of the 64 of b:a. */
static uint64_t funnel(const instruction *i, uint64_t a, uint64_t b, uint64_t n)
{
    uint64_t both = b << 32 | a;
    n = i->flags & F_WRAP ? n & 31 : n > 32 ? 32 : n;
    return i->flags & F_LEFT ? both << n >> 32 : both >> n;
}

static uint64_t permute(uint64_t a, uint64_t b, uint64_t selector)
{
    uint64_t both = b << 32 | a, r = 0;
    int j;
    for (j = 0; j < 4; j++) {
        uint64_t nibble = selector >> 4 * j & 15, byte = both >> 8 * (nibble & 7) & 255;
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * j;
    }
    return r;
}

static uint64_t any_logic(uint64_t a, uint64_t b, uint64_t c, uint64_t table)
{
    uint64_t r = 0;
    int j;
    for (j = 0; j < 8; j++)
        if (table >> j & 1) r |= (j & 4 ? a : ~a) & (j & 2 ? b : ~b) & (j & 1 ? c : ~c);
    return r;
}

/* Field of `length` bits from `at` on. Beyond the top a signed field goes on with the sign, as the manual has it. */
static uint64_t extract(uint64_t a, uint64_t at, uint64_t length, type t)
{
    uint64_t r = 0, j, last, sign;
    at &= 255;
    length &= 255;
    if (!length) return 0;
    last = at + length - 1 < t.bits - 1u ? at + length - 1 : t.bits - 1u;
    sign = t.kind == 's' ? a >> last & 1 : 0;
    for (j = 0; j < t.bits; j++) r |= (j < length && at + j < t.bits ? a >> (at + j) & 1 : sign) << j;
    return r;
}

static uint64_t insert(uint64_t a, uint64_t b, uint64_t at, uint64_t length, type t)
{
    uint64_t r = b, j;
    at &= 255;
    length &= 255;
    for (j = 0; j < length && at + j < t.bits; j++)
        r = (r & ~((uint64_t)1 << (at + j))) | (a >> j & 1) << (at + j);
    return r;
}

static uint64_t count_bits(const instruction *i, uint64_t a, type t)
{
    uint64_t n = 0, j, top = 64;
    if (i->code == I_BFIND && t.kind == 's' && (int64_t)a < 0) a = ~a;
    t.kind = 'u';
    a = fit(a, t);
    for (j = 0; j < t.bits; j++)
        if (a >> j & 1) {
            n++;
            top = j;
        }
    if (i->code == I_POPC) return n;
    if (i->code == I_CLZ) return top == 64 ? t.bits : t.bits - 1u - top;
    if (top == 64) return 0xffffffffu;
    return i->flags & F_SHIFT ? t.bits - 1u - top : top;
}

static uint64_t dot4(const instruction *i, uint64_t a, uint64_t b, uint64_t c)
{
    type ta = {'u', 8, 0}, tb = {'u', 8, 0};
    int j;
    ta.kind = i->type[0].kind;
    tb.kind = i->type[1].kind;
    for (j = 0; j < 4; j++) c += fit(a >> 8 * j, ta) * fit(b >> 8 * j, tb);
    return c;
}

static uint64_t reverse(uint64_t a, int bits)
{
    uint64_t r = 0;
    int j;
    for (j = 0; j < bits; j++) r |= (a >> j & 1) << (bits - 1 - j);
    return r;
}

/* Third and fourth source as numbers of 32 bits: counts and places. */
static uint64_t count_operand(machine *x, const thread *t, const instruction *i, int which)
{
    return get(x, t, &i->operand[which], U32);
}

static uint64_t integer_result(machine *x, const thread *t, const instruction *i, uint64_t a, uint64_t b, uint64_t c)
{
    type ty = i->type[0];
    int is_signed = ty.kind == 's', a_smaller = compare_integers(C_LT, a, b, is_signed);
    switch (i->code) {
    case I_ADD: return a + b;
    case I_SUB: return a - b;
    case I_MUL: return multiply(i, a, b);
    case I_MAD: return multiply(i, a, b) + c;
    case I_DIV: case I_REM: return divide(i->code, a, b, is_signed);
    case I_ABS: return (int64_t)a < 0 ? 0 - a : a;
    case I_NEG: return 0 - a;
    case I_MIN: return a_smaller ? a : b;
    case I_MAX: return a_smaller ? b : a;
    case I_AND: return a & b;
    case I_OR: return a | b;
    case I_XOR: return a ^ b;
    case I_NOT: return ~a;
    case I_SHL: return count_operand(x, t, i, 2) >= ty.bits ? 0 : a << count_operand(x, t, i, 2);
    case I_SHR: return shift_right(a, count_operand(x, t, i, 2), ty);
    case I_SHF: return funnel(i, a, b, count_operand(x, t, i, 3));
    case I_LOP3: return any_logic(a, b, c, count_operand(x, t, i, 4));
    case I_PRMT: return permute(a, b, c);
    case I_BFE: return extract(a, count_operand(x, t, i, 2), count_operand(x, t, i, 3), ty);
    case I_BFI: return insert(a, b, count_operand(x, t, i, 3), count_operand(x, t, i, 4), ty);
    case I_BREV: return reverse(a, ty.bits);
    case I_DP4A: return dot4(i, a, b, c);
    default: return count_bits(i, a, ty);
    }
}

static void run_integer(machine *x, thread *t, const instruction *i)
{
    type from = i->type[0], to = from, third = from;
    uint64_t a = get(x, t, &i->operand[1], from), b = 0, c = 0;
    if (i->flags & F_WIDE) to.bits = third.bits = (unsigned char)(2 * from.bits);
    if (i->code == I_CLZ || i->code == I_POPC || i->code == I_BFIND) to = U32;
    if (i->code == I_DP4A) third.kind = to.kind = i->type[0].kind == 's' || i->type[1].kind == 's' ? 's' : 'u';
    if (i->operands > 2) b = get(x, t, &i->operand[2], from);
    if (i->operands > 3) c = get(x, t, &i->operand[3], third);
    put(t, &i->operand[0], integer_result(x, t, i, a, b, c), to);
}

/* == MEMORY == */

typedef enum access { READ, WRITE, ATOMIC } access;

static int is_race(const machine *x, const touch *o)
{
    int me = x->now->number, warp = me / 32;
    if (o->epoch != x->epoch || (o->thread == me && !o->several)) return 0;
    return o->thread / 32 != warp || o->warp_epoch == x->warp_epoch[warp];
}

static void note_touch(const machine *x, touch *o, int several)
{
    o->thread = (int16_t)x->now->number;
    o->several = (int16_t)several;
    o->epoch = x->epoch;
    o->warp_epoch = x->warp_epoch[x->now->number / 32];
}

/* One reader of each of two warps is enough to see any later write that races. */
static void note_reader(const machine *x, shadow *s)
{
    int warp = x->now->number / 32;
    touch *o = &s->reader;
    if (o->epoch == x->epoch && o->thread / 32 != warp) o = &s->other_reader;
    if (o->epoch == x->epoch && o->thread / 32 != warp) return;
    if (o->epoch == x->epoch && o->warp_epoch == x->warp_epoch[warp])
        note_touch(x, o, o->several || o->thread != x->now->number);
    else note_touch(x, o, 0);
}

static void touch_shared(machine *x, uint64_t at, size_t bytes, access how)
{
    static const char *const names[] = {"a read", "a write", "an atomic operation"};
    size_t j;
    for (j = 0; j < bytes; j++) {
        shadow *s = &x->shadow[at + j];
        int both_atomic = how == ATOMIC && s->atomic;
        if (s->block != x->block_number) {
            s->block = x->block_number;
            s->written = s->atomic = 0;
        }
        if (how != WRITE && !s->written)
            fail(x, "a read of shared memory that was never written, or before its cp.async has come: byte %llu",
                 (unsigned long long)(at + j));
        if (is_race(x, &s->writer) && !both_atomic)
            fail(x, "a race in shared memory, byte %llu: thread %d wrote it, now %s, no barrier between",
                 (unsigned long long)(at + j), s->writer.thread, names[how]);
        if (how == READ) {
            note_reader(x, s);
            continue;
        }
        if (is_race(x, &s->reader) || is_race(x, &s->other_reader))
            fail(x, "a race in shared memory, byte %llu: thread %d read it, now %s, no barrier between",
                 (unsigned long long)(at + j), is_race(x, &s->reader) ? s->reader.thread : s->other_reader.thread,
                 names[how]);
        note_touch(x, &s->writer, both_atomic && s->writer.epoch == x->epoch);
        s->reader.epoch = s->other_reader.epoch = 0;
        s->written = 1;
        s->atomic = how == ATOMIC;
    }
}

static void *shared_memory(machine *x, uint64_t at, size_t bytes, access how)
{
    if (at + bytes > x->shared_bytes || at + bytes < at)
        fail(x, "shared memory has %llu bytes, not %llu", (unsigned long long)x->shared_bytes,
             (unsigned long long)(at + bytes));
    if (x->shadow) touch_shared(x, at, bytes, how);
    return x->shared + at;
}

static void *local_memory(machine *x, thread *t, uint64_t at, size_t bytes, access how)
{
    size_t j;
    if (at + bytes > x->module->local_bytes || at + bytes < at) fail(x, "an access outside local memory");
    for (j = 0; j < bytes; j++) {
        if (how == READ && !t->local_written[at + j]) fail(x, "a read of local memory that was never written");
        t->local_written[at + j] = 1;
    }
    return t->local + at;
}

static void *global_memory(machine *x, uint64_t at, size_t bytes, access how)
{
    const ptx_module *m = x->module;
    int j;
    if (x->options->inside && !x->options->inside(x->options->user, at, bytes, how != READ)) {
        for (j = 0; j < m->symbols; j++)
            if (m->symbol[j].space == GLOBAL && at >= m->symbol[j].value &&
                at + bytes <= m->symbol[j].value + m->symbol[j].bytes) break;
        if (j == m->symbols)
            fail(x, "global memory: a %s of %d bytes at %#llx is outside of all allocations",
                 how == READ ? "read" : "write", (int)bytes, (unsigned long long)at);
    }
    return (void *)(uintptr_t)at;
}

static void *memory(machine *x, thread *t, int space, uint64_t at, size_t bytes, access how)
{
    if (at & (bytes - 1)) fail(x, "an access of %d bytes at %#llx is not aligned", (int)bytes, (unsigned long long)at);
    if (space == NO_SPACE) {
        space = GLOBAL;
        if (at >> 48 == SHARED_WINDOW >> 48) space = SHARED;
        if (at >> 48 == LOCAL_WINDOW >> 48) space = LOCAL;
        if (at >> 48 == PARAM_WINDOW >> 48) space = PARAM;
        if (space != GLOBAL) at &= ((uint64_t)1 << 48) - 1;
    }
    if (space == SHARED) return shared_memory(x, at, bytes, how);
    if (space == LOCAL) return local_memory(x, t, at, bytes, how);
    if (space == GLOBAL) return global_memory(x, at, bytes, how);
    if (at + bytes > x->kernel->parameter_bytes || how != READ) fail(x, "an access outside the parameters");
    return x->parameter + at;
}

static uint64_t load_value(const void *from, type t)
{
    uint64_t v = 0;
    memcpy(&v, from, t.bits / 8u);
    return fit(v, t);
}

static void run_load(machine *x, thread *t, const instruction *i)
{
    type ty = i->type[0];
    size_t element = ty.bits / 8u;
    const operand *address = &i->operand[i->vector];
    int j;
    const char *from = (const char *)memory(x, t, i->space, get(x, t, address, U64), element * (size_t)i->vector, READ);
    for (j = 0; j < i->vector; j++) put(t, &i->operand[j], load_value(from + element * (size_t)j, ty), ty);
}

static void run_store(machine *x, thread *t, const instruction *i)
{
    type bits = bits_of(i->type[0]);
    size_t element = bits.bits / 8u;
    int j;
    char *to = (char *)memory(x, t, i->space, get(x, t, &i->operand[0], U64), element * (size_t)i->vector, WRITE);
    for (j = 0; j < i->vector; j++) {
        uint64_t v = get(x, t, &i->operand[1 + j], bits);
        memcpy(to + element * (size_t)j, &v, element);
    }
}

static void run_address(machine *x, thread *t, const instruction *i)
{
    uint64_t window = i->space == SHARED ? SHARED_WINDOW : i->space == LOCAL ? LOCAL_WINDOW :
        i->space == PARAM ? PARAM_WINDOW : 0;
    uint64_t v = get(x, t, &i->operand[1], U64);
    put(t, &i->operand[0], i->flags & F_TO ? v - window : v + window, U64);
}

static uint64_t atomic_result(const instruction *i, uint64_t old, uint64_t a)
{
    type ty = i->type[0];
    int smaller_old = compare_integers(C_LT, old, a, ty.kind == 's');
    switch (i->mode) {
    case M_ADD: return is_float(ty) ? encode(decode(old, ty) + decode(a, ty), ty, 0) : old + a;
    case M_MIN: return smaller_old ? old : a;
    case M_MAX: return smaller_old ? a : old;
    case M_AND: return old & a;
    case M_OR: return old | a;
    case M_XOR: return old ^ a;
    case M_INC: return old >= a ? 0 : old + 1;
    case M_DEC: return old == 0 || old > a ? a : old - 1;
    default: return a;   /* exch */
    }
}

/* atom returns the old value, red does not: code says which. */
static void run_atomic(machine *x, thread *t, const instruction *i)
{
    type ty = is_float(i->type[0]) ? bits_of(i->type[0]) : i->type[0];
    const operand *o = i->operand + i->code;
    void *at = memory(x, t, i->space, get(x, t, &o[0], U64), ty.bits / 8u, ATOMIC);
    uint64_t old = load_value(at, ty), a = get(x, t, &o[1], ty), r;
    if (i->mode == M_CAS) r = old == a ? get(x, t, &o[2], ty) : old;
    else r = atomic_result(i, old, a);
    memcpy(at, &r, ty.bits / 8u);
    if (i->code) put(t, &i->operand[0], old, ty);
}

/* The bytes come at the wait; until then the place counts as unwritten. */
static void start_copy(machine *x, thread *t, const instruction *i)
{
    size_t bytes = (size_t)get(x, t, &i->operand[2], U32), from_bytes = bytes, j;
    uint64_t from = get(x, t, &i->operand[1], U64);
    async_copy *copy = &t->copy[t->copies];
    if (i->operands > 3) from_bytes = (size_t)get(x, t, &i->operand[3], U32);
    if (bytes != 4 && bytes != 8 && bytes != 16) fail(x, "cp.async of %d bytes", (int)bytes);
    if (from_bytes > bytes) fail(x, "cp.async: %d bytes from, %d to", (int)from_bytes, (int)bytes);
    if (t->copies == MAX_COPIES) fail(x, "more than %d cp.async of one thread in flight", MAX_COPIES);
    copy->to = get(x, t, &i->operand[0], U32);
    copy->bytes = bytes;
    copy->group = t->groups;
    copy->line = i->line;
    memset(copy->data, 0, sizeof copy->data);
    if (from_bytes) memcpy(copy->data, memory(x, t, GLOBAL, from, bytes, READ), from_bytes);
    memset(memory(x, t, SHARED, copy->to, bytes, WRITE), 0xff, bytes);
    for (j = 0; j < bytes && x->shadow; j++) x->shadow[copy->to + j].written = 0;
    t->copies++;
}

static void wait_for_copies(machine *x, thread *t, int keep)
{
    int j, left = 0;
    for (j = 0; j < t->copies; j++) {
        async_copy *copy = &t->copy[j];
        if (copy->group < t->groups - keep)
            memcpy(memory(x, t, SHARED, copy->to, copy->bytes, WRITE), copy->data, copy->bytes);
        else t->copy[left++] = *copy;
    }
    t->copies = left;
}

static void run_copy(machine *x, thread *t, const instruction *i)
{
    if (i->flags & F_COMMIT) t->groups++;
    else if (i->flags & F_ALL) wait_for_copies(x, t, -1);
    else if (i->flags & F_WAIT) wait_for_copies(x, t, (int)get(x, t, &i->operand[0], U32));
    else start_copy(x, t, i);
}

/* == CONTROL == */

static void run_branch(machine *x, thread *t, const instruction *i)
{
    (void)x;
    t->pc = i->target;
}

/* Bytes that a call passes on, with whether they were written. */
static void pass_on(thread *t, size_t to, size_t from, size_t bytes)
{
    memcpy(t->local + to, t->local + from, bytes);
    memcpy(t->local_written + to, t->local_written + from, bytes);
}

static void run_call(machine *x, thread *t, const instruction *i)
{
    const kernel *f = &x->module->kernel[i->target];
    int j;
    if (t->depth == MAX_CALLS) fail(x, "more than %d calls in each other", MAX_CALLS);
    for (j = 0; j < f->parameters; j++)
        pass_on(t, f->parameter[j].offset, (size_t)i->operand[j].value, f->parameter[j].bytes);
    t->caller[t->depth].code = t->code;
    t->caller[t->depth++].pc = t->pc;
    t->code = f;
    t->pc = 0;
}

static void run_return(machine *x, thread *t, const instruction *i)
{
    const kernel *f = t->code;
    if (!t->depth) {
        run_exit(x, t, i);
        return;
    }
    t->code = t->caller[--t->depth].code;
    t->pc = t->caller[t->depth].pc;
    if (f->result_bytes) pass_on(t, (size_t)t->code->code[t->pc - 1].result_at, f->result_at, f->result_bytes);
}

static void run_exit(machine *x, thread *t, const instruction *i)
{
    (void)i;
    if (t->copies) fail(x, "a thread returns with the cp.async of PTX line %d in flight", t->copy[0].line);
    t->state = DONE;
}

static void run_trap(machine *x, thread *t, const instruction *i)
{
    (void)t;
    (void)i;
    fail(x, "trap");
}

static void run_nothing(machine *x, thread *t, const instruction *i)
{
    (void)x;
    (void)t;
    (void)i;
}

static void run_active(machine *x, thread *t, const instruction *i)
{
    (void)x;
    put(t, &i->operand[0], (uint64_t)1 << (t->number & 31), U32);
}

static void run_barrier(machine *x, thread *t, const instruction *i)
{
    uint32_t v = (uint32_t)get(x, t, &i->operand[0], U32);
    if (i->flags & F_WARP) {
        t->mask = v;
        t->state = AT_WARP;
    } else {
        t->barrier = v;
        t->state = AT_BARRIER;
    }
}

static void run_warp(machine *x, thread *t, const instruction *i)
{
    int has_mask = i->code == W_SHUFFLE || i->code == W_VOTE || i->code == W_REDUX;
    t->mask = has_mask ? (uint32_t)get(x, t, &i->operand[i->operands - 1], U32) : 0xffffffffu;
    t->state = AT_WARP;
}

/* Until it ends or waits. */
static void run_thread(machine *x, thread *t)
{
    x->now = t;
    while (t->state == READY) {
        const instruction *i;
        if (t->pc >= t->code->length) {
            run_return(x, t, NULL);
            continue;
        }
        i = t->at = &t->code->code[t->pc++];
        if (i->guard >= 0 && (int)(t->reg[i->guard] & 1) == i->guard_negated) continue;
        if (++x->options->executed > x->options->limit) fail(x, "more instructions than the limit");
        i->run(x, t, i);
    }
}

/* == WARPS == */

/* What each lane brings; found by the first lane's instruction, which all lanes of the mask wait at. */
typedef struct warp { machine *x; thread *lane; uint32_t mask; const instruction *i; uint64_t in[32][14]; } warp;

static void shuffle(warp *w, unsigned lane)
{
    const operand *o = w->i->operand;
    int pair = (w->i->flags & F_PAIR) != 0, from = (int)lane, ok;
    int b = (int)w->in[lane][1] & 31, clamp = (int)w->in[lane][2] & 31, segment = (int)w->in[lane][2] >> 8 & 31;
    int most = ((int)lane & segment) | (clamp & ~segment), least = (int)lane & segment;
    switch (w->i->mode) {
    case M_UPWARD: from = (int)lane - b; ok = from >= most; break;
    case M_DOWNWARD: from = (int)lane + b; ok = from <= most; break;
    case M_BUTTERFLY: from = (int)lane ^ b; ok = from <= most; break;
    default: from = least | (b & ~segment); ok = from <= most;
    }
    if (!ok) from = (int)lane;
    if (!(w->mask >> from & 1)) fail(w->x, "shfl reads lane %d, which is outside the mask", from);
    put(&w->lane[lane], &o[0], w->in[from][0], B32);
    if (pair) put(&w->lane[lane], &o[1], (uint64_t)ok, PREDICATE);
}

static void vote(warp *w)
{
    uint32_t yes = 0;
    unsigned lane;
    for (lane = 0; lane < 32; lane++)
        if (w->mask >> lane & 1) yes |= (uint32_t)(w->in[lane][0] & 1) << lane;
    for (lane = 0; lane < 32; lane++) {
        int r = w->i->mode == M_ANY ? yes != 0 : w->i->mode == M_ALL ? yes == w->mask : yes == 0 || yes == w->mask;
        if (!(w->mask >> lane & 1)) continue;
        if (w->i->mode == M_BALLOT) put(&w->lane[lane], &w->i->operand[0], yes, B32);
        else put(&w->lane[lane], &w->i->operand[0], (uint64_t)r, PREDICATE);
    }
}

static void reduce(warp *w)
{
    type ty = w->i->type[0];
    uint64_t r = 0;
    int first = 1;
    unsigned lane;
    for (lane = 0; lane < 32; lane++) {
        if (!(w->mask >> lane & 1)) continue;
        r = first ? w->in[lane][0] : fit(atomic_result(w->i, r, w->in[lane][0]), ty);
        first = 0;
    }
    for (lane = 0; lane < 32; lane++)
        if (w->mask >> lane & 1) put(&w->lane[lane], &w->i->operand[0], r, ty);
}

/* Lane 8 i + r gives the address of row r of matrix i; a lane gets two neighbours of row lane / 4, or of column. */
static void load_matrix(warp *w, unsigned lane)
{
    int i;
    unsigned j;
    for (i = 0; i < w->i->vector; i++) {
        uint32_t v = 0;
        for (j = 0; j < 2; j++) {
            unsigned row = lane / 4, column = lane % 4 * 2 + j, swap = row;
            uint16_t element;
            if (w->i->flags & F_TRANSPOSE) {
                row = column;
                column = swap;
            }
            memcpy(&element, (const char *)w->in[8 * (unsigned)i + row] + 2 * column, 2);
            v |= (uint32_t)element << 16 * j;
        }
        put(&w->lane[lane], &w->i->operand[i], v, B32);
    }
}

/* Element (row, k) of A and (k, column) of B, `per` to a register of 4 bytes; the layouts of the PTX ISA. */
static uint32_t a_element(const warp *w, unsigned row, unsigned k, unsigned per, int rows)
{
    unsigned step = 4 * per, reg = (rows == 16 ? row / 8 : 0) + (rows == 16 ? 2 : 1) * (k / step);
    return (uint32_t)w->in[row % 8 * 4 + k % step / per][reg] >> 32 / per * (k % per);
}

static uint32_t b_element(const warp *w, unsigned k, unsigned column, unsigned per, int first)
{
    unsigned step = 4 * per;
    return (uint32_t)w->in[column * 4 + k % step / per][(unsigned)first + k / step] >> 32 / per * (k % per);
}

static uint64_t product_element(const warp *w, unsigned row, unsigned column, int rows, int depth, uint64_t c)
{
    type ta = w->i->type[1], tb = w->i->type[2];
    unsigned per = 32u / ta.bits, k;
    int a_registers = rows / 8 * depth / (int)(4 * per);
    int64_t sum = (int32_t)c;
    double float_sum = float_of(c);
    for (k = 0; k < (unsigned)depth; k++) {
        uint32_t a = a_element(w, row, k, per, rows), b = b_element(w, k, column, per, a_registers);
        if (is_float(ta)) float_sum += decode(a, ta) * decode(b, tb);
        else sum += (int64_t)fit(a, ta) * (int64_t)fit(b, tb);
    }
    return is_float(ta) ? bits_of_float((float)float_sum) : (uint64_t)sum & 0xffffffffu;
}

/* D = A B + C. Operands: D, A, B, C; C and D have 4 registers of 16 rows or 2 of 8. */
static void matrix_product(warp *w, unsigned lane)
{
    const instruction *i = w->i;
    int rows = i->mode == M_M8N8K16 ? 8 : 16, registers = rows / 4, e;
    int depth = i->mode == M_M16N8K32 ? 32 : i->mode == M_M16N8K8 ? 8 : 16;
    for (e = 0; e < registers; e++) {
        unsigned row = lane / 4 + (e >= 2 ? 8 : 0), column = lane % 4 * 2 + (e & 1);
        uint64_t c = w->in[lane][i->operands - 2 * registers + e];
        put(&w->lane[lane], &i->operand[e], product_element(w, row, column, rows, depth, c), B32);
    }
}

/* Sources of a lane, before any lane's result is written. */
static void gather(warp *w, unsigned lane)
{
    const instruction *i = w->i;
    const operand *o = i->operand;
    thread *t = &w->lane[lane];
    int pair = (i->flags & F_PAIR) != 0, first = i->code == W_MMA ? (i->mode == M_M8N8K16 ? 2 : 4) : 1 + pair, j;
    if (i->code == W_LDMATRIX) {
        if ((int)lane >= 8 * i->vector) return;
        memcpy(w->in[lane], memory(w->x, t, SHARED, get(w->x, t, &o[i->vector], U64), 16, READ), 16);
        return;
    }
    if (i->code == W_VOTE) {
        w->in[lane][0] = get(w->x, t, &o[1], PREDICATE);
        return;
    }
    for (j = first; j < i->operands; j++)
        w->in[lane][j - first] = get(w->x, t, &o[j], i->code == W_REDUX ? i->type[0] : B32);
}

static void run_for_warp(machine *x, unsigned first, uint32_t mask)
{
    warp w;
    unsigned lane, leader = 0;
    while (!(mask >> leader & 1)) leader++;
    w.x = x;
    w.lane = x->thread + first;
    w.mask = mask;
    w.i = w.lane[leader].at;
    memset(w.in, 0, sizeof w.in);
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        x->now = &w.lane[lane];
        x->options->executed++;
        if (w.i->run == run_warp) gather(&w, lane);
    }
    if (w.i->run != run_warp) x->warp_epoch[first / 32]++;   /* bar.warp.sync orders memory; the others do not */
    else if (w.i->code == W_VOTE) vote(&w);
    else if (w.i->code == W_REDUX) reduce(&w);
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        x->now = &w.lane[lane];
        if (w.i->run == run_warp && w.i->code == W_SHUFFLE) shuffle(&w, lane);
        if (w.i->run == run_warp && w.i->code == W_LDMATRIX) load_matrix(&w, lane);
        if (w.i->run == run_warp && w.i->code == W_MMA) matrix_product(&w, lane);
        w.lane[lane].state = READY;
    }
}

/* Runs the operation that this lane waits at, if all lanes of its mask wait too. Returns whether they did. */
static int try_warp(machine *x, unsigned first, unsigned lane)
{
    thread *w = x->thread + first, *t = &w[lane];
    unsigned j;
    x->now = t;
    if (!(t->mask >> lane & 1)) fail(x, "a lane is not in its own mask %#x", t->mask);
    for (j = 0; j < 32; j++)
        if (t->mask >> j & 1 && w[j].state != AT_WARP) return 0;
    for (j = 0; j < 32; j++) {
        if (!(t->mask >> j & 1)) continue;
        if (w[j].at != t->at)
            fail(x, "lanes of a mask wait at different *_sync: lane %u at PTX line %d", j, w[j].at->line);
        if (w[j].mask != t->mask)
            fail(x, "lanes give different masks to one *_sync: lane %u gives %#x", j, w[j].mask);
    }
    run_for_warp(x, first, t->mask);
    return 1;
}

/* == BLOCKS == */

static void start_block(machine *x)
{
    unsigned n;
    int r;
    x->epoch++;
    x->block_number++;
    memset(x->shared, 0xff, x->shared_bytes);
    for (n = 0; n < x->threads; n++) {
        thread *t = &x->thread[n];
        t->number = (int)n;
        t->pc = t->groups = t->copies = t->depth = 0;
        t->state = READY;
        t->at = NULL;
        t->code = x->kernel;
        for (r = 0; r < x->module->registers; r++) t->reg[r] = 0xdeadbeefdeadbeefu;
        memset(t->local, 0xff, x->module->local_bytes);
        memset(t->local_written, 0, x->module->local_bytes);
    }
}

/* Each thread that is ready runs once, in the order asked for; a random order leaves some out. */
static int run_ready(machine *x)
{
    unsigned j, shift = 0, order = x->options->order;
    int ran = 0;
    if (order > 1) {
        x->random = x->random * 6364136223846793005u + 1442695040888963407u;
        shift = (unsigned)(x->random >> 33);
    }
    for (j = 0; j < x->threads; j++) {
        thread *t = &x->thread[order == 0 ? j : order == 1 ? x->threads - 1 - j : (j + shift) % x->threads];
        if (t->state != READY) continue;
        if (order > 1 && ran && x->random >> (t->number & 63) & 1) continue;
        run_thread(x, t);
        ran = 1;
    }
    return ran;
}

static int run_waiting_warps(machine *x)
{
    unsigned first, lane;
    int ran = 0;
    for (first = 0; first < x->threads; first += 32)
        for (lane = 0; lane < 32; lane++)
            if (x->thread[first + lane].state == AT_WARP) ran |= try_warp(x, first, lane);
    return ran;
}

/* Lets go on who waits at a barrier, once nobody runs. Returns whether there was anyone. */
static int pass_barrier(machine *x, unsigned done)
{
    const instruction *at = NULL;
    unsigned n;
    for (n = 0; n < x->threads; n++) {
        thread *t = &x->thread[n];
        if (t->state != AT_BARRIER) continue;
        x->now = t;
        if (at && t->at != at) fail(x, "threads of a block wait at different barriers");
        if (done) fail(x, "a barrier after %u threads of the block have returned", done);
        at = t->at;
    }
    if (!at) return 0;
    for (n = 0; n < x->threads; n++) x->thread[n].state = READY;
    x->epoch++;
    return 1;
}

static void run_block(machine *x)
{
    start_block(x);
    for (;;) {
        unsigned n, done = 0, at_barrier = 0;
        int ran = run_ready(x);
        ran |= run_waiting_warps(x);
        for (n = 0; n < x->threads; n++) {
            done += x->thread[n].state == DONE;
            at_barrier += x->thread[n].state == AT_BARRIER;
        }
        if (done == x->threads) return;
        if (done + at_barrier == x->threads) ran |= pass_barrier(x, done);
        if (ran) continue;
        for (n = 0; n < x->threads; n++)
            if (x->thread[n].state == AT_WARP) x->now = &x->thread[n];
        fail(x, "deadlock: a lane of the mask never comes to the *_sync");
    }
}

static int prepare(machine *x, size_t dynamic_bytes, void **params)
{
    kernel *k = x->kernel;
    unsigned n;
    int j;
    x->dynamic_at = round_up(k->shared_bytes, k->dynamic_alignment);
    x->shared_bytes = k->uses_dynamic ? x->dynamic_at + dynamic_bytes : k->shared_bytes;
    x->shared = (unsigned char *)malloc(x->shared_bytes + 16);
    x->shadow = x->options->check_races ? (shadow *)calloc(x->shared_bytes + 1, sizeof *x->shadow) : NULL;
    x->parameter = (unsigned char *)calloc(1, k->parameter_bytes + 16);
    x->thread = (thread *)calloc(x->threads, sizeof *x->thread);
    if (!x->shared || !x->parameter || !x->thread || (x->options->check_races && !x->shadow)) return 0;
    for (j = 0; j < k->parameters; j++)
        memcpy(x->parameter + k->parameter[j].offset, params[j], k->parameter[j].bytes);
    for (n = 0; n < x->threads; n++) {
        thread *t = &x->thread[n];
        t->reg = (uint64_t *)malloc(sizeof *t->reg * (size_t)(x->module->registers + 1));
        t->local = (unsigned char *)malloc(x->module->local_bytes + 1);
        t->local_written = (unsigned char *)malloc(x->module->local_bytes + 1);
        if (!t->reg || !t->local || !t->local_written) return 0;
    }
    return 1;
}

static void clean_up(machine *x)
{
    unsigned n;
    for (n = 0; n < x->threads && x->thread; n++) {
        free(x->thread[n].reg);
        free(x->thread[n].local);
        free(x->thread[n].local_written);
    }
    free(x->thread);
    free(x->parameter);
    free(x->shadow);
    free(x->shared);
}

/* 0, or -1 after a fault. */
static int run_grid(machine *x)
{
    if (setjmp(x->stop)) return -1;
    for (x->index.z = 0; x->index.z < x->grid.z; x->index.z++)
        for (x->index.y = 0; x->index.y < x->grid.y; x->index.y++)
            for (x->index.x = 0; x->index.x < x->grid.x; x->index.x++) run_block(x);
    return 0;
}

static int check_launch(const machine *x, const char *name)
{
    const kernel *k = x->kernel;
    char *error = x->options->error;
    size_t n = sizeof x->options->error;
    if (!k) snprintf(error, n, "no kernel %s", name);
    else if (!x->threads || x->threads > MAX_THREADS || x->threads % 32)
        snprintf(error, n, "kernel %s: a block of %u threads", name, x->threads);
    else if (!x->grid.x || !x->grid.y || !x->grid.z) snprintf(error, n, "kernel %s: an empty grid", name);
    else if (k->max_threads && x->threads > k->max_threads)
        snprintf(error, n, "kernel %s: %u threads, made for %u", name, x->threads, k->max_threads);
    else return 1;
    return 0;
}

int ptx_launch(ptx_module *module, const char *name, ptx_size grid, ptx_size block, size_t dynamic_bytes,
               void **params, ptx_options *options)
{
    machine x;
    int result = -1;
    memset(&x, 0, sizeof x);
    x.module = module;
    x.options = options;
    x.kernel = find_kernel(module, name);
    x.grid = grid;
    x.block = block;
    x.threads = block.x * block.y * block.z;
    x.random = options->order;
    options->error[0] = 0;
    options->executed = 0;
    if (!options->limit) options->limit = 4000000000u;
    if (!check_launch(&x, name)) return -1;
    if (prepare(&x, dynamic_bytes, params)) result = run_grid(&x);
    else snprintf(options->error, sizeof options->error, "no memory");
    clean_up(&x);
    return result;
}
