#include "backend/local/instance.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "backend/local/address.h"
#include "backend/local/bell.h"
#include "backend/local/executor.h"
#include "backend/local/generation.h"
#include "backend/local/thread.h"
#include "base/dtype.h"

namespace hvd::backend::local {
namespace {

using GenerationPtr = std::shared_ptr<Generation>;
constexpr uint64_t kCollectives =
    uint64_t{1} << HVD_COLLECTIVE_BROADCAST | uint64_t{1} << HVD_COLLECTIVE_ALLREDUCE |
    uint64_t{1} << HVD_COLLECTIVE_ALLGATHER | uint64_t{1} << HVD_COLLECTIVE_BARRIER |
    uint64_t{1} << HVD_COLLECTIVE_REDUCESCATTER | uint64_t{1} << HVD_COLLECTIVE_ALLTOALL;
// A thread that waits executes operations itself only when it means to wait longer than a hung peer lives:
// an operation under way has no deadline of its own, it ends by abort.
constexpr Duration kLends = std::chrono::seconds(20);

bool needs_counts(hvd_collective collective) {
  return collective == HVD_COLLECTIVE_ALLGATHER || collective == HVD_COLLECTIVE_REDUCESCATTER ||
         collective == HVD_COLLECTIVE_ALLTOALL;
}

// Whether several ranks take part and no two of them share a host.
bool each_alone(const Generation& generation, const std::vector<int32_t>& ranks) {
  if (!generation.joins_hosts() || ranks.size() < 2 || ranks.size() > generation.hosts.groups.size())
    return false;
  std::vector<bool> seen(generation.hosts.groups.size());
  for (const int32_t rank : ranks) {
    const auto host = static_cast<size_t>(generation.hosts.group_of[static_cast<size_t>(rank)]);
    if (seen[host]) return false;
    seen[host] = true;
  }
  return true;
}

// Before there was a generation: for peers that have it already.
void give_up(Box& own, const std::vector<std::shared_ptr<Box>>& boxes) {
  own.state = static_cast<uint32_t>(BoxState::kGaveUp);
  for (const auto& box : boxes) {
    if (box != nullptr && box.get() != &own) ring(box->message_bell);
  }
}

class LocalInstance final : public Instance {
 public:
  LocalInstance(std::unique_ptr<Instance> inner, HostHandlers handlers, LoggerPtr logger, bool share)
      : inner_(std::move(inner)),
        handlers_(std::move(handlers)),
        logger_(std::move(logger)),
        description_(inner_->description()),
        executor_([this](Job& job) { execute(job); }) {
    description_.collectives = kCollectives;
    description_.memories = uint64_t{1} << HVD_MEMORY_HOST;
    description_.messages = description_.local = true;
    shares_ = share;
    if (Status status = own_identity(&identity_); !status.ok()) stop_sharing(HVD_LOG_DEBUG, status.message);
    message_thread_ = start_thread("hvd-local", [this] { carry_messages(); });
  }

  ~LocalInstance() override {
    end(take_current(), BoxState::kGaveUp);
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    message_thread_.join();
  }

  const Description& description() const override { return description_; }
  Status address(std::vector<uint8_t>* ret_address) override;
  Status connect(uint64_t generation, int32_t rank, const std::vector<Member>& members,
                 Duration timeout) override;
  using Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const Part> parts) override;
  Status send_message(int32_t destination, std::span<const uint8_t> data) override;
  void progress(const std::atomic<bool>& done, Time deadline) override;
  void abort(uint64_t generation) override;
  void disconnect() override { end(take_current(), BoxState::kLeft); }
  std::string detail() const override;

 private:
  static Status error(hvd_status code, std::string message) {
    Status status(code, std::move(message));
    status.backend = "local";
    return status;
  }
  static Status given_up(uint64_t generation) {
    Status status = error(HVD_PEER_LOST, fmt::format("generation {} was given up", generation));
    return status.in_generation(generation);
  }

  GenerationPtr current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }
  GenerationPtr take_current() {
    const std::lock_guard lock(mutex_);
    connected_ = false;
    return std::move(current_);
  }

  void stop_sharing(hvd_log_level level, const std::string& why) {
    if (!shares_.exchange(false)) return;
    logger_->write(level, fmt::format("local: no memory is shared with the ranks of this host: {}", why));
  }
  Status map_peers(const Hosts& hosts, int32_t rank, const std::vector<Address>& addresses,
                   const std::vector<Member>& members, const std::shared_ptr<Box>& own,
                   std::vector<std::shared_ptr<Box>>* ret_boxes);
  void end(GenerationPtr generation, BoxState last);
  void carry_messages();
  Status check(const Generation& generation, const hvd_backend_op& op) const;
  void execute(Job& job);
  void pass_on(Job& job);

