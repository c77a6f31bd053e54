// For x86-64 processors with AVX2 and FMA (level 3); build.py compiles it for these alone.
#define VF_ISA v3
#include "layers.h"
