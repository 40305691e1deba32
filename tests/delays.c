/* Preloaded into a test: delays its threads at random around locks, sockets and waits for them, so that they
 * meet in orders that are otherwise rare. (Noise, as in: Edelstein, Farchi, Nir, Ratsaby, Ur. Multithreaded
 * Java program test generation. IBM Systems Journal 41, 2002.)
 *
 * HVD_DELAYS_SEED: a number; the delays of a thread follow from it, the process and the thread. One point in
 * 60 takes up to 0.4 ms longer, one in 500 up to 26 ms. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kOften = 60, kRare = 500 };
enum { kShort = 400000, kLong = 25000000, kLeastOfLong = 1000000 }; /* ns */

static uint64_t seed; /* 0: not yet */
static __thread uint64_t state;

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("HVD_DELAYS_SEED");
  seed = (text == NULL ? 1 : strtoull(text, NULL, 10)) * 2 + 1 + ((uint64_t)getpid() << 32);
}

/* By xorshift (Marsaglia, 2003). */
static void delay(void) {
  if (seed == 0) return;
  if (state == 0) state = (seed ^ (uint64_t)syscall(SYS_gettid) * 0xbf58476d1ce4e5b9U) | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  const uint64_t drawn = state >> 20;
  struct timespec time = {0, 0};
  if (drawn % kRare == 0) {
    time.tv_nsec = kLeastOfLong + (long)((drawn >> 8) % kLong);
  } else if (drawn % kOften == 0) {
    time.tv_nsec = (long)((drawn >> 8) % kShort);
  } else {
    return;
  }
  const int before = errno;
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
  errno = before;
}

#define REAL(name)                 \
  static __typeof__(&(name)) real; \
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name)

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  REAL(pthread_mutex_lock);
  delay();
  return real(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
  REAL(pthread_mutex_unlock);
  const int result = real(mutex);
  delay();
  return result;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  REAL(sendmsg);
  delay();
  const ssize_t result = real(fd, message, flags);
  delay();
  return result;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  REAL(recvmsg);
  delay();
  const ssize_t result = real(fd, message, flags);
  delay();
  return result;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout) {
  REAL(epoll_wait);
  const int result = real(fd, events, most, timeout);
  delay();
  return result;
}

int shutdown(int fd, int how) {
  REAL(shutdown);
  delay();
  return real(fd, how);
}

int close(int fd) {
  REAL(close);
  delay();
  return real(fd);
}
