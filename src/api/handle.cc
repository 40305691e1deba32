// The table of handles: slots, their owners, and the calls that are using them.
#include "api/handle.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <utility>

#include "base/process.h"
#include "base/status.h"

namespace hvd::api {

namespace {

// A handle's bits, from the lowest: a mark, the slot's index, the slot's turn, the kind. On 64 bits the kind
// makes it an address that no processor takes, so that whoever follows it is told at once.
constexpr bool kWide = sizeof(uintptr_t) == 8;
constexpr unsigned kMarkBits = 3, kIndexBits = kWide ? 24 : 14, kTurnBits = kWide ? 32 : 11, kKindBits = 4;
constexpr uintptr_t kMark = 0b101;
static_assert(kMarkBits + kIndexBits + kTurnBits + kKindBits <= sizeof(uintptr_t) * 8);

constexpr uintptr_t bits(uintptr_t value, unsigned from, unsigned count) {
  return (value >> from) & ((uintptr_t{1} << count) - 1);
}

struct Ticket {
  uint32_t index, turn;
  HandleKind kind;
};

uintptr_t encode(const Ticket& ticket) {
  return kMark | uintptr_t{ticket.index} << kMarkBits | uintptr_t{ticket.turn} << (kMarkBits + kIndexBits) |
         static_cast<uintptr_t>(ticket.kind) << (kMarkBits + kIndexBits + kTurnBits);
}

bool decode(const void* handle, Ticket* ticket) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  ticket->index = static_cast<uint32_t>(bits(value, kMarkBits, kIndexBits));
  ticket->turn = static_cast<uint32_t>(bits(value, kMarkBits + kIndexBits, kTurnBits));
  ticket->kind = static_cast<HandleKind>(bits(value, kMarkBits + kIndexBits + kTurnBits, kKindBits));
  return encode(*ticket) == value;
}

const char* name_of(HandleKind kind) {
  switch (kind) {
    case HandleKind::kOptions: return "hvd_options";
    case HandleKind::kContext: return "hvd_context";
    case HandleKind::kProcessSet: return "hvd_process_set";
    case HandleKind::kOp: return "hvd_op";
    case HandleKind::kState: return "hvd_state";
    case HandleKind::kSampler: return "hvd_sampler";
    case HandleKind::kRunLoop: return "hvd_run_loop";
    case HandleKind::kDriver: return "hvd_driver";
    case HandleKind::kAgent: return "hvd_agent";
  }
  return "handle";
}

// A slot's word: the turn in the upper half; below it whether the handle is open, and the calls under way.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kCalls = kOpen - 1;
constexpr uint32_t turn_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

}  // namespace

struct alignas(64) Slot {
  std::atomic<uint64_t> word{0};
  std::atomic<uint32_t> next_free{0};  // index + 1
  uint32_t index = 0;
  std::atomic<pid_t> process{0};  // that made it
  std::shared_ptr<void> object;
};

namespace {

/// All handles of the process. It takes no lock, so that a fork at any moment leaves it whole for the child,
/// whose own handles go on from there; what it inherited stays in its slots and is refused.
class Table {
 public:
  static Table& instance() {
    static Table* const table = new Table();  // never destroyed: threads may call while the process exits
    return *table;
  }

  Slot& take() {
    for (uint64_t head = free_.load(std::memory_order_acquire); static_cast<uint32_t>(head) != 0;) {
      Slot& slot = at(static_cast<uint32_t>(head) - 1);
      // The upper half counts, so that a head that was away meanwhile is not taken for the same.
      const uint64_t rest = ((head >> 32) + 1) << 32 | slot.next_free.load(std::memory_order_relaxed);
      if (free_.compare_exchange_weak(head, rest, std::memory_order_acq_rel)) return slot;
    }
    const uint32_t index = used_.fetch_add(1, std::memory_order_relaxed);
    if (index >= kMost) {
      used_.store(kMost, std::memory_order_relaxed);
      throw Error(HVD_UNAVAILABLE, fmt::format("{} handles are in use: expected fewer", kMost));
    }
    const unsigned chunk = chunk_of(index);
    std::atomic<Slot*>& place = chunks_[chunk];
    if (place.load(std::memory_order_acquire) == nullptr) {
      auto fresh = std::make_unique<Slot[]>(size_t{kFirst} << chunk);
      for (uint32_t i = 0; i < kFirst << chunk; ++i) fresh[i].index = begin_of(chunk) + i;
      Slot* expected = nullptr;
      if (place.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) {
        static_cast<void>(fresh.release());
      }
    }
    return at(index);
  }

  void give_back(Slot& slot) {
    uint64_t head = free_.load(std::memory_order_relaxed);
    uint64_t mine = 0;
    do {
      slot.next_free.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
      mine = ((head >> 32) + 1) << 32 | (slot.index + 1);
    } while (!free_.compare_exchange_weak(head, mine, std::memory_order_acq_rel));
  }

  Slot* find(uint32_t index) {
    if (index >= kMost) return nullptr;
    const unsigned chunk = chunk_of(index);
    Slot* slots = chunks_[chunk].load(std::memory_order_acquire);
    return slots == nullptr ? nullptr : &slots[index - begin_of(chunk)];
  }

