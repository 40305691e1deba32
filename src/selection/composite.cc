// Sends each operation to the backend that serves it, and ends all of them together.
#include "selection/composite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <optional>

#include "backend/capabilities.h"
#include "numeric/dtype.h"
#include "numeric/generation_gate.h"

namespace hvd::selection {
namespace {

// What hvd.h knows of; anything beyond is served by nobody.
constexpr int32_t kMemories = HVD_MEMORY_CUDA + 1, kDtypes = kLastDtype + 1,
                  kCollectives = HVD_COLLECTIVE_JOIN;

/// Which backend serves what: read with each operation, written when a generation is connected.
class Routes {
 public:
  static constexpr uint8_t kNone = 0xff;
  uint8_t at(hvd_memory memory, hvd_dtype dtype, hvd_collective collective) const {
    const auto slot = index(memory, dtype, collective);
    return slot < 0 ? kNone : table_[static_cast<size_t>(slot)].load(std::memory_order_relaxed);
  }
  /// serving: by index, in order of preference.
  void assign(const std::vector<std::pair<uint8_t, backend::Description>>& serving) {
    for (hvd_memory memory = 0; memory < kMemories; ++memory) {
      for (hvd_collective collective = 0; collective < kCollectives; ++collective) {
        for (hvd_dtype dtype = 0; dtype < kDtypes; ++dtype) {
          const auto found = std::find_if(serving.begin(), serving.end(), [&](const auto& backend) {
            return backend::serves(backend.second, memory, dtype, collective);
          });
          table_[static_cast<size_t>(index(memory, dtype, collective))].store(
              found == serving.end() ? kNone : found->first, std::memory_order_relaxed);
        }
      }
    }
  }

 private:
  static int32_t index(hvd_memory memory, hvd_dtype dtype, hvd_collective collective) {
    if (collective == HVD_COLLECTIVE_BARRIER) dtype = 0;
    if (memory < 0 || memory >= kMemories || dtype < 0 || dtype >= kDtypes || collective < 0 ||
        collective >= kCollectives) {
      return -1;
    }
    return (memory * kCollectives + collective) * kDtypes + dtype;
  }
  std::array<std::atomic<uint8_t>, size_t{kMemories} * kDtypes * kCollectives> table_{};
};

class Composite final : public backend::Instance {
 public:
  Composite(std::vector<Selected> selected, std::vector<Absent> absent, LoggerPtr logger)
      : selected_(std::move(selected)), absent_(std::move(absent)), logger_(std::move(logger)) {
    description_ = selected_[0].instance->description();
    std::vector<std::pair<uint8_t, backend::Description>> all;
    for (size_t i = 0; i < selected_.size(); ++i) {
      const backend::Description& d = selected_[i].instance->description();
      description_.memories |= d.memories;
      description_.dtypes |= d.dtypes;
      description_.collectives |= d.collectives;
      all.emplace_back(static_cast<uint8_t>(i), d);
    }
    lacking_.resize(selected_.size());
    routes_.assign(all);
  }

  /// Waits for aborts that are under way: a thread of one backend's, whose failure the program answers with
  /// abort, may be at another one.
  ~Composite() override {
    {
      std::unique_lock lock(mutex_);
      gate_.leave();
      aborted_.wait(lock, [this] { return aborting_ == 0; });
    }
    // In the reverse order of their opening.
    while (!selected_.empty()) selected_.pop_back();
  }

  const backend::Description& description() const override { return description_; }

  bool supports(hvd_memory memory, hvd_dtype dtype, hvd_collective collective) const override {
    return routes_.at(memory, dtype, collective) != Routes::kNone;
  }
  Status choice(hvd_memory memory, hvd_dtype dtype, hvd_collective collective,
                backend::Choice* ret_choice) const override;
  [[gnu::cold]] Status offers(std::vector<Offer>* ret_offers) override;
  [[gnu::cold]] Status connect(uint64_t generation, int32_t rank, const std::vector<Member>& members,
                               Duration timeout) override;

