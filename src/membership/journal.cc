// Encodes the records of the journal, finds them again among damaged bytes, and replays them.
#include "membership/journal.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/digest.h"

namespace hvd::membership {
namespace {

constexpr std::string_view kMark = "\xd1Hvd";
constexpr size_t kChecksum = 8;
constexpr size_t kHead = 4 + 4;                 // mark, length
constexpr size_t kLongest = size_t{256} << 20;  // of what follows them

class Writer {
 public:
  void put(uint64_t v) {  // LEB128
    while (v >= 0x80) {
      bytes.push_back(static_cast<char>(v | 0x80));
      v >>= 7;
    }
    bytes.push_back(static_cast<char>(v));
  }
  void put_signed(int64_t v) { put(static_cast<uint64_t>(v) << 1 ^ static_cast<uint64_t>(v >> 63)); }
  void put(std::string_view text) {
    put(uint64_t{text.size()});
    bytes.append(text);
  }
  std::string bytes;
};

/// Everything is 0 or empty once something was missing: `good` says so.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint64_t number() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return fail();
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      v |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return v;
    }
    return fail();
  }
  int64_t signed_number() {
    const uint64_t v = number();
    return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1);
  }
  int32_t small() { return static_cast<int32_t>(signed_number()); }
  bool flag() { return number() != 0; }
  std::string text() {
    const uint64_t size = number();
    if (size > rest_.size()) return fail(), std::string();
    std::string result(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return result;
  }
  /// Of a list: each of its parts takes a byte at least.
  size_t count() {
    const uint64_t n = number();
    return n > rest_.size() ? fail() : n;
  }
  bool good() const { return good_ && rest_.empty(); }

 private:
  uint64_t fail() {
    good_ = false;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool good_ = true;
};

void put(Writer& w, const std::vector<KnownHost>& hosts) {
  w.put(uint64_t{hosts.size()});
  for (const KnownHost& h : hosts) {
    w.put(h.name);
    w.put_signed(h.slots);
    w.put_signed(h.failures);
    w.put_signed(h.blockings);
    w.put(h.failed_generation);
    w.put(uint64_t{h.blocked});
    w.put_signed(h.blocked_for ? h.blocked_for->count() : -1);
    w.put(uint64_t{h.records.size()});
    for (const KnownHost::Slot& s : h.records) {
      w.put_signed(s.slot);
      w.put_signed(s.failures);
      w.put_signed(s.wait.count());
      w.put(uint64_t{s.abandoned});
    }
    w.put(uint64_t{h.drained});
    w.put(uint64_t{h.withdrawn.size()});
    for (const int32_t slot : h.withdrawn) w.put_signed(slot);
  }
}

std::vector<KnownHost> hosts(Reader& r) {
  std::vector<KnownHost> result(r.count());
  for (KnownHost& h : result) {
    h.name = r.text();
    h.slots = r.small();
    h.failures = r.small();
    h.blockings = r.small();
    h.failed_generation = r.number();
    h.blocked = r.flag();
    if (const int64_t left = r.signed_number(); left >= 0) h.blocked_for = Duration(left);
    h.records.resize(r.count());
    for (KnownHost::Slot& s : h.records) {
      s.slot = r.small();
      s.failures = r.small();
      s.wait = Duration(r.signed_number());
      s.abandoned = r.flag();
    }
    h.drained = r.flag();
    h.withdrawn.resize(r.count());
    for (int32_t& slot : h.withdrawn) slot = r.small();
  }
  return result;
}

void put(Writer& w, const KnownWorker& worker) {
  w.put(worker.worker);
  w.put(worker.host);
  w.put_signed(worker.slot);
  w.put(uint64_t{worker.ever_synced} | uint64_t{worker.own_place} << 1 | uint64_t{worker.drained} << 2);
  w.put_signed(worker.leaves_within ? worker.leaves_within->count() : -1);
  w.put(worker.leaves_why);
}

KnownWorker worker(Reader& r) {
  KnownWorker k;
  k.worker = r.number();
  k.host = r.text();
  k.slot = r.small();
  const uint64_t flags = r.number();
  k.ever_synced = (flags & 1) != 0;
  k.own_place = (flags & 2) != 0;
  k.drained = (flags & 4) != 0;
  if (const int64_t left = r.signed_number(); left >= 0) k.leaves_within = Duration(left);
  k.leaves_why = r.text();
  return k;
}

void put(Writer& w, const TermBegan& t) {
  w.put(t.term);
  w.put(t.job);
  w.put(t.endpoint);
}

void put(Writer& w, const KnownJob& j) {
  w.put(j.generation);
  w.put(j.epoch);
  w.put(j.next_worker);
  w.put_signed(j.resets);
  w.put_signed(j.excused);
  w.put(uint64_t{j.initial} | uint64_t{j.state_exists} << 1 | uint64_t{j.fresh} << 2 |
        uint64_t{j.interrupted} << 3 | uint64_t{j.aborted} << 4 | uint64_t{j.told} << 5);
  w.put(uint64_t{j.members.size()});
  for (const uint64_t id : j.members) w.put(id);
  w.put(uint64_t{j.workers.size()});
  for (const KnownWorker& k : j.workers) put(w, k);
  w.put(uint64_t{j.done.size()});
  for (const uint64_t id : j.done) w.put(id);
  put(w, j.hosts);
  w.put_signed(j.scaled.value_or(-1));
  w.put(j.last_loss);
}

KnownJob job(Reader& r) {
  KnownJob j;
  j.generation = r.number();
  j.epoch = r.number();
  j.next_worker = r.number();
  j.resets = r.small();
  j.excused = r.small();
  const uint64_t flags = r.number();
  j.initial = (flags & 1) != 0;
  j.state_exists = (flags & 2) != 0;
  j.fresh = (flags & 4) != 0;
  j.interrupted = (flags & 8) != 0;
  j.aborted = (flags & 16) != 0;
  j.told = (flags & 32) != 0;
  j.members.resize(r.count());
  for (uint64_t& id : j.members) id = r.number();
  j.workers.resize(r.count());
  for (KnownWorker& k : j.workers) k = worker(r);
  j.done.resize(r.count());
  for (uint64_t& id : j.done) id = r.number();
  j.hosts = hosts(r);
  if (const int32_t scaled = r.small(); scaled >= 0) j.scaled = scaled;
  j.last_loss = r.text();
  return j;
}

void put(Writer& w, const WorkerStarted& s) { put(w, s.worker); }
void put(Writer& w, const WorkerGone& g) {
  w.put(g.worker);
  w.put(uint64_t{g.aborts});
  w.put(g.why);
  put(w, g.hosts);
}
void put(Writer& w, const WorkerDone& d) { w.put(d.worker); }
void put(Writer& w, const WorkerSynced& s) { w.put(s.worker); }
void put(Writer& w, const Announced& a) {
  w.put(a.epoch);
  w.put(uint64_t{a.interrupt});
  put(w, a.hosts);
}
void put(Writer& w, const JobFinished& f) {
  w.put(uint64_t{f.finish.success});
  w.put(f.finish.sentence);
  w.put(uint64_t{f.finish.try_again});
}

std::optional<Record> content(uint8_t kind, std::string_view bytes) {
  Reader r(bytes);
  Record record;
  switch (kind) {
    case 0: {
      TermBegan t;
      t.term = r.number();
      t.job = r.text();
      t.endpoint = r.text();
      record = t;
      break;
    }
    case 1: record = job(r); break;
    case 2: record = WorkerStarted{worker(r)}; break;
    case 3: {
      WorkerGone g;
      g.worker = r.number();
      g.aborts = r.flag();
      g.why = r.text();
      g.hosts = hosts(r);
      record = g;
      break;
    }
    case 4: record = WorkerDone{r.number()}; break;
    case 5: record = WorkerSynced{r.number()}; break;
    case 6: {
      Announced a;
      a.epoch = r.number();
      a.interrupt = r.flag();
      a.hosts = hosts(r);
      record = a;
      break;
    }
    case 7: {
      JobFinished f;
      f.finish.success = r.flag();
      f.finish.sentence = r.text();
      f.finish.try_again = r.flag();
      record = f;
      break;
    }
    default: return std::nullopt;  // of a newer version: it is passed over
  }
  return r.good() ? std::optional(record) : std::nullopt;
}

std::string checksum(std::string_view bytes) {
  const uint64_t low = digest(bytes.data(), bytes.size()).low;
  std::string text(kChecksum, 0);
  for (size_t i = 0; i < kChecksum; ++i) text[i] = static_cast<char>(low >> (8 * i));
  return text;
}

/// The record at the beginning of `bytes`, and how long it is.
std::optional<Record> first(std::string_view bytes, size_t* ret_size) {
  if (bytes.size() < kHead || !bytes.starts_with(kMark)) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= size_t{static_cast<uint8_t>(bytes[4 + i])} << (8 * i);
  if (length < 1 + kChecksum || length > kLongest || length > bytes.size() - kHead) return std::nullopt;
  const std::string_view all = bytes.substr(0, kHead + length - kChecksum);
  if (bytes.substr(all.size(), kChecksum) != checksum(all)) return std::nullopt;
  *ret_size = kHead + length;
  return content(static_cast<uint8_t>(all[kHead]), all.substr(kHead + 1));
}

}  // namespace

