// Fuzzes how two ranks convince each other: whoever changes, repeats or leaves out a byte convinces nobody.
#include "modules/kit/handshake.h"

#include "fuzz.h"

namespace hvd::fuzz {
namespace {

using hvdkit::Handshake;

hvdkit::LinkGroup group(int rank) {
  hvdkit::LinkGroup result{7, rank, std::vector<hvdkit::Blob>(2)};
  for (uint8_t member = 0; member < 2; ++member)
    result.members[member].token.fill(static_cast<uint8_t>(member + 1));
  return result;
}

/// Gives `bytes` to an end in pieces. False: refused.
bool give(Handshake& end, const Bytes& bytes, Decisions& decisions, Bytes* ret_out) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t wanted = end.wants();
    if (wanted == 0) return end.done();
    HVD_PROMISE(wanted <= sizeof(hvdkit::FrameHeader) + sizeof(hvdkit::Key) + hvdkit::kMaxGreeting);
    const size_t piece = std::min({wanted, bytes.size() - at, size_t{1} + decisions.byte()});
    if (!end.take(bytes.data() + at, piece, ret_out)) {
      HVD_PROMISE(!end.refusal().empty() && !end.done());
      return false;
    }
    at += piece;
  }
  return true;
}

void strangers_bytes(Decisions& decisions) {
  const auto own = group(0);
  const std::vector<hvdkit::Greeting> greetings(2);
  Handshake end(own, greetings);
  Bytes out;
  const auto rest = decisions.all();
  give(end, Bytes(rest.begin(), rest.end()), decisions, &out);
  HVD_PROMISE(!end.done());  // nobody knows the tokens by chance
}

/// Two ranks, and somebody between them who may change one byte of one flight.
void changed_on_the_way(Decisions& decisions) {
  const auto dialing = group(1), dialed = group(0);
  const hvdkit::Greeting greeting(decisions.upto(40), 0x77);
  const std::vector<hvdkit::Greeting> greetings = {{}, hvdkit::Greeting(decisions.upto(40), 0x55)};
  Handshake one(dialing, 0, decisions.upto(3), greeting), zero(dialed, greetings);
  const uint32_t flight = decisions.upto(4);  // 4: none
  const uint32_t at = decisions.upto(300);
  const uint8_t change = static_cast<uint8_t>(decisions.byte() | 1U);
  Bytes on_the_way = one.hello();
  bool changed = false;
  for (uint32_t number = 0; number < 4 && !on_the_way.empty(); ++number) {
    if (number == flight) {
      on_the_way[at % on_the_way.size()] ^= change;
      changed = true;
    }
    Bytes answer;
    give(number % 2 == 0 ? zero : one, on_the_way, decisions, &answer);
    on_the_way = answer;
  }
  HVD_PROMISE(!(one.done() && changed));  // the one that dials hears last
  if (changed && flight < 3) HVD_PROMISE(!zero.done());
  if (!changed) {
    HVD_PROMISE(one.done() && zero.done());
    if (zero.stream() == 0) HVD_PROMISE(zero.theirs() == greeting && one.theirs() == greetings[1]);
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  if (decisions.coin()) {
    strangers_bytes(decisions);
  } else {
    changed_on_the_way(decisions);
  }
}

std::vector<Bytes> seeds() {
  const auto dialing = group(1);
  const Handshake one(dialing, 0, 0, {});
  Bytes hello = one.hello();
  hello.insert(hello.begin(), 1);
  return {hello,
          {0, 3, 5, 0, 4},
          {0, 0, 0, 0, 0, 20, 0, 8},
          {0, 0, 0, 0, 1, 10, 0, 8},
          {0, 0, 9, 0, 2, 50, 0, 1},
          {0, 0, 0, 0, 3, 8, 0, 4}};
}

}  // namespace hvd::fuzz
