// Fuzzes what a rank receives in bulk from a peer that greeted: nothing but what was asked for is written.
#include "modules/kit/lane.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <future>

#include "fuzz.h"

namespace hvd::fuzz {
namespace {

using namespace hvdkit;
constexpr size_t kMemory = 512, kGuard = 64;

Bytes piece(uint64_t slot, uint64_t size, size_t sent) {
  const PieceHeader header{slot, size, 0};
  Bytes result(sizeof(header) + sent, 0x11);
  std::memcpy(result.data(), &header, sizeof(header));
  return result;
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  int ends[2];
  HVD_PROMISE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Fd peer(ends[1]);
  HVD_PROMISE(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
  Decisions decisions(data);
  Lane lane(2, decisions.coin(), [](int) {});
  lane.attach(1, false, Socket(Fd(ends[0])));
  Bytes memory(kMemory + 2 * kGuard, 0xee);
  std::vector<std::pair<size_t, size_t>> asked;
  const uint32_t receives = 1 + decisions.upto(3);
  {
    const std::unique_ptr<Region> region = lane.region(memory.data() + kGuard, kMemory);
    try {
      size_t offset = 0;
      for (uint32_t i = 0; i < receives; ++i) {
        const size_t size = std::min<size_t>(decisions.upto(200), kMemory - offset);
        asked.emplace_back(kGuard + offset, size);
        region->receive(1, i / 2, offset, size);
        offset += size;
      }
      const auto words = decisions.all();
      (void)!::send(peer.get(), words.data(), std::min(words.size(), size_t{30000}),
                    MSG_NOSIGNAL | MSG_DONTWAIT);
      peer.reset();  // what does not come is a loss
      // What came early for an operation that is never asked for is waited for until an abort.
      std::promise<void> over;
      const auto guard = std::async(std::launch::async, [&, end = over.get_future()] {
        if (end.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout) lane.abort();
      });
      struct Tell {
        std::promise<void>& over;
        ~Tell() { over.set_value(); }
      } tell{over};
      for (uint32_t i = 0; i < receives; ++i) region->wait_received(1);
    } catch (const Failure& failure) {
      HVD_PROMISE(failure.status == HVD_PEER_LOST || failure.status == HVD_INTERNAL);
    }
  }
  for (const auto& [from, size] : asked)
    std::fill_n(memory.begin() + static_cast<ptrdiff_t>(from), size, 0xee);
  HVD_PROMISE(std::count(memory.begin(), memory.end(), 0xee) == static_cast<ptrdiff_t>(memory.size()));
}

std::vector<Bytes> seeds() {
  const auto with = [](Bytes head, std::initializer_list<Bytes> pieces) {
    for (const Bytes& one : pieces) head.insert(head.end(), one.begin(), one.end());
    return head;
  };
  return {with({0, 0, 16}, {piece(0, 16, 16)}),
          with({0, 1, 16, 8}, {piece(0, 16, 16), piece(0, 8, 8)}),
          with({0, 0, 16}, {piece(0, 17, 17)}),
          with({1, 2, 16, 8, 4}, {piece(1, 4, 4), piece(0, 16, 16), piece(0, 8, 3)}),
          with({0, 0, 16}, {piece(5, uint64_t{1} << 62, 4)}),
          with({0, 0, 8}, {piece(0, 8 | PieceHeader::kChecked, 8)})};
}

}  // namespace hvd::fuzz
