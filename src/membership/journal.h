// The driver's journal as bytes: a record for each thing that a driver must know that takes the job over.
// Pure. A record that is damaged or cut is recognised by itself, and the ones after it are read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "membership/takeover.h"

namespace hvd::membership {

/// First in each journal, which is of one term.
struct TermBegan {
  uint64_t term = 0;
  std::string job;
  std::string endpoint;  // where that driver listens, "address:port"
  bool operator==(const TermBegan&) const = default;
};
struct WorkerStarted {
  KnownWorker worker;
  bool operator==(const WorkerStarted&) const = default;
};
/// Lost, stopped or sent away; `aborts`: its generation was lost with it.
struct WorkerGone {
  uint64_t worker = 0;
  bool aborts = false;
  std::string why;
  std::vector<KnownHost> hosts;  // as they are now
  bool operator==(const WorkerGone&) const = default;
};
struct WorkerDone {
  uint64_t worker = 0;
  bool operator==(const WorkerDone&) const = default;
};
struct WorkerSynced {
  uint64_t worker = 0;
  bool operator==(const WorkerSynced&) const = default;
};
struct Announced {
  uint64_t epoch = 0;
  bool interrupt = false;
  std::vector<KnownHost> hosts;
  bool operator==(const Announced&) const = default;
};
struct JobFinished {
  Finish finish;
  bool operator==(const JobFinished&) const = default;
};
// KnownJob: everything, at each generation. Record (membership.h) is any of these.

/// The bytes of a record: a mark, the length of what follows, the kind, the content, a checksum (XXH3-128).
std::string encode(const Record& record);

struct Journal {
  TermBegan began;
  KnownJob job;
  size_t records = 0;
  size_t damaged = 0;  // pieces of the bytes that were no records
  bool whole() const { return damaged == 0; }
};

/// What the bytes come to; began.term is 0 if the first record is not there. Never throws for what they hold.
Journal read_journal(std::string_view bytes);

/// All records that can be read, and how many pieces between them can't be. Linear in the bytes, whoever
/// wrote them: kPatience bytes and kPatienceForEach for each byte before are looked through for what turns
/// out to be no record, and whatever says that it is longer is passed over. ret_in_vain, if not NULL: how
/// many bytes were.
inline constexpr size_t kPatience = size_t{64} << 20, kPatienceForEach = 16;
std::vector<Record> decode(std::string_view bytes, size_t* ret_damaged, size_t* ret_in_vain = nullptr);

}  // namespace hvd::membership