  using backend::Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override {
    const uint8_t index = routes_.at(op.memory, op.dtype, op.collective);
    if (index != Routes::kNone) return selected_[index].instance->submit(op, parts);
    backend::Choice none;
    Status status = choice(op.memory, op.dtype, op.collective, &none);
    // Served after all: the generation has changed meanwhile.
    return status.ok() ? given_up(0) : status;
  }
  Instance& carrier() override { return host().carrier(); }
  Status send_message(int32_t destination, std::span<const uint8_t> data) override {
    return host().send_message(destination, data);
  }

  Status host_alloc(hvd_memory memory, size_t size, void** ret_memory) override {
    backend::Instance* const backend = of_memory(memory);
    return backend != nullptr ? backend->host_alloc(memory, size, ret_memory) : no_memory(memory);
  }
  void host_free(hvd_memory memory, void* data) override {
    if (backend::Instance* const backend = of_memory(memory)) backend->host_free(memory, data);
  }
  Status copy(hvd_memory memory, int32_t device, void* stream, bool to_device,
              std::span<const hvd_backend_copy> copies, void** ret_ticket) override {
    backend::Instance* const backend = of_memory(memory);
    return backend != nullptr ? backend->copy(memory, device, stream, to_device, copies, ret_ticket)
                              : no_memory(memory);
  }
  Status copy_aside(hvd_memory memory, int32_t device, void* stream, std::span<const hvd_backend_copy> copies,
                    void** ret_ticket) override {
    backend::Instance* const backend = of_memory(memory);
    return backend != nullptr ? backend->copy_aside(memory, device, stream, copies, ret_ticket)
                              : no_memory(memory);
  }
  Status copy_wait(hvd_memory memory, void* ticket, Duration timeout) override {
    backend::Instance* const backend = of_memory(memory);
    return backend != nullptr ? backend->copy_wait(memory, ticket, timeout) : no_memory(memory);
  }

  void abort(uint64_t generation) override;
  void disconnect() override;
  std::string detail() const override;

 private:
  backend::Instance& host() const { return *selected_[0].instance; }
  const std::string& name_of(size_t index) const { return selected_[index].instance->description().name; }
  backend::Instance* of_memory(hvd_memory memory) const {
    for (const Selected& s : selected_) {
      const uint64_t memories = s.instance->description().memories;
      if (memory > 0 && memory < 64 && (memories >> memory & 1) != 0) return s.instance.get();
    }
    return nullptr;
  }
  Status no_memory(hvd_memory memory) const {
    return {HVD_UNSUPPORTED,
            fmt::format("no backend takes {} memory{}", backend::memory_name(memory), text_of_absent())};
  }
  std::string text_of_absent() const {
    std::string text;
    for (const Absent& absent : absent_) text += fmt::format("; no {}: {}", absent.name, absent.reason);
    return text;
  }
  static Status given_up(uint64_t generation) {
    Status status(HVD_PEER_LOST, "the generation was given up");
    if (generation != 0) status.message = fmt::format("generation {} was given up", generation);
    return status.in_generation(generation);
  }

  Status check_host(const std::vector<Member>& members, int32_t rank) const;
  std::string why_not(const std::string& name, const std::vector<Member>& members,
                      backend::Description* ret_common) const;
  Status connect_one(size_t index, uint64_t generation, int32_t rank, const std::vector<Member>& members,
                     Time deadline);
  void abort_all(const std::vector<size_t>& connected, uint64_t generation);
  void leave();

  std::vector<Selected> selected_;
  const std::vector<Absent> absent_;
  const LoggerPtr logger_;
  backend::Description description_;
  Routes routes_;

