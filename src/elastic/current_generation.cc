// The engine of a generation goes in peace: it fails, everyone comes out, then it is taken away.
#include "elastic/current_generation.h"

namespace hvd::elastic {

hvd_membership_info membership_of(const session::Assignment& assignment, uint64_t worker) {
  hvd_membership_info m{};
  m.struct_size = sizeof(m);
  m.rank = assignment.rank;
  m.size = static_cast<int32_t>(assignment.members.size());
  m.generation = assignment.generation;
  m.membership_epoch = assignment.epoch;
  m.worker = worker;
  const Member& self = assignment.members.at(static_cast<size_t>(assignment.rank));
  m.local_rank = self.local_rank;
  for (int32_t rank = 0; rank < m.size; ++rank) {
    const Member& member = assignment.members[static_cast<size_t>(rank)];
    if (member.host == self.host) ++m.local_size;
    if (member.local_rank != self.local_rank) continue;
    ++m.cross_size;
    if (rank < m.rank) ++m.cross_rank;
  }
  return m;
}

EngineUse::~EngineUse() {
  if (engine_ != nullptr) owner_->leave();
}

void CurrentGeneration::leave() {
  if (uses_.fetch_sub(1, std::memory_order_release) != 1) return;
  std::lock_guard lock(mutex_);  // or it is seen to be unused before it is waited for
  unused_.notify_all();
}

void CurrentGeneration::wait_unused(std::unique_lock<std::mutex>& lock) {
  unused_.wait(lock, [&] { return uses_.load(std::memory_order_acquire) == 0; });
}

void CurrentGeneration::begin(const session::Assignment& assignment, const hvd_membership_info& place,
                              std::shared_ptr<collective::Engine> engine) {
  std::unique_lock lock(mutex_);
  wait_unused(lock);
  assignment_ = assignment;
  place_ = place;
  loss_.reset();
  engine_ = std::move(engine);
  if (closed_) engine_->fail(*closed_);
  uses_.fetch_or(kOpen, std::memory_order_release);
}

void CurrentGeneration::close(const Status& why) {
  std::lock_guard lock(mutex_);
  if (!closed_) closed_ = why;
}

std::optional<Status> CurrentGeneration::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

CurrentGeneration::Lost CurrentGeneration::lose(uint64_t generation, const Status& why, Duration silence,
                                                bool known) {
  std::lock_guard lock(mutex_);
  if (generation != assignment_.generation || closed_) return Lost::kNot;
  if (loss_) {
    if (known && loss_->status.code == HVD_PEER_LOST) {
      loss_->status = why;
      loss_->silence = silence;
    }
    return Lost::kBefore;
  }
  loss_ = Loss{why, silence, now()};
  loss_->status.generation = generation;
  return Lost::kNow;
}

std::optional<Loss> CurrentGeneration::loss() const {
  std::lock_guard lock(mutex_);
  return loss_;
}

void CurrentGeneration::fail(const Status& why) {
  const EngineUse use = engine();
  if (!use) return;
  const std::optional<Loss> lost = loss();
  use->fail(lost ? lost->status : why);
}

EngineUse CurrentGeneration::engine(std::optional<uint64_t> generation) {
  uint32_t uses = uses_.load(std::memory_order_relaxed);
  do {
    if ((uses & kOpen) == 0) return {this, nullptr};
  } while (!uses_.compare_exchange_weak(uses, uses + 1, std::memory_order_acquire));
  if (!generation || *generation == assignment_.generation) return {this, engine_.get()};
  leave();
  return {this, nullptr};
}

std::shared_ptr<collective::Engine> CurrentGeneration::take_engine(const Status& why, bool* ret_whole) {
  std::unique_lock lock(mutex_);
  const bool taken = (uses_.fetch_and(~kOpen, std::memory_order_relaxed) & kOpen) != 0;
  const bool whole = taken && !loss_;
  if (ret_whole != nullptr) {
    *ret_whole = whole;
    if (whole) loss_ = Loss{why, Duration(0), now()};
  }
  if (!taken) return nullptr;
  lock.unlock();
  engine_->fail(why);
  lock.lock();
  // Nobody stays in an engine that has failed: operations return at once.
  wait_unused(lock);
  return std::move(engine_);
}

Status CurrentGeneration::why_no_engine() const {
  std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  return loss_ ? loss_->status : Status(HVD_CLOSED, "the context is closed");
}

session::Assignment CurrentGeneration::assignment() const {
  std::lock_guard lock(mutex_);
  return assignment_;
}

hvd_membership_info CurrentGeneration::place() const {
  std::lock_guard lock(mutex_);
  return place_;
}

uint64_t CurrentGeneration::generation() const {
  std::lock_guard lock(mutex_);
  return assignment_.generation;
}

std::shared_ptr<const SetPlace> CurrentGeneration::place_in(ProcessSet& set, bool member) const {
  std::lock_guard lock(mutex_);
  return member ? set.member_of(assignment_) : set.in(assignment_);
}

}  // namespace hvd::elastic
