#include "collective/messages.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "matching_generated.h"

namespace hvd::collective {

namespace {

constexpr size_t kMaxText = 4096;

[[noreturn]] void refuse(const std::string& what) { throw Error(HVD_INVALID, what); }
void require(bool condition, const char* what) {
  if (!condition) refuse(what);
}

template <class Table>
std::vector<uint8_t> finish_message(flatbuffers::FlatBufferBuilder& builder, wire::Body type,
                                    flatbuffers::Offset<Table> body) {
  builder.Finish(wire::CreateMessage(builder, type, body.Union()), wire::MessageIdentifier());
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

template <class T>
flatbuffers::Offset<flatbuffers::Vector<T>> vector_or_none(flatbuffers::FlatBufferBuilder& builder,
                                                           const std::vector<T>& values) {
  if (values.empty()) return 0;
  return builder.CreateVector(values);
}

template <class T>
std::vector<T> to_vector(const flatbuffers::Vector<T>* values) {
  if (values == nullptr) return {};
  return std::vector<T>(values->begin(), values->end());
}

std::vector<Spec> decode_specs(const wire::Request& from) {
  const auto* dtypes = from.dtypes();
  const auto* ndims = from.ndims();
  const auto* dims = from.dims();
  const size_t count = dtypes == nullptr ? 0 : dtypes->size();
  require((ndims == nullptr ? 0 : ndims->size()) == count,
          "request with unequal numbers of dtypes and ranks");
  std::vector<Spec> specs(count);
  size_t at = 0;
  const size_t available = dims == nullptr ? 0 : dims->size();
  for (size_t i = 0; i < count; ++i) {
    const size_t ndim = (*ndims)[static_cast<flatbuffers::uoffset_t>(i)];
    require(ndim <= HVD_MAX_DIMS, "request with too many dimensions");
    require(ndim <= available - at, "request with a shape cut short");
    specs[i].dtype = (*dtypes)[static_cast<flatbuffers::uoffset_t>(i)];
    specs[i].shape.resize(ndim);
    for (auto& extent : specs[i].shape) extent = (*dims)[static_cast<flatbuffers::uoffset_t>(at++)];
    require(spec_bytes(specs[i].dtype, specs[i].shape) >= 0, "request with an impossible shape or dtype");
  }
  require(at == available, "request with dimensions left over");
  return specs;
}

Request decode_request(const wire::Request& from, int32_t source, int32_t size) {
  Request request;
  request.ticket = from.ticket();
  require(from.name()->size() >= 1 && from.name()->size() <= kMaxName,
          "request with a name of a forbidden length");
  request.name = from.name()->str();
  require(from.kind() <= static_cast<uint8_t>(Kind::kAgree), "request of an unknown kind");
  request.kind = static_cast<Kind>(from.kind());
  request.reduction = from.reduction();
  request.root = from.root();
  require(request.root >= 0 && request.root < size, "request with a root that is not a rank");
  request.specs = decode_specs(from);
  const bool one_tensor = request.kind == Kind::kAllreduce || request.kind == Kind::kAllgather;
  if (one_tensor) require(request.specs.size() == 1, "request without its tensor");
  if (request.kind == Kind::kAllgather) require(!request.specs[0].shape.empty(), "allgather of a scalar");
  if (request.kind == Kind::kAllreduce) {
    require(request.reduction >= HVD_SUM && request.reduction <= HVD_PRODUCT,
            "request of an unknown reduction");
  }
  request.word = from.word();
  request.object_size = from.object_size();
  request.object = to_vector(from.object());
  if (request.kind == Kind::kBroadcastObject && source == request.root) {
    require(request.object_size <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
            "object too large");
    require(request.object.size() == (request.object_size <= kInlineObject ? request.object_size : 0),
            "request with an object of another size than it says");
  } else {
    require(request.object.empty(), "request with an object that is not its sender's to give");
  }
  request.members = to_vector(from.members());
  if (!request.members.empty()) {
    const auto& members = request.members;
    require(members.front() >= 0 && members.back() < size &&
                std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end(),
            "request with members that are not ascending");
    require(std::binary_search(members.begin(), members.end(), source),
            "request from a rank that has no part in it");
    const bool rooted = request.kind == Kind::kBroadcast || request.kind == Kind::kBroadcastObject;
    require(!rooted || std::binary_search(members.begin(), members.end(), request.root),
            "request whose root has no part in it");
  }
  const int64_t most = std::chrono::duration_cast<std::chrono::milliseconds>(kMaxTimeout).count();
  require(from.timeout_ms() >= 0 && from.timeout_ms() <= most, "request with a time-out out of range");
  request.timeout = milliseconds(from.timeout_ms());
  return request;
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
  require(outcome->rows.empty() || outcome->rows.size() == static_cast<size_t>(size),
          "outcome with rows for another number of ranks");
  for (const int64_t rows : outcome->rows) require(rows >= 0, "outcome with a negative number of rows");
  outcome->object_size = from.object_size();
  outcome->object = to_vector(from.object());
  require(outcome->object.size() <= kInlineObject, "outcome with too large an object");
  return {from.ticket(), std::move(outcome)};
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllreduce: return "allreduce";
    case Kind::kAllgather: return "allgather";
    case Kind::kBarrier: return "barrier";
    case Kind::kReducescatter: return "reducescatter";
    case Kind::kAlltoall: return "alltoall";
    case Kind::kJoin: return "join";
    case Kind::kBroadcastObject: return "broadcast_object";
    case Kind::kAgree: return "agreement";
  }
  return "unknown operation";
}

int64_t spec_bytes(hvd_dtype dtype, std::span<const int64_t> shape) {
  const size_t element = dtype_size(dtype);
  if (element == 0) return -1;
  bool empty = false;
  int64_t bytes = static_cast<int64_t>(element);
  for (const int64_t extent : shape) {
    if (extent < 0) return -1;
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return -1;
    }
  }
  return empty ? 0 : bytes;
}

size_t encoded_spec_bytes(const std::vector<Spec>& specs) {
  size_t bytes = 0;
  for (const auto& spec : specs) bytes += 2 + 8 * spec.shape.size();
  return bytes;
}

std::vector<uint8_t> encode(const Request& request) {
  flatbuffers::FlatBufferBuilder builder(256 + request.object.size());
  std::vector<uint8_t> dtypes, ndims;
  std::vector<int64_t> dims;
  dtypes.reserve(request.specs.size());
  ndims.reserve(request.specs.size());
  for (const auto& spec : request.specs) {
    dtypes.push_back(static_cast<uint8_t>(spec.dtype));
    ndims.push_back(static_cast<uint8_t>(spec.shape.size()));
    dims.insert(dims.end(), spec.shape.begin(), spec.shape.end());
  }
  const auto name = builder.CreateString(request.name);
  const auto dtypes_at = vector_or_none(builder, dtypes);
  const auto ndims_at = vector_or_none(builder, ndims);
  const auto dims_at = vector_or_none(builder, dims);
  const auto object_at = vector_or_none(builder, request.object);
  const auto members_at = vector_or_none(builder, request.members);
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(request.timeout).count();
  return finish_message(
      builder, wire::Body::Request,
      wire::CreateRequest(builder, request.ticket, name, static_cast<uint8_t>(request.kind),
                          request.reduction, request.root, dtypes_at, ndims_at, dims_at, request.word,
                          request.object_size, object_at, members_at, timeout));
}

std::vector<uint8_t> encode(const OutcomeMessage& message) {
  const Outcome& outcome = *message.outcome;
  flatbuffers::FlatBufferBuilder builder(256 + outcome.object.size());
  flatbuffers::Offset<flatbuffers::String> text = 0;
  if (!outcome.status.message.empty())
    text = builder.CreateString(outcome.status.message.substr(0, kMaxText));
  const auto rows_at = vector_or_none(builder, outcome.rows);
  const auto object_at = vector_or_none(builder, outcome.object);
  return finish_message(
      builder, wire::Body::Outcome,
      wire::CreateOutcome(builder, message.ticket, outcome.status.code, outcome.status.rank, text,
                          outcome.sequence, outcome.word, rows_at, outcome.object_size, object_at));
}

std::vector<uint8_t> encode(const StallMessage& message) {
  flatbuffers::FlatBufferBuilder builder(128);
  const auto missing = vector_or_none(builder, message.missing);
  return finish_message(builder, wire::Body::Stall, wire::CreateStall(builder, message.ticket, missing));
}

std::vector<uint8_t> encode(const FinishMessage&) {
  flatbuffers::FlatBufferBuilder builder(64);
  return finish_message(builder, wire::Body::Finished, wire::CreateFinished(builder));
}

Message decode(std::span<const uint8_t> data, int32_t source, int32_t size) {
  require(source >= 0 && source < size, "message from a rank that does not exist");
  require(data.size() >= 16, "bytes that are no message");
  require(data.size() <= kMaxMessage, "message that is too long");
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
