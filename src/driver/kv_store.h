// Small values that the members of one generation tell each other through the driver. Pure: a worker that
// asks before a value is there is answered by the call that puts it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace hvd::driver {

class KvStore {
 public:
  static constexpr size_t kNode = 128;  // bytes that an entry takes besides its key and value

  /// max_bytes: of values with their keys and nodes, and again of the places of those that wait. max_waiting:
  /// keys that one worker may wait for.
  explicit KvStore(size_t max_bytes = size_t{64} << 20, size_t max_waiting = 1024)
      : max_bytes_(max_bytes), max_waiting_(max_waiting) {}

  /// Held once, however many receive it; never null.
  using Value = std::shared_ptr<const std::vector<uint8_t>>;

  /// To workers that asked for `key`. The status is HVD_OK, or says why there will be no value.
  struct Answer {
    std::vector<uint64_t> workers;
    std::string key;
    hvd_status status = HVD_OK;
    Value value;
  };

  /// From now on only this generation (0: none) has keys; workers that wait get HVD_PEER_LOST.
  std::vector<Answer> begin(uint64_t generation);

  /// Puts a value once. HVD_INVALID: there is another value under this key already (the same one again
  /// changes nothing). HVD_PEER_LOST: not the current generation. HVD_UNAVAILABLE: the store is full; workers
  /// that wait for the key are told so. `ret_answer`: to those that waited, if there were any.
  Status set(uint64_t generation, const std::string& key, std::vector<uint8_t> value,
             std::optional<Answer>* ret_answer);

  /// The value, or why there is none; nothing if it is not there yet: then the worker waits.
  std::optional<Answer> get(uint64_t worker, uint64_t generation, const std::string& key);

  /// The worker waits no longer.
  void forget(uint64_t worker);

  uint64_t generation() const { return generation_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t place(const std::string& key) const { return kNode + key.size(); }
  std::optional<Answer> answer_waiting(const std::string& key, hvd_status status, Value value);

  const size_t max_bytes_, max_waiting_;
  uint64_t generation_ = 0;
  size_t bytes_ = 0;          // of values
  size_t waiting_bytes_ = 0;  // of waiting_ and asked_
  std::map<std::string, Value> values_;
  std::map<std::string, std::set<uint64_t>> waiting_;  // key to workers
  std::map<uint64_t, std::set<std::string>> asked_;    // the same, worker to keys
};

}  // namespace hvd::driver
