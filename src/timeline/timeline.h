// What a worker did and when, as a trace for ui.perfetto.dev and chrome://tracing: docs/timeline.md says what
// the file looks like. Hooks cost one relaxed load while it is off.
#pragma once

#include <atomic>
#include <condition_variable>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace hvd {

/// What an event tells besides its name. The key is a literal.
struct TimelineField {
  const char* key;
  std::variant<int64_t, std::string_view> value;
};
using TimelineFields = std::initializer_list<TimelineField>;

/// When an operation got to each of its phases; zero: it did not, or the timeline was off then.
struct OperationTimes {
  Time submitted{}, matched{}, running{};
};

/// Rows of a worker's lane; those of operations follow.
enum class TimelineRow : uint8_t { kGenerations = 1, kState = 2 };

/// Of one worker. Thread-safe. Recording never blocks on the disk, never allocates and never fails: a thread
/// of its own writes, and what it is too slow for is dropped and counted in the file.
class Timeline {
 public:
  Timeline(uint64_t worker, std::string host, LoggerPtr logger);
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();  // stop()

  bool on() const { return on_.load(std::memory_order_relaxed); }

  /// Begins a file; an existing one is replaced. HVD_INVALID: it is on already, or the path is not valid.
  /// HVD_UNAVAILABLE: the file can't be opened.
  Status start(const std::string& path);
  /// Writes what is left and closes the file. HVD_UNAVAILABLE if something could not be written. Nothing if
  /// it is off.
  Status stop();

  /// This worker's place from now on; also to be told while it is off.
  void place(uint64_t generation, int32_t rank, int32_t size);

  void slice(TimelineRow row, std::string_view name, Time began, Time ended, TimelineFields fields = {});
  /// A slice whose end comes later, should it come; slices of its row in between are within it.
  void begin(TimelineRow row, std::string_view name, Time at, TimelineFields fields = {});
  void end(TimelineRow row, Time at, TimelineFields fields = {});
  void instant(std::string_view name, Time at, TimelineFields fields = {});
  /// An operation that is complete. `kind`: a literal, "allreduce".
  void operation(std::string_view name, const char* kind, const OperationTimes& times, Time done,
                 TimelineFields fields = {});

  /// The file that `path` stands for: %w, %h, %p, %% are worker, host, process, %; without %w and %p, which
  /// tell workers apart, ".<worker>.json" is added. Throws Error(HVD_INVALID) for another %.
  static std::string file_of(const std::string& path, uint64_t worker, const std::string& host);

 private:
  class Writer;
  struct Place {
    uint64_t generation = 0;
    int32_t rank = -1, size = 0;
  };

  enum class Type : uint8_t { kSlice, kBegin, kEnd, kInstant, kOperation, kPlace };
  struct Record;
  void append(const Record& record, std::string_view name, TimelineFields fields);
  void append_place(const Place& place);
  void run();

  const uint64_t worker_;
  const std::string host_;
  const LoggerPtr logger_;
  std::atomic<bool> on_{false};

  std::mutex control_;  // one start or stop at a time
  std::thread thread_;
  std::unique_ptr<Writer> writer_;  // the thread's while it runs
  std::vector<uint8_t> writing_;    // likewise

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<uint8_t> filling_;  // records, one after the other; its capacity is the most
  uint64_t dropped_ = 0;
  bool taking_ = false, stopping_ = false;
  Place place_;
};

using TimelinePtr = std::shared_ptr<Timeline>;

/// Whether an event is to be recorded; a part that was made without a timeline has none.
inline bool is_on(const TimelinePtr& timeline) { return timeline != nullptr && timeline->on(); }

}  // namespace hvd
