// What a driver has of the one before it: the job's name and secret, its journal, the guard of its processes.
// And what it leaves with the keeper for the one after it (contract 14).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/options.h"
#include "driver/follower.h"
#include "driver/journal_file.h"
#include "driver/settings.h"
#include "launch/guard.h"
#include "launch/keeper.h"
#include "membership/takeover.h"

namespace hvd::driver {

class Succession {
 public:
  /// Reads and checks the options, and what the keeper has, if there is one. `options` must outlive this.
  /// Throws Error(HVD_INVALID).
  Succession(const Options& options, LoggerPtr logger);

  /// As the options and an earlier driver have them.
  const Settings& settings() const { return settings_; }
  const std::shared_ptr<launch::Keeper>& keeper() const { return keeper_; }  // or null

  /// The keeper had a driver of this job before.
  bool goes_on() const;
  /// Another driver has the journal at this moment.
  bool overtaken() const;

  // From here on: the loop's thread only.
  /// Finds out what is known of the job and begins a term of this driver. An empty `guard_path`: nothing is
  /// guarded. Throws Error(HVD_UNAVAILABLE) where another driver has the journal.
  void begin(std::string guard_path);
  /// Before begin: what another driver's journal was, in the directory of this one.
  void follow(const std::string& guard_path, const JournalCopy& copy);
  /// After the last worker: the journal is closed, a private one removed, the guard let go.
  void end();
  /// Ends the job's processes with the driver; that of the driver before this one, if the keeper has it.
  std::shared_ptr<launch::Guard> guard();

  uint64_t term() const { return term_; }                                   // 0: no journal, no keeper
  const std::shared_ptr<JournalFile>& journal() const { return journal_; }  // or null
  const std::optional<membership::KnownJob>& known() const {
    return known_;
  }  // none: this driver is the first

 private:
  Settings read();
  std::string find_directory();
  void begin_journal(const std::string& directory);

  const Options& options_;
  const LoggerPtr logger_;
  std::string directory_;  // of the journal
  const std::shared_ptr<launch::Keeper> keeper_;
  const Settings settings_;
  std::string guard_path_;
  uint64_t term_ = 0;
  std::shared_ptr<JournalFile> journal_;
  std::optional<membership::KnownJob> known_;
  std::shared_ptr<launch::Guard> guard_;
};

}  // namespace hvd::driver
