// Status: the outcome of an operation with what a reader needs to act on it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "hvd/hvd.h"

namespace hvd {

struct Status {
  hvd_status code = HVD_OK;
  std::string message;
  int32_t rank = -1;
  uint64_t generation = 0;
  int64_t vendor_code = 0;
  std::string backend;

  Status() = default;
  /// Cold: the paths that lead to a failure are laid out apart and compiled for size.
  [[gnu::cold]] Status(hvd_status c, std::string m);

  bool ok() const { return code == HVD_OK; }
  Status& at_rank(int32_t r) & {
    rank = r;
    return *this;
  }
  Status& in_generation(uint64_t g) & {
    generation = g;
    return *this;
  }

  /// Copies into a caller's error, no further than its struct_size. NULL is allowed.
  void write_to(hvd_error* error) const noexcept;
  static Status from(hvd_status code, const hvd_error& error);
};

/// Thrown where a value can't be returned; the C API turns it back into its status.
class Error : public std::exception {
 public:
  explicit Error(Status status) : status_(std::move(status)) {}
  Error(hvd_status code, std::string message) : status_(code, std::move(message)) {}
  const char* what() const noexcept override { return status_.message.c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

const char* status_name(hvd_status status);

}  // namespace hvd
