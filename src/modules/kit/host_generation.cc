// Connects a generation, runs its operations, ends it.
#include "modules/kit/host_generation.h"

#include <cstring>
#include <limits>

#include "numeric/dtype.h"

namespace hvdkit {
namespace {

// Two ops at a time, so that one's first and last messages travel while the other's data do, and two more for
// what is short, so that it does not wait behind what is long.
constexpr uint32_t kLanes = 4;
constexpr size_t kShort = size_t{256} << 10;  // bytes

constexpr size_t kAddress = Blob::kSize + sizeof(uint64_t);
constexpr uint64_t kLeastSegment = 64;  // bytes: a piece of each has an entry in queues

uint64_t segment_bytes_of(const hvd_backend_member& member) {
  uint64_t value = 0;
  const auto* bytes = static_cast<const uint8_t*>(member.address) + Blob::kSize;
  for (size_t i = 0; i < sizeof(value); ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return value;
}

}  // namespace

HostConfig HostConfig::of(const Options& options) {
  HostConfig config;
  config.ip = local_address(options.text("interface"), options.text("route"));
  config.segment_bytes = options.integer("segment_bytes", config.segment_bytes, kLeastSegment,
                                         std::numeric_limits<uint64_t>::max());
  config.checksum = options.flag("checksum", config.checksum);
  const std::string encrypt = options.text("encrypt", "auto");
  if (encrypt != "auto" && encrypt != "on" && encrypt != "off")
    throw Failure(HVD_INVALID, "option encrypt is '" + encrypt + "': expected off, auto or on");
  config.encrypt = encrypt == "on" ? Encrypt::kOn : encrypt == "off" ? Encrypt::kOff : Encrypt::kAuto;
  return config;
}

std::string HostConfig::text() const {
  const char* const words[] = {"off", "auto", "on"};
  return "tcp " + ip + ", encrypt " + words[static_cast<int>(encrypt)] + (checksum ? ", checksums" : "");
}

HostGeneration::HostGeneration(const char* module, Run run, const HostConfig& config,
                               const hvd_backend_host& host)
    : module_(module),
      run_(run),
      config_(config),
      host_(host),
      links_(config.ip,
             LinkHooks{
                 [this](int source, const void* data, size_t size) {
                   host_.message(host_.context, number_, source, data, size);
                 },
                 [this](int peer, const std::string& text) {
                   abort_lanes();
                   report(peer, text.c_str());
                 },
                 [this](const std::string& text) { host_.log(host_.context, HVD_LOG_WARNING, text.c_str()); },
                 [this](int peer, uint32_t stream, bool outward, Socket socket) {
                   if (stream <= executors_.size())
                     executors_[stream - 1].lane->attach(peer, outward, std::move(socket));
                 }},
             config.encrypt) {}

HostGeneration::~HostGeneration() { teardown(); }

std::vector<uint8_t> HostGeneration::address() const {
  const auto blob = links_.blob().encode();
  std::vector<uint8_t> address(blob.begin(), blob.end());
  for (size_t i = 0; i < sizeof(uint64_t); ++i)
    address.push_back(static_cast<uint8_t>(config_.segment_bytes >> (8 * i)));
  return address;
}

void HostGeneration::assign(const hvd_backend_group& group) {
  number_ = group.generation;
  rank_ = group.rank;
  size_ = group.size;
  std::lock_guard<std::mutex> lock(mutex_);
  connecting_ = true;
}

void HostGeneration::connect(const hvd_backend_group& group) {
  struct Leaving {
    HostGeneration& self;
    ~Leaving() {
      std::lock_guard<std::mutex> lock(self.mutex_);
      self.connecting_ = false;
      self.changed_.notify_all();
    }
  } const leaving{*this};

  const Clock::time_point deadline = Clock::now() + std::chrono::nanoseconds(group.timeout_ns);
  segment_bytes_ = config_.segment_bytes;
  LinkGroup links{group.generation, group.rank, {}};
  for (int peer = 0; peer < size_; ++peer) {
    const hvd_backend_member& member = group.members[peer];
    try {
      if (member.address == nullptr || member.address_size != kAddress) {
        throw Failure(HVD_INVALID, "an address of " + std::to_string(member.address_size) +
                                       " bytes: expected " + std::to_string(kAddress));
      }
      links.members.push_back(Blob::decode(member.address, Blob::kSize));
      if (segment_bytes_of(member) < kLeastSegment) {
        throw Failure(HVD_INVALID, "segments of " + std::to_string(segment_bytes_of(member)) +
                                       " bytes: expected at least " + std::to_string(kLeastSegment));
      }
    } catch (const Failure& failure) {
      throw Failure(HVD_INVALID, "member " + std::to_string(peer) + ": " + failure.what(), peer);
    }
    segment_bytes_ = std::min(segment_bytes_, segment_bytes_of(member));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
    for (uint32_t stream = 1; stream <= kLanes; ++stream) {
      auto lane = std::make_unique<Lane>(size_, config_.checksum,
                                         [this, stream](int peer) { links_.ask(peer, stream); });
      executors_.emplace_back().lane = std::move(lane);  // an abort asks each for its lane
    }
  }
  if (size_ > 1) links_.meet(std::move(links), deadline);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
    connected_ = true;
  }
  links_.open();
}

// The same on all ranks. The hash is Knuth's: sequences of an inner backend grow in steps of powers of two.
HostGeneration::Executor& HostGeneration::executor_of(const Task& task) {
  size_t elements = task.op.count;
  if (!task.counts.empty()) {
    elements = 0;
    const size_t n = task.ranks.size();
    // Of an alltoall each rank knows its own row and column alone: all of them count as long.
    for (size_t i = 0; i < n; ++i) elements += task.counts[i];
    if (task.op.collective == HVD_COLLECTIVE_ALLTOALL) elements = kShort + 1;
  }
  if (task.op.collective == HVD_COLLECTIVE_BARRIER) elements = 0;
  const bool is_short = elements * hvd::dtype_size(task.op.dtype) <= kShort;
  const uint64_t place = (task.op.sequence * 0x9E3779B97F4A7C15) >> 63;
  return executors_[(is_short ? 0 : 2) + place];
}

void HostGeneration::submit(Task task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_ || !connected_) throw Failure(HVD_PEER_LOST, "the generation was given up");
  Executor& executor = executor_of(task);
  if (!executor.thread.joinable()) {
    const BlockSignals block;
    executor.thread = std::thread([this, &executor] { execute(executor); });
  }
  executor.tasks.push_back(std::move(task));
  executor.queued.notify_one();
}

