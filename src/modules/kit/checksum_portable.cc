// xxHash for any processor.
#define HVDKIT_CHECKSUM_KERNEL kChecksumPortable
#include "modules/kit/checksum_kernel.h"
