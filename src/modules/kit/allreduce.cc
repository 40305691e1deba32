// Allreduce between ranks: by recursive doubling while it is small, by a ring otherwise.
#include <algorithm>
#include <cstring>
#include <memory>

#include "modules/kit/reduction.h"
#include "numeric/reduce.h"

namespace hvdkit {

using hvd::divide;
using hvd::is_narrow_float;
using hvd::narrow;
using hvd::reduce;
using hvd::widen;

namespace {

// In bytes: up to which few rounds matter more than the overlap of transfers and reductions, and than few
// peers at a time.
constexpr size_t kDoubling = size_t{512} << 10;
constexpr size_t kDirect = size_t{8} << 20;
constexpr int kFew = 16;  // ranks that may all have a connection to each other

// Rabenseifner's folding: with n = 2^k + rest ranks, the first 2*rest of them work in pairs as one.
void recursive_doubling(Party& party, const Work& work, const void* input, void* output) {
  const size_t bytes = work.count * work.element;
  if (output != input) std::memcpy(output, input, bytes);
  const std::unique_ptr<char[]> theirs(new char[bytes]);
  const std::unique_ptr<Region> mine = party.transport.region(output, bytes);
  const std::unique_ptr<Region> other = party.transport.region(theirs.get(), bytes);
  const int n = party.size();
  int power = 1;
  while (power * 2 <= n) power *= 2;
  const int rest = n - power;
  const bool paired = party.me < 2 * rest;

  // The operand of the lower ranks is always the left one: every rank computes the same expression.
  const auto combine = [&](bool theirs_left) {
    const void* left = theirs_left ? theirs.get() : output;
    const void* right = theirs_left ? output : theirs.get();
    reduce(work.dtype, work.reduction, output, left, right, work.count);
  };
  if (paired && party.me % 2 == 0) {
    const int partner = party.rank(party.me + 1);
    mine->send(partner, party.slot, 0, bytes);
    mine->wait_sent(partner);
    mine->receive(partner, party.slot, 0, bytes);
    mine->wait_received(partner);
  } else {
    if (paired) {
      const int partner = party.rank(party.me - 1);
      other->receive(partner, party.slot, 0, bytes);
      other->wait_received(partner);
      combine(true);
    }
    const int place = paired ? party.me / 2 : party.me - rest;
    for (int bit = 1; bit < power; bit <<= 1) {
      const int with = place ^ bit;
      const int partner = party.rank(with < rest ? 2 * with + 1 : with + rest);
      other->receive(partner, party.slot, 0, bytes);
      mine->send(partner, party.slot, 0, bytes);
      other->wait_received(partner);
      mine->wait_sent(partner);
      combine(with < place);
    }
    if (work.reduction == HVD_REDUCTION_AVERAGE) divide(work.dtype, output, work.count, n);
    if (paired) {
      const int partner = party.rank(party.me - 1);
      mine->send(partner, party.slot, 0, bytes);
      mine->wait_sent(partner);
    }
  }
}

// The array in n chunks, each in segments. What a rank receives is a fixed sequence of units: n - 1 steps of
// partial sums, then n - 1 steps of finished chunks. Each unit is passed on as soon as it is worked in, so
// the steps overlap. A chunk's sum is formed along the ring in one order and then copied: same bits
// everywhere.
class Ring {
 public:
  Ring(Party& party, const Work& work, const void* input, void* output)
      : party_(party),
        work_(work),
        input_(static_cast<const char*>(input)),
        output_(static_cast<char*>(output)) {
    const auto n = static_cast<size_t>(party.size());
    const size_t largest = (work.count + n - 1) / n;
    const size_t wanted = std::max<size_t>(1, party.segment_bytes / work.element);
    // At least four segments, if they are not tiny then, for the overlap.
    const size_t four = std::max((largest + 3) / 4, (size_t{32} << 10) / work.element);
    segment_ = std::max<size_t>(1, std::min({wanted, four, largest}));
    segments_ = (largest + segment_ - 1) / segment_;
  }