void HostGeneration::send(int destination, const void* data, size_t size) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_ || !connected_) throw Failure(HVD_PEER_LOST, "the generation was given up");
  }
  links_.send(destination, data, size);
}

void HostGeneration::execute(Executor& executor) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    executor.queued.wait(lock, [&] { return stopping_ || !executor.tasks.empty(); });
    if (executor.tasks.empty()) return;
    Task task = std::move(executor.tasks.front());
    executor.tasks.pop_front();
    const bool aborted = aborted_;
    lock.unlock();
    perform(*executor.lane, task, aborted);
    lock.lock();
  }
}

// The task completes once, whatever fails.
void HostGeneration::perform(Lane& lane, const Task& task, bool aborted) noexcept {
  hvd_error error = HVD_ERROR_INIT;
  try {
    outcome(lane, task, aborted, &error);
  } catch (const std::exception&) {
    constexpr const char* kNoMemory = "out of memory";  // for the text of the failure
    error.status = HVD_INTERNAL;
    error.rank = rank_;
    error.generation = number_;
    std::strncpy(error.backend, module_, sizeof(error.backend) - 1);
    std::strncpy(error.message, kNoMemory, sizeof(error.message) - 1);
    report(rank_, kNoMemory);
  }
  task.op.done(task.op.done_context, error.status, error.status == HVD_OK ? nullptr : &error);
}

void HostGeneration::outcome(Lane& lane, const Task& task, bool aborted, hvd_error* error) {
  const auto fails = [&](const Failure& failure) { write_error(module_, error, failure, number_); };
  if (aborted) return fails({HVD_PEER_LOST, "the generation was given up"});
  try {
    Party party{lane, task.ranks, task.me, task.op.sequence * 2, static_cast<size_t>(segment_bytes_)};
    run_(party, task);
  } catch (const Failure& failure) {
    const Failure verdict =
        failure.status == HVD_PEER_LOST ? links_.blame(failure.rank, failure.what()) : failure;
    if (!lane.aborted()) report(verdict.rank, verdict.what());
    fails(verdict);
  } catch (const std::exception& e) {
    // This rank alone can't go on, out of memory for one: the others must not wait for it.
    const Failure failure(HVD_INTERNAL, std::string("a collective failed: ") + e.what(), rank_);
    report(rank_, failure.what());
    fails(failure);
  }
}

void HostGeneration::report(int peer, const char* text) noexcept {
  if (!reported_.exchange(true)) host_.failure(host_.context, number_, peer, text);
}

void HostGeneration::abort_lanes() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Executor& executor : executors_) executor.lane->abort();
}

void HostGeneration::abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
  }
  links_.abort();  // first: the peers hear that this rank gives up before its lanes end
  abort_lanes();
}

void HostGeneration::teardown() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !connecting_; });
    stopping_ = true;
    for (Executor& executor : executors_) executor.queued.notify_all();
  }
  for (Executor& executor : executors_) {
    if (executor.thread.joinable()) executor.thread.join();
  }
  links_.stop();
  executors_.clear();
}

}  // namespace hvdkit
