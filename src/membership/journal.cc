// Encodes the records of the journal, finds them again among damaged bytes, and replays them.
#include "membership/journal.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

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
  bool more() const { return !rest_.empty(); }
  bool good() const { return good_ && rest_.empty(); }
  bool failed() const { return !good_; }

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
    w.put(h.name.str());
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

/// As many as are there: a count alone takes no memory.
template <class Item, class Read>
std::vector<Item> list(Reader& r, Read read) {
  std::vector<Item> items;
  for (size_t left = r.count(); left > 0 && !r.failed(); --left) items.push_back(read());
  return items;
}

std::vector<KnownHost> hosts(Reader& r) {
  return list<KnownHost>(r, [&] {
    KnownHost h;
    h.name = r.text();
    h.slots = r.small();
    h.failures = r.small();
    h.blockings = r.small();
    h.failed_generation = r.number();
    h.blocked = r.flag();
    if (const int64_t left = r.signed_number(); left >= 0) h.blocked_for = Duration(left);
    h.records = list<KnownHost::Slot>(r, [&] {
      KnownHost::Slot s;
      s.slot = r.small();
      s.failures = r.small();
      s.wait = Duration(r.signed_number());
      s.abandoned = r.flag();
      return s;
    });
    h.drained = r.flag();
    h.withdrawn = list<int32_t>(r, [&] { return r.small(); });
    return h;
  });
}

void put(Writer& w, const KnownWorker& worker) {
  w.put(worker.worker);
  w.put(worker.host.str());
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
  w.put(j.newest ? *j.newest + 1 : 0);
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
  j.members = list<uint64_t>(r, [&] { return r.number(); });
  j.workers = list<KnownWorker>(r, [&] { return worker(r); });
  j.done = list<uint64_t>(r, [&] { return r.number(); });
  j.hosts = hosts(r);
  if (const int32_t scaled = r.small(); scaled >= 0) j.scaled = scaled;
  j.last_loss = r.text();
  if (r.more()) {  // a driver of an earlier version has said nothing of it
    if (const uint64_t newest = r.number(); newest > 0) j.newest = newest - 1;
  }
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

/// The record at the beginning of `bytes`. ret_size: how long it is, also if its content makes no sense.
/// patience: how many bytes may be looked through in vain; those that were are taken from it.
std::optional<Record> first(std::string_view bytes, size_t* ret_size, size_t* patience) {
  if (bytes.size() < kHead || !bytes.starts_with(kMark)) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= size_t{static_cast<uint8_t>(bytes[4 + i])} << (8 * i);
  if (length < 1 + kChecksum || length > kLongest || length > bytes.size() - kHead) return std::nullopt;
  const std::string_view all = bytes.substr(0, kHead + length - kChecksum);
  if (all.size() > *patience) return std::nullopt;
  if (bytes.substr(all.size(), kChecksum) != checksum(all)) {
    *patience -= all.size();
    return std::nullopt;
  }
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

std::vector<Record> decode(std::string_view bytes, size_t* ret_damaged, size_t* ret_in_vain) {
  std::vector<Record> records;
  size_t damaged = 0, in_vain = 0, patience = kPatience;
  bool in_damage = false;
  while (!bytes.empty()) {
    size_t size = 0;
    const size_t had = patience;
    std::optional<Record> record = first(bytes, &size, &patience);
    in_vain += had - patience;
    if (record) {
      records.push_back(*std::move(record));
      in_damage = false;
    } else {
      if (!std::exchange(in_damage, true)) ++damaged;
      if (size == 0) size = bytes.find(kMark, 1);
      if (size == std::string_view::npos) break;
    }
    bytes.remove_prefix(size);
    patience += kPatienceForEach * size;
  }
  *ret_damaged = damaged;
  if (ret_in_vain != nullptr) *ret_in_vain = in_vain;
  return records;
}

namespace {

/// Each record takes no longer the more there were before it.
class Replay {
 public:
  explicit Replay(Journal* journal) : journal_(*journal), job_(journal->job) {}

  void operator()(const TermBegan& t) { journal_.began = t; }
  void operator()(const KnownJob& j) {
    job_ = j;
    at_.clear();
    for (size_t i = 0; i < job_.workers.size(); ++i) {
      if (!at_.emplace(job_.workers[i].worker, i).second) job_.workers[i].worker = kNobody;
    }
    done_ = {job_.done.begin(), job_.done.end()};
  }
  void operator()(const WorkerStarted& s) {
    forget(s.worker.worker);
    at_.emplace(s.worker.worker, job_.workers.size());
    job_.workers.push_back(s.worker);
    job_.next_worker = std::max(job_.next_worker, s.worker.worker + 1);
  }
  void operator()(const WorkerGone& g) {
    forget(g.worker);
    if (g.aborts) job_.aborted = true;
    if (!g.why.empty()) job_.last_loss = g.why;
    if (!g.hosts.empty()) job_.hosts = g.hosts;
  }
  void operator()(const WorkerDone& d) {
    forget(d.worker);
    if (done_.insert(d.worker).second) job_.done.push_back(d.worker);
  }
  void operator()(const WorkerSynced& s) {
    if (const auto found = at_.find(s.worker); found != at_.end())
      job_.workers[found->second].ever_synced = true;
    job_.state_exists = true;
  }
  void operator()(const Announced& a) {
    job_.epoch = std::max(job_.epoch, a.epoch);
    job_.interrupted = job_.interrupted || a.interrupt;
    job_.hosts = a.hosts;
  }
  void operator()(const JobFinished& f) { job_.finish = f.finish; }

  void finish() {
    std::erase_if(job_.workers, [](const KnownWorker& w) { return w.worker == kNobody; });
  }

 private:
  static constexpr uint64_t kNobody = 0;
  void forget(uint64_t id) {
    const auto found = at_.find(id);
    if (found == at_.end()) return;
    job_.workers[found->second].worker = kNobody;  // the others stay where they are
    at_.erase(found);
  }

  Journal& journal_;
  KnownJob& job_;
  std::unordered_map<uint64_t, size_t> at_;  // where each worker is
  std::unordered_set<uint64_t> done_;
};

}  // namespace

Journal read_journal(std::string_view bytes) {
  Journal journal;
  journal.job.told = true;
  const std::vector<Record> records = decode(bytes, &journal.damaged);
  journal.records = records.size();
  Replay replay(&journal);
  for (const Record& record : records) std::visit(replay, record);
  replay.finish();
  // What was lost may have been a worker's: those that come back tell.
  journal.job.told = journal.job.told && journal.whole() && journal.began.term > 0;
  return journal;
}

}  // namespace hvd::membership
