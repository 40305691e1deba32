/* Checks for programs that know nothing but the public headers. */
#ifndef HVD_TESTS_CHECK_H
#define HVD_TESTS_CHECK_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Threads check as well. */
static atomic_int failures;
static atomic_int checks;

#define CHECK(condition)                                                      \
  do {                                                                        \
    ++checks;                                                                 \
    if (!(condition)) {                                                       \
      ++failures;                                                             \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                         \
  } while (0)

/* The call must return `expected`, and tell why in the error unless it is HVD_OK. */
#define CHECK_STATUS(call, expected)                                                                      \
  do {                                                                                                    \
    hvd_status status_;                                                                                   \
    memset(&error, 0, sizeof(error));                                                                     \
    error.struct_size = sizeof(error);                                                                    \
    status_ = (call);                                                                                     \
    ++checks;                                                                                             \
    if (status_ != (expected) || (status_ != HVD_OK && (error.status != status_ || !error.message[0]))) { \
      ++failures;                                                                                         \
      fprintf(stderr, "%s:%d: %s: %s (%s), expected %s\n", __FILE__, __LINE__, #call,                     \
              hvd_status_name(status_), error.message, hvd_status_name(expected));                        \
    }                                                                                                     \
  } while (0)

/* The message of the last CHECK_STATUS must name this. */
#define CHECK_NAMES(text)                                                                             \
  do {                                                                                                \
    ++checks;                                                                                         \
    if (strstr(error.message, (text)) == NULL) {                                                      \
      ++failures;                                                                                     \
      fprintf(stderr, "%s:%d: '%s' does not name '%s'\n", __FILE__, __LINE__, error.message, (text)); \
    }                                                                                                 \
  } while (0)

static int report(const char* name) {
  printf("%s: %d checks, %d failed\n", name, checks, failures);
  return failures == 0 ? 0 : 1;
}

#endif
