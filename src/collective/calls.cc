// A call on its way: to rank 0's matcher, or in a message to it.
#include <algorithm>
#include <cstring>

#include "collective/engine_impl.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {
constexpr size_t kMaxSmallData = 64 << 10;  // see kMaxPayload

bool reduces(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReducescatter; }
}  // namespace

/// Under the lock.
void Engine::Impl::begin(const OperationPtr& op, bool question) {
  const Time time = now();
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
  if (op->call->kind == Kind::kBroadcastObject && op->call->root == 0) {
    request.object_size = op->submission.object.size();
    if (request.object_size <= kInlineObject) request.payload = op->submission.object;
  } else if (carries(*op->call)) {
    request.carries = true;
    request.payload.resize(op->call->payload);
    fill(*op, request.payload.data());
  }
  matcher_.request(0, std::move(request), time);
  collect();
}

/// Does this rank's data travel with its request?
bool Engine::Impl::carries(const Signature& call) const {
  if (call.on_device()) return false;  // the host does not read it
  switch (call.kind) {
    case Kind::kBroadcast:
      if (call.root != config_.rank) return false;
      break;
    case Kind::kAllreduce:
    case Kind::kAllgather:
    case Kind::kReducescatter:
    case Kind::kAlltoall: break;
    default: return false;
  }
  const size_t members = call.member_count(config_.hosts.size());
  return members > 1 && call.payload <= std::min(config_.small_data, kMaxSmallData) / members;
}

/// Copies an operation's data to where it travels.
void Engine::Impl::fill(const PendingOperation& op, uint8_t* room) const {
  const Submission& s = op.submission;
  size_t at = 0;
  for (const Tensor& t : s.kind == Kind::kBroadcast ? s.outputs : s.inputs) {
    const size_t bytes = t.bytes(), begin = payload_aligned(at);
    if (begin > at) std::memset(room + at, 0, begin - at);  // there is no room at all for nothing
    at = begin + bytes;
    if (bytes == 0) continue;
    std::memcpy(room + begin, t.data, bytes);
    if (reduces(s.kind) && s.prescale != 1) {
      scale(t.dtype, room + begin, static_cast<size_t>(t.elements()), s.prescale);
    }
  }
}

/// Under the lock.
void Engine::Impl::queue_request(const PendingOperation& op, uint32_t id, bool in_full) {
  const Submission& s = op.submission;
  Request request;
  request.ticket = op.ticket;
  request.call = op.call;
  request.checks = op.checks;
  request.epoch = op.epoch;
  request.word = s.word;
  size_t bytes = 0;
  if (s.kind == Kind::kBroadcastObject && s.root == config_.rank) {
    request.object_size = s.object.size();
    if (request.object_size <= kInlineObject) bytes = s.object.size();
  } else if (carries(*op.call)) {
    request.carries = true;
    bytes = op.call->payload;
  }
  queue_message(request_encoder_.encode(request, id, in_full, bytes, [&](uint8_t* room) {
    if (s.kind == Kind::kBroadcastObject) {
      std::memcpy(room, s.object.data(), bytes);
    } else {
      fill(op, room);
    }
  }));
}

void Engine::Impl::queue_message(std::span<const uint8_t> bytes) {
  Work& work = queue_.emplace_back();
  work.type = Work::Type::kMessage;
  if (!spare_bytes_.empty()) {
    work.bytes = std::move(spare_bytes_.back());
    spare_bytes_.pop_back();
  }
  work.bytes.assign(bytes.begin(), bytes.end());
}

}  // namespace hvd::collective
