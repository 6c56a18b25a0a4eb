// Shared memory as the PTX instructions see it: 32-bit addresses of the shared window (PTX ISA, "State Spaces").

#pragma once

typedef uint32_t ks_shared_t;

// The address that ldmatrix, cp.async, mbarrier and the like take.
KS_DEVICE ks_shared_t ks_shared(const void *p) { return static_cast<ks_shared_t>(__cvta_generic_to_shared(p)); }
