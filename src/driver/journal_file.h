// The journal on disk: a file for each term in one directory, journal.<term>. That a term's file is made by
// one driver alone is how the newest driver is known; that it is locked, how its life is.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "membership/journal.h"

namespace hvd::driver {

struct JournalPart;

class JournalFile {
 public:
  /// What the newest journal in the directory says; `term` is 0 if there is none. Makes the directory. Throws
  /// Error(HVD_UNAVAILABLE).
  struct Found {
    uint64_t term = 0;  // the highest that any file bears
    bool driver_lives = false;
    membership::Journal journal;
  };
  static Found find(const std::string& directory);

  /// The newest journal from outside, without reading it; cheap enough to be asked again and again.
  struct Look {
    uint64_t term = 0;    // 0: there is none
    bool locked = false;  // its driver's process is there
    uint64_t stamp = 0;   // changes with each beat and each record
    bool operator==(const Look&) const = default;
  };
  static Look look(const std::string& directory);

  /// Makes the file of a term. Throws Error(HVD_UNAVAILABLE): another driver has it already.
  JournalFile(std::string directory, uint64_t term, LoggerPtr logger);
  ~JournalFile();
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  /// To the page cache: it outlives this process. The first records say the term and what is known; with a
  /// KnownJob the file begins anew once it has grown long.
  void write(const std::vector<membership::Record>& records);
  /// To the disk, by a thread of its own: it outlives the machine. Returns at once.
  void sync();
  /// Says that this driver lives, for who looks at its file from another machine. Returns at once.
  void beat();
  /// What `wanted` (follower.h) lacks, from the beginning if that is of another file; kMostPart bytes at
  /// most. Throws Error(HVD_UNAVAILABLE).
  static constexpr size_t kMostPart = size_t{4} << 20;
  JournalPart read(const JournalPart& wanted, std::string* ret_bytes) const;
  /// Writes what another driver's journal was into a directory of this one's own. Throws
  /// Error(HVD_UNAVAILABLE).
  static void save(const std::string& directory, uint64_t term, const std::string& bytes);
  /// A newer driver has made its file.
  bool superseded() const;
  const std::string& directory() const { return directory_; }
  /// Removes this job's files: it has ended, and nobody is to take over.
  static void remove_older(const std::string& directory, uint64_t term);

 private:
  void run();
  void make();
  static bool put(int fd, const std::string& bytes);
  bool begin_anew(const std::string& bytes);
  const std::string directory_;
  const uint64_t term_;
  const LoggerPtr logger_;
  int fd_ = -1;
  bool failed_ = false;
  std::string head_;  // the record of the term
  size_t size_ = 0, snapshot_ = 0;
  uint64_t anew_ = 0;  // how often it has begun anew
  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false, beaten_ = false, ending_ = false;
  std::thread thread_;
};

}  // namespace hvd::driver
