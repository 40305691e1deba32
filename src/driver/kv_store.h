// Small values that the members of one generation tell each other through the driver. Pure: whoever
// asks before a value is there is answered by the call that puts it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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

  /// To a worker that asked for `key`. The status is HVD_OK, or says why there will be no value.
  struct Answer {
    uint64_t worker = 0;
    std::string key;
    hvd_status status = HVD_OK;
    std::vector<uint8_t> value;
  };

  /// From now on only this generation (0: none) has keys; whoever waits gets HVD_PEER_LOST.
  std::vector<Answer> begin(uint64_t generation);

  /// Puts a value once. HVD_INVALID: there is another value under this key already (the same one again
  /// changes nothing). HVD_PEER_LOST: not the current generation. HVD_UNAVAILABLE: the store is full; those
  /// who wait for the key are told so. `ret_answers`: to those who waited.
  Status set(uint64_t generation, const std::string& key, std::vector<uint8_t> value,
             std::vector<Answer>* ret_answers);

  /// The value, or why there is none; nothing if it is not there yet: then the worker waits.
  std::optional<Answer> get(uint64_t worker, uint64_t generation, const std::string& key);

  /// The worker waits no longer.
  void forget(uint64_t worker);

  uint64_t generation() const { return generation_; }
  size_t bytes() const { return bytes_; }

 private:
  void drop(std::multimap<std::string, uint64_t>::iterator entry);
  void answer_waiting(const std::string& key, hvd_status status, const std::vector<uint8_t>& value,
                      std::vector<Answer>* ret_answers);

  const size_t max_bytes_, max_waiting_;
  uint64_t generation_ = 0;
  size_t bytes_ = 0;          // of values
  size_t waiting_bytes_ = 0;  // of waiting_
  std::map<std::string, std::vector<uint8_t>> values_;
  std::multimap<std::string, uint64_t> waiting_;  // key to worker
  std::map<uint64_t, size_t> places_;             // worker to how many of these are its own
};

}  // namespace hvd::driver