  void run() {
    const size_t bytes = work_.count * work_.element;
    const size_t unit_bytes = segment_ * work_.element;
    const std::unique_ptr<char[]> scratch(new char[kSlots * unit_bytes]);
    const std::unique_ptr<Region> partial = party_.transport.region(scratch.get(), kSlots * unit_bytes);
    const std::unique_ptr<Region> source = party_.transport.region(const_cast<char*>(input_), bytes);
    const std::unique_ptr<Region> result = party_.transport.region(output_, bytes);
    const int left = party_.left();
    const int right = party_.right();
    const int n = party_.size();
    const size_t partials = static_cast<size_t>(n - 1) * segments_;
    const size_t total = 2 * partials;

    const auto post = [&](size_t unit) {
      const Piece piece = received(unit);
      if (piece.count == 0) return;
      if (unit < partials) {
        partial->receive(left, party_.slot, unit % kSlots * unit_bytes, piece.count * work_.element);
      } else {
        result->receive(left, party_.slot, piece.first * work_.element, piece.count * work_.element);
      }
    };
    size_t from_source = 0;
    size_t from_result = 0;
    for (size_t unit = 0; unit < std::min(kSlots, total); ++unit) post(unit);
    size_t next = 0;  // to be sent
    // What is sent is a few units ahead of what was received, on all ranks alike: more would fill the
    // sockets' buffers, and leave the processor's caches before the peer takes it.
    const auto send_up_to = [&](size_t end) {
      for (; next < std::min(end, total); ++next) {
        const Piece piece = sent(next);
        if (piece.count == 0) continue;
        const bool first = next < segments_;
        (first ? source : result)
            ->send(right, party_.slot, piece.first * work_.element, piece.count * work_.element);
        ++(first ? from_source : from_result);
      }
    };
    const size_t ahead = std::min(kAhead, segments_);
    send_up_to(ahead);
    for (size_t unit = 0; unit < total; ++unit) {
      const Piece piece = received(unit);
      if (piece.count > 0) {
        if (unit < partials) {
          partial->wait_received(left);
          char* const out = output_ + piece.first * work_.element;
          reduce(work_.dtype, work_.reduction, out, scratch.get() + unit % kSlots * unit_bytes,
                 input_ + piece.first * work_.element, piece.count);
          if (unit >= partials - segments_ && work_.reduction == HVD_REDUCTION_AVERAGE)
            divide(work_.dtype, out, piece.count, n);
        } else {
          result->wait_received(left);
        }
      }
      if (unit + kSlots < total) post(unit + kSlots);
      send_up_to(unit + 1 + ahead);
    }
    while (from_source-- > 0) source->wait_sent(right);
    while (from_result-- > 0) result->wait_sent(right);
  }

 private:
  struct Piece {
    size_t first, count;  // elements
  };
  static constexpr size_t kSlots = 4;
  static constexpr size_t kAhead = 4;

  Piece piece(int chunk, size_t segment) const {
    const auto n = static_cast<size_t>(party_.size());
    const auto c = static_cast<size_t>(chunk);
    const size_t base = work_.count / n;
    const size_t more = work_.count % n;
    const size_t first = c * base + std::min(c, more);
    const size_t count = base + (c < more ? 1 : 0);
    const size_t begin = std::min(count, segment * segment_);
    return {first + begin, std::min(segment_, count - begin)};
  }
  // Unit u leaves this rank in step u / segments; it came to it one step before.
  Piece sent(size_t unit) const {
    const int n = party_.size();
    const int step = static_cast<int>(unit / segments_);
    return piece(((party_.me - step) % n + n) % n, unit % segments_);
  }
  Piece received(size_t unit) const { return sent(unit + segments_); }

  Party& party_;
  const Work work_;
  const char* const input_;
  char* const output_;
  size_t segment_ = 0, segments_ = 0;
};

int rounds_of_doubling(int n) {
  int rounds = 0;
  while (1 << (rounds + 1) <= n) ++rounds;
  return 1 << rounds == n ? rounds : rounds + 2;
}

}  // namespace

void allreduce(Party& party, hvd_dtype dtype, hvd_reduction reduction, const void* input, void* output,
               size_t count) {
  if (count == 0) return;
  const Work work = Work::of(dtype, reduction, count);
  const size_t bytes = count * work.element;
  if (party.size() == 1) {
    if (output != input) std::memcpy(output, input, bytes);
    return;
  }
  const int n = party.size();
  const bool is_narrow = is_narrow_float(dtype);
  // A round of doubling neither overlaps its reduction with the transfer nor shares it among the ranks.
  const double doubling = rounds_of_doubling(n) * cost((is_narrow ? 4. : 2.) * static_cast<double>(bytes));
  const double direct = 2 * cost(static_cast<double>(bytes)) + (n - 1) * 10000.;
  // Of many ranks each talks to few: no connection for each pair.
  const bool many = n > kFew;
  const double ring = 2 * (n - 1) * cost((is_narrow ? 2. : 1.) * static_cast<double>(bytes) / n);
  const bool doubles =
      count < static_cast<size_t>(n) || (many ? doubling <= ring : doubling <= direct && bytes <= kDoubling);
  const auto run = [&](const Work& what, const void* from, void* to) {
    doubles ? recursive_doubling(party, what, from, to) : Ring(party, what, from, to).run();
  };
  if (is_narrow && (doubles || many)) {
    // float16 and bfloat16: every addition in float32, and one rounding at the end.
    const std::unique_ptr<float[]> sums(new float[count]);
    widen(dtype, sums.get(), input, count);
    run(Work::of(HVD_DTYPE_FLOAT32, reduction, count), sums.get(), sums.get());
    return narrow(dtype, output, sums.get(), count);
  }
  if (doubles || many) return run(work, input, output);
  // The ring keeps less memory busy and every link evenly; its partial sums would have to travel wide.
  if (is_narrow || bytes <= kDirect) return allreduce_direct(party, work, input, output);
  Ring(party, work, input, output).run();
}

}  // namespace hvdkit
