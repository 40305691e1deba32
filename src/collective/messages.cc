// Encodes matching messages, and checks every field of those that come in.
#include "collective/messages.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "matching_generated.h"
#include "numeric/dtype.h"

namespace hvd::collective {

namespace {

constexpr size_t kMaxText = 4096;

[[noreturn]] void refuse(const std::string& what) { throw Error(HVD_INVALID, what); }
void require(bool condition, const char* what) {
  if (!condition) refuse(what);
}

template <class T>
flatbuffers::Offset<flatbuffers::Vector<T>> vector_or_none(flatbuffers::FlatBufferBuilder& builder,
                                                           const std::vector<T>& values) {
  if (values.empty()) return 0;
  return builder.CreateVector(values);
}

/// Copied byte by byte: the verifier sees to the alignment of a vector's length, not to that of its elements.
template <class T>
std::vector<T> to_vector(const flatbuffers::Vector<T>* values) {
  if (values == nullptr || values->size() == 0) return {};
  std::vector<T> result(values->size());
  std::memcpy(result.data(), values->Data(), result.size() * sizeof(T));
  for (T& value : result) value = flatbuffers::EndianScalar(value);
  return result;
}

std::vector<uint8_t> to_bytes(const flatbuffers::Vector<uint8_t>* values) {
  if (values == nullptr) return {};
  return std::vector<uint8_t>(values->data(), values->data() + values->size());
}

std::vector<Spec> decode_specs(const wire::Call& from) {
  const auto* dtypes = from.dtypes();
  const auto* ndims = from.ndims();
  const std::vector<int64_t> dims = to_vector(from.dims());
  const size_t count = dtypes == nullptr ? 0 : dtypes->size();
  require((ndims == nullptr ? 0 : ndims->size()) == count,
          "request with unequal numbers of dtypes and ranks");
  std::vector<Spec> specs(count);
  size_t at = 0;
  const size_t available = dims.size();
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t ndim = (*ndims)[static_cast<flatbuffers::uoffset_t>(i)];
    require(ndim <= HVD_MAX_DIMS, "request with too many dimensions");
    require(ndim <= available - at, "request with a shape cut short");
    specs[i].dtype = (*dtypes)[static_cast<flatbuffers::uoffset_t>(i)];
    specs[i].shape.resize(ndim);
    for (auto& extent : specs[i].shape) extent = dims[at++];
    const int64_t bytes = spec_bytes(specs[i].dtype, specs[i].shape);
    require(bytes >= 0 && !__builtin_add_overflow(total, bytes, &total) &&
                total <= std::numeric_limits<int64_t>::max() / 2,
            "request with an impossible shape or dtype");
  }
  require(at == available, "request with dimensions left over");
  return specs;
}

bool ascending(const std::vector<int32_t>& ranks, int32_t size) {
  return ranks.empty() ||
         (ranks.front() >= 0 && ranks.back() < size &&
          std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end());
}

void check_memory(const Signature& call) {
  require(call.memory == HVD_MEMORY_HOST || call.memory == HVD_MEMORY_CUDA,
          "request of an unknown kind of memory");
  require(!call.on_device() || !call.specs.empty(), "request of device memory without a tensor");
  const bool rooms = call.on_device() && row_of(call.kind).own_rows;
  require(call.rooms.size() == (rooms ? call.specs.size() : 0),
          "request with rooms for other tensors than it has");
  for (const int64_t rows : call.rooms) require(rows >= 0, "request with a negative room");
}

void check_kind(const Signature& call, size_t members) {
  const Row& row = row_of(call.kind);
  if (row.inspect == nullptr) {
    require(call.specs.empty(), "request with tensors that it has no use for");
  } else if (const char* why = row.inspect(call, members)) {
    refuse(why);
  }
  if (row.reduces) {
    require(call.reduction >= HVD_REDUCTION_SUM && call.reduction <= HVD_REDUCTION_PRODUCT,
            "request of an unknown reduction");
  }
}

SignaturePtr decode_call(const wire::Call& from, int32_t source, int32_t size) {
  auto call = std::make_shared<Signature>();
  require(from.name()->size() >= 1 && from.name()->size() <= kMaxName,
          "request with a name of a forbidden length");
  call->name = from.name()->str();
  if (from.set() != nullptr) {
    require(from.set()->size() <= kMaxName, "request with a set's name that is too long");
    call->set = from.set()->str();
  }
  require(find_row(from.kind()) != nullptr, "request of an unknown kind");
  call->kind = static_cast<Kind>(from.kind());
  call->reduction = from.reduction();
  call->root = from.root();
  require(call->root >= 0 && call->root < size, "request with a root that is not a rank");
  call->prescale = from.prescale();
  call->postscale = from.postscale();
  call->specs = decode_specs(from);
  call->memory = from.memory();
  call->place = from.place();
  call->splits = to_vector(from.splits());
  call->rooms = to_vector(from.rooms());
  call->members = to_vector(from.members());
  require(ascending(call->members, size), "request with members that are not ascending");
  if (!call->members.empty()) {
    require(std::binary_search(call->members.begin(), call->members.end(), source),
            "request from a rank that has no part in it");
    require(!row_of(call->kind).rooted ||
                std::binary_search(call->members.begin(), call->members.end(), call->root),
            "request whose root has no part in it");
  }
  check_kind(*call, call->member_count(static_cast<size_t>(size)));
  check_memory(*call);
  call->priority = from.priority();
  const int64_t most = std::chrono::duration_cast<std::chrono::milliseconds>(kMaxTimeout).count();
  require(from.timeout_ms() >= 0 && from.timeout_ms() <= most, "request with a time-out out of range");
  call->timeout = milliseconds(from.timeout_ms());
  call->seal();
  return call;
}

RequestMessage decode_request(const wire::Request& from, int32_t source, int32_t size) {
  RequestMessage message;
  message.id = from.id();
  Request& request = message.request;
  request.ticket = from.ticket();
  request.call = decode_call(*from.call(), source, size);
  request.checks = from.checks();
  request.epoch = from.epoch();
  request.word = from.word();
  request.object_size = from.object_size();
  request.carries = from.carries();
  request.meets = from.meets();
  request.payload = to_bytes(from.payload());
  check_fields(message);
  return message;
}

OutcomeMessage decode_outcome(const wire::Outcome& from, int32_t size) {
  auto outcome = std::make_shared<Outcome>();
  require(from.status() >= HVD_OK && from.status() <= HVD_INTERNAL, "outcome with an unknown status");
  require(from.rank() >= -1 && from.rank() < size, "outcome that blames a rank that does not exist");
  outcome->status.code = from.status();
  outcome->status.rank = from.rank();
  if (from.message() != nullptr) {
    require(from.message()->size() <= kMaxText, "outcome with too long a text");
    outcome->status.message = from.message()->str();
  }
  outcome->sequence = from.sequence();
  outcome->word = from.word();
  outcome->rows = to_vector(from.rows());
  for (const int64_t rows : outcome->rows) require(rows >= 0, "outcome with a negative number of rows");
  outcome->participants = to_vector(from.participants());
  require(ascending(outcome->participants, size), "outcome with participants that are not ascending");
  outcome->object_size = from.object_size();
  outcome->carries = from.carries();
  outcome->payload = to_bytes(from.payload());
  outcome->checks = from.checks();
  outcome->grant = {from.slot(), from.grant(), from.grant_word()};
  check_fields(*outcome);
  return {from.ticket(), to_vector(from.more()), std::move(outcome), {from.check(), from.check_word()}};
}

}  // namespace

