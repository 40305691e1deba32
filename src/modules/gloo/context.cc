// Gloo's contexts, pairs and buffers, mapped to a region of the kit's.
#include "modules/gloo/context.h"

#include "hvd/backend.hpp"

namespace hvdgloo {
namespace {

using hvdkit::Failure;
using hvdkit::Party;
using hvdkit::Region;

[[noreturn]] void refuse() {
  throw Failure(HVD_INTERNAL, "Gloo asks for a connection of its own: all are the kit's");
}

class NoPair final : public gloo::transport::Pair {
 public:
  const gloo::transport::Address& address() const override { refuse(); }
  void connect(const std::vector<char>&) override { refuse(); }
  void close() override {}
  void setSync(bool, bool) override { refuse(); }
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override { refuse(); }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override { refuse(); }
  void send(gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { refuse(); }
  void recv(gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { refuse(); }
};

class Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(Party& party, void* memory, size_t bytes)
      : UnboundBuffer(memory, bytes), party_(party), region_(party.transport.region(memory, bytes)) {}

  // Gloo's tags begin with a prefix for each kind of collective: the operation's number comes first here, and
  // its tag holds it.
  void send(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    region_->send(party_.rank(peer), slot, offset, length(offset, bytes));
    last_sent_ = peer;
  }
  void recv(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    region_->receive(party_.rank(peer), slot, offset, length(offset, bytes));
    last_received_ = peer;
  }
  void recv(std::vector<int> peers, uint64_t slot, size_t offset, size_t bytes) override {
    if (peers.size() != 1) throw Failure(HVD_INTERNAL, "Gloo asks to receive from whoever comes first");
    recv(peers[0], slot, offset, bytes);
  }
  bool waitSend(int* rank, std::chrono::milliseconds) override {
    region_->wait_sent(-1);
    if (rank != nullptr) *rank = last_sent_;
    return true;
  }
  bool waitRecv(int* rank, std::chrono::milliseconds) override {
    region_->wait_received(-1);
    if (rank != nullptr) *rank = last_received_;
    return true;
  }
  // An abort ends the waits of the lane, and with it these.
  void abortWaitRecv() override {}
  void abortWaitSend() override {}

 private:
  size_t length(size_t offset, size_t bytes) const {
    return bytes == kUnspecifiedByteCount ? size - offset : bytes;
  }

  Party& party_;
  const std::unique_ptr<Region> region_;
  int last_sent_ = -1, last_received_ = -1;
};

}  // namespace

Transport::Transport(Party& party) : Context(party.me, party.size()), party_(party) {
  for (int i = 0; i < size; ++i) createPair(i);
}

std::unique_ptr<gloo::transport::Pair>& Transport::createPair(int rank) {
  std::unique_ptr<gloo::transport::Pair>& pair = pairs_.at(static_cast<size_t>(rank));
  if (rank != this->rank) pair = std::make_unique<NoPair>();
  return pair;
}

std::unique_ptr<gloo::transport::UnboundBuffer> Transport::createUnboundBuffer(void* memory, size_t size) {
  return std::make_unique<Buffer>(party_, memory, size);
}

}  // namespace hvdgloo
