// What MPI processes tell each other as they join: values under keys, of which the other side waits for one.
// Who waits for a process that has died is told so at once. Pure: time comes in, answers come out.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace hvd::pmix_server {

using Time = std::chrono::steady_clock::time_point;
using Value = std::shared_ptr<const void>;

/// How many namespaces are to be ready if `seen` is the highest number that has connected: a worker's has to
/// be there when it connects. Bounded, since a member may connect under any number that is ready.
inline uint64_t namespaces_for(uint64_t seen) {
  constexpr uint64_t kAhead = 512, kMost = 65'536;
  return std::min(std::min(seen, kMost) + kAhead, kMost);
}

/// How a look-up ends. A ticket is the caller's name for it.
struct Answer {
  enum class Result { kFound, kAbsent, kLost, kTimeout };
  uint64_t ticket = 0;
  Result result = Result::kAbsent;
  std::string key, owner;  // of the value, if it was found
  Value value;
};
using Answers = std::vector<Answer>;

/// Two processes that join publish and look up keys "<port>:<what>", port itself having one colon in it
/// ("12.0:345"). All who have done so for one port are partners: if one of them dies, the others' look-ups
/// under this port end. What one process can make it remember is bounded, since a process may be wrong or
/// wild: its oldest ports are forgotten, and further values refused.
class Exchange {
 public:
  static constexpr size_t kMostPorts = 64;    // that a process is partner of; joins come one after the other
  static constexpr size_t kMostValues = 64;   // published and not read, of a process
  static constexpr size_t kMostWaiting = 16;  // look-ups of a process

  explicit Exchange(std::chrono::milliseconds patience) : patience_(patience) {}

  /// once: goes with the first look-up that finds it. nullopt: it has published too
  /// much, or the key is another's.
  std::optional<Answers> publish(const std::string& process, const std::string& key, Value value, bool once);
  /// waits: for the value to come, until `patience` is over. One that waits for too much is told that it is
  /// absent.
  Answers look_up(const std::string& process, const std::string& key, uint64_t ticket, bool waits, Time now);
  void unpublish(const std::string& process, const std::string& key);
  /// What it has published goes as well.
  Answers died(const std::string& process);
  Answers expire(Time now);
  /// When the next look-up expires.
  std::optional<Time> next() const;

  /// Ports and values that are remembered.
  size_t size() const { return ports_.size() + items_.size(); }

 private:
  struct Item {
    std::string owner;
    Value value;
    bool once = false;
  };
  struct Waiting {
    std::string process, key;
    uint64_t ticket = 0;
    Time until;
  };
  struct Port {
    std::set<std::string> partners;
    bool lost = false;  // one of them has died
  };
  bool meet(const std::string& process, const std::string& key);  // false: a partner has died
  void part(const std::string& process, const std::string& port);

  const std::chrono::milliseconds patience_;
  std::map<std::string, Item> items_;                          // by key
  std::map<std::string, Port> ports_;                          // by name
  std::map<std::string, std::deque<std::string>> partner_of_;  // ports by process, oldest first
  std::vector<Waiting> waiting_;                               // in the order in which they came
};

/// "12.0:345" of "12.0:345:accept"; all of a key that is no port's.
std::string port_of(const std::string& key);

}  // namespace hvd::pmix_server