 private:
  // Chunks of 64, 128, 256 ... slots: none is ever moved.
  static constexpr uint32_t kFirst = 64;
  static constexpr unsigned kChunks = kIndexBits - 6;
  static constexpr uint32_t kMost = kFirst * ((uint32_t{1} << kChunks) - 1);
  static constexpr unsigned chunk_of(uint32_t index) {
    return static_cast<unsigned>(std::bit_width(index / kFirst + 1)) - 1;
  }
  static constexpr uint32_t begin_of(unsigned chunk) { return kFirst * ((uint32_t{1} << chunk) - 1); }

  Table() = default;
  Slot& at(uint32_t index) { return *find(index); }

  std::atomic<uint64_t> free_{0};  // a stack: count << 32 | index + 1
  std::atomic<uint32_t> used_{0};
  std::array<std::atomic<Slot*>, kChunks> chunks_{};
};

thread_local SlotUse* innermost = nullptr;

bool is_inherited(const Slot& slot) {
  return slot.process.load(std::memory_order_relaxed) != current_process();
}

[[noreturn]] void refuse_destroyed(HandleKind kind, const char* name) {
  throw Error(HVD_CLOSED, fmt::format("{} was destroyed: the handle is no {} any more", name, name_of(kind)));
}

[[noreturn]] void refuse_foreign(const void* handle, HandleKind kind, const char* name) {
  throw Error(HVD_INVALID,
              fmt::format("{} is {}, which is no handle: expected a {}", name, handle, name_of(kind)));
}

/// Counts a call in.
Slot* enter(const void* handle, HandleKind kind, const char* name) {
  if (handle == nullptr) throw Error(HVD_INVALID, fmt::format("{} is NULL", name));
  Ticket ticket{};
  if (!decode(handle, &ticket)) refuse_foreign(handle, kind, name);
  if (ticket.kind != kind) {
    if (ticket.kind < HandleKind::kOptions || ticket.kind > HandleKind::kAgent)
      refuse_foreign(handle, kind, name);
    throw Error(HVD_INVALID,
                fmt::format("{} is a {}: expected a {}", name, name_of(ticket.kind), name_of(kind)));
  }
  Slot* slot = Table::instance().find(ticket.index);
  if (slot == nullptr) refuse_foreign(handle, kind, name);
  uint64_t word = slot->word.load(std::memory_order_acquire);
  do {
    if (turn_of(word) != ticket.turn || (word & kOpen) == 0) refuse_destroyed(kind, name);
  } while (!slot->word.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel));
  return slot;
}

/// Counts a call out. The last one of a handle that has ended frees the object.
void leave(Slot& slot) {
  const uint64_t word = slot.word.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if ((word & (kOpen | kCalls)) != 0) return;
  const std::shared_ptr<void> dying = std::move(slot.object);
  slot.object = nullptr;
  const uint64_t turn = (uint64_t{turn_of(word)} + 1) & ((uint64_t{1} << kTurnBits) - 1);
  slot.word.store(turn << 32, std::memory_order_release);
  Table::instance().give_back(slot);
}

}  // namespace

SlotUse::SlotUse(const void* handle, HandleKind kind, const char* name)
    : slot_(enter(handle, kind, name)), outer_(innermost) {
  if (is_inherited(*slot_)) {
    const pid_t maker = slot_->process.load(std::memory_order_relaxed);
    leave(*slot_);
    throw Error(
        HVD_INVALID,
        fmt::format("{} was made by process {} and is used in process {}: after a fork it is the parent's "
                    "alone",
                    name, maker, current_process()));
  }
  innermost = this;
}

SlotUse::~SlotUse() {
  innermost = outer_;
  if (context_ != nullptr && !within(context_)) close_if_due(context_);
  leave(*slot_);
}

const std::shared_ptr<void>& SlotUse::object() const { return slot_->object; }

bool SlotUse::within(const hvd_context* context) {
  for (const SlotUse* use = innermost; use != nullptr; use = use->outer_) {
    if (use->context_ == context) return true;
  }
  return false;
}

const void* open_slot(std::shared_ptr<void> object, HandleKind kind) {
  Slot& slot = Table::instance().take();
  slot.object = std::move(object);
  slot.process.store(current_process(), std::memory_order_relaxed);
  const uint64_t word = slot.word.load(std::memory_order_relaxed);
  slot.word.store(word | kOpen, std::memory_order_release);
  const uintptr_t number = encode({slot.index, turn_of(word), kind});
  return reinterpret_cast<const void*>(number);  // NOLINT(performance-no-int-to-ptr): it points to nothing
}

std::shared_ptr<void> close_slot(const void* handle, HandleKind kind) {
  Ticket ticket{};
  if (!decode(handle, &ticket) || ticket.kind != kind) return nullptr;
  Slot* slot = Table::instance().find(ticket.index);
  if (slot == nullptr || is_inherited(*slot)) return nullptr;
  uint64_t word = slot->word.load(std::memory_order_acquire);
  do {
    if (turn_of(word) != ticket.turn || (word & kOpen) == 0) return nullptr;
  } while (!slot->word.compare_exchange_weak(word, (word & ~kOpen) + 1, std::memory_order_acq_rel));
  std::shared_ptr<void> object = slot->object;
  leave(*slot);
  return object;
}

}  // namespace hvd::api
