// Ranks as threads of one process that share memory as ranks of a host do, around a backend that only notes
// what is asked of it.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>

#include "local/address.h"
#include "local/instance.h"
#include "local/stream.h"
#include "modules/cluster.h"

namespace hvd::local::test {

using backend::test::Inbox;
using backend::test::kSoon;
using backend::test::on_all;
using backend::test::Pending;

/// Stands for the backend between hosts.
class Spy final : public backend::Instance {
 public:
  struct Notes {
    std::mutex mutex;
    int addresses = 0;
    std::vector<uint64_t> connected, aborted;
    int disconnected = 0;
    std::vector<backend::Member> members;
    std::vector<std::pair<int32_t, std::vector<uint8_t>>> messages;
    std::vector<hvd_backend_op> ops;
    std::vector<std::vector<int32_t>> op_ranks;
    std::vector<std::vector<backend::Part>> op_parts;
    bool holds = false;              // operations wait for abort
    std::function<void()> in_abort;  // set before connect
  };

  explicit Spy(std::shared_ptr<Notes> notes, bool local = false) : notes_(std::move(notes)) {
    description_.local = local;
    description_.name = "spy";
    description_.version = "7";
    description_.memories = 1 << HVD_MEMORY_HOST;
    description_.dtypes = ~uint64_t{0};
    description_.messages = true;
  }
  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>* ret_offers) override {
    const std::lock_guard lock(notes_->mutex);
    *ret_offers = {{"spy", "", 1, ~uint64_t{0}, 0, {static_cast<uint8_t>(++notes_->addresses), 42}}};
    return {};
  }
  Status connect(uint64_t generation, int32_t, const std::vector<backend::Member>& members,
                 Duration) override {
    const std::lock_guard lock(notes_->mutex);
    notes_->connected.push_back(generation);
    down_ = false;
    notes_->members = members;
    return {};
  }
  using backend::Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override {
    {
      const std::lock_guard lock(notes_->mutex);
      notes_->ops.push_back(op);
      notes_->op_ranks.emplace_back(op.ranks, op.ranks + op.rank_count);
      notes_->op_parts.emplace_back(parts.begin(), parts.end());
      if (down_) return Status(HVD_PEER_LOST, "given up");
      if (notes_->holds) {
        held_.push_back(op);
        return {};
      }
    }
    op.done(op.done_context, HVD_OK, nullptr);
    return {};
  }
  Status send_message(int32_t destination, std::span<const uint8_t> data) override {
    const std::lock_guard lock(notes_->mutex);
    notes_->messages.emplace_back(destination, std::vector<uint8_t>(data.begin(), data.end()));
    return {};
  }
  void abort(uint64_t generation) override {
    if (notes_->in_abort) notes_->in_abort();
    std::vector<hvd_backend_op> held;
    {
      const std::lock_guard lock(notes_->mutex);
      notes_->aborted.push_back(generation);
      down_ = true;
      held.swap(held_);
    }
    for (const hvd_backend_op& op : held) op.done(op.done_context, HVD_PEER_LOST, nullptr);
  }
  void disconnect() override {
    const std::lock_guard lock(notes_->mutex);
    ++notes_->disconnected;
  }
  std::string detail() const override { return "by spy"; }

 private:
  const std::shared_ptr<Notes> notes_;
  backend::Description description_;
  std::vector<hvd_backend_op> held_;
  bool down_ = false;  // by abort, until the next connect
};

/// A rank's box as a peer maps it that may write anywhere.
inline std::shared_ptr<Box> whole_box(const backend::Member& member) {
  Address address;
  EXPECT_TRUE(decode(find_offer(member, kRow)->address, &address).ok());
  const Place& place = *address.place;
  const int file =
      open(fmt::format("/proc/{}/fd/{}", place.process, place.descriptor).c_str(), O_RDWR | O_CLOEXEC);
  void* memory = mmap(nullptr, sizeof(Box), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  EXPECT_NE(memory, MAP_FAILED);
  close(file);
  return {static_cast<Box*>(memory), [](Box* box) { munmap(box, sizeof(Box)); }};
}

struct Rank {
  explicit Rank(Shares shares = Shares::kAll, backend::HostHandlers handlers = {}) {
    if (!handlers.message) handlers = inbox.handlers();
    instance = make_instance(std::make_unique<Spy>(notes, shares == Shares::kMessages), std::move(handlers),
                             std::make_shared<Logger>(), shares);
  }
  Inbox inbox;
  std::shared_ptr<Spy::Notes> notes = std::make_shared<Spy::Notes>();
  std::unique_ptr<backend::Instance> instance;  // ends first
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

inline Ranks make_ranks(size_t size, Shares shares = Shares::kAll) {
  Ranks ranks;
  for (size_t i = 0; i < size; ++i) ranks.push_back(std::make_unique<Rank>(shares));
  return ranks;
}

/// hosts: the name of each rank's; "" or fewer than there are ranks: one host for all.
inline std::vector<backend::Member> members_of(const Ranks& ranks,
                                               const std::vector<std::string>& hosts = {}) {
  std::vector<backend::Member> members;
  for (size_t i = 0; i < ranks.size(); ++i) {
    backend::Member member{i + 1, i < hosts.size() ? hosts[i] : "host", {}};
    const Status status = ranks[i]->instance->offers(&member.offers);
    EXPECT_TRUE(status.ok()) << status.message;
    members.push_back(std::move(member));
  }
  return members;
}

inline void connect_all(const Ranks& ranks, uint64_t generation, const std::vector<std::string>& hosts = {}) {
  const std::vector<backend::Member> members = members_of(ranks, hosts);
  on_all(static_cast<int>(ranks.size()), [&](int rank) {
    const Status status =
        ranks[static_cast<size_t>(rank)]->instance->connect(generation, rank, members, kSoon);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
  });
}

inline std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

inline size_t count_entries(const std::string& directory) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

inline void expect_message(Rank& from, int32_t source, Rank& to, int32_t destination) {
  ASSERT_TRUE(from.instance->send_message(destination, bytes_of("hello")).ok());
  const Inbox::Message message = to.inbox.next_message();
  EXPECT_EQ(message.source, source);
  EXPECT_EQ(message.data, bytes_of("hello"));
}

}  // namespace hvd::local::test
