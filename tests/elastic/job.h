// A whole job in one process: a driver, and workers that are threads with a context each. It uses the
// public headers alone.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hvd/driver.h"
#include "support.h"

namespace hvd::test {

struct OptionsDeleter {
  void operator()(hvd_options* options) const { hvd_options_destroy(options); }
};
using OptionsPtr = std::unique_ptr<hvd_options, OptionsDeleter>;

/// What the launcher hands to a worker.
struct WorkerSeat {
  uint64_t worker = 0;
  std::string host;
  int32_t slot = 0;
  std::map<std::string, std::string> environment;
};

/// Body of a worker: gets options that lead to the driver, and runs in a thread of its own.
using WorkerBody = std::function<void(const WorkerSeat& seat, hvd_options* options)>;

class Job {
 public:
  /// hosts: "a:2,b:1"; options: key and value of the driver.
  Job(const std::string& hosts, const std::map<std::string, std::string>& options, WorkerBody body);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  void start();
  void set_hosts(const std::string& hosts);
  /// Waits for the job's end; its status, and the sentence in *ret_sentence.
  hvd_status wait(std::string* ret_sentence);
  hvd_driver_status_info status() const;
  hvd_driver* driver() const { return driver_; }

 private:
  static int32_t discover(void* self, hvd_add_host_fn add, void* sink);
  static int32_t launch(void* self, const hvd_launch* launch);
  static void stop(void* self, uint64_t worker, int32_t force);

  const WorkerBody body_;
  hvd_driver* driver_ = nullptr;
  std::mutex mutex_;
  std::vector<std::pair<std::string, int32_t>> hosts_;
  std::vector<std::thread> threads_;
};

/// "error message" of a failed call, for assertions.
#define HVD_ASSERT_OK(call)                                                                           \
  do {                                                                                                \
    hvd_error hvd_assert_error = HVD_ERROR_INIT;                                                      \
    hvd_error* const error = &hvd_assert_error;                                                       \
    const hvd_status hvd_assert_status = (call);                                                      \
    ASSERT_EQ(hvd_status_name(hvd_assert_status), std::string("HVD_OK")) << hvd_assert_error.message; \
  } while (false)

}  // namespace hvd::test
