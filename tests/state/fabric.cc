// Ranks in one process over a backend in memory, with faults on demand.
#include "state/fabric.h"

#include <cstring>

#include "numeric/dtype.h"

namespace hvd::state {

namespace {

void fail_op(const hvd_backend_op& op) {
  hvd_error error = HVD_ERROR_INIT;
  error.status = HVD_PEER_LOST;
  std::strcpy(error.message, "the fabric broke");
  op.done(op.done_context, HVD_PEER_LOST, &error);
}

}  // namespace

class Fabric::Instance : public backend::Instance {
 public:
  Instance(Fabric& fabric, int32_t rank) : fabric_(fabric), rank_(rank) {
    description_.name = "memory";
    description_.memories = uint64_t{1} << HVD_MEMORY_HOST;
    description_.dtypes = description_.collectives = ~uint64_t{0};
    description_.messages = true;
  }
  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>*) override { return {}; }
  Status connect(uint64_t, int32_t, const std::vector<backend::Member>&, Duration) override { return {}; }
  using backend::Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override {
    if (!parts.empty()) return {HVD_UNSUPPORTED, "the fabric takes one tensor at a time"};
    return fabric_.submit(rank_, op);
  }
  Status send_message(int32_t to, std::span<const uint8_t> data) override {
    {
      std::lock_guard lock(fabric_.mutex_);
      if (fabric_.broken_) return {HVD_PEER_LOST, "the fabric is broken"};
      ++fabric_.messages_;
    }
    fabric_.post([this, to, bytes = std::vector<uint8_t>(data.begin(), data.end())] {
      fabric_.engine(to).deliver(rank_, bytes);
    });
    return {};
  }
  void abort(uint64_t) override { fabric_.abort(); }
  void disconnect() override {}
  std::string detail() const override { return "memory"; }

 private:
  Fabric& fabric_;
  const int32_t rank_;
  backend::Description description_;
};

Fabric::Fabric(int32_t size, uint64_t generation) {
  std::vector<std::string> hosts;
  for (int32_t rank = 0; rank < size; ++rank) hosts.push_back("host" + std::to_string(rank));
  for (int32_t rank = 0; rank < size; ++rank) {
    instances_.push_back(std::make_unique<Instance>(*this, rank));
    collective::EngineConfig config;
    config.generation = generation;
    config.rank = rank;
    config.hosts = hosts;
    config.fusion_threshold = 0;
    config.small_data = 0;  // the tests count what the backend carries
    config.wake_at = [this, rank](Time when) {
      std::lock_guard lock(mutex_);
      wake_[rank] = when;
      changed_.notify_all();
    };
    engines_.push_back(collective::Engine::open(config, *instances_.back()));
  }
  for (auto& engine : engines_) engine->start();
  thread_ = std::thread([this] { loop(); });
}

Fabric::~Fabric() {
  for (auto& engine : engines_) engine->fail({HVD_CLOSED, "the test ends"});
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  engines_.clear();
}

backend::Instance& Fabric::instance(int32_t rank) { return *instances_[static_cast<size_t>(rank)]; }

size_t Fabric::messages() const {
  std::lock_guard lock(mutex_);
  return messages_;
}

int Fabric::broadcasts() const {
  std::lock_guard lock(mutex_);
  return broadcasts_;
}

int Fabric::deliveries() const {
  std::lock_guard lock(mutex_);
  return deliveries_;
}

bool Fabric::delivers() {
  {
    std::lock_guard lock(mutex_);
    ++deliveries_;
    if (deliveries_left_ < 0 || deliveries_left_-- > 0) return true;
    deliveries_left_ = 0;
  }
  abort();
  // All of them are told, as by a driver.
  post([this] {
    for (auto& engine : engines_) engine->fail({HVD_PEER_LOST, "the fabric broke"});
  });
  return false;
}

void Fabric::post(std::function<void()> event) {
  std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

void Fabric::abort() {
  std::lock_guard lock(mutex_);
  broken_ = true;
  for (auto& [sequence, group] : pending_) {
    for (auto& [rank, pending] : group) {
      events_.push_back([op = pending.op] { fail_op(op); });
    }
  }
  pending_.clear();
  changed_.notify_all();
}

Status Fabric::submit(int32_t rank, const hvd_backend_op& op) {
  Pending pending{op, {}, {}};
  if (op.ranks != nullptr) {
    pending.ranks.assign(op.ranks, op.ranks + op.rank_count);
  } else {
    for (int32_t r = 0; r < size(); ++r) pending.ranks.push_back(r);
  }
  if (op.counts != nullptr) pending.counts.assign(op.counts, op.counts + pending.ranks.size());
  std::unique_lock lock(mutex_);
  if (broken_) return {HVD_PEER_LOST, "the fabric is broken"};
  Group& group = pending_[op.sequence];
  const size_t expected = pending.ranks.size();
  group.emplace(rank, std::move(pending));
  if (group.size() < expected) return {};
  if (op.collective == HVD_COLLECTIVE_BROADCAST && broadcasts_ == break_at_) {
    lock.unlock();
    abort();
    return {};
  }
  try {
    events_.push_back(perform(group));
  } catch (...) {  // without memory it was not submitted, and the others still wait
    group.erase(rank);
    throw;
  }
  pending_.erase(op.sequence);
  changed_.notify_all();
  return {};
}

std::function<void()> Fabric::perform(Group group) {
  const hvd_backend_op& first = group.begin()->second.op;
  bool corrupt = false;
  if (first.collective == HVD_COLLECTIVE_BROADCAST) corrupt = broadcasts_++ == corrupt_at_;
  const int index = first.collective == HVD_COLLECTIVE_ALLGATHER ? allgathers_++ : -1;
  return [this, group = std::move(group), corrupt, index] {
    for (const auto& [to, target] : group) {
      auto* output = static_cast<uint8_t*>(target.op.output);
      const size_t element = dtype_size(target.op.dtype);
      if (target.op.collective == HVD_COLLECTIVE_BROADCAST) {
        if (to == target.op.root) continue;
        std::memcpy(output, group.at(target.op.root).op.output, target.op.count * element);
        if (corrupt) output[target.op.count * element - 1] ^= 1;
        continue;
      }
      size_t i = 0;
      for (const auto& [from, source] : group) {  // allgather
        const size_t bytes = target.counts[i++] * element;
        if (bytes > 0) std::memcpy(output, source.op.input, bytes);
        output += bytes;
      }
      if (forge_) forge_(to, index, static_cast<uint8_t*>(target.op.output));
    }
    for (const auto& [rank, pending] : group) {
      if (delivers()) {
        pending.op.done(pending.op.done_context, HVD_OK, nullptr);
      } else {
        fail_op(pending.op);
      }
    }
  };
}

void Fabric::loop() {
  std::unique_lock lock(mutex_);
  while (!stop_ || !events_.empty()) {
    Time next = Time::max();
    int32_t due = -1;
    for (const auto& [rank, when] : wake_) {
      if (when < next) next = when, due = rank;
    }
    if (events_.empty() && (due < 0 || next > now())) {
      if (due < 0) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, next);
      }
      continue;
    }
    std::function<void()> event;
    if (events_.empty()) {
      wake_.erase(due);
      event = [this, due] { engine(due).tick(now()); };
    } else {
      event = std::move(events_.front());
      events_.pop_front();
    }
    lock.unlock();
    event();
    event = nullptr;
    lock.lock();
  }
}

}  // namespace hvd::state