  mutable std::mutex mutex_;
  std::vector<std::string> lacking_;  // by index: why it is not in use in this generation, "" if it is
  std::vector<size_t> connected_;     // or being connected, in order
  int aborting_ = 0;                  // calls of abort that are at the backends
  std::condition_variable aborted_;   // one of these has ended
  GenerationGate gate_;
};

Status Composite::choice(hvd_memory memory, hvd_dtype dtype, hvd_collective collective,
                         backend::Choice* ret_choice) const {
  const uint8_t index = routes_.at(memory, dtype, collective);
  if (index != Routes::kNone) {
    *ret_choice = {name_of(index), selected_[index].reason};
    return {};
  }
  std::string text;
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < selected_.size(); ++i) {
    const backend::Description& d = selected_[i].instance->description();
    std::string lack = backend::lack_of(d, memory, dtype, collective);
    if (lack.empty()) lack = lacking_[i].empty() ? "does not do it on every rank" : lacking_[i];
    text += fmt::format("{}backend {} {}", text.empty() ? "" : "; ", d.name, lack);
  }
  if (memory != HVD_MEMORY_HOST) text += text_of_absent();
  return {HVD_UNSUPPORTED, text};
}

Status Composite::offers(std::vector<Offer>* ret_offers) {
  std::vector<Offer> offers;
  for (const Selected& selected : selected_) {
    const std::string& name = selected.instance->description().name;
    std::vector<Offer> rows;
    Status status = selected.instance->offers(&rows);
    if (!status.ok() && !selected.optional) return status;
    if (!status.ok()) {
      logger_->info("backend {} takes no part: {}", name, status.message);
      rows = {{name, status.message, 0, 0, 0, {}}};
    }
    std::move(rows.begin(), rows.end(), std::back_inserter(offers));
  }
  for (const Absent& absent : absent_) offers.push_back({absent.name, absent.reason, 0, 0, 0, {}});
  *ret_offers = std::move(offers);
  return {};
}

/// All ranks have one backend for host memory.
Status Composite::check_host(const std::vector<Member>& members, int32_t rank) const {
  for (size_t r = 0; r < members.size(); ++r) {
    const std::vector<Offer>& offers = members[r].offers;
    const std::string theirs = offers.empty() ? "none" : offers.front().backend;
    if (theirs == description_.name) continue;
    Status status(HVD_UNAVAILABLE,
                  fmt::format("rank {} (host {}) has backend {} for host memory, rank {} (host {}) has {}: "
                              "expected the same on every worker (option backend)",
                              r, members[r].host, theirs, rank, members[static_cast<size_t>(rank)].host,
                              description_.name));
    return status.at_rank(static_cast<int32_t>(r));
  }
  return {};
}

/// Why a backend can't be used in a generation: who does not bring it. Otherwise "", and what all of them can
/// do.
std::string Composite::why_not(const std::string& name, const std::vector<Member>& members,
                               backend::Description* ret_common) const {
  ret_common->memories = ret_common->dtypes = ret_common->collectives = ~uint64_t{0};
  for (size_t r = 0; r < members.size(); ++r) {
    const std::vector<Offer>& offers = members[r].offers;
    const auto offer =
        std::find_if(offers.begin(), offers.end(), [&](const Offer& o) { return o.backend == name; });
    if (offer == offers.end()) {
      return fmt::format("is not used by rank {} (host {}): its option backend leaves it out", r,
                         members[r].host);
    }
    if (!offer->brought()) {
      return fmt::format("is lacking on rank {} (host {}): {}", r, members[r].host, offer->lacking);
    }
    ret_common->memories &= offer->memories;
    ret_common->dtypes &= offer->dtypes;
    ret_common->collectives &= offer->collectives;
  }
  return "";
}

Status Composite::connect(uint64_t generation, int32_t rank, const std::vector<Member>& members,
                          Duration timeout) {
  const Time deadline = now() + timeout;
  leave();
  if (members.empty() || rank < 0 || static_cast<size_t>(rank) >= members.size()) {
    return {HVD_INVALID, fmt::format("rank {} of {}", rank, members.size())};
  }
  if (Status status = check_host(members, rank); !status.ok()) return status;

  // Rank 0's order is everybody's: who connects in another one waits for a rank that waits for it.
  std::vector<std::string> lacking(selected_.size());
  std::vector<backend::Description> common(selected_.size());
  std::vector<uint8_t> order;
  for (size_t i = 0; i < selected_.size(); ++i) {
    lacking[i] = why_not(name_of(i), members, &common[i]);
    if (lacking[i].empty()) order.push_back(static_cast<uint8_t>(i));
  }
  const auto place = [&](uint8_t index) {
    const std::vector<Offer>& offers = members[0].offers;
    return std::find_if(offers.begin(), offers.end(),
                        [&](const Offer& o) { return o.backend == name_of(index); }) -
           offers.begin();
  };
  std::sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return place(a) < place(b); });
  std::vector<std::pair<uint8_t, backend::Description>> serving;
  for (const uint8_t index : order) serving.emplace_back(index, std::move(common[index]));
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.enter(generation)) return given_up(generation);
    lacking_ = lacking;
  }
  for (const auto& backend : serving) {
    Status status = connect_one(backend.first, generation, rank, members, deadline);
    if (status.ok()) continue;
    leave();
    return status;
  }
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.inside(generation)) return given_up(generation);
    routes_.assign(serving);
  }
  for (size_t i = 0; i < selected_.size(); ++i) {
    if (!lacking[i].empty())
      logger_->info("generation {}: backend {} {}", generation, name_of(i), lacking[i]);
  }
  return {};
}