  const std::unique_ptr<Instance> inner_;
  const HostHandlers handlers_;
  const LoggerPtr logger_;
  Description description_;
  Identity identity_;
  std::atomic<bool> shares_{true};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<OwnBox> next_;  // has its address and no generation yet
  bool announced_ = false;        // address was called for the next generation
  GenerationPtr current_;
  bool connected_ = false;  // current_ has all its peers; messages may be told
  std::vector<GenerationPtr> ended_;
  bool any_aborted_ = false, closing_ = false;
  uint64_t aborted_ = 0;  // an abort may come before the connect that it is for
  std::atomic<std::thread::id> lender_{};

  std::thread message_thread_;
  Executor executor_;  // ends first: what it executes uses the rest
};

Status LocalInstance::address(std::vector<uint8_t>* ret_address) {
  Address address;
  if (Status status = inner_->address(&address.inner); !status.ok()) return status;
  std::unique_ptr<OwnBox> box;
  if (shares_) {
    if (Status status = OwnBox::create(&box); status.ok()) {
      address.place = Place{identity_, getpid(), box->descriptor(), box->token()};
    } else {
      stop_sharing(HVD_LOG_DEBUG, status.message);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(box);
    announced_ = true;
  }
  *ret_address = encode(address);
  return {};
}

Status LocalInstance::map_peers(const Hosts& hosts, int32_t rank, const std::vector<Address>& addresses,
                                const std::vector<Member>& members, const std::shared_ptr<Box>& own,
                                std::vector<std::shared_ptr<Box>>* ret_boxes) {
  for (const int32_t other : hosts.groups[static_cast<size_t>(hosts.group_of[static_cast<size_t>(rank)])]) {
    if (other == rank) {
      ret_boxes->push_back(own);
      continue;
    }
    const Place& place = *addresses[static_cast<size_t>(other)].place;
    std::string reason;
    const Opening opening =
        open_box(place.process, place.descriptor, place.token, &ret_boxes->emplace_back(), &reason);
    if (opening == Opening::kDone) continue;
    Status status =
        error(HVD_PEER_LOST, fmt::format("rank {} ({}): its shared memory can't be had: {}", other,
                                         members[static_cast<size_t>(other)].host, reason));
    if (opening == Opening::kRefused) stop_sharing(HVD_LOG_WARNING, status.message);
    return status.at_rank(other);
  }
  return {};
}

Status LocalInstance::connect(uint64_t number, int32_t rank, const std::vector<Member>& members,
                              Duration timeout) {
  end(take_current(), BoxState::kGaveUp);
  std::unique_ptr<OwnBox> own;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(announced_, false)) {
      return error(HVD_INVALID,
                   fmt::format("connect to generation {}: address was not called for it", number));
    }
    own = std::move(next_);
    if (any_aborted_ && number <= aborted_) return given_up(number);
  }
  if (members.empty() || rank < 0 || static_cast<size_t>(rank) >= members.size()) {
    return error(HVD_INVALID, fmt::format("rank {} of {}", rank, members.size()));
  }
  std::vector<Address> addresses(members.size());
  std::vector<Member> inner_members = members;
  for (size_t i = 0; i < members.size(); ++i) {
    if (Status status = decode(members[i].address, &addresses[i]); !status.ok()) {
      status.message = fmt::format("address of rank {} ({}): {}", i, members[i].host, status.message);
      status.backend = "local";
      return status.at_rank(static_cast<int32_t>(i));
    }
    inner_members[i].address = addresses[i].inner;
  }
  const auto& place = addresses[static_cast<size_t>(rank)].place;
  if (place.has_value() != (own != nullptr) || (own != nullptr && place->token != own->token())) {
    return error(HVD_INVALID, fmt::format("the address of rank {} is not the one that this rank gave", rank));
  }
  Hosts hosts = group_by_host(members, addresses);
  const std::shared_ptr<Box> memory = own != nullptr ? own->memory() : private_box();
  std::vector<std::shared_ptr<Box>> boxes;
  if (Status status = map_peers(hosts, rank, addresses, members, memory, &boxes); !status.ok()) {
    give_up(*memory, boxes);
    return status.in_generation(number);
  }
  const auto generation = std::make_shared<Generation>(number, rank, std::move(hosts), std::move(own),
                                                       std::move(boxes), handlers_, logger_);
  for (int32_t i = 0; i < generation->size(); ++i) {
    generation->all.push_back(i);
    generation->indices.push_back(generation->index_of(i));
  }
  {
    const std::lock_guard lock(mutex_);
    if (any_aborted_ && number <= aborted_) {
      generation->messages.stop(BoxState::kGaveUp);
      return given_up(number);
    }
    current_ = generation;
  }
  if (generation->joins_hosts()) {
    if (Status status = inner_->connect(number, rank, inner_members, timeout); !status.ok()) {
      GenerationPtr mine;
      {
        const std::lock_guard lock(mutex_);
        if (current_ == generation) mine = std::move(current_);  // else abort has taken it
      }
      end(std::move(mine), BoxState::kGaveUp);
      return status;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (current_ != generation) return given_up(number);
    connected_ = true;
  }
  changed_.notify_all();
  return {};
}

