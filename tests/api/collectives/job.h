/* Every operation of hvd.h in a real job: what the files of this program share. */
#ifndef HVD_TESTS_COLLECTIVES_JOB_H
#define HVD_TESTS_COLLECTIVES_JOB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvd/async.h"
#include "hvd/hvd.h"

extern hvd_context* context;
extern int32_t rank, size;
extern hvd_error error; /* of the last CHECK_STATUS of the main thread */

/* Counts the failure and prints it with the rank. Any thread. */
void check(int good, const char* file, int line, const char* what, const char* detail);

#define CHECK(condition) check((condition) != 0, __FILE__, __LINE__, #condition, "")
#define CHECK_STATUS(call, expected)                                                                  \
  do {                                                                                                \
    hvd_status status_;                                                                               \
    memset(&error, 0, sizeof(error));                                                                 \
    error.struct_size = sizeof(error);                                                                \
    status_ = (call);                                                                                 \
    if (status_ != (expected)) {                                                                      \
      char text_[700];                                                                                \
      snprintf(text_, sizeof(text_), "%s (%s), expected %s", hvd_status_name(status_), error.message, \
               hvd_status_name(expected));                                                            \
      check(0, __FILE__, __LINE__, #call, text_);                                                     \
    } else {                                                                                          \
      check(status_ == HVD_OK || error.message[0] != 0, __FILE__, __LINE__, #call, "says no reason"); \
    }                                                                                                 \
  } while (0)
/* The message of the last CHECK_STATUS must name this. */
#define CHECK_NAMES(text) \
  check(strstr(error.message, (text)) != NULL, __FILE__, __LINE__, (text), error.message)

/* ---- Values: small integers, exact in every dtype ---- */

void put(hvd_dtype dtype, void* data, int64_t index, int64_t value);
int64_t get(hvd_dtype dtype, const void* data, int64_t index);
/* Whether the dtype's values can be below zero. */
int is_signed(hvd_dtype dtype);
/* Some value that depends on both; 0 or 1 for bool, 0 .. 4 else. */
int64_t some(hvd_dtype dtype, int64_t index, int32_t of_rank);

/* A tensor of one dimension in memory of its own (calloc), or of several. */
hvd_tensor vector(hvd_dtype dtype, int64_t count);
hvd_tensor matrix(hvd_dtype dtype, int64_t rows, int64_t columns);
void fill(hvd_tensor* tensor, int32_t of_rank);
int64_t elements(const hvd_tensor* tensor);
/* 1 if it holds what fill of that rank gives. */
int holds(const hvd_tensor* tensor, int32_t of_rank);

hvd_request request(hvd_collective collective, const char* name);
/* Submits, waits (HVD_OK expected) and destroys the op, or gives it out. */
void submit_and_wait(const hvd_request* request, hvd_op** ret_op);

/* Submits and waits: HVD_MISMATCH on every rank. The last one to call it may be told at once, without an
 * op. */
void submit_mismatch(const hvd_request* request);

/* All ranks have the same text in the error of the last CHECK_STATUS. */
void check_same_message(const char* name);

void test_dtypes(void);
void test_gathering(void);
void test_groups(void);
void test_sets(void);
void test_join(void);
void test_mismatches(void);
void test_traffic(void);
void test_direct(void);

#endif
