#include "unit.c"
