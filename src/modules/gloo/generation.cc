#include "modules/gloo/generation.h"

#include <cstring>

#include "modules/gloo/collectives.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvdgloo {

using hvd::dtype_size;
using hvdkit::Blob;
using hvdkit::Clock;
using hvdkit::Greeting;
using hvdkit::LinkGroup;
using hvdkit::LinkHooks;

namespace {

constexpr size_t kExecutors = 2;

// What ranks tell each other when they meet.
struct Meeting {
  uint64_t segment_bytes = 0;
  std::vector<char> pair_address;

  Greeting encode() const {
    Greeting bytes(sizeof(segment_bytes) + pair_address.size());
    std::memcpy(bytes.data(), &segment_bytes, sizeof(segment_bytes));
    std::copy(pair_address.begin(), pair_address.end(), bytes.begin() + sizeof(segment_bytes));
    return bytes;
  }

  static Meeting decode(int peer, const Greeting& bytes) {
    Meeting meeting;
    if (bytes.size() < sizeof(meeting.segment_bytes)) {
      throw Failure(HVD_PEER_LOST,
                    "rank " + std::to_string(peer) + " greeted with " + std::to_string(bytes.size()) +
                        " bytes, which make no sense",
                    peer);
    }
    std::memcpy(&meeting.segment_bytes, bytes.data(), sizeof(meeting.segment_bytes));
    meeting.pair_address.assign(bytes.begin() + sizeof(meeting.segment_bytes), bytes.end());
    return meeting;
  }
};

}  // namespace

Generation::Generation(const Config& config, const hvd_backend_host& host)
    : config_(config),
      host_(host),
      links_(config.ip, LinkHooks{[this](int source, const void* data, size_t size) {
                                    host_.message(host_.context, number_, source, data, size);
                                  },
                                  [this](int peer, const std::string& text) {
                                    // Gloo leaves a send that was half written to a dead peer waiting: free it.
                                    transport_->abort();
                                    report(peer, text);
                                  },
                                  [this](const std::string& text) {
                                    host_.log(host_.context, HVD_LOG_WARNING, text.c_str());
                                  }}),
      transport_(std::make_unique<Transport>(config.ip)) {}

Generation::~Generation() { teardown(); }

std::vector<uint8_t> Generation::address() const {
  const auto blob = links_.blob().encode();
  return {blob.begin(), blob.end()};
}

void Generation::assign(const hvd_backend_group& group) {
  number_ = group.generation;
  rank_ = group.rank;
  size_ = group.size;
  std::lock_guard<std::mutex> lock(mutex_);
  connecting_ = true;
}

void Generation::connect(const hvd_backend_group& group) {
  struct Leaving {
    Generation& self;
    ~Leaving() {
      self.transport_->hurry(false);
      std::lock_guard<std::mutex> lock(self.mutex_);
      self.connecting_ = false;
      self.changed_.notify_all();
    }
  } const leaving{*this};

  const std::chrono::nanoseconds timeout(group.timeout_ns);
  const Clock::time_point deadline = Clock::now() + timeout;
  segment_bytes_ = config_.segment_bytes;
  if (size_ > 1) {
    LinkGroup links{group.generation, group.rank, {}};
    for (int peer = 0; peer < size_; ++peer) {
      const hvd_backend_member& member = group.members[peer];
      try {
        links.members.push_back(Blob::decode(member.address, member.address_size));
      } catch (const Failure& failure) {
        throw Failure(HVD_INVALID, "member " + std::to_string(peer) + ": " + failure.what(), peer);
      }
    }
    transport_->create_pairs(rank_, size_, std::chrono::ceil<std::chrono::milliseconds>(timeout));
    std::vector<Greeting> greetings(static_cast<size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      greetings[static_cast<size_t>(peer)] =
          Meeting{config_.segment_bytes, transport_->pair_address(peer)}.encode();
    }
    const std::vector<Greeting> answers = links_.greet(std::move(links), greetings, deadline);
    std::vector<Meeting> theirs(answers.size());
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      theirs[static_cast<size_t>(peer)] = Meeting::decode(peer, answers[static_cast<size_t>(peer)]);
    }
    // Those that connect do so first, the listening ends accept in Gloo's loop meanwhile: nobody waits in a circle.
    transport_->hurry(true);
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const Meeting& greeting = theirs[static_cast<size_t>(peer)];
      segment_bytes_ = std::min(segment_bytes_, std::max<uint64_t>(greeting.segment_bytes, 1));
      if (!transport_->connects(peer, greeting.pair_address)) continue;
      transport_->connect(peer, greeting.pair_address);
      links_.tell_step(peer);
    }
    transport_->hurry(false);
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const Meeting& greeting = theirs[static_cast<size_t>(peer)];
      if (transport_->connects(peer, greeting.pair_address)) continue;
      links_.wait_steps(peer, 1, "connect its pair", deadline);
      transport_->connect(peer, greeting.pair_address);
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
    start_executor();
    connected_ = true;
  }
  links_.open();
}

