/* What GCC 12's static libstdc++ asks of a C library, and Debian 11's (2.31) lacks: scripts/sysroot.sh,
 * wheels alone. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#pragma GCC visibility push(hidden)

/* glibc 2.32: counters may do without atomic operations while there is one thread. There always are more
 * here. */
char __libc_single_threaded = 0;

/* glibc 2.36, for std::random_device. */
uint32_t arc4random(void) {
  uint32_t value;
  /* A kernel gives so few bytes at once, or none at all. */
  if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) abort();
  return value;
}
