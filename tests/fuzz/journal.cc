// Fuzzes the driver's journal: bytes of any kind, and records whose contents are any bytes under a right
// checksum. What is read is written again as the same, and a record beside damage is found.
#include "membership/journal.h"

#include "base/digest.h"
#include "fuzz.h"

namespace hvd::fuzz {
namespace {

using namespace membership;

/// Mark, length, kind and content, checksum: as journal.cc writes them.
std::string framed(std::string_view content) {
  std::string bytes = "\xd1Hvd";
  const size_t length = content.size() + 8;
  for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  bytes += content;
  const uint64_t low = digest(bytes.data(), bytes.size()).low;
  for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(low >> (8 * i)));
  return bytes;
}

void must_be_kept(const std::string& bytes) {
  size_t damaged = 0;
  const std::vector<Record> records = decode(bytes, &damaged);
  for (const Record& record : records) {
    const std::vector<Record> again = decode(encode(record), &damaged);
    HVD_PROMISE(damaged == 0 && again.size() == 1 && again[0] == record);
  }
  const Journal journal = read_journal(bytes);
  HVD_PROMISE(journal.records == records.size());
  HVD_PROMISE(!journal.job.told || journal.whole());
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  const std::string text(data.begin(), data.end());
  if (text.empty()) return;
  const std::string rest = text.substr(1);
  switch (text[0] % 3) {
    case 0: must_be_kept(rest); break;
    case 1: must_be_kept(framed(rest)); break;
    default: {
      // Damage in front costs the record behind it nothing, unless it looks like the beginning of a longer
      // one.
      const Record whole = WorkerDone{7};
      const std::string bytes = rest + encode(whole);
      must_be_kept(bytes);
      size_t damaged = 0;
      const std::vector<Record> found = decode(bytes, &damaged);
      if (rest.find("\xd1Hvd") == std::string::npos) HVD_PROMISE(!found.empty() && found.back() == whole);
    }
  }
}

std::vector<Bytes> seeds() {
  KnownJob job;
  job.generation = 3;
  job.members = {1, 2};
  job.workers.push_back({1, "a", 0, true, false, false, seconds(3), "it wants to"});
  job.hosts.push_back({"a", 2, 1, 0, 2, true, seconds(9), {{0, 1, seconds(1), false}}, false, {1}});
  job.scaled = 2;
  KnownWorker started;
  started.worker = 4;
  started.host = "b";
  std::vector<Bytes> result;
  for (const Record& record :
       std::vector<Record>{TermBegan{1, "j", "127.0.0.1:1"}, job, WorkerStarted{started},
                           WorkerGone{4, true, "lost", job.hosts}, WorkerDone{1}, WorkerSynced{2},
                           Announced{5, true, job.hosts}, JobFinished{}}) {
    const std::string bytes = encode(record);
    result.push_back(bytes_of(std::string(1, '\0') + bytes));
    result.push_back(bytes_of("\1" + bytes.substr(8, bytes.size() - 16)));
    result.push_back(bytes_of("\2" + bytes.substr(0, bytes.size() / 2)));
  }
  return result;
}

}  // namespace hvd::fuzz
