/* A library that the compiler was told to build with fast math (mk/build.mk): linked so, it sets flush-to-zero at load. */
#include "broken.c"

#ifndef __FAST_MATH__
#error "this file is built with -ffast-math"
#endif
