/* For nm: no stdio, memory from macros. user_allocate and user_release stand for the user's own functions. */
#include <stddef.h>

void *user_allocate(size_t size);
void user_release(void *memory);

#define OSCAR_NO_STDIO
#define OSCAR_MALLOC(size) user_allocate(size)
#define OSCAR_FREE(pointer) user_release(pointer)
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
