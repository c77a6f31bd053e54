// For any processor of the architecture; on ARM this is NEON.
#define VF_ISA base
#include "layers.h"