OutcomePtr kept(OutcomePtr outcome) {
  if (!outcome->payload.is_lent()) return outcome;
  const std::span<const uint8_t> bytes = outcome->payload.bytes();
  auto own = std::make_shared<Outcome>(*outcome);
  own->payload = std::vector(bytes.begin(), bytes.end());
  return own;
}

const char* memory_name(hvd_memory memory) {
  switch (memory) {
    case HVD_MEMORY_HOST: return "host memory";
    case HVD_MEMORY_CUDA: return "device memory (CUDA)";
  }
  return "unknown memory";
}

// ---- Writing ------------------------------------------------------------------------------------

struct Encoder::Impl {
  flatbuffers::FlatBufferBuilder builder{1024};
  flatbuffers::Offset<flatbuffers::Vector<uint8_t>> payload;
  std::vector<uint8_t> dtypes, ndims;
  std::vector<int64_t> dims;

  template <class Table>
  std::span<const uint8_t> finish(wire::Body type, flatbuffers::Offset<Table> body) {
    builder.Finish(wire::CreateMessage(builder, type, body.Union()), wire::MessageIdentifier());
    return {builder.GetBufferPointer(), builder.GetSize()};
  }

  flatbuffers::Offset<wire::Call> call(const Signature& from) {
    dtypes.clear();
    ndims.clear();
    dims.clear();
    for (const auto& spec : from.specs) {
      dtypes.push_back(static_cast<uint8_t>(spec.dtype));
      ndims.push_back(static_cast<uint8_t>(spec.shape.size()));
      dims.insert(dims.end(), spec.shape.begin(), spec.shape.end());
    }
    const auto name = builder.CreateString(from.name);
    flatbuffers::Offset<flatbuffers::String> set = 0;
    if (!from.set.empty()) set = builder.CreateString(from.set);
    const auto dtypes_at = vector_or_none(builder, dtypes);
    const auto ndims_at = vector_or_none(builder, ndims);
    const auto dims_at = vector_or_none(builder, dims);
    const auto splits_at = vector_or_none(builder, from.splits);
    const auto members_at = vector_or_none(builder, from.members);
    const auto rooms_at = vector_or_none(builder, from.rooms);
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(from.timeout).count();
    return wire::CreateCall(builder, name, set, static_cast<uint8_t>(from.kind), from.reduction, from.root,
                            from.prescale, from.postscale, dtypes_at, ndims_at, dims_at, splits_at,
                            members_at, from.priority, timeout, static_cast<uint8_t>(from.memory), from.place,
                            rooms_at);
  }
};

