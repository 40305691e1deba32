// Broadcast, allgather, all-to-all and barrier over a lane; the choice among all collectives.
#include "modules/kit/collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "numeric/dtype.h"

namespace hvdkit {
namespace {

constexpr size_t kWindow = 8;  // receives posted ahead
constexpr int kFew = 16;       // members that may all have a connection to each other

struct Piece {
  size_t offset, size;
};

int rounds(int size) {
  int count = 0;
  while (1 << count < size) ++count;
  return count;
}

void broadcast_tree(Party& party, Region& region, int root, size_t bytes) {
  const int n = party.size();
  const int place = (party.me - root + n) % n;
  const auto rank_at = [&](int p) { return party.rank((p + root) % n); };
  int bit = 1;
  for (; bit < n; bit <<= 1) {
    if ((place & bit) == 0) continue;
    region.receive(rank_at(place - bit), party.slot, 0, bytes);
    region.wait_received(rank_at(place - bit));
    break;
  }
  std::vector<int> children;
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (place + bit < n) children.push_back(rank_at(place + bit));
  }
  for (const int child : children) region.send(child, party.slot, 0, bytes);
  for (const int child : children) region.wait_sent(child);
}

size_t chain_segment(const Party& party, size_t bytes) {
  return std::min(party.segment_bytes, std::max<size_t>(bytes / 8, size_t{64} << 10));
}

void broadcast_chain(Party& party, Region& region, int root, size_t bytes) {
  const int n = party.size();
  const int place = (party.me - root + n) % n;
  const size_t segment = chain_segment(party, bytes);
  const size_t count = (bytes + segment - 1) / segment;
  const auto length = [&](size_t i) { return std::min(segment, bytes - i * segment); };
  const bool receives = place > 0;
  const bool sends = place + 1 < n;
  if (receives) {
    for (size_t i = 0; i < std::min(kWindow, count); ++i) {
      region.receive(party.left(), party.slot, i * segment, length(i));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (receives) {
      region.wait_received(party.left());
      const size_t next = i + kWindow;
      if (next < count) region.receive(party.left(), party.slot, next * segment, length(next));
    }
    if (sends) region.send(party.right(), party.slot, i * segment, length(i));
  }
  for (size_t i = 0; sends && i < count; ++i) region.wait_sent(party.right());
}

void allgather_direct(Party& party, Region& region, const std::vector<size_t>& offsets,
                      const std::vector<size_t>& sizes) {
  const int n = party.size();
  const auto at = [](int i) { return static_cast<size_t>(i); };
  for (int step = 1; step < n; ++step) {
    const int from = (party.me - step + n) % n;
    if (sizes[at(from)] > 0) region.receive(party.rank(from), party.slot, offsets[at(from)], sizes[at(from)]);
  }
  const size_t own = sizes[at(party.me)];
  for (int step = 1; step < n && own > 0; ++step) {
    region.send(party.rank((party.me + step) % n), party.slot, offsets[at(party.me)], own);
  }
  for (int step = 1; step < n; ++step) {
    const int from = (party.me - step + n) % n;
    if (sizes[at(from)] > 0) region.wait_received(party.rank(from));
  }
  for (int step = 1; step < n && own > 0; ++step) region.wait_sent(party.rank((party.me + step) % n));
}

// Bruck's scheme (1997) without its rotation: after each step a rank has twice as many parts, its own and
// those before it; they are one piece of the output, or two where they run over its end.
void allgather_doubling(Party& party, Region& region, const std::vector<size_t>& offsets,
                        const std::vector<size_t>& sizes) {
  const int n = party.size();
  const auto pieces = [&](int last, int count) {  // of `count` parts up to member `last`
    std::vector<Piece> found;
    const int first = last - count + 1;
    const auto add = [&](int from, int to) {
      const auto begin = offsets[static_cast<size_t>(from)];
      const size_t end = offsets[static_cast<size_t>(to)] + sizes[static_cast<size_t>(to)];
      if (end > begin) found.push_back({begin, end - begin});
    };
    if (first < 0) add(first + n, n - 1);
    add(std::max(first, 0), last);
    return found;
  };
  for (int have = 1; have < n; have *= 2) {
    const int count = std::min(have, n - have);
    const int to = party.rank((party.me + have) % n);
    const int source = (party.me - have + n) % n;
    const std::vector<Piece> in = pieces(source, count), out = pieces(party.me, count);
    for (const Piece& piece : in) region.receive(party.rank(source), party.slot, piece.offset, piece.size);
    for (const Piece& piece : out) region.send(to, party.slot, piece.offset, piece.size);
    for (size_t i = 0; i < in.size(); ++i) region.wait_received(party.rank(source));
    for (size_t i = 0; i < out.size(); ++i) region.wait_sent(to);
  }
}

// The pieces that a member sends around the ring, in order: its own part, then what comes from the left.
std::vector<Piece> ring_pieces(const Party& party, int member, const std::vector<size_t>& offsets,
                               const std::vector<size_t>& sizes) {
  const int n = party.size();
  std::vector<Piece> pieces;
  for (int step = 0; step < n - 1; ++step) {
    const auto part = static_cast<size_t>((member - step + n) % n);
    for (size_t done = 0; done < sizes[part]; done += party.segment_bytes) {
      pieces.push_back({offsets[part] + done, std::min(party.segment_bytes, sizes[part] - done)});
    }
  }
  return pieces;
}

void allgather_ring(Party& party, Region& region, const std::vector<size_t>& offsets,
                    const std::vector<size_t>& sizes) {
  const int n = party.size();
  const std::vector<Piece> out = ring_pieces(party, party.me, offsets, sizes);
  const std::vector<Piece> in = ring_pieces(party, (party.me + n - 1) % n, offsets, sizes);
  const size_t own = sizes[static_cast<size_t>(party.me)];
  const size_t own_pieces = (own + party.segment_bytes - 1) / party.segment_bytes;
  for (size_t i = 0; i < std::min(kWindow, in.size()); ++i) {
    region.receive(party.left(), party.slot, in[i].offset, in[i].size);
  }
  for (size_t i = 0; i < own_pieces; ++i) region.send(party.right(), party.slot, out[i].offset, out[i].size);
  for (size_t i = 0; i < in.size(); ++i) {
    region.wait_received(party.left());
    if (const size_t next = i + kWindow; next < in.size()) {
      region.receive(party.left(), party.slot, in[next].offset, in[next].size);
    }
    if (const size_t forward = own_pieces + i; forward < out.size()) {
      region.send(party.right(), party.slot, out[forward].offset, out[forward].size);
    }
  }
  for (size_t i = 0; i < out.size(); ++i) region.wait_sent(party.right());
}

}  // namespace

void broadcast(Party& party, int root, void* data, size_t bytes) {
  const int n = party.size();
  if (n == 1 || bytes == 0) return;
  const std::unique_ptr<Region> region = party.transport.region(data, bytes);
  const double segment = static_cast<double>(chain_segment(party, bytes));
  const double segments = static_cast<double>(bytes) / segment;
  const double chain = (segments + n - 2) * cost(segment);
  const double tree = rounds(n) * cost(static_cast<double>(bytes));
  if (bytes <= size_t{64} << 10 || tree <= chain) {
    broadcast_tree(party, *region, root, bytes);
  } else {
    broadcast_chain(party, *region, root, bytes);
  }
}

void allgather(Party& party, const void* input, void* output, const std::vector<size_t>& sizes) {
  std::vector<size_t> offsets(sizes.size());
  size_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    offsets[i] = total;
    total += sizes[i];
  }
  const auto me = static_cast<size_t>(party.me);
  if (auto* own = static_cast<char*>(output) + offsets[me]; sizes[me] > 0 && own != input) {
    std::memmove(own, input, sizes[me]);
  }
  if (party.size() == 1 || total == 0) return;
  const std::unique_ptr<Region> region = party.transport.region(output, total);
  if (total > size_t{256} << 10) return allgather_ring(party, *region, offsets, sizes);
  if (party.size() > kFew) return allgather_doubling(party, *region, offsets, sizes);
  allgather_direct(party, *region, offsets, sizes);
}

