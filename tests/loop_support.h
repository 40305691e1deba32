// What tests of loops, processes and the driver share: functions on a loop, and waiting for events with a
// deadline.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/loop.h"
#include "support.h"

namespace hvd::test {

/// Runs fn on the loop's thread and waits for it.
template <class Fn>
void on_loop(Loop& loop, Fn fn) {
  std::promise<void> done;
  loop.post([&] {
    fn();
    done.set_value();
  });
  done.get_future().get();
}

/// Something that threads append to and a test waits on.
template <class Item>
class Recorder {
 public:
  void add(Item item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    changed_.notify_all();
  }
  std::vector<Item> all() const {
    std::lock_guard lock(mutex_);
    return items_;
  }
  /// Waits until `enough` says that the items are what was expected.
  bool wait(const std::function<bool(const std::vector<Item>&)>& enough) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kDeadline, [&] { return enough(items_); });
  }
  bool wait_count(size_t count) {
    return wait([&](const std::vector<Item>& items) { return items.size() >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
};

/// A logger whose lines are recorded.
struct RecordedLog {
  Recorder<std::string> lines;
  LoggerPtr logger() {
    return std::make_shared<Logger>(HVD_LOG_DEBUG, hvd::Callback<hvd_log_fn>(&record, this, nullptr));
  }
  static void record(void* self, hvd_log_level, const char* line) {
    static_cast<RecordedLog*>(self)->lines.add(line);
  }
  bool wait_for(const std::string& part) {
    return lines.wait([&](const std::vector<std::string>& all) {
      for (const std::string& line : all) {
        if (line.find(part) != std::string::npos) return true;
      }
      return false;
    });
  }
  std::string text() const {
    std::string all;
    for (const std::string& line : lines.all()) all += line + "\n";
    return all;
  }
};

/// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hvd-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  /// An executable shell script.
  std::string script(const std::string& name, const std::string& body) const {
    std::ofstream(path(name)) << "#!/bin/sh\n" << body;
    std::filesystem::permissions(path(name), std::filesystem::perms::owner_all);
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Waits until `done` holds, for what gives no event: the process table, a file of another process.
inline bool eventually(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Alive and not a zombie.
inline bool alive(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}

}  // namespace hvd::test