void LocalInstance::end(GenerationPtr generation, BoxState last) {
  if (generation == nullptr) return;
  generation->messages.stop(last);
  generation->group.abort();
  if (generation->joins_hosts()) {
    if (last == BoxState::kLeft) {
      inner_->disconnect();
    } else {
      inner_->abort(generation->number);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::move(generation));  // its memory is not given back here
  }
  changed_.notify_all();
}

void LocalInstance::abort(uint64_t number) {
  GenerationPtr generation;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = any_aborted_ ? std::max(aborted_, number) : number;
    any_aborted_ = true;
    if (current_ == nullptr || current_->number != number) return;
    generation = std::move(current_);
    connected_ = false;
  }
  end(std::move(generation), BoxState::kGaveUp);
}

void LocalInstance::carry_messages() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<GenerationPtr> ended = std::move(ended_);
    ended_.clear();
    GenerationPtr generation = connected_ ? current_ : nullptr;
    if (!ended.empty() || generation != nullptr) {
      lock.unlock();
      ended.clear();
      if (generation != nullptr) generation->messages.run();
      generation.reset();
      lock.lock();
      continue;
    }
    if (closing_) return;
    changed_.wait(lock);
  }
}

Status LocalInstance::send_message(int32_t destination, std::span<const uint8_t> data) {
  const GenerationPtr generation = current();
  if (generation == nullptr) return error(HVD_PEER_LOST, "no generation is connected");
  if (destination < 0 || destination >= generation->size() || destination == generation->rank) {
    return error(HVD_INVALID, fmt::format("a message to rank {} from rank {} of {}", destination,
                                          generation->rank, generation->size()));
  }
  if (data.size() > kMostMessage) {
    return error(HVD_INVALID,
                 fmt::format("a message of {} bytes: expected at most {}", data.size(), kMostMessage));
  }
  const int32_t index = generation->indices[static_cast<size_t>(destination)];
  if (index < 0) return inner_->send_message(destination, data);
  Status status = generation->messages.send(index, data);
  if (!status.ok()) status.backend = "local";
  return status;
}

Status LocalInstance::check(const Generation& generation, const hvd_backend_op& op) const {
  const auto invalid = [&](const std::string& text) {
    return error(HVD_INVALID, fmt::format("op {}: {}", op.sequence, text));
  };
  if (op.done == nullptr) return invalid("done is NULL");
  if (op.collective < 0 || op.collective > 63 || (kCollectives >> op.collective & 1) == 0) {
    return error(HVD_UNSUPPORTED, fmt::format("collective {} is not supported", op.collective));
  }
  if (op.memory != HVD_MEMORY_HOST) return error(HVD_UNSUPPORTED, "device memory is not supported");
  if (op.collective != HVD_COLLECTIVE_BARRIER && dtype_size(op.dtype) == 0) {
    return error(HVD_UNSUPPORTED, fmt::format("dtype {} is not supported", op.dtype));
  }
  bool me = op.ranks == nullptr, root = op.ranks == nullptr;
  if (op.ranks != nullptr) {
    int32_t before = -1;
    for (int32_t i = 0; i < op.rank_count; ++i) {
      const int32_t rank = op.ranks[i];
      if (rank <= before || rank >= generation.size()) {
        return invalid(fmt::format("ranks must ascend and be below {}", generation.size()));
      }
      me |= rank == generation.rank;
      root |= rank == op.root;
      before = rank;
    }
  }
  if (!me) return invalid(fmt::format("rank {} takes no part in it", generation.rank));
  if (op.collective == HVD_COLLECTIVE_BROADCAST && (!root || op.root < 0 || op.root >= generation.size())) {
    return invalid(fmt::format("root {} takes no part in it", op.root));
  }
  if (op.counts == nullptr && needs_counts(op.collective)) return invalid("counts is NULL");
  return {};
}

