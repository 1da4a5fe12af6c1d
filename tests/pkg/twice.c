/* The implementation after a plain include, and both of them twice. */
#include "oscar.h"
#include "oscar.h"
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
#include "oscar.h"
#include "work.h"

unsigned first(void);

unsigned first(void)
{
    return work();
}