Encoder::Encoder() : impl_(std::make_unique<Impl>()) {}
Encoder::~Encoder() = default;

uint8_t* Encoder::begin(size_t payload_size) {
  auto& builder = impl_->builder;
  builder.Clear();
  impl_->payload = 0;
  outcome_ = nullptr;
  head_ = nullptr;
  if (payload_size == 0) return nullptr;
  // Aligned in the message as well as here: the reader may work on it in place.
  builder.ForceVectorAlignment(payload_size, 1, 16);
  uint8_t* room = nullptr;
  impl_->payload = builder.CreateUninitializedVector<uint8_t>(payload_size, &room);
  return room;
}

std::span<const uint8_t> Encoder::end(const Request& request, uint32_t id) {
  const flatbuffers::Offset<wire::Call> call = impl_->call(*request.call);
  return last_ = impl_->finish(wire::Body::Request,
                               wire::CreateRequest(impl_->builder, request.ticket, id, call, request.checks,
                                                   request.epoch, request.word, request.object_size,
                                                   request.carries, request.meets, impl_->payload));
}

std::span<const uint8_t> Encoder::encode(const Request& request, uint32_t id, bool in_full) {
  return encode(request, id, in_full, request.payload.size(),
                [&](uint8_t* room) { std::memcpy(room, request.payload.data(), request.payload.size()); });
}

bool Encoder::readdress(const OutcomeMessage& message) {
  if (outcome_ == nullptr || outcome_ != message.outcome) return false;
  if (proposal_.check != message.proposal.check || proposal_.word != message.proposal.word) return false;
  if (more_ != message.more.size()) return false;
  if (head_ != nullptr) {
    readdress_known(message);
  } else {
    readdress_table(message);
  }
  return true;
}

/// Writes to the tables in place, as generated code of mutable schemas does it.
void Encoder::readdress_table(const OutcomeMessage& message) {
  auto* root = flatbuffers::GetMutableRoot<flatbuffers::Table>(impl_->builder.GetBufferPointer());
  auto* table = root->GetPointer<flatbuffers::Table*>(wire::Message::VT_BODY);
  auto* more = table->GetPointer<flatbuffers::Vector<uint64_t>*>(wire::Outcome::VT_MORE);
  table->SetField<uint64_t>(wire::Outcome::VT_TICKET, message.ticket, 0);
  for (size_t i = 0; i < message.more.size(); ++i) {
    more->Mutate(static_cast<flatbuffers::uoffset_t>(i), message.more[i]);
  }
}

std::span<const uint8_t> Encoder::encode(const OutcomeMessage& message) {
  if (readdress(message)) return bytes();
  const Outcome& outcome = *message.outcome;
  if (is_known(outcome)) {
    encode_known(message);
  } else {
    encode_table(message);
  }
  outcome_ = message.outcome;
  proposal_ = message.proposal;
  more_ = message.more.size();
  return bytes();
}

