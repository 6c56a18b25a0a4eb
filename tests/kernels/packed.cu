// Nothing but the copies of packed operands.

#include "ks_generated.h"
#include "pack.cuh"

#if KS_PACKED_A
KS_PACK_KERNEL(pack_a, A)
#endif
#if KS_PACKED_B
KS_PACK_KERNEL(pack_b, B)
#endif
