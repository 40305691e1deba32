// The instance behind make_instance. Files by subject: instance.cc has the life of generations, operations.cc
// what is submitted and who executes it.
#pragma once

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/process.h"
#include "local/address.h"
#include "local/executor.h"
#include "local/generation.h"
#include "local/instance.h"
#include "numeric/generation_gate.h"

namespace hvd::local {

using GenerationPtr = std::shared_ptr<Generation>;

constexpr uint64_t kCollectives =
    uint64_t{1} << HVD_COLLECTIVE_BROADCAST | uint64_t{1} << HVD_COLLECTIVE_ALLREDUCE |
    uint64_t{1} << HVD_COLLECTIVE_ALLGATHER | uint64_t{1} << HVD_COLLECTIVE_BARRIER |
    uint64_t{1} << HVD_COLLECTIVE_REDUCESCATTER | uint64_t{1} << HVD_COLLECTIVE_ALLTOALL;
class LocalInstance final : public backend::Instance {
 public:
  LocalInstance(std::unique_ptr<backend::Instance> inner, backend::HostHandlers handlers, LoggerPtr logger,
                Shares shares);
  ~LocalInstance() override;

  const backend::Description& description() const override { return description_; }
  [[gnu::cold]] Status offers(std::vector<Offer>* ret_offers) override;
  [[gnu::cold]] Status connect(uint64_t generation, int32_t rank, const std::vector<Member>& members,
                               Duration timeout) override;
  using backend::Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override;
  Status send_message(int32_t destination, std::span<const uint8_t> data) override;
  void progress(const std::atomic<bool>& done, Time deadline) override;
  void lends(bool will) override;
  std::shared_ptr<backend::Board> board() override;
  bool takes_parts() const override;
  void abort(uint64_t generation) override;
  void disconnect() override {
    if (!inherited()) end(take_current(), BoxState::kLeft);
  }
  std::string detail() const override;

 private:
  /// This is a child that was forked: the memory of the ranks did not come with it, nor did the threads, and
  /// a lock may be held for ever.
  bool inherited() const { return current_process() != process_; }
  static Status not_here() {
    return error(HVD_INVALID, "it belongs to the process that forked this one: a child can't use it");
  }
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
  // Under the mutex: for end().
  GenerationPtr take() {
    if (current_ != nullptr) ++ending_;
    connected_ = false;
    return std::move(current_);
  }
  GenerationPtr take_current() {
    const std::lock_guard lock(mutex_);
    gate_.leave();
    return take();
  }
  /// Whether the other backend is connected in this generation.
  bool needs_inner(const Generation& generation) const {
    return executor_ == nullptr || generation.joins_hosts();
  }

  void stop_sharing(hvd_log_level level, const std::string& why);
  [[gnu::cold]] Status read_addresses(const std::vector<Member>& members, std::span<Address> addresses) const;
  Status map_peers(const Hosts& hosts, int32_t rank, const std::vector<Address>& addresses,
                   const std::vector<Member>& members, const std::shared_ptr<Box>& own,
                   std::shared_ptr<Boxes>* ret_boxes);
  void end(GenerationPtr generation, BoxState last);
  void carry_messages();
  Status check(const Generation& generation, const hvd_backend_op& op) const;
  bool execute(Job& job, Time deadline) noexcept;
  Task perform(Job& job);
  void abandon(uint64_t number) noexcept;

  const std::unique_ptr<backend::Instance> inner_;
  const backend::HostHandlers handlers_;
  const LoggerPtr logger_;
  backend::Description description_;
  Identity identity_;
  std::atomic<bool> shares_{true};
  const pid_t process_ = current_process();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<OwnBox> next_;  // has its address and no generation yet
  bool announced_ = false;        // offers was called for the next generation
  GenerationPtr current_;
  bool connected_ = false;  // current_ has all its peers; messages may be told
  int ending_ = 0;  // taken, and not in ended_ yet: a thread of the other backend's may be in the midst of it
  std::vector<GenerationPtr> ended_;
  GenerationGate gate_;  // says whether there is a current_
  bool closing_ = false;
  std::atomic<std::thread::id> lender_{};

  std::thread message_thread_;
  std::unique_ptr<Executor>
      executor_;  // NULL: shares messages alone. Ends first: what it executes uses the rest
};

}  // namespace hvd::local
