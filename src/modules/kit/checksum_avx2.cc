// xxHash for processors with AVX2: compiled with -mavx2, called only where there is one.
#define HVDKIT_CHECKSUM_KERNEL kChecksumAvx2
#include "modules/kit/checksum_kernel.h"
