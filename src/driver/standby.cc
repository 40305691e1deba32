// Looks at the journal ten times a second.
#include "driver/standby.h"

#include <fmt/format.h>

#include <utility>

namespace hvd::driver {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);
constexpr Duration kSettle = std::chrono::seconds(1);

}  // namespace

bool Vigil::see(const JournalFile::Look& look, Time now) {
  if (look.term == 0) return false;
  if (look.term != last_.term) {  // another driver
    ever_locked_ = false;
    free_since_.reset();
  }
  if (look.term != last_.term || look.stamp != last_.stamp) changed_ = now;
  last_ = look;
  ever_locked_ = ever_locked_ || look.locked;
  if (look.locked || !ever_locked_) free_since_.reset();
  // A process that is stopped, or a machine that is cut off, keeps its lock.
  if (now - changed_ >= silence_) return true;
  if (look.locked || !ever_locked_) return false;
  if (!free_since_) free_since_ = now;
  return now - *free_since_ >= settle_;
}

Standby::Watched Standby::directory(const std::string& path) {
  return {path, [path] { return JournalFile::look(path); },
          [path] { return JournalFile::find(path).journal; }};
}

Standby::Standby(Watched watched, Duration silence, Duration patience, LoggerPtr logger)
    : watched_(std::move(watched)), silence_(silence), patience_(patience), logger_(std::move(logger)) {}

void Standby::wait() {
  Vigil vigil(silence_, kSettle);
  JournalFile::Look last;
  const Time began = now();
  std::unique_lock lock(mutex_);
  while (why_.empty()) {
    lock.unlock();
    // From before the look: what was seen is as old as that, should this process be held up now (contract
    // 19).
    const Time at = now();
    const JournalFile::Look look = watched_.look();
    if (look.term != last.term) {
      logger_->info("standing by for the driver of term {}, whose journal is in {}", look.term,
                    watched_.where);
    }
    if (look.term != 0 && (look.term != last.term || look.stamp != last.stamp)) {
      const membership::Journal journal = watched_.journal();
      if (journal.began.term > 0 && journal.job.finish) {
        throw Error(HVD_CLOSED, fmt::format("the job has ended: {}", journal.job.finish->sentence));
      }
    }
    if (vigil.see(look, at)) {
      return logger_->warning("the driver of term {} is gone{}: this one takes over", look.term,
                              look.locked ? ", or stands still" : "");
    }
    if (look.term == 0 && now() - began >= patience_) {
      throw Error(HVD_UNAVAILABLE,
                  fmt::format("no driver has begun a journal in {} within {:g} s (elastic_timeout)",
                              watched_.where, to_seconds(patience_)));
    }
    last = look;
    lock.lock();
    stopped_.wait_for(lock, kLookEvery, [this] { return !why_.empty(); });
  }
  throw Error(HVD_CLOSED, fmt::format("standing by was ended: {}", why_));
}

void Standby::stop(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    why_ = reason.empty() ? "it was told to" : reason;
  }
  stopped_.notify_all();
}

}  // namespace hvd::driver
