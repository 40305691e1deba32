// Sends and receives in pieces, through memory that MPI may keep.
#include "modules/mpi/exchange.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "modules/mpi/kept.h"
#include "modules/mpi/runtime.h"

namespace hvdmpi {
namespace {

constexpr size_t kAhead = 2;  // pieces of a stream that are under way

}  // namespace

class Exchange::Part final : public hvdkit::Region {
 public:
  Part(Exchange& exchange, void* memory, size_t size)
      : exchange_(exchange), memory_(static_cast<char*>(memory)), size_(size) {}

  void send(int peer, uint64_t slot, size_t offset, size_t size) override {
    exchange_.add({peer, tag(slot), true}, transfer(offset, size));
  }
  void receive(int peer, uint64_t slot, size_t offset, size_t size) override {
    exchange_.add({peer, tag(slot), false}, transfer(offset, size));
  }
  void wait_sent(int) override {
    while (sent_ == 0) exchange_.advance();
    --sent_;
  }
  void wait_received(int) override {
    while (received_ == 0) exchange_.advance();
    --received_;
  }

  void ended(bool outward) { ++(outward ? sent_ : received_); }

 private:
  int tag(uint64_t slot) const {
    return static_cast<int>(slot % static_cast<uint64_t>(exchange_.tag_bound_));
  }
  Transfer transfer(size_t offset, size_t size) {
    if (offset > size_ || size > size_ - offset) {
      throw Failure(HVD_INTERNAL, std::to_string(size) + " bytes at " + std::to_string(offset) +
                                      " of a region of " + std::to_string(size_));
    }
    return {this, memory_ + offset, size};
  }

  Exchange& exchange_;
  char* const memory_;
  const size_t size_;
  size_t sent_ = 0, received_ = 0;  // ended, and not waited for
};

Exchange::~Exchange() {
  for (auto& [way, stream] : streams_) {
    for (Piece& piece : stream.running) keep(std::move(piece.slot));
  }
}

std::unique_ptr<hvdkit::Region> Exchange::region(void* memory, size_t size) {
  return std::make_unique<Part>(*this, memory, size);
}

size_t Exchange::pieces(size_t size) const {
  return std::max<size_t>(1, (size + piece_bytes_ - 1) / piece_bytes_);
}

size_t Exchange::length(const Transfer& transfer, size_t number) const {
  return std::min(piece_bytes_, transfer.size - number * piece_bytes_);
}

void Exchange::add(const Way& way, const Transfer& transfer) {
  Stream& stream = streams_[way];
  stream.transfers.push_back(transfer);
  begin(way, stream);
}

void Exchange::advance() {
  bool moved = false;
  for (auto& [way, stream] : streams_) moved |= move(way, stream);
  turned_(moved);
}

void Exchange::begin(const Way& way, Stream& stream) {
  while (stream.running.size() < kAhead && stream.next < stream.transfers.size()) {
    Transfer& transfer = stream.transfers[stream.next];
    if (free_.empty()) free_.push_back(std::make_unique<Slot>());
    Piece piece{std::move(free_.back()), &transfer, transfer.begun};
    free_.pop_back();
    const size_t bytes = length(transfer, piece.number);
    uint8_t* const memory = piece.slot->take(bytes);
    if (way.outward && bytes > 0) std::memcpy(memory, transfer.data + piece.number * piece_bytes_, bytes);
    const auto count = static_cast<int>(bytes);
    stream.running.push_back(std::move(piece));  // before MPI has it: it is kept if this throws
    MPI_Request* const request = &stream.running.back().slot->request;
    if (way.outward) {
      check(MPI_Isend(memory, count, MPI_BYTE, way.peer, way.tag, comm_, request), "MPI_Isend");
    } else {
      check(MPI_Irecv(memory, count, MPI_BYTE, way.peer, way.tag, comm_, request), "MPI_Irecv");
    }
    if (++transfer.begun == pieces(transfer.size)) ++stream.next;
  }
}

bool Exchange::move(const Way& way, Stream& stream) {
  bool moved = false;
  while (!stream.running.empty()) {
    Piece& piece = stream.running.front();
    int complete = 0;
    check(MPI_Test(&piece.slot->request, &complete, MPI_STATUS_IGNORE),
          way.outward ? "MPI_Isend" : "MPI_Irecv");
    if (complete == 0) break;
    moved = true;
    Transfer& transfer = *piece.transfer;
    const size_t bytes = length(transfer, piece.number);
    if (!way.outward && bytes > 0)
      std::memcpy(transfer.data + piece.number * piece_bytes_, piece.slot->memory.get(), bytes);
    free_.push_back(std::move(piece.slot));
    stream.running.pop_front();
    if (++transfer.ended == pieces(transfer.size)) {
      transfer.part->ended(way.outward);
      stream.transfers.pop_front();
      --stream.next;
    }
    begin(way, stream);
  }
  return moved;
}

}  // namespace hvdmpi
