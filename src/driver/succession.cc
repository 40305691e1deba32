// Takes over what the driver before this one has left, and leaves the same for the next.
#include "driver/succession.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/status.h"
#include "launch/job_directory.h"

namespace hvd::driver {
namespace {

constexpr uint64_t kIdentitiesOfTerm = 1'000'000;
constexpr uint64_t kFollowers = 1 << 12;

std::shared_ptr<launch::Keeper> keeper_of(const Options& options, const LoggerPtr& logger) {
  const int64_t socket = options.integer("keeper");
  return socket < 0 ? nullptr : std::make_shared<launch::Keeper>(static_cast<int>(socket), logger);
}

}  // namespace

Succession::Succession(const Options& options, LoggerPtr logger)
    : options_(options),
      logger_(std::move(logger)),
      keeper_(keeper_of(options_, logger_)),
      settings_(read()) {}

/// The name and the secret of the job are those of the driver before this one, if there was one.
Settings Succession::read() {
  Settings settings = read_settings(options_);
  if (!keeper_) return settings;
  if (const auto kept = keeper_->take("job")) {
    std::vector<std::string> parts(1);
    for (const char c : kept->text) c == '\n' ? void(parts.emplace_back()) : parts.back().push_back(c);
    if (parts.size() == 3) {
      settings.job = parts[0];
      settings.secret = parts[1];
      directory_ = parts[2];
    }
  }
  return settings;
}

/// Of the journal; "": none is kept.
std::string Succession::find_directory() {
  if (!directory_.empty()) return directory_;
  if (!settings_.journal.empty() || !settings_.private_journal || !keeper_) return settings_.journal;
  const char* const temporary = ::secure_getenv("TMPDIR");
  std::string directory =
      launch::make_job_directory(temporary != nullptr && *temporary == '/' ? temporary : "/tmp");
  if (directory.empty())
    logger_->warning("no directory for the journal can be made: {}", std::strerror(errno));
  if (!directory.empty() && !guard_path_.empty()) guard()->add_directory(directory);
  return directory;
}

void Succession::follow(const std::string& guard_path, const JournalCopy& copy) {
  guard_path_ = guard_path;
  directory_ = find_directory();
  if (directory_.empty())
    throw Error(HVD_INVALID, "option follow is set: expected option journal as well, a directory for a copy");
  if (copy.term() > 0) JournalFile::save(directory_, copy.term(), copy.bytes());
}

void Succession::begin(std::string guard_path) {
  guard_path_ = std::move(guard_path);
  known_.reset();
  term_ = 0;
  directory_ = find_directory();
  if (!directory_.empty()) {
    begin_journal(directory_);
  } else {
    if (settings_.takeover) known_.emplace();
    if (settings_.takeover || keeper_) term_ = 1;
    if (keeper_ && keeper_->drivers_before() > 0) {
      term_ = static_cast<uint64_t>(keeper_->drivers_before()) + 1;
      known_.emplace();
    }
  }
  if (keeper_) keeper_->keep("job", settings_.job + "\n" + settings_.secret + "\n" + directory_, {});
}

void Succession::begin_journal(const std::string& directory) {
  JournalFile::Found found = JournalFile::find(directory);
  const bool ours = keeper_ && keeper_->drivers_before() > 0;
  if (found.driver_lives && !settings_.takeover && !ours) {
    throw Error(
        HVD_UNAVAILABLE,
        fmt::format("a driver of a job writes the journal in {} at this moment (term {}): expected another "
                    "directory, or option takeover to take that job over",
                    directory, found.term));
  }
  term_ = found.term + 1;
  // Nobody tells whether that driver's machine, or another that has followed it, takes the next number at
  // this moment.
  if (!settings_.follow.empty() && !ours) term_ += kFollowers + std::random_device()() % (kFollowers << 8);
  const membership::Journal& journal = found.journal;
  const bool same_job =
      journal.began.job == settings_.job || (journal.began.term > 0 && !options_.is_set("job"));
  if (ours || (journal.began.term > 0 && same_job && !journal.job.finish)) {
    if (!ours && journal.began.job != settings_.job) {
      throw Error(HVD_UNAVAILABLE,
                  fmt::format("the journal in {} is of job {}, which has not ended: expected options job and "
                              "secret of that job to take it over, or another directory",
                              directory, journal.began.job));
    }
    known_ = journal.job;
    // Of a driver whose machine runs on everything is there; of another machine the last records may be lost.
    known_->told = known_->told && ours;
    if (!journal.whole()) {
      logger_->warning("the journal in {} is damaged in {} places: {} records are whole", directory,
                       journal.damaged, journal.records);
    }
  }
  journal_ = std::make_shared<JournalFile>(directory, term_, logger_);
  // An older driver that still lives writes, looks for this file and tells its workers then: whatever it has
  // told is read here.
  if (known_) {
    const bool told = known_->told;
    if (const membership::Journal newest = JournalFile::find(directory).journal; newest.began.term > 0)
      known_ = newest.job;
    known_->told = told && known_->told;
  }
  // Which identities were in use nobody can tell: these were not.
  if (known_ && !known_->told) known_->next_worker = std::max(known_->next_worker, term_ * kIdentitiesOfTerm);
  JournalFile::remove_older(directory, term_);
}

bool Succession::goes_on() const { return keeper_ && keeper_->drivers_before() > 0; }

bool Succession::overtaken() const {
  return !settings_.journal.empty() && JournalFile::look(settings_.journal).locked;
}

void Succession::end() {
  if (keeper_) {
    keeper_->stop_watching();
    keeper_->drop("guard");
  }
  if (settings_.private_journal && journal_) launch::remove_job_directories({directory_});
  journal_.reset();
  guard_.reset();
}

std::shared_ptr<launch::Guard> Succession::guard() {
  if (guard_ != nullptr) return guard_;
  if (keeper_) {
    pid_t pid = -1;
    if (const auto kept = keeper_->take("guard"); kept && kept->descriptors.size() == 1) {
      std::from_chars(kept->text.data(), kept->text.data() + kept->text.size(), pid);
      return guard_ = std::make_shared<launch::Guard>(guard_path_, pid, kept->descriptors.front(), logger_);
    }
  }
  guard_ = std::make_shared<launch::Guard>(guard_path_, settings_.stop_grace, logger_);
  // As long as it is kept the guard does not take the end of this driver for that of the job.
  if (keeper_) keeper_->keep("guard", std::to_string(guard_->pid()), {guard_->descriptor()});
  return guard_;
}

}  // namespace hvd::driver
