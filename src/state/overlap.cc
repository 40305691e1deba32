// Commits that are under way while the program goes on. Everything is copied into a second set of buffers:
// what lies on the host at once, or by the thread if the commit is hidden; what devices hold by copies behind
// the work that their streams have been given. The two sets change places when all of it has arrived, and not
// before, so that the last commit is always whole.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <tuple>
#include <utility>

#include "base/internal_status.h"
#include "state/flight.h"
#include "state/impl.h"
#include "state/pages.h"

namespace hvd::state {

/// One that is under way.
struct State::Impl::Commit {
  bool counted = false;
  bool devices = false;   // it copies memory of devices
  uint64_t revision = 0;  // that it will be
  uint64_t epoch = 0;     // of the copies when it began
  Time began;
  std::shared_ptr<Generation> generation;  // with shards: where they are placed
};

CopyThread& State::Impl::copy_thread() {
  if (thread == nullptr) thread = std::make_unique<CopyThread>(copies);
  return *thread;
}

Status State::Impl::rest() {
  constexpr Duration kPatience = std::chrono::minutes(10);
  const Duration patience = copies != nullptr ? copies->timeout : kPatience;
  std::shared_ptr<SharedCopy> copy;
  {
    const std::lock_guard lock(mutex);
    copy = std::exchange(hidden_copy, nullptr);
  }
  if (copy != nullptr) copy->help();  // the program waits: its cores are free
  if (thread == nullptr || thread->idle(now() + patience)) return {};
  // The placing of shards has a deadline of its own, and names the ranks that did not come (contract 12).
  if (thread->idle(placed_by)) return {};
  return {HVD_TIMEOUT, fmt::format("state: copies {}have not ended within {:g} s{}",
                                   uses_devices() ? "of device memory " : "", to_seconds(patience),
                                   uses_devices() ? ": expected their streams to come to them" : "")};
}

Status State::Impl::settle() {
  if (Status status = rest(); !status.ok()) return status;
  begun = false;
  std::lock_guard lock(mutex);
  return std::exchange(failure, Status());
}

Status State::Impl::end() {
  if (Status status = not_in_callback("end"); !status.ok()) return status;
  if (!begun) return {HVD_INVALID, "state: the end of a commit that was not begun, or has been waited for"};
  if (Status status = settle(); !status.ok()) return status;
  return check_live ? check_promise() : Status();
}

Status State::Impl::check_promise() {
  for (auto& [key, variable] : variables) {
    const std::optional<Digest> promised = std::exchange(variable.promised, {});
    if (!promised || variable.held_still() == promised) continue;
    return {
        HVD_INVALID,
        fmt::format("state key '{}': {} was written between the begin of commit {} and its end: expected no "
                    "change before the end",
                    key, variable.spec.describe(), revision())};
  }
  return {};
}

uint64_t State::Impl::revision() const {
  std::lock_guard lock(mutex);
  return summary.revision + (pending ? 1 : 0);
}

std::vector<DeviceRange> State::Impl::device_ranges(const MemoryOf& memory_of) const {
  std::vector<DeviceRange> ranges;
  for (const auto& [key, variable] : variables) {
    if (!variable.on_device() || variable.bytes == 0) continue;
    const Memory* const memory = memory_of(variable);
    if (memory == nullptr) continue;
    ranges.push_back(
        {variable.memory, variable.device, variable.stream, variable.live, memory->data(), variable.bytes});
  }
  return ranges;
}

Status State::Impl::start(DeviceCopies::Way way, const std::vector<DeviceRange>& ranges,
                          std::vector<DeviceCopies::Ticket>* tickets) {
  // One call for each device and stream: their copies are queued together.
  using Place = std::tuple<hvd_memory, int32_t, void*>;
  std::map<Place, std::vector<hvd_backend_copy>> by_place;
  for (const DeviceRange& range : ranges) {
    auto& list = by_place[{range.memory, range.device, range.stream}];
    if (way == DeviceCopies::Way::kToDevice) {
      list.push_back({range.there, range.here, range.bytes});
    } else {
      list.push_back({range.here, range.there, range.bytes});
    }
  }
  tickets->reserve(by_place.size());
  for (const auto& [place, list] : by_place) {
    const auto& [memory, device, stream] = place;
    DeviceCopies::Ticket ticket;
    Status status = copies->start(memory, device, stream, way, list, &ticket);
    if (!status.ok()) return status;
    tickets->push_back(ticket);
  }
  return {};
}

Status State::Impl::carry(DeviceCopies::Way way, const std::vector<DeviceRange>& ranges,
                          std::shared_ptr<void> keep) {
  CopyThread& waits = copy_thread();
  std::vector<DeviceCopies::Ticket> tickets;
  Status status = start(way, ranges, &tickets);
  if (tickets.empty()) return status;
  const auto result = std::make_shared<Status>();
  waits.watch(std::move(tickets),
              [result, keep = std::move(keep)](Status done) { *result = std::move(done); });
  if (Status late = rest(); !late.ok()) return late;
  return status.ok() ? *result : status;
}

Status State::Impl::put_back(const std::vector<DeviceRange>& ranges, std::shared_ptr<void> keep) {
  Status status = carry(DeviceCopies::Way::kToDevice, ranges, std::move(keep));
  if (!status.ok() && status.code != HVD_CLOSED) {
    status.code = HVD_INTERNAL;
    status.message = fmt::format("state: device memory can't be written: {}", status.message);
  }
  return status;
}

Status State::Impl::put_back_shards() {
  const std::vector<DeviceRange> behind = shards.behind();
  if (behind.empty()) return {};
  Status status = put_back(behind);
  if (status.ok()) shards.caught_up();
  return status;
}

Status State::Impl::make_room(Variable& variable, Copy* copy, std::vector<std::span<uint8_t>>* fresh) const {
  if (variable.is_object()) return variable.make_room(*copy, fresh);
  if (copy->memory.size() >= variable.bytes) return {};
  Status status;
  try {
    if (variable.on_device()) {
      status = Memory::allocate(copies, variable.memory, variable.bytes, &copy->memory);
    } else {
      copy->memory = Memory(variable.bytes);
      copy->pieces.fit(0);
      fresh->push_back(variable.data(*copy));
    }
  } catch (const std::bad_alloc&) { status = Status(HVD_INTERNAL, "out of memory"); }
  if (!status.ok()) {
    status.message = fmt::format("{} bytes for the copy of state key '{}': {}", variable.bytes,
                                 variable.spec.key, status.message);
  }
  return status;
}

/// Room for a second copy of everything.
Status State::Impl::make_room() {
  std::vector<std::span<uint8_t>> fresh;
  for (auto& [key, variable] : variables) {
    if (Status status = make_room(variable, &variable.next, &fresh); !status.ok()) return status;
  }
  if (!fresh.empty()) get_pages(fresh);
  return {};
}

void State::Impl::host_part_copied(uint64_t written) {
  for (auto& [key, variable] : variables) {
    if (!variable.on_device()) variable.next_digest = variable.next.pieces.content();
  }
  std::lock_guard lock(mutex);
  statistics.written_bytes += written;
}

Status State::Impl::copy_overlapped(bool counted, bool hidden) {
  // Copying the live values anew makes up for a commit that failed; the next commit has to report it.
  if (Status status = settle(); !status.ok()) {
    if (status.code != HVD_INTERNAL && status.code != HVD_PEER_LOST) return status;
    if (status.code == HVD_INTERNAL && counted) return shards.empty() ? status : refuse(status);
    if (logger != nullptr) logger->warning("{}", status.message);
  }
  Commit commit;
  commit.counted = counted;
  commit.devices = uses_devices();
  commit.epoch = commit.devices ? copies->epoch() : 0;
  commit.revision = revision() + (counted ? 1 : 0);
  commit.began = now();
  if (commit.devices && DeviceCopies::is_lost(commit.epoch)) {
    return {HVD_PEER_LOST,
            "state: the generation is lost: what devices hold is undefined and was not copied"};
  }
  Status status;
  const bool with_shards = counted && !shards.empty();
  try {
    if (with_shards) {
      commit.generation = std::make_shared<Generation>();
      if (status = generation_source(commit.generation.get()); !status.ok()) return status;
    }
    status = begin_copies(commit, hidden);
  } catch (const std::exception& error) {  // no memory, or no thread
    status = internal_status(error, "state: a copy can't be begun");
  }
  return status.ok() || !with_shards ? status : refuse(status);
}

/// The part that may fail on this rank alone.
Status State::Impl::begin_copies(const Commit& commit, bool hidden) {
  for (auto& [key, variable] : variables) {
    if (!variable.is_object()) continue;
    if (Status status = run_save(variable); !status.ok()) return status;
  }
  if (Status status = make_room(); !status.ok()) return status;
  CopyThread& waits = copy_thread();
  prepared = 0;  // what it had is written over from here on
  for (auto& [key, variable] : variables) variable.copying = true;
  std::vector<PieceCopy> at_once;
  pieces.clear();
  staged.clear();
  for (auto& [key, variable] : variables) {
    if (variable.on_device()) continue;
    if (variable.is_object()) {
      variable.append_saved(&variable.next, variable.is_lent_until_end() ? &pieces : &at_once);
      continue;
    }
    variable.next.pieces.fit(variable.bytes);
    const bool small = variable.spec.kind == VariableKind::kValue;
    append_pieces(variable.next.memory.data(), variable.live, variable.bytes, &variable.next.pieces,
                  small ? &at_once : &pieces);
  }
  if (commit.generation) {
    if (Status status = shards.begin(*commit.generation, &pieces, &staged); !status.ok()) return status;
  }
  std::function<void(Status)> done = [this, commit](Status status) { arrived(std::move(status), commit); };
  std::function<Status()> work;
  std::shared_ptr<SharedCopy> copy;
  if (hidden) {
    copy = std::make_shared<SharedCopy>(pieces);
    work = [this, copy] {
      host_part_copied(copy->finish());
      return Status();
    };
  }
  std::vector<DeviceCopies::Ticket> tickets;
  // Those that were started write into buffers that the next commit must not touch before.
  const auto give_up = [&] {
    if (!tickets.empty()) waits.watch(std::move(tickets), [](const Status&) {});
  };
  uint64_t written = 0;
  try {
    // Before the end of a hidden commit the program writes nothing: its streams need not wait.
    std::vector<DeviceRange> ranges = device_ranges([](const Variable& v) { return &v.next.memory; });
    if (commit.generation) {
      const std::vector<DeviceRange> of_shards = shards.device_ranges([](const Shard&) { return true; });
      ranges.insert(ranges.end(), of_shards.begin(), of_shards.end());
    }
    Status status =
        start(hidden ? DeviceCopies::Way::kToHostAside : DeviceCopies::Way::kToHost, ranges, &tickets);
    if (!status.ok()) {
      give_up();
      status.message = fmt::format("state: device memory can't be copied: {}", status.message);
      return status;
    }
    for (auto& [key, variable] : variables) {
      if (variable.is_object()) variable.take_saved(&variable.next);
    }
    written = copy_pieces(at_once, true);
    if (hidden && check_live) {
      for (auto& [key, variable] : variables) variable.promised = variable.held_still();
    }
    if (!hidden) host_part_copied(copy_pieces(pieces, true));  // while devices are at theirs
  } catch (...) {
    give_up();
    throw;
  }
  {
    std::lock_guard lock(mutex);
    statistics.written_bytes += written;
    pending = commit.counted;
    hidden_copy = std::move(copy);
  }
  begun = hidden;
  waits.watch(std::move(tickets), std::move(done), std::move(work));
  return {};
}

Status State::Impl::digest_arrived(const Commit& commit) {
  // The epoch moves before collectives are ended: data of a collective that was cut off can't carry this
  // epoch.
  if (!commit.devices) return {};
  if (copies->epoch() != commit.epoch) return {HVD_PEER_LOST, "the generation was lost meanwhile"};
  std::vector<Pieces> taken(variables.size());
  std::vector<PieceCopy> batch = std::exchange(staged, {});
  size_t index = 0;
  for (auto& [key, variable] : variables) {
    if (variable.on_device()) {
      taken[index].fit(variable.bytes);
      append_pieces(nullptr, variable.next.memory.data(), variable.bytes, &taken[index], &batch);
    }
    ++index;
  }
  // By all cores, as its end is waited for. Who closes waits no longer than for so many pieces.
  constexpr size_t kAtOnce = 256;
  uint64_t written = 0;
  for (std::span<const PieceCopy> rest = batch; !rest.empty();) {
    const auto some = rest.first(std::min(rest.size(), kAtOnce));
    rest = rest.subspan(some.size());
    const DeviceCopies::Use use(*copies);
    if (!use) return {HVD_CLOSED, "the context is closed"};
    written += copy_pieces(some, true);
  }
  index = 0;
  for (auto& [key, variable] : variables) {
    if (variable.on_device()) variable.next_digest = taken[index].content();
    ++index;
  }
  std::lock_guard lock(mutex);
  statistics.written_bytes += written;
  return {};
}

void State::Impl::take_next() {
  const FeedPause pause(*this);
  uint64_t bytes = 0;
  for (auto& [key, variable] : variables) {
    if (std::exchange(variable.copying, false)) {  // else it was registered since
      std::swap(variable.copy, variable.next);
      variable.digest = variable.next_digest;
      variable.committed = true;
      variable.fed = false;
    }
    bytes += variable.committed_bytes().size();
  }
  const Digest digest = total();
  const uint64_t own = shards.own_bytes(), held = shards.held_bytes();
  std::lock_guard lock(mutex);
  has_commit = true;
  summary.digest = digest;
  statistics.bytes = bytes + own;
  statistics.shard_bytes = own;
  statistics.copy_bytes = held;
}

void State::Impl::arrived(Status status, const Commit& commit) noexcept {
  if (status.ok()) {
    try {
      status = digest_arrived(commit);
    } catch (const std::exception& error) { status = internal_status(error); }
  } else if (status.code != HVD_CLOSED) {
    status.code = commit.devices && copies->epoch() != commit.epoch ? HVD_PEER_LOST : HVD_INTERNAL;
  }
  if (commit.generation) {
    placed_by = now() + commit.generation->timeout + Flight::kGrace + Flight::kAbortGrace;
    try {
      status = shards.place(*commit.generation, commit.revision, status);
    } catch (const std::exception& error) { status = internal_status(error, "placing shards"); }
    placed_by = Time();
    commit.generation->use.reset();  // whoever waits for this thread may want the engine gone
    // Unless it is sealed the next sync says what it is.
    if (!status.ok() && shards.prepared()) prepared = commit.revision;
  }
  if (!status.ok()) {
    try {
      const std::string what = commit.counted ? fmt::format("the commit of revision {}", commit.revision)
                                              : std::string("the copy of live values");
      std::string last = "there is no commit before it";
      if (has_commit) last = fmt::format("revision {} is still the last commit", summary.revision);
      status.message = fmt::format("state: {} has not arrived: {}; {}", what, status.message, last);
    } catch (const std::exception&) {}  // then without that
    std::lock_guard lock(mutex);
    pending = false;
    failure = std::move(status);
    return;
  }
  const FeedPause pause(*this);  // until the revision is told
  if (commit.generation) shards.adopt();
  take_next();
  std::lock_guard lock(mutex);
  pending = false;
  if (!commit.counted) return;
  summary.revision = commit.revision;
  ++statistics.commits;
  statistics.last_commit = now() - commit.began;
}

}  // namespace hvd::state