void Encoder::encode_table(const OutcomeMessage& message) {
  const Outcome& outcome = *message.outcome;
  if (uint8_t* room = begin(outcome.payload.size())) {
    std::memcpy(room, outcome.payload.data(), outcome.payload.size());
  }
  auto& builder = impl_->builder;
  flatbuffers::Offset<flatbuffers::String> text = 0;
  if (!outcome.status.message.empty())
    text = builder.CreateString(outcome.status.message.substr(0, kMaxText));
  const auto more_at = vector_or_none(builder, message.more);
  const auto rows_at = vector_or_none(builder, outcome.rows);
  const auto participants_at = vector_or_none(builder, outcome.participants);
  last_ = impl_->finish(
      wire::Body::Outcome,
      wire::CreateOutcome(builder, message.ticket, more_at, outcome.status.code, outcome.status.rank, text,
                          outcome.sequence, outcome.word, rows_at, participants_at, outcome.object_size,
                          outcome.carries, impl_->payload, message.proposal.check, message.proposal.word,
                          outcome.checks, outcome.grant.slot, outcome.grant.number, outcome.grant.word));
}

std::span<const uint8_t> Encoder::encode(const StallMessage& message) {
  begin(0);
  const auto missing = vector_or_none(impl_->builder, message.missing);
  return last_ = impl_->finish(wire::Body::Stall, wire::CreateStall(impl_->builder, message.ticket, missing));
}

std::span<const uint8_t> Encoder::encode(const ResendMessage& message) {
  begin(0);
  return last_ = impl_->finish(wire::Body::Resend, wire::CreateResend(impl_->builder, message.ticket));
}

std::span<const uint8_t> Encoder::encode(const FinishMessage&) {
  begin(0);
  return last_ = impl_->finish(wire::Body::Finished, wire::CreateFinished(impl_->builder));
}

// ---- Reading ------------------------------------------------------------------------------------

void validate(const Request& request, int32_t source, int32_t size) {
  const Signature& call = *request.call;
  const Row& row = row_of(call.kind);
  if (row.object) {
    require(!request.carries, "request with an object that is no object");
    if (source != call.root) return require(request.payload.empty(), "request with another's object");
    require(request.object_size <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
            "object too large");
    require(request.payload.size() == (request.object_size <= kInlineObject ? request.object_size : 0),
            "request with an object of another size than it says");
    return;
  }
  require(request.carries || request.payload.empty(), "request with data that it does not carry");
  if (!request.carries) return;
  require(!call.on_device(), "request that carries device memory");
  const bool may =
      row.travels == Travel::kEverybodys || (row.travels == Travel::kRoots && call.root == source);
  require(may && request.payload.size() == call.payload, "request with data of another size than it says");
  require(call.payload * call.member_count(static_cast<size_t>(size)) <= kMaxPayload,
          "request with more data than messages carry");
}

Message decode(std::span<const uint8_t> data, int32_t source, int32_t size) {
  require(source >= 0 && source < size, "message from a rank that does not exist");
  require(data.size() >= 16, "bytes that are no message");
  require(data.size() <= kMaxMessage, "message that is too long");
  if (is_known(data)) return decode_known(data);
  // FlatBuffers reads in place, at the alignment of its fields.
  std::vector<uint64_t> aligned;
  if (reinterpret_cast<uintptr_t>(data.data()) % alignof(uint64_t) != 0) {
    aligned.resize((data.size() + 7) / 8);
    std::memcpy(aligned.data(), data.data(), data.size());
    data = {reinterpret_cast<const uint8_t*>(aligned.data()), data.size()};
  }
  flatbuffers::Verifier verifier(data.data(), data.size());
  require(wire::VerifyMessageBuffer(verifier), "bytes that are no message");
  const wire::Message* message = wire::GetMessage(data.data());
  if (const auto* request = message->body_as_Request()) return decode_request(*request, source, size);
  if (message->body_as_Finished() != nullptr) return FinishMessage{};
  if (const auto* outcome = message->body_as_Outcome()) return decode_outcome(*outcome, size);
  if (const auto* resend = message->body_as_Resend()) return ResendMessage{resend->ticket()};
  if (const auto* stall = message->body_as_Stall()) {
    StallMessage result{stall->ticket(), to_vector(stall->missing())};
    require(result.missing.size() <= static_cast<size_t>(size), "stall notice with too many ranks");
    for (const int32_t rank : result.missing) {
      require(rank >= 0 && rank < size, "stall notice about a rank that does not exist");
    }
    return result;
  }
  refuse("message of an unknown type");
}

}  // namespace hvd::collective
