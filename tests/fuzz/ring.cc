// Fuzzes both ends of a ring in shared memory against a peer that writes into it what it likes.
#include <memory>

#include "fuzz.h"
#include "local/stream.h"

namespace hvd::fuzz {
namespace {

using local::StreamReader;

constexpr size_t kMostKept = size_t{4} << 20;  // of an honest sender whose peer reads nothing

void scribble(local::Ring& ring, Decisions& decisions) {
  switch (decisions.upto(4)) {
    case 0: ring.written.value.store(decisions.number()); break;
    case 1: ring.written.value.fetch_add(decisions.upto(4096) * 8); break;
    case 2: ring.read.value.store(decisions.number()); break;
    case 3: ring.starved.value.store(decisions.number()); break;
    default: {
      const uint32_t at = decisions.upto(local::kRingBytes - 1);
      const auto bytes = decisions.some(64);
      std::memcpy(ring.data + at, bytes.data(), std::min(bytes.size(), local::kRingBytes - at));
    }
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  auto ring = std::make_unique<local::Ring>();
  local::StreamWriter writer(*ring);
  StreamReader reader(*ring);
  Decisions decisions(data);
  size_t kept = 0;
  bool broken = false;
  while (!decisions.over()) {
    switch (decisions.upto(3)) {
      case 0: {
        const Bytes message(decisions.upto(20000), 0x5a);
        kept += message.size();
        if (kept < kMostKept) writer.write(message);
        break;
      }
      case 1: writer.flush(); break;
      case 2: {
        const StreamReader::Result result = reader.next();
        if (broken) HVD_PROMISE(result == StreamReader::Result::kBroken);
        broken = result == StreamReader::Result::kBroken;
        if (broken) HVD_PROMISE(!reader.reason().empty());
        if (result == StreamReader::Result::kMessage) {
          HVD_PROMISE(reader.message().size() <= local::kMostMessage);
          volatile uint8_t sum = 0;
          for (const uint8_t byte : reader.message()) sum = static_cast<uint8_t>(sum + byte);
        }
        reader.wanted();
        break;
      }
      default: scribble(*ring, decisions);
    }
  }
}

std::vector<Bytes> seeds() {
  return {{0, 16, 0, 2, 0, 200, 0, 2, 2},                                   // two messages, read
          {0, 255, 77, 0, 255, 77, 0, 255, 77, 0, 255, 77, 2, 1, 2, 1, 2},  // more than the ring takes
          {0, 16, 0, 3, 4, 0, 0, 4, 255, 255, 255, 127, 2},                 // a length beyond all bounds
          {3, 0, 220, 2, 1},
          {0, 16, 0, 3, 2, 245, 0, 16, 0, 1, 2}};
}

}  // namespace hvd::fuzz
