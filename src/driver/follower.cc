// Asks for a driver's journal, copies it, and fences who is left of the drivers before.
#include "driver/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "base/thread.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

// Of a journal that is copied. A driver writes its own anew long before; whoever says more lies, and would
// fill memory or use up the terms.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr uint64_t kMostTerm = uint64_t{1} << 62;
constexpr Duration kFenceEvery = std::chrono::seconds(1), kFencePatience = std::chrono::seconds(2);

/// Numbers that a space separates, and nothing else.
template <size_t n>
std::array<uint64_t, n> numbers(std::string_view text, const char* what) {
  std::array<uint64_t, n> found{};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (size_t i = 0; i < n; ++i) {
    if (i > 0 && at != end && *at == ' ') ++at;
    const auto [stop, bad] = std::from_chars(at, end, found[i]);
    if (bad != std::errc() || (i + 1 == n) != (stop == end)) {
      throw Error(HVD_INVALID, fmt::format("{} '{}': expected {} numbers", what, printable(text, 100), n));
    }
    at = stop;
  }
  return found;
}

}  // namespace

std::string question_for(const JournalPart& part) {
  return fmt::format("{} {} {}", part.term, part.file, part.offset);
}

JournalPart read_question(const std::string& argument) {
  const auto [term, file, offset] = numbers<3>(argument, "a question for the journal");
  return {term, file, offset, 0, {}};
}

JournalPart read_answer(std::string_view text) {
  const size_t line = std::min(text.find('\n'), text.size());
  const auto [term, file, offset, size] = numbers<4>(text.substr(0, line), "a part of a journal");
  return {term, file, offset, size, text.substr(std::min(line + 1, text.size()))};
}

bool JournalCopy::take(const JournalPart& answer) {
  const bool same = answer.term == term_ && answer.file == file_;
  if (answer.term > kMostTerm || answer.size > kMostBytes) {
    throw Error(HVD_INVALID, fmt::format("a journal of {} bytes and term {}: expected at most {} and {}",
                                         answer.size, answer.term, kMostBytes, kMostTerm));
  }
  if (answer.term == 0 || answer.term < term_ ||
      (same ? answer.offset != next_.size() : answer.offset != 0) ||
      answer.size < answer.offset + answer.bytes.size()) {
    throw Error(HVD_INVALID,
                fmt::format("{} bytes from {} of {} of journal {}.{}: expected what follows {} of {}.{}",
                            answer.bytes.size(), answer.offset, answer.size, answer.term, answer.file,
                            next_.size(), term_, file_));
  }
  if (!same) next_.clear();
  term_ = answer.term;
  file_ = answer.file;
  next_.append(answer.bytes);
  if (next_.size() < answer.size) return !answer.bytes.empty();
  // Until a journal that has begun anew is there as a whole, the one before tells more.
  whole_ = next_;
  whole_term_ = term_;
  return false;
}

Follower::Follower(std::vector<DriverAddress> drivers, Duration patience, LoggerPtr logger)
    : drivers_(std::move(drivers)), patience_(patience), logger_(std::move(logger)) {
  for (const DriverAddress& driver : drivers_) lines_.push_back(std::make_unique<Operator>(driver));
}

std::string Follower::where() const {
  std::string all;
  for (const DriverAddress& driver : drivers_) all += (all.empty() ? "" : ",") + driver.endpoint;
  return all;
}

JournalFile::Look Follower::look() {
  bool silent = false;
  for (size_t turn = 0; turn < drivers_.size(); ++turn) {
    const size_t which = (last_ + turn) % drivers_.size();
    try {
      bool more = true;
      while (more) {
        const std::string answer = lines_[which]->ask("journal", question_for(copy_.wanted()), patience_);
        more = copy_.take(read_answer(answer));
      }
      last_ = which;
      ++answers_;
      trouble_.clear();
      return {copy_.term(), true, answers_};
    } catch (const Error& error) {
      // Silence proves nothing for a while: that driver may be stopped, or busy.
      silent = silent || error.status().code == HVD_TIMEOUT;
      if (std::exchange(trouble_, error.what()) != error.what()) {
        logger_->info("no journal from the driver at {}: {}", drivers_[which].endpoint, error.what());
      }
    }
  }
  return {copy_.term(), silent, answers_};
}

Fence::Fence(std::vector<DriverAddress> others, uint64_t term, LoggerPtr logger,
             std::function<void()> overtaken)
    : others_(std::move(others)), term_(term), logger_(std::move(logger)), overtaken_(std::move(overtaken)) {
  thread_ = start_thread("hvd-fence", [this] { run(); });
}

Fence::~Fence() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Fence::run() {
  std::vector<std::unique_ptr<Operator>> lines;
  for (const DriverAddress& other : others_) lines.push_back(std::make_unique<Operator>(other));
  std::unique_lock lock(mutex_);
  while (!ending_) {
    for (size_t i = 0; i < others_.size(); ++i) {
      const DriverAddress& other = others_[i];
      if (ending_) return;
      lock.unlock();
      try {
        const std::string answer = lines[i]->ask("yield", std::to_string(term_), kFencePatience);
        const uint64_t term = numbers<1>(answer, "a term")[0];
        if (term > term_) {
          overtaken_();
        } else if (term < term_) {
          logger_->warning("the driver of term {} at {} was still there: it gives way", term, other.endpoint);
        }
      } catch (const std::exception&) {}  // nobody is there, or it stands still: the next turn
      lock.lock();
    }
    changed_.wait_for(lock, kFenceEvery, [this] { return ending_; });
  }
}

std::vector<DriverAddress> drivers_to_follow(const std::string& text, const std::string& job,
                                             const std::string& secret) {
  std::vector<DriverAddress> drivers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) drivers.push_back({text.substr(begin, end - begin), job, secret});
    begin = end + 1;
  }
  return drivers;
}

}  // namespace hvd::driver