Status Composite::connect_one(size_t index, uint64_t generation, int32_t rank,
                              const std::vector<Member>& members, Time deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.inside(generation)) return given_up(generation);
    connected_.push_back(index);  // from here on abort reaches it
  }
  Status status =
      selected_[index].instance->connect(generation, rank, members, std::max(deadline - now(), Duration(0)));
  if (status.ok()) {
    {
      const std::lock_guard lock(mutex_);
      if (gate_.inside(generation)) return {};
    }
    selected_[index].instance->abort(generation);  // the one that came before may have come too early for it
    return given_up(generation);
  }
  if (index == 0) return status;
  if (status.backend.empty()) status.backend = name_of(index);
  if (status.code != HVD_PEER_LOST && status.code != HVD_TIMEOUT) {
    status.message += fmt::format(" (option backend={} does without {})", description_.name, name_of(index));
  }
  return status;
}

void Composite::abort_all(const std::vector<size_t>& connected, uint64_t generation) {
  for (const size_t index : connected) selected_[index].instance->abort(generation);
}

/// Gives up what is connected, unless abort has done so.
void Composite::leave() {
  std::vector<size_t> connected;
  std::optional<uint64_t> generation;
  {
    const std::lock_guard lock(mutex_);
    generation = gate_.leave();
    if (generation) connected.swap(connected_);
  }
  if (generation) abort_all(connected, *generation);
}

void Composite::abort(uint64_t generation) {
  std::vector<size_t> connected;
  {
    const std::lock_guard lock(mutex_);
    if (!gate_.give_up(generation)) return;
    connected.swap(connected_);
    ++aborting_;
  }
  abort_all(connected, generation);
  const std::lock_guard lock(mutex_);
  --aborting_;
  aborted_.notify_all();
}

void Composite::disconnect() {
  std::vector<size_t> connected;
  {
    const std::lock_guard lock(mutex_);
    gate_.leave();
    connected.swap(connected_);
  }
  std::reverse(connected.begin(), connected.end());
  for (const size_t index : connected) selected_[index].instance->disconnect();
}

std::string Composite::detail() const {
  std::string text = host().detail();
  const std::lock_guard lock(mutex_);
  for (size_t i = 1; i < selected_.size(); ++i) {
    if (!lacking_[i].empty()) continue;
    text += fmt::format("{}{}", text.empty() ? "" : "; ", name_of(i));
    if (const std::string more = selected_[i].instance->detail(); !more.empty()) text += ": " + more;
  }
  return text;
}

}  // namespace

std::unique_ptr<backend::Instance> make_composite(std::vector<Selected> selected, std::vector<Absent> absent,
                                                  LoggerPtr logger) {
  return std::make_unique<Composite>(std::move(selected), std::move(absent), std::move(logger));
}

}  // namespace hvd::selection
