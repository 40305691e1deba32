// Takes events from any thread into bounded buffers.
#include "timeline/timeline.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/thread.h"
#include "timeline/writer.h"

namespace hvd {
namespace {

constexpr size_t kBuffer = 4 << 20;  // bytes of records that wait to be written
constexpr size_t kMaxText = 1024;    // of a name or a field
constexpr Duration kDelay =
    std::chrono::milliseconds(100);  // from a record to its file: what a SIGKILL takes along

int64_t count(Time at) { return at.time_since_epoch().count(); }

std::string_view shortened(std::string_view text) { return text.substr(0, kMaxText); }

}  // namespace

Timeline::Timeline(uint64_t worker, std::string host, LoggerPtr logger)
    : worker_(worker),
      host_(std::move(host)),
      logger_(logger ? std::move(logger) : std::make_shared<Logger>()) {}

Timeline::~Timeline() { static_cast<void>(stop()); }

std::string Timeline::file_of(const std::string& path, uint64_t worker, const std::string& host) {
  std::string file;
  bool unique = false;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      file += path[i];
      continue;
    }
    const char what = ++i < path.size() ? path[i] : ' ';
    switch (what) {
      case 'w': file += std::to_string(worker); break;
      case 'p': file += std::to_string(::getpid()); break;
      case '%': file += '%'; break;
      case 'h':
        for (const char c : host) file += c == '/' ? '_' : c;  // a name, never a way to another folder
        break;
      default:
        throw Error(HVD_INVALID,
                    fmt::format("timeline path '{}': expected %w, %h, %p or %% and not '%{}'", path, what));
    }
    unique = unique || what == 'w' || what == 'p';
  }
  return unique ? file : fmt::format("{}.{}.json", file, worker);
}

Status Timeline::start(const std::string& path) {
  std::lock_guard control(control_);
  if (thread_.joinable()) {
    return Status(HVD_INVALID,
                  fmt::format("the timeline is on already and writes {}: stop it first", writer_->file()));
  }
  if (path.empty()) return Status(HVD_INVALID, "the timeline's path is empty");
  try {
    writing_.reserve(kBuffer);
    writer_ = std::make_unique<Writer>(file_of(path, worker_, host_), worker_, host_);
  } catch (const Error& error) { return error.status(); }
  Place place;
  {
    std::lock_guard lock(mutex_);
    filling_.reserve(kBuffer);
    dropped_ = 0;
    stopping_ = false;
    taking_ = true;
    place = place_;
  }
  if (place.rank >= 0) append_place(place);
  try {
    thread_ = start_thread("hvd-timeline", [this] { run(); });
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    taking_ = false;
    writer_.reset();
    return Status(HVD_UNAVAILABLE, fmt::format("no thread for the timeline: {}", error.what()));
  }
  on_.store(true, std::memory_order_relaxed);
  return {};
}

Status Timeline::stop() {
  std::lock_guard control(control_);
  if (!thread_.joinable()) return {};
  on_.store(false, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    taking_ = false;
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  const std::optional<Status> failure = writer_->failure();
  writer_.reset();
  std::vector<uint8_t>().swap(writing_);
  std::lock_guard lock(mutex_);
  std::vector<uint8_t>().swap(filling_);
  return failure ? *failure : Status();
}

void Timeline::run() {
  bool failed = false;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !filling_.empty() || dropped_ > 0; });
    // Not each for itself: what comes within a moment is written at once.
    changed_.wait_for(lock, kDelay, [&] { return stopping_ || filling_.size() >= kBuffer / 2; });
    const bool last = stopping_;
    writing_.swap(filling_);
    const uint64_t dropped = std::exchange(dropped_, 0);
    lock.unlock();
    writer_->write(writing_, dropped);
    writing_.clear();
    if (last) writer_->finish();
    if (!failed && writer_->failure()) {
      failed = true;
      logger_->warning("{}: the timeline ends here", writer_->failure()->message);
    }
    if (last) return;
    lock.lock();
  }
}

void Timeline::append(const Record& record, std::string_view name, TimelineFields fields) {
  size_t size = sizeof(Record) + shortened(name).size();
  for (const TimelineField& field : fields) {
    const auto* text = std::get_if<std::string_view>(&field.value);
    size += sizeof(TimelineFieldHead) + (text != nullptr ? shortened(*text).size() : 0);
  }
  Record head = record;
  head.fields = static_cast<uint8_t>(fields.size());
  head.name_size = static_cast<uint32_t>(shortened(name).size());

  std::lock_guard lock(mutex_);
  if (!taking_) return;
  const bool idle = filling_.empty() && dropped_ == 0;
  if (filling_.capacity() - filling_.size() < size) {
    ++dropped_;
    if (idle) changed_.notify_all();
    return;
  }
  const size_t before = filling_.size();
  const auto put = [&](const void* data, size_t length) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    filling_.insert(filling_.end(), bytes, bytes + length);
  };
  put(&head, sizeof(head));
  put(name.data(), head.name_size);
  for (const TimelineField& field : fields) {
    if (const auto* text = std::get_if<std::string_view>(&field.value)) {
      const std::string_view kept = shortened(*text);
      const TimelineFieldHead written{field.key, 0, static_cast<int64_t>(kept.size())};
      put(&written, sizeof(written));
      put(kept.data(), kept.size());
    } else {
      const TimelineFieldHead written{field.key, std::get<int64_t>(field.value), -1};
      put(&written, sizeof(written));
    }
  }
  // The writer sleeps until there is something, and then until there is much or some time is over.
  if (idle || (before < kBuffer / 2 && filling_.size() >= kBuffer / 2)) changed_.notify_all();
}

void Timeline::append_place(const Place& place) {
  Record record{Type::kPlace};
  record.at[0] = count(now());
  append(record, "",
         {{"generation", static_cast<int64_t>(place.generation)},
          {"rank", int64_t{place.rank}},
          {"size", int64_t{place.size}}});
}

void Timeline::place(uint64_t generation, int32_t rank, int32_t size) {
  const Place place{generation, rank, size};
  {
    std::lock_guard lock(mutex_);
    place_ = place;
  }
  if (on()) append_place(place);
}

void Timeline::slice(TimelineRow row, std::string_view name, Time began, Time ended, TimelineFields fields) {
  append({.type = Type::kSlice, .row = row, .at = {count(began), count(ended)}}, name, fields);
}

void Timeline::begin(TimelineRow row, std::string_view name, Time at, TimelineFields fields) {
  append({.type = Type::kBegin, .row = row, .at = {count(at)}}, name, fields);
}

void Timeline::end(TimelineRow row, Time at, TimelineFields fields) {
  append({.type = Type::kEnd, .row = row, .at = {count(at)}}, "", fields);
}

void Timeline::instant(std::string_view name, Time at, TimelineFields fields) {
  append({.type = Type::kInstant, .row = TimelineRow::kGenerations, .at = {count(at)}}, name, fields);
}

void Timeline::operation(std::string_view name, const char* kind, const OperationTimes& times, Time done,
                         TimelineFields fields) {
  append({.type = Type::kOperation,
          .kind = kind,
          .at = {count(times.submitted), count(times.matched), count(times.running), count(done)}},
         name, fields);
}

}  // namespace hvd