void alltoall(Party& party, const void* input, void* output, const std::vector<size_t>& sizes) {
  const auto n = static_cast<size_t>(party.size());
  const auto me = static_cast<size_t>(party.me);
  std::vector<size_t> offsets;  // as sizes: of the input, then of the output
  size_t totals[2] = {0, 0};
  for (size_t i = 0; i < 2 * n; ++i) {
    offsets.push_back(totals[i / n]);
    totals[i / n] += sizes[i];
  }
  if (sizes[me] > 0) {
    std::memcpy(static_cast<char*>(output) + offsets[n + me], static_cast<const char*>(input) + offsets[me],
                sizes[me]);
  }
  // In step k a rank sends to the k-th after it and receives from the k-th before it.
  struct Exchanged {
    int peer;
    Piece piece;
  };
  std::vector<Exchanged> out;
  std::vector<Exchanged> in;
  const auto cut = [&](std::vector<Exchanged>& list, size_t index, size_t i) {
    for (size_t done = 0; done < sizes[i]; done += party.segment_bytes) {
      list.push_back({party.rank(static_cast<int>(index)),
                      {offsets[i] + done, std::min(party.segment_bytes, sizes[i] - done)}});
    }
  };
  for (size_t step = 1; step < n; ++step) {
    const size_t to = (me + step) % n;
    const size_t from = (me + n - step) % n;
    cut(out, to, to);
    cut(in, from, n + from);
  }
  if (out.empty() && in.empty()) return;
  const std::unique_ptr<Region> source = party.transport.region(const_cast<void*>(input), totals[0]);
  const std::unique_ptr<Region> result = party.transport.region(output, totals[1]);
  const auto receive = [&](const Exchanged& e) {
    result->receive(e.peer, party.slot, e.piece.offset, e.piece.size);
  };
  // Little data comes from all at once. Sends wait for their receiver: with all of them queued first, nobody
  // waits in a circle.
  const size_t window = std::min(std::max(kWindow, n - 1), in.size());
  for (size_t i = 0; i < window; ++i) receive(in[i]);
  for (const Exchanged& e : out) source->send(e.peer, party.slot, e.piece.offset, e.piece.size);
  for (size_t i = 0; i < in.size(); ++i) {
    result->wait_received(-1);
    if (i + window < in.size()) receive(in[i + window]);
  }
  for (size_t i = 0; i < out.size(); ++i) source->wait_sent(-1);
}

void barrier(Party& party) {
  const int n = party.size();
  if (n == 1) return;
  char bytes[2] = {};
  const std::unique_ptr<Region> region = party.transport.region(bytes, sizeof(bytes));
  for (int distance = 1; distance < n; distance <<= 1) {
    const int to = party.rank((party.me + distance) % n);
    const int from = party.rank((party.me - distance + n) % n);
    region->receive(from, party.slot, 1, 1);
    region->send(to, party.slot, 0, 1);
    region->wait_received(from);
    region->wait_sent(to);
  }
}

void run_collective(Party& party, const Task& task) {
  const hvd_backend_op& op = task.op;
  const size_t element = hvd::dtype_size(op.dtype);
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

}  // namespace hvdkit