Status LocalInstance::submit(const hvd_backend_op& op, std::span<const Part> parts) {
  GenerationPtr generation = current();
  if (generation == nullptr) return error(HVD_PEER_LOST, "no generation is connected");
  if (Status status = check(*generation, op); !status.ok()) return status;
  std::unique_ptr<Job> job = executor_.blank();
  job->op = op;
  if (op.ranks != nullptr) {
    job->ranks.assign(op.ranks, op.ranks + op.rank_count);
  } else {
    job->ranks = generation->all;
  }
  job->counts.clear();
  const size_t counts = job->ranks.size() * (op.collective == HVD_COLLECTIVE_ALLTOALL ? 2 : 1);
  if (needs_counts(op.collective)) job->counts.assign(op.counts, op.counts + counts);
  job->parts.assign(parts.begin(), parts.end());
  job->op.ranks = job->ranks.data();
  job->op.rank_count = static_cast<int32_t>(job->ranks.size());
  job->op.counts = job->counts.empty() ? nullptr : job->counts.data();
  job->generation = std::move(generation);
  executor_.submit(std::move(job), lender_.load() == std::this_thread::get_id());
  return {};
}

void LocalInstance::execute(Job& job) {
  Generation& generation = *job.generation;
  hvd_backend_op& op = job.op;
  Status status;
  if (generation.group.aborted()) {
    status = given_up(generation.number);
  } else {
    if (each_alone(generation, job.ranks)) return pass_on(job);
    if (job.parts.empty() &&
        (op.collective == HVD_COLLECTIVE_BROADCAST || op.collective == HVD_COLLECTIVE_ALLREDUCE)) {
      job.parts.push_back({op.input, op.output, op.count});
    }
    try {
      InnerOps inner(generation.joins_hosts() ? inner_.get() : nullptr, generation.group, op.sequence);
      status = run_collective(generation.group, generation.hosts, op, job.parts, job.ranks, inner);
      // The ranks of this host wait for what the backend between hosts did not bring, and the operations that
      // it still has for other hosts: all are given up, so that these end.
      if (!status.ok() && inner.used()) abort(generation.number);
    } catch (const Error& e) { status = e.status(); } catch (const std::exception& e) {
      status = error(HVD_INTERNAL, e.what());
    }
  }
  if (status.ok()) return op.done(op.done_context, HVD_OK, nullptr);
  status.in_generation(generation.number);
  if (status.backend.empty()) status.backend = "local";
  hvd_error text = HVD_ERROR_INIT;
  status.write_to(&text);
  op.done(op.done_context, status.code, &text);
}

void LocalInstance::pass_on(Job& job) {
  hvd_backend_op op = job.op;
  op.sequence <<= InnerOps::kNumberBits;
  Status status = inner_->submit(op, job.parts);
  if (status.ok()) return;
  hvd_error text = HVD_ERROR_INIT;
  status.write_to(&text);
  op.done(op.done_context, status.code, &text);
}

// Looks for messages, executes what they led to, and gives up when nothing has happened for a while: the
// message thread and the executor's then go on.
void LocalInstance::progress(const std::atomic<bool>& done, Time deadline) {
  const GenerationPtr generation = current();
  if (generation == nullptr) return;
  Messages& messages = generation->messages;
  const bool lends = deadline - now() > kLends;
  bool entered = false;
  for (Spin spin = generation->group.spin(); !done && !messages.stopped() && spin.again();) {
    bool any = false;
    if (entered || (entered = messages.enter())) {
      if (lends) lender_ = std::this_thread::get_id();
      any = messages.poll();
      if (lends) lender_ = std::thread::id();
    }
    if (lends && !done && executor_.waiting()) {
      // The message thread's turn meanwhile: an operation may take long.
      if (std::exchange(entered, false)) messages.leave();
      any |= executor_.lend();
    }
    if (!any) continue;
    if (now() >= deadline) break;
    spin.restart();
  }
  if (entered) messages.leave();
  executor_.nudge();
}

std::string LocalInstance::detail() const {
  const GenerationPtr generation = current();
  const size_t local = generation == nullptr ? 1 : generation->local.size();
  if (local == 1) return inner_->detail();
  const std::string shared = fmt::format("shared memory among {} ranks of this host", local);
  return generation->joins_hosts() ? shared + ", " + inner_->detail() + " between hosts" : shared;
}

}  // namespace

std::unique_ptr<Instance> make_instance(std::unique_ptr<Instance> inner, HostHandlers handlers,
                                        LoggerPtr logger, bool share) {
  return std::make_unique<LocalInstance>(std::move(inner), std::move(handlers), std::move(logger), share);
}

}  // namespace hvd::backend::local
