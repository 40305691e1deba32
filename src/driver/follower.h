// A driver that stands by without the other one's directory: it asks that driver for its journal, keeps a
// copy, and after it has taken over tells whoever still drives the job to end (contract 14).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "driver/journal_file.h"
#include "driver/operator.h"

namespace hvd::driver {

/// A question of verb "journal", "TERM FILE OFFSET": what the asker has. And its answer, "TERM FILE OFFSET
/// SIZE\n" and bytes: from where they are, and how long the whole is.
struct JournalPart {
  uint64_t term = 0;
  uint64_t file = 0;  // grows when the journal of a term begins anew
  uint64_t offset = 0;
  uint64_t size = 0;  // of the whole; not in a question
  std::string_view bytes;
};
std::string question_for(const JournalPart& part);
/// Throw Error(HVD_INVALID).
JournalPart read_question(const std::string& argument);
JournalPart read_answer(std::string_view text);

/// The copy. Pure: answers go in.
class JournalCopy {
 public:
  JournalPart wanted() const { return {term_, file_, next_.size(), 0, {}}; }
  /// Returns whether there is more to ask for at once. Throws Error(HVD_INVALID) for what doesn't fit what
  /// was asked.
  bool take(const JournalPart& answer);
  uint64_t term() const { return whole_term_; }        // of bytes(); 0: none yet
  const std::string& bytes() const { return whole_; }  // the newest that was there as a whole

 private:
  uint64_t term_ = 0, file_ = 0, whole_term_ = 0;
  std::string next_, whole_;
};

class Follower {
 public:
  Follower(std::vector<DriverAddress> drivers, Duration patience, LoggerPtr logger);
  /// Asks the drivers one after the other until one answers. `locked`: somebody does, or is silent though its
  /// port is open; `stamp` changes with each answer. Blocks for `patience` a driver.
  JournalFile::Look look();
  const JournalCopy& copy() const { return copy_; }
  std::string where() const;

 private:
  const std::vector<DriverAddress> drivers_;
  std::vector<std::unique_ptr<Operator>> lines_;  // to each
  const Duration patience_;
  const LoggerPtr logger_;
  JournalCopy copy_;
  size_t last_ = 0;  // who answered last
  uint64_t answers_ = 0;
  std::string trouble_;  // told
};

/// As long as it lives it tells the others, again and again, that there is a driver of this term.
class Fence {
 public:
  /// overtaken: one of the others is of a newer term. From a thread of its own.
  Fence(std::vector<DriverAddress> others, uint64_t term, LoggerPtr logger, std::function<void()> overtaken);
  ~Fence();

 private:
  void run();
  const std::vector<DriverAddress> others_;
  const uint64_t term_;
  const LoggerPtr logger_;
  const std::function<void()> overtaken_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

/// "HOST:PORT,HOST:PORT" as operators of that job reach them.
std::vector<DriverAddress> drivers_to_follow(const std::string& text, const std::string& job,
                                             const std::string& secret);

}  // namespace hvd::driver
