// A call on its way: to rank 0's matcher, or in a message to it.
#include <algorithm>
#include <cstring>

#include "collective/engine.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {
constexpr size_t kMaxSmallData = 64 << 10;  // see kMaxPayload
}  // namespace

/// A call that is half begun can't be taken back: another rank's outcome would find the caller's memory gone.
void Engine::begin(const OperationPtr& op, bool question, Lock& lock) noexcept {
  try {
    enter(op, question);
  } catch (const std::exception& error) {
    lock.unlock();
    stuck(error);
    op->complete_without_memory();  // if it was not known yet
    lock.lock();
  }
}

/// Under the lock.
void Engine::enter(const OperationPtr& op, bool question) {
  const Time time = now();
  if (op->submission.members.empty()) leave_board(op->submission.name);
  if (held_) board_->close(*held_);  // or all have met, and what begins now comes after it
  SentSignatures::Found found = sent_.find(op->submission);
  op->ticket = next_ticket_++;
  op->epoch = config_.word ? config_.word() : 0;
  op->checks = checks_.begun();
  if (question) {
    --op->checks;  // it is what is asked for
  } else {
    checks_.called(op->ticket);
  }
  op->call =
      coordinator() ? received_.remember(0, 0, std::move(found.signature)) : std::move(found.signature);
  keys_.insert(op->call->key);
  ops_.emplace(op->ticket, op);
  op->weight = weight(*op->call);
  bytes_under_way_ += op->weight;
  if (!coordinator()) {
    op->give_up = time + op->call->timeout + kCoordinatorGrace;
    arm(op->give_up);
    queue_request(*op, found.id, !found.known);
    return;
  }
  Request request;
  request.ticket = op->ticket;
  request.call = op->call;
  request.checks = op->checks;
  request.epoch = op->epoch;
  request.word = op->submission.word;
  request.meets = op->submission.meets;
  if (row_of(op->call->kind).object && op->call->root == 0) {
    request.object_size = op->submission.object.size();
    if (request.object_size <= kInlineObject) request.payload = op->submission.object;
  } else if (carries(*op->call)) {
    request.carries = true;
    request.payload.resize(op->call->payload);
    fill(op->submission, request.payload.data());
  }
  matcher_.request(0, std::move(request), time);
  collect();
}

/// Do data travel with the requests or the outcome?
bool Engine::travels(const Signature& call) const {
  if (call.on_device() || row_of(call.kind).travels == Travel::kNobodys) return false;
  const size_t members = call.member_count(config_.hosts.size());
  return members > 1 && call.payload <= std::min(config_.small_data, kMaxSmallData) / members;
}

/// Does this rank's data travel with its request? The host does not read device memory.
bool Engine::carries(const Signature& call) const {
  return travels(call) && (row_of(call.kind).travels == Travel::kEverybodys || call.root == config_.rank);
}

/// Bytes that its request takes at rank 0, or its outcome on the way back, about.
size_t Engine::weight(const Signature& call) const {
  const Row& row = row_of(call.kind);
  const size_t bytes = call.weight + entry_weight(call.key, config_.hosts.size());
  if (row.object) return bytes + kInlineObject;
  if (!travels(call)) return bytes;
  return bytes + call.payload * (row.own_rows ? call.member_count(config_.hosts.size()) : 1);
}

/// Copies an operation's data to where it travels.
void Engine::fill(const Submission& s, uint8_t* room) const {
  const Row& row = row_of(s.kind);
  size_t at = 0;
  for (const Tensor& t : row.in_place ? s.outputs : s.inputs) {
    const size_t bytes = t.bytes(), begin = payload_aligned(at);
    if (begin > at) std::memset(room + at, 0, begin - at);  // there is no room at all for nothing
    at = begin + bytes;
    if (bytes == 0) continue;
    std::memcpy(room + begin, t.data, bytes);
    if (row.reduces && s.prescale != 1) {
      scale(t.dtype, room + begin, static_cast<size_t>(t.elements()), s.prescale);
    }
  }
}

/// Under the lock.
void Engine::queue_request(const Operation& op, uint32_t id, bool in_full) {
  const Submission& s = op.submission;
  Request request;
  request.ticket = op.ticket;
  request.call = op.call;
  request.checks = op.checks;
  request.epoch = op.epoch;
  request.word = s.word;
  request.meets = s.meets;
  size_t bytes = 0;
  const bool object = row_of(s.kind).object;
  if (object && s.root == config_.rank) {
    request.object_size = s.object.size();
    if (request.object_size <= kInlineObject) bytes = s.object.size();
  } else if (carries(*op.call)) {
    request.carries = true;
    bytes = op.call->payload;
  }
  queue_message([&](Encoder& encoder) {
    encoder.encode(request, id, in_full, bytes, [&](uint8_t* room) {
      if (object) {
        std::memcpy(room, s.object.data(), bytes);
      } else {
        fill(s, room);
      }
    });
  });
}

}  // namespace hvd::collective
