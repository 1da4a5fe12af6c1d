/* The implementation and nothing else: what a user's oscar.c looks like. */
#define OSCAR_IMPLEMENTATION
#include "oscar.h"
