// libpmix, which this program loads, and what its calls need.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace hvd::pmix_server {

/// Says why on stderr and ends the program.
[[noreturn]] void fail(const std::string& text);

/// libpmix's functions, as its headers declare them.
struct Library {
  decltype(&PMIx_server_init) init = nullptr;
  decltype(&PMIx_server_register_nspace) register_namespace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_generate_regex) node_map = nullptr;
  decltype(&PMIx_generate_ppn) process_map = nullptr;
  decltype(&PMIx_Register_event_handler) register_handler = nullptr;
  pmix_status_t (*load)(pmix_info_t*, const char*, const void*, pmix_data_type_t) = nullptr;
  pmix_status_t (*copy)(pmix_value_t*, const pmix_value_t*) = nullptr;
  const char* (*text)(pmix_status_t) = nullptr;
};
extern Library pmix;

/// file: libpmix, or what needs it. Fails if it can't be had.
void load_library(const char* file);

/// For calls that give their result to a callback.
class Waiter {
 public:
  static void done(pmix_status_t status, void* self) { static_cast<Waiter*>(self)->end(status); }
  void check(pmix_status_t status, const char* what) {
    if (status == PMIX_SUCCESS) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_; });  // libpmix's own thread answers, and waits for nobody
      status = status_;
    }
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
      fail(std::string(what) + ": " + pmix.text(status));
  }

 private:
  void end(pmix_status_t status) {
    std::lock_guard lock(mutex_);
    ended_ = true;
    status_ = status;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  pmix_status_t status_ = PMIX_SUCCESS;
};

/// Infos for one call. Their values are never freed: they are small, and versions differ in who
/// frees them.
class Infos {
 public:
  void add(const char* key, const void* value, pmix_data_type_t type) {
    pmix_info_t info;
    std::memset(&info, 0, sizeof info);
    if (pmix.load(&info, key, value, type) != PMIX_SUCCESS) fail(std::string("PMIx does not take ") + key);
    all_.push_back(info);
  }
  void add(const char* key, const std::string& value) { add(key, value.c_str(), PMIX_STRING); }
  void add32(const char* key, uint32_t value) { add(key, &value, PMIX_UINT32); }
  void add16(const char* key, uint16_t value) { add(key, &value, PMIX_UINT16); }
  pmix_info_t* data() { return all_.data(); }
  size_t size() const { return all_.size(); }

 private:
  std::vector<pmix_info_t> all_;
};

}  // namespace hvd::pmix_server
