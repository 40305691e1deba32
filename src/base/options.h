// Typed options by key, from the program and from the environment. The table in options.cc is the one
// list of keys; docs/options.md is made from it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/log.h"

namespace hvd {

enum class OptionType { kString, kInt, kDuration, kBool };
/// Where an option goes besides its own end: a driver's to its workers, a worker's to its modules.
enum class OptionReach { kHere, kToWorker, kToModule, kToBoth };
using OptionValue = std::variant<std::string, int64_t, Duration, bool>;

struct OptionSpec {
  const char* key;
  OptionType type;
  const char* fallback;  // default, as text
  double low, high;      // range of numbers, of durations in seconds; both ends included
  OptionReach reach;
  const char* meaning;
};

/// A copy is a snapshot. Values are checked when they are set, and the environment's when they are read:
/// both throw Error(HVD_INVALID) that names key, value and what was expected.
class Options {
 public:
  using Environment = std::function<std::optional<std::string>(const std::string& name)>;
  Options();  // the process's environment
  explicit Options(Environment environment);

  void set(const std::string& key, const std::string& text);
  void set(const std::string& key, int64_t value);
  void set(const std::string& key, Duration value);
  void set(const std::string& key, bool value);

  bool is_set(const std::string& key) const;  // by the program or the environment, and not empty
  /// A duration as its number of seconds.
  std::string text(const std::string& key) const;
  std::string string(const std::string& key) const { return std::get<std::string>(value(key)); }
  int64_t integer(const std::string& key) const { return std::get<int64_t>(value(key)); }
  bool boolean(const std::string& key) const { return std::get<bool>(value(key)); }
  Duration duration(const std::string& key) const { return std::get<Duration>(value(key)); }
  std::optional<std::string> environment(const std::string& name) const { return environment_(name); }

  /// Key and text of what the program has set.
  std::vector<std::pair<std::string, std::string>> given() const;
  /// HVD_KEY=value of what was set and is the workers' as well: a driver's workers inherit it.
  std::vector<std::string> for_workers() const;
  /// Key and value of what the backends' modules read, set or not.
  std::vector<std::pair<std::string, std::string>> for_modules() const;

  LoggerPtr logger = std::make_shared<Logger>();

  static const std::string& describe();

 private:
  OptionValue value(const std::string& key) const;
  std::map<std::string, OptionValue> values_;
  Environment environment_;
};

}  // namespace hvd