void Generation::start_executor() {
  const BlockSignals block;
  executors_.emplace_back([this] { execute(); });
  ++idle_;
}

void Generation::submit(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_ || !connected_) throw Failure(HVD_PEER_LOST, "the generation was given up");
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_ && executors_.size() < kExecutors) {
      try {
        start_executor();
      } catch (const std::exception&) {
        // Those that are there do the work.
      }
    }
  }
  queued_.notify_one();
}

void Generation::send(int destination, const void* data, size_t size) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_ || !connected_) throw Failure(HVD_PEER_LOST, "the generation was given up");
  }
  links_.send(destination, data, size);
}

void Generation::execute() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    queued_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    --idle_;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const bool aborted = aborted_;
    lock.unlock();
    if (aborted) {
      const Failure failure(HVD_PEER_LOST, "the generation was given up");
      complete(task, &failure);
    } else {
      try {
        run(task);
        complete(task, nullptr);
      } catch (const Failure& failure) {
        const Failure verdict =
            failure.status == HVD_PEER_LOST ? links_.blame(failure.rank, failure.what()) : failure;
        if (!transport_->aborted()) report(verdict.rank, verdict.what());
        complete(task, &verdict);
      } catch (const std::exception& e) {
        // This rank alone can't go on, out of memory for one: the others must not wait for it.
        const Failure failure(HVD_INTERNAL, std::string("a collective failed: ") + e.what(), rank_);
        report(rank_, failure.what());
        complete(task, &failure);
      }
    }
    lock.lock();
    ++idle_;
  }
}

void Generation::run(Task& task) {
  const hvd_backend_op& op = task.op;
  const size_t element = dtype_size(op.dtype);
  Party party{*transport_, std::move(task.ranks), task.me, op.sequence * 2,
              static_cast<size_t>(segment_bytes_)};
  std::vector<size_t> sizes;
  for (const size_t count : task.counts) sizes.push_back(count * element);
  switch (op.collective) {
    case HVD_COLLECTIVE_BROADCAST: return broadcast(party, task.root, op.output, op.count * element);
    case HVD_COLLECTIVE_ALLREDUCE:
      return allreduce(party, op.dtype, op.reduction, op.input, op.output, op.count);
    case HVD_COLLECTIVE_ALLGATHER: return allgather(party, op.input, op.output, sizes);
    case HVD_COLLECTIVE_REDUCESCATTER:
      return reducescatter(party, op.dtype, op.reduction, op.input, op.output, task.counts);
    case HVD_COLLECTIVE_ALLTOALL: return alltoall(party, op.input, op.output, sizes);
    default: return barrier(party);
  }
}

void Generation::complete(const Task& task, const Failure* failure) {
  if (failure == nullptr) return task.op.done(task.op.done_context, HVD_OK, nullptr);
  hvd_error error = HVD_ERROR_INIT;
  write_error(kName, &error, *failure, number_);
  task.op.done(task.op.done_context, failure->status, &error);
}

void Generation::report(int peer, const std::string& text) {
  if (!reported_.exchange(true)) host_.failure(host_.context, number_, peer, text.c_str());
}

void Generation::abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
  }
  links_.abort();  // first: the peers hear that this rank gives up before its pairs close
  transport_->abort();
}

void Generation::teardown() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !connecting_; });
    stopping_ = true;
  }
  queued_.notify_all();
  for (std::thread& executor : executors_) executor.join();
  executors_.clear();
  links_.stop();
  transport_.reset();
}

}  // namespace hvdgloo
