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

/// Bounded memory that members share. Half of it is theirs in equal parts, whatever the others take; the
/// other half is whoever's comes first.
class MemberMemory {
 public:
  explicit MemberMemory(size_t most) : most_(most) {}
  /// Nobody has any; from now on there are so many members.
  void begin(size_t members);
  /// False: the member's part is full, and so is what all have in common.
  bool take(uint64_t member, size_t bytes);
  void give_back(uint64_t member, size_t bytes);
  size_t most() const { return most_; }
  size_t used() const { return used_; }
  size_t used_by(uint64_t member) const;

 private:
  size_t beyond(size_t bytes) const { return bytes > part_ ? bytes - part_ : 0; }

  const size_t most_;
  size_t part_ = 0;
  size_t used_ = 0;
  size_t common_ = 0;  // of it, beyond parts
  std::map<uint64_t, size_t> by_member_;
};

class KvStore {
 public:
  static constexpr size_t kNode = 128;  // bytes that an entry takes besides its key and value

  /// max_bytes: of values with their keys and nodes, and again of the places of those that wait. max_waiting:
  /// keys that one worker may wait for.
  explicit KvStore(size_t max_bytes = size_t{64} << 20, size_t max_waiting = 1024)
      : memory_(max_bytes), waiting_memory_(max_bytes), max_waiting_(max_waiting) {}

  /// Held once, however many receive it; never null.
  using Value = std::shared_ptr<const std::vector<uint8_t>>;

  /// To workers that asked for `key`. The status is HVD_OK, or says why there will be no value.
  struct Answer {
    std::vector<uint64_t> workers;
    std::string key;
    hvd_status status = HVD_OK;
    Value value;
  };

  /// From now on only this generation (0: none) has keys, and this many members; workers that wait get
  /// HVD_PEER_LOST.
  std::vector<Answer> begin(uint64_t generation, size_t members);

  /// Puts a value once. HVD_INVALID: there is another value under this key already (the same one again
  /// changes nothing). HVD_PEER_LOST: not the current generation. HVD_UNAVAILABLE: the store is full for this
  /// worker; those that wait for the key are told so. `ret_answer`: to those that waited, if there were any.
  Status set(uint64_t worker, uint64_t generation, const std::string& key, std::vector<uint8_t> value,
             std::optional<Answer>* ret_answer);

  /// The value, or why there is none; nothing if it is not there yet: then the worker waits.
  std::optional<Answer> get(uint64_t worker, uint64_t generation, const std::string& key);

  /// The worker waits no longer.
  void forget(uint64_t worker);

  uint64_t generation() const { return generation_; }
  size_t bytes() const { return memory_.used(); }

 private:
  size_t place(const std::string& key) const { return kNode + key.size(); }
  std::optional<Answer> answer_waiting(const std::string& key, hvd_status status, Value value);

  MemberMemory memory_;          // of values, by who set them
  MemberMemory waiting_memory_;  // of waiting_ and asked_
  const size_t max_waiting_;
  uint64_t generation_ = 0;
  std::map<std::string, Value> values_;
  std::map<std::string, std::set<uint64_t>> waiting_;  // key to workers
  std::map<uint64_t, std::set<std::string>> asked_;    // the same, worker to keys
};

}  // namespace hvd::driver
