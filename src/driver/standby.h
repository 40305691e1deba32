// A driver that stands by: it watches the journal of the job's driver, and is told when to take over
// (contract 14).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "driver/journal_file.h"

namespace hvd::driver {

/// Whether the driver is gone, by what is seen of its journal. Pure; only this machine's time counts, and of
/// the file's that it changes.
class Vigil {
 public:
  /// silence: without a beat of a driver. settle: for another driver on its machine, which needs no standby.
  Vigil(Duration silence, Duration settle) : silence_(silence), settle_(settle) {}

  /// True: it is time to take over.
  bool see(const JournalFile::Look& look, Time now);

 private:
  const Duration silence_, settle_;
  JournalFile::Look last_;
  Time changed_{};
  bool ever_locked_ = false;        // else its lock can't be seen from here
  std::optional<Time> free_since_;  // the lock that was seen
};

class Standby {
 public:
  /// What is watched, and how a message names it.
  struct Watched {
    std::string where;
    std::function<JournalFile::Look()> look;  // may block for a while
    std::function<membership::Journal()> journal;
  };
  static Watched directory(const std::string& path);
  Standby(Watched watched, Duration silence, Duration patience, LoggerPtr logger);

  /// Returns when this driver is to take the job over. Throws Error: HVD_CLOSED: the job has ended meanwhile,
  /// or somebody has called stop; HVD_UNAVAILABLE: no job has begun within the patience.
  void wait();
  /// From any thread.
  void stop(const std::string& reason);

 private:
  const Watched watched_;
  const Duration silence_, patience_;
  const LoggerPtr logger_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  std::string why_;
};

}  // namespace hvd::driver