std::string encode(const Record& record) {
  Writer w;
  std::visit([&](const auto& r) { put(w, r); }, record);
  const size_t length = 1 + w.bytes.size() + kChecksum;
  std::string bytes(kMark);
  for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  bytes.push_back(static_cast<char>(record.index()));
  bytes += w.bytes;
  return bytes + checksum(bytes);
}

std::vector<Record> decode(std::string_view bytes, size_t* ret_damaged) {
  std::vector<Record> records;
  size_t damaged = 0;
  bool in_damage = false;
  while (!bytes.empty()) {
    size_t size = 0;
    if (std::optional<Record> record = first(bytes, &size)) {
      records.push_back(*std::move(record));
      bytes.remove_prefix(size);
      in_damage = false;
      continue;
    }
    if (!std::exchange(in_damage, true)) ++damaged;
    const size_t next = bytes.find(kMark, 1);
    if (next == std::string_view::npos) break;
    bytes.remove_prefix(next);
  }
  *ret_damaged = damaged;
  return records;
}

namespace {

struct Replay {
  Journal& journal;
  KnownJob& job;

  void forget(uint64_t id) {
    std::erase_if(job.workers, [id](const KnownWorker& w) { return w.worker == id; });
  }
  void operator()(const TermBegan& t) { journal.began = t; }
  void operator()(const KnownJob& j) { job = j; }
  void operator()(const WorkerStarted& s) {
    forget(s.worker.worker);
    job.workers.push_back(s.worker);
    job.next_worker = std::max(job.next_worker, s.worker.worker + 1);
  }
  void operator()(const WorkerGone& g) {
    forget(g.worker);
    if (g.aborts) job.aborted = true;
    if (!g.why.empty()) job.last_loss = g.why;
    if (!g.hosts.empty()) job.hosts = g.hosts;
  }
  void operator()(const WorkerDone& d) {
    forget(d.worker);
    if (std::find(job.done.begin(), job.done.end(), d.worker) == job.done.end()) job.done.push_back(d.worker);
  }
  void operator()(const WorkerSynced& s) {
    for (KnownWorker& w : job.workers) {
      if (w.worker == s.worker) w.ever_synced = true;
    }
    job.state_exists = true;
  }
  void operator()(const Announced& a) {
    job.epoch = std::max(job.epoch, a.epoch);
    job.interrupted = job.interrupted || a.interrupt;
    job.hosts = a.hosts;
  }
  void operator()(const JobFinished& f) { job.finish = f.finish; }
};

}  // namespace

void replay(const Record& record, Journal* journal) {
  Replay act{*journal, journal->job};
  std::visit(act, record);
  ++journal->records;
}

Journal read_journal(std::string_view bytes) {
  Journal journal;
  journal.job.told = true;
  for (const Record& record : decode(bytes, &journal.damaged)) replay(record, &journal);
  // What was lost may have been a worker's: those that come back tell.
  journal.job.told = journal.job.told && journal.whole() && journal.began.term > 0;
  return journal;
}

}  // namespace hvd::membership
