// What CUDA's own headers ask of the compiler, for one that knows nothing of CUDA.

#pragma once

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__
#define __inline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __location__(a)
#define __specialization_static
#define CUDARTAPI
#define CUDARTAPI_CDECL
