// Registry, commit and restore.
#include "state/state.h"

#include <fmt/format.h>

#include <random>
#include <utility>

#include "collective/messages.h"
#include "state/impl.h"
#include "state/pages.h"

namespace hvd::state {

using collective::memory_name;

namespace {

// Bytes that are not copied yet equal nobody's (contract 6).
Digest unknown() {
  std::random_device random;
  const auto word = [&] { return (uint64_t{random()} << 32U) | random(); };
  return {word(), word()};
}

}  // namespace

State::Impl::~Impl() {
  feed->close();
  constexpr Duration kPatience = std::chrono::seconds(10);
  if (thread == nullptr || thread->end(kPatience)) return;
  // A device may still read and write it. Better a leak than a write into freed memory.
  for (auto& [key, variable] : variables) {
    variable.copy.memory.leak();
    variable.next.memory.leak();
  }
  shards.leak();
}

void State::Impl::add(Spec spec, const collective::Tensor& where, Callback<hvd_save_fn> save,
                      Callback<hvd_load_fn> load) {
  if (Status status = not_in_callback("add"); !status.ok()) throw Error(status);
  if (Status status = rest(); !status.ok()) throw Error(status);
  void* const live = where.data;
  const size_t bytes = checked_bytes(spec);
  if (auto found = variables.find(spec.key); found != variables.end()) {
    throw Error(HVD_INVALID, fmt::format("state key '{}' is taken by a {}: expected a key not yet in use",
                                         spec.key, found->second.spec.describe()));
  }
  if (bytes > 0 && live == nullptr) {
    throw Error(HVD_INVALID, fmt::format("state key '{}': data is NULL: expected the {} bytes of {}",
                                         spec.key, bytes, spec.describe()));
  }
  check_served(spec.key, where.memory);
  std::vector<uint8_t> encoded;
  encode(spec, &encoded);
  Variable variable;
  variable.spec_digest = hvd::digest(encoded.data(), encoded.size());
  variable.live = live;
  variable.memory = where.memory;
  variable.device = where.device;
  variable.stream = where.stream;
  variable.bytes = bytes;
  variable.save = std::move(save);
  variable.load = std::move(load);
  variable.digest = unknown();
  std::string key = spec.key;
  variable.spec = std::move(spec);
  const FeedPause pause(*this);
  scratch.reserve(2 * (variables.size() + 1));
  if (variable.on_device()) ++on_device;
  variables.emplace(std::move(key), std::move(variable));
  if (!has_commit) return;
  const Digest digest = total();
  std::lock_guard lock(mutex);
  summary.digest = digest;
}

void State::Impl::check_served(const std::string& key, hvd_memory memory) const {
  if (memory == HVD_MEMORY_HOST) return;
  Status status = copies != nullptr
                      ? copies->serves(memory)
                      : Status(HVD_UNSUPPORTED, fmt::format("nothing copies {}", memory_name(memory)));
  if (status.ok()) return;
  status.message = fmt::format("state key '{}': {}", key, status.message);
  throw Error(status);
}

void State::Impl::remove(const std::string& key) {
  if (Status status = not_in_callback("remove"); !status.ok()) throw Error(status);
  if (Status status = rest(); !status.ok()) throw Error(status);
  const auto found = find(key);
  const FeedPause pause(*this);
  // Its destroy callback, which may ask for the state, runs when all is done.
  const auto removed = variables.extract(found);
  if (removed.mapped().spec.kind == VariableKind::kShard) shards.remove(key);
  if (removed.mapped().on_device() && --on_device == 0 && prepared == 0) {
    for (auto& [other, variable] : variables) variable.next = Copy();  // the next hidden commit gets it anew
  }
  if (!has_commit) return;
  const Digest digest = total();
  const uint64_t bytes = committed_bytes();
  std::lock_guard lock(mutex);
  summary.digest = digest;
  statistics.bytes = bytes;
}

std::map<std::string, Variable>::iterator State::Impl::find(const std::string& key) {
  const auto found = variables.find(key);
  if (found == variables.end()) {
    throw Error(HVD_INVALID, fmt::format("state has no key '{}': expected one that was added", key));
  }
  return found;
}

void State::Impl::set_data(const std::string& key, void* data) {
  if (Status status = not_in_callback("set_data"); !status.ok()) throw Error(status);
  if (Status status = rest(); !status.ok()) throw Error(status);
  Variable& variable = find(key)->second;
  if (variable.is_object()) {
    throw Error(HVD_INVALID, fmt::format("state key '{}' ({}) has no memory of the program's: expected a "
                                         "tensor, a value or a shard",
                                         key, variable.spec.describe()));
  }
  const bool is_shard = variable.spec.kind == VariableKind::kShard;
  const size_t bytes = is_shard ? shards.bytes(key) : variable.bytes;
  if (bytes > 0 && data == nullptr) {
    throw Error(HVD_INVALID, fmt::format("state key '{}': data is NULL: expected the {} bytes of {}", key,
                                         bytes, variable.spec.describe()));
  }
  if (is_shard) {
    shards.set_data(key, data);
  } else {
    variable.live = data;
    variable.promised.reset();  // that was said of the old memory, which is the program's again
  }
}

Status State::Impl::not_in_callback(const char* function) const {
  if (!in_callback) return {};
  return {HVD_INVALID,
          fmt::format("state: {} was called from within a save or load callback of the same state: "
                      "expected it after the callback's return",
                      function)};
}

bool State::Impl::complete() const {
  if (!has_commit) return false;
  for (const auto& [key, variable] : variables) {
    if (!variable.committed) return false;
  }
  return true;
}

Digest State::Impl::total(const std::vector<Digest>& digests) {
  scratch.clear();
  size_t i = 0;
  for (const auto& [key, variable] : variables) {
    scratch.push_back(variable.spec_digest);
    scratch.push_back(digests[i++]);
  }
  return hvd::digest(scratch.data(), scratch.size() * sizeof(Digest));
}

Digest State::Impl::total() {
  scratch.clear();
  for (const auto& [key, variable] : variables) {
    scratch.push_back(variable.spec_digest);
    scratch.push_back(variable.digest);
  }
  return hvd::digest(scratch.data(), scratch.size() * sizeof(Digest));
}

uint64_t State::Impl::committed_bytes() {
  uint64_t bytes = 0;
  for (auto& [key, variable] : variables) {
    if (variable.committed) bytes += variable.committed_bytes().size();
  }
  return bytes;
}

Status State::Impl::copy(bool counted, bool hidden) {
  if (Status status = not_in_callback(counted ? "save" : "refresh"); !status.ok()) return status;
  if (!shards.empty() && counted && !hidden) {
    Status status = copy_overlapped(true, false);
    return status.ok() ? settle() : status;
  }
  // Live values of shards are nothing without a commit, and what that has counts as it is (contract 4).
  if (!shards.empty() && !counted && has_commit) return complete() ? Status() : cover();
  if (hidden || on_device > 0) return copy_overlapped(counted, hidden);
  if (Status status = settle(); !status.ok()) {
    if (status.code == HVD_TIMEOUT || (status.code == HVD_INTERNAL && counted)) return status;
    if (logger != nullptr) logger->warning("{}", status.message);
  }

  // All that can fail comes first, so that the last commit stays whole (contract 4).
  std::vector<std::span<uint8_t>> fresh;
  for (auto& [key, variable] : variables) {
    Status status;
    if (variable.is_object()) status = run_save(variable);
    if (status.ok()) status = make_room(variable, &variable.copy, &fresh);
    if (!status.ok()) return status;
  }

  const Time began = now();
  const FeedPause pause(*this);
  if (!fresh.empty()) get_pages(fresh);
  uint64_t bytes = 0;
  pieces.clear();
  for (auto& [key, variable] : variables) {
    if (variable.is_object()) {
      variable.append_saved(&variable.copy, &pieces);
      continue;
    }
    variable.copy.pieces.fit(variable.bytes);
    append_pieces(variable.copy.memory.data(), variable.live, variable.bytes, &variable.copy.pieces, &pieces);
  }
  for (auto& [key, variable] : variables) {
    if (variable.is_object()) variable.take_saved(&variable.copy);
  }
  const uint64_t written = copy_pieces(pieces, true);
  for (auto& [key, variable] : variables) {
    variable.digest = variable.copy.pieces.content();
    variable.committed = true;
    variable.fed = false;
    bytes += variable.committed_bytes().size();
  }
  has_commit = true;
  const Digest digest = total();
  const Duration took = now() - began;

  std::lock_guard lock(mutex);
  summary.digest = digest;
  statistics.bytes = bytes;
  statistics.written_bytes += written;
  if (counted) {
    ++summary.revision;
    ++statistics.commits;
    statistics.last_commit = took;
  }
  return {};
}

Status State::Impl::restore(bool shards_too) {
  if (Status status = not_in_callback("restore"); !status.ok()) return status;
  // A commit that failed is told even though the one before it is put back: other ranks may not do the same.
  const Status told = settle();
  const bool failed = !told.ok() && told.code != HVD_PEER_LOST;
  if (failed && (told.code != HVD_INTERNAL || !has_commit)) return told;
  if (!has_commit)
    return {HVD_INVALID, "state: restore without a commit: expected save, commit or sync before it"};
  Status status =
      load_objects([](Variable& variable) { return variable.committed ? &variable.copy : nullptr; }, false);
  if (!status.ok()) return status;
  pieces.clear();
  staged.clear();
  for (auto& [key, variable] : variables) {
    if (variable.is_object() || variable.on_device() || !variable.committed) continue;
    append_pieces(variable.live, variable.copy.memory.data(), variable.bytes, nullptr,
                  &pieces);  // contract 4
  }
  if (shards_too) {
    shards.append_restore(&pieces, &staged);
  } else {
    shards.leave_restore();
  }
  if (uses_devices()) {
    status = restore_devices();
    if (!status.ok()) {
      shards.leave_restore();
      return status;
    }
  }
  copy_pieces(pieces, true);
  std::lock_guard lock(mutex);
  ++statistics.restores;
  return failed ? told : Status();
}

Status State::Impl::restore_devices() {
  if (!staged.empty()) {
    const DeviceCopies::Use use(*copies);
    if (!use) return {HVD_CLOSED, "the context is closed: device memory is out of reach"};
    copy_pieces(staged, true);
  }
  std::vector<DeviceRange> ranges =
      device_ranges([](const Variable& v) { return v.committed ? &v.copy.memory : nullptr; });
  const std::vector<DeviceRange> behind = shards.behind();
  ranges.insert(ranges.end(), behind.begin(), behind.end());
  Status status = put_back(ranges);
  if (status.ok()) shards.caught_up();
  return status;
}

State::State(LoggerPtr logger, TimelinePtr timeline, std::shared_ptr<DeviceCopies> copies,
             const Settings& settings)
    : impl_(std::make_unique<Impl>(std::move(logger), std::move(timeline), std::move(copies), settings)) {}
State::~State() = default;

void State::add_tensor(const std::string& key, const collective::Tensor& tensor) {
  impl_->add({key, VariableKind::kTensor, tensor.dtype, tensor.shape.vector()}, tensor, {}, {});
}

void State::add_value(const std::string& key, void* value, size_t size) {
  collective::Tensor live;
  live.data = value;
  impl_->add({key, VariableKind::kValue, HVD_DTYPE_UINT8, {static_cast<int64_t>(size)}}, live, {}, {});
}

void State::add_object(const std::string& key, Callback<hvd_save_fn> save, Callback<hvd_load_fn> load,
                       const std::string& detail) {
  if (!save || !load) {
    throw Error(HVD_INVALID, fmt::format("state key '{}': {} callback is NULL: expected a function", key,
                                         save ? "load" : "save"));
  }
  impl_->add({key, VariableKind::kObject, 0, {}, detail}, {}, std::move(save), std::move(load));
}

void State::add_shard(const std::string& key, ShardInfo info, GenerationSource source) {
  impl_->add_shard(key, std::move(info), std::move(source));
}
void State::on_lost(Callback<hvd_lost_fn> lost) { impl_->lost = std::move(lost); }
std::shared_ptr<FeedSource> State::feed() const { return impl_->feed; }
void State::take_fed(FeedCache cache) { impl_->fed = std::move(cache.items()); }
bool State::has_shards() const { return !impl_->shards.empty(); }
Status State::hand_over() { return impl_->hand_over(); }
Status State::has_anybody_joined(bool* ret_joined) { return impl_->has_anybody_joined(ret_joined); }
void State::remove(const std::string& key) { impl_->remove(key); }
void State::set_data(const std::string& key, void* data) { impl_->set_data(key, data); }
Status State::begin() {
  return impl_->recorded("commit", [&] { return impl_->copy(true, true); });
}
Status State::end() { return impl_->end(); }
Status State::find_diverged(collective::Engine& engine, int32_t rank, Duration timeout,
                            std::vector<Diverged>* ret_diverged) {
  return impl_->find_diverged(engine, rank, timeout, ret_diverged);
}
void State::disown() { impl_->disown(); }
void State::mend() { impl_->shards.mend_rot(); }
bool State::begun() const { return impl_->begun; }
Status State::save() {
  return impl_->recorded("commit", [&] { return impl_->copy(true); });
}
Status State::refresh() {
  return impl_->recorded("refresh", [&] { return impl_->copy(false); });
}
Status State::restore(bool shards_too) {
  return impl_->recorded("restore", [&] { return impl_->restore(shards_too); });
}
Status State::settle() { return impl_->settle(); }
Status State::rest() { return impl_->rest(); }
bool State::has_commit() const {
  static_cast<void>(impl_->rest());
  std::lock_guard lock(impl_->mutex);
  return impl_->has_commit;
}

Status State::sync(collective::Engine& engine, int32_t rank, int32_t size, const Known& known,
                   Duration timeout, SyncResult* ret_result, bool refresh_first) {
  if (!is_on(impl_->timeline)) {
    return impl_->sync(engine, rank, size, known, timeout, ret_result, refresh_first);
  }
  const Time began = now();
  SyncResult result;
  Status status = impl_->sync(engine, rank, size, known, timeout, &result, refresh_first);
  impl_->timeline->slice(TimelineRow::kState, "sync", began, now(),
                         {{"revision", static_cast<int64_t>(result.revision)},
                          {"root", int64_t{result.root}},
                          {"sent_bytes", static_cast<int64_t>(result.sent_bytes)},
                          {"received_bytes", static_cast<int64_t>(result.received_bytes)},
                          {"status", status_name(status.code)}});
  if (status.ok() && ret_result != nullptr) *ret_result = result;
  return status;
}

uint64_t State::revision() const { return impl_->revision(); }

Summary State::summary() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->summary;
}

Statistics State::statistics() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->statistics;
}

}  // namespace hvd::state
